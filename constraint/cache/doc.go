// Package cache keeps the objects that a watch delivers: objects of one kind by id, with declared indexes. One goroutine, that of
// the watch, writes; any number read.
//
// Readers take a View: a version that does not change while they look at it, whatever is written meanwhile, and in which
// all indexes agree. (Copy-on-write trees: a view costs nothing until something is written.)
//
// Of two versions of an object the newer one counts, in whatever order they come. A watch that is opened again sends
// all objects once more between Begin and End; objects that it does not send are gone, and End returns them as deleted, so that no
// reader has to infer a deletion from an absence.
package cache
