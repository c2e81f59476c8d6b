package schema

import (
	"slices"
	"testing"
)

// The text of a key is the key of one row: the columns of a text give the same text, and the text of columns
// gives the same columns.
func FuzzKeys(f *testing.F) {
	for _, seed := range [][2]string{{"a", "b"}, {"", ""}, {"a,b", `c\`}, {`\,`, `,\`}, {`a\`, "é\x00"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, key := range [][]string{{a}, {a, b}, {a, b, a}} {
			if read, ok := splitKey(keyText(key), len(key)); !ok || !slices.Equal(read, key) {
				t.Fatalf("%q is written %q, and read as %q", key, keyText(key), read)
			}
		}
		for n := 1; n < 4; n++ {
			if read, ok := splitKey(a, n); ok && keyText(read) != a {
				t.Fatalf("%q is read as %q, which is written %q", a, read, keyText(read))
			}
		}
	})
}
