// Package constraint has the DbConstraint node: it watches the outstanding work of its share of the
// deployment's resources, and the deletions of its share of the interested deployments, keeps both in caches,
// and runs the handlers.
//
//	watch streams ──► one event channel ──► the loop: caches, tasks ──► workers, one a task ──► done channel ──► the loop
//
// All state belongs to the goroutine of the loop (loop.run). A watch sends into the event channel and blocks
// while the loop is busy; no event is dropped. A task is all work of one kind for one deployment: it has one
// worker at a time and a back-off of its own, so that a slow deployment delays no other (I20). No handler
// runs before the end of snapshot of the node's own watch, and none for the deletions of a deployment before
// the end of snapshot of that deployment's watch.
package constraint
