// Package cache keeps the objects that a watch delivers: objects of one kind by id, with declared indexes.
// The goroutine of the watch writes; any number of goroutines read.
//
// Readers take a View: a version that concurrent writes do not change, and in which all indexes agree.
// (Copy-on-write trees: a view costs nothing until the next write.)
//
// The newer of two versions of an object counts, in either order. A watch that is opened again sends all
// objects once more between Begin and End; objects that it does not send are gone, and End returns them as
// deleted, so that no reader has to infer a deletion from an absence.
package cache
