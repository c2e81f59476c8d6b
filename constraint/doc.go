// Package constraint has the DbConstraint node: it follows the outstanding work of its share of the deployment's
// shadows and the deletions of its share of the interested deployments, keeps both in caches, and runs the handlers.
//
//	watch streams ──► one event channel ──► the loop: caches, tasks ──► workers, one a task ──► done channel ──► the loop
//
// All state lives in the loop's goroutine (Node.Run). A watch sends into the event channel and waits while the loop is
// busy; nothing is dropped. A task is everything of one kind for one deployment: it has one worker at a time and its
// own backoff, so that a slow deployment delays no other (I20). Nothing runs before the node's own watch has reached
// its end of snapshot, and nothing for a deployment's deletions before that deployment's watch has.
package constraint
