//go:build race

package bodyschema

// raceFactor is the time that the race detector takes: it watches each access to memory.
const raceFactor = 6
