//go:build !crashpoints

package crash

// At does nothing.
func At(string) {}

// FewAlone is the number of requests under way up to which each runs by itself.
const FewAlone = 4
