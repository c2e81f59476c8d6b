//go:build !race

package bodyschema

const raceFactor = 1
