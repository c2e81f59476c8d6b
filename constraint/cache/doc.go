// Package cache keeps what a watch delivers: objects of one kind by id, with indexes that are declared beside it. One
// goroutine, that of the watch, writes; any number read.
//
// Readers take a View: a version that does not change while they look at it, whatever is written meanwhile, and in which
// all indexes agree. (Copy-on-write trees: a view costs nothing until something is written.)
//
// Of two versions of an object the newer one counts, in whatever order they come. A watch that is opened again sends
// everything once more between Begin and End; what it does not send is gone, and is answered by End as deleted, so that
// nobody learns of a deletion by its absence.
package cache
