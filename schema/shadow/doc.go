// Package shadow is the constraint store: resource shadows in one deployment's PostgreSQL, their references, and the
// blockades that holders in other deployments have on them. It is the only package with SQL for shadows.
//
// Where to start reading:
//
//	save.go       create and update: prepare.go compares, references are established elsewhere, then write.go writes all
//	              in one transaction
//	establish.go  the other side of it
//	blockade.go   confirm, release, and the answer to "is it still held?"
//	request.go    a write that may be repeated because its answer was lost
//	delete.go     a user's delete; closure.go what goes with it; decide.go what may go and what has to wait; carry.go
//	              does what was decided; lookahead.go walks over other deployments (across.go,
//	              tree.go), judge.go follows blockers upwards, plan.go answers other deployments, blocked.go makes the refusal
//	act.go        deletions seen in other deployments: cascade and unset
//	finalise.go   the end of a resource that had to wait, and acknowledgements
//	owner.go      owners of resources; owner_check.go, owner_drop.go, owner_upgrade.go what deployments say of them
//	switch.go     another version of the service; derive.go what it changes in references
//	list.go       lists; filter.go their conditions, and those of watches
//	feed.go       watches; position.go says what a position is
//	codes.go      {names} of codes in statements, and the statements that many others end with; named.go @names of arguments
//
// Locks. What writes runs at READ COMMITTED: a lock is taken in one statement, and what it protects is read in the
// next, whose snapshot then sees everything that was committed before the lock was had. Who refers to a target holds
// its shadow FOR SHARE; who removes or marks a resource holds FOR UPDATE; who removes a blockade holds FOR NO KEY
// UPDATE. Targets are locked before their holders, and rows of one statement by id; what deadlocks all the same (a
// cycle of references) PostgreSQL breaks, and the transaction is run again. No transaction is open during an RPC.
// Snapshots of watches, and plans, read at REPEATABLE READ: they are of one moment, and decide nothing.
package shadow
