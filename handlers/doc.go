// Package handlers has the handlers of the work of a node: one file an action, in three groups, and one table
// (Table) that assigns every action of outstanding work to its task and its handler.
//
//	pending_*.go             owned pending: deliver messages, resolve blockades, check owners, derive, recover
//	deleting_*.go            owned deleting: finalise resources in DELETING, have deleted owners
//	                         dropped elsewhere
//	subscribed_deleting.go   subscribed deleting: act upon deletions in other deployments, acknowledge them
//
// A handler gets keys in batches and reads their present rows. It changes the database in set-based
// transactions, each conditional on the state that it finds, so that a batch can be handled any number of
// times. It keeps no state. Each handler declares the few methods of the store and of the peers that it
// calls.
package handlers
