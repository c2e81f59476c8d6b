// Package shadow is the constraint store: resource shadows in one deployment's PostgreSQL, their references,
// and the blockades that holders in other deployments have on them. The store and its rooms are the only
// packages with SQL for shadows.
//
// This package is the door: Open joins the rooms, and a Store has them as fields (store.Write.Save). A room
// imports only rooms above it in this list.
//
//	schema/peer        the values that deployments exchange, without a database
//	internal/plan      decisions on a deletion, without a database: walk.go the graph over all deployments,
//	                   decide.go the decisions inside one database, and on the blockers that the walk found
//	internal/standby   reads of people that a standby answers, old by a bound; nothing that is kept or
//	                   decided is read there
//	internal/db        the pool and its transactions, names and their numbers, feeds; SQL's codes and
//	                   named arguments;
//	                   tuning.go the settings that may change while the process works
//	internal/gate      the conditions that a transaction checks before it writes: epoch, identity of
//	                   the database, version;
//	                   lease.go divides the shards of a deployment among its processes; look.go is the
//	                   look of each second
//	internal/rows      rows of attached tables: statements on them, their shadows, their locks
//	internal/read      resources, lists (filter.go), watches (feed.go)
//	internal/target    the side of the target: establish.go, blockade.go (confirm, release), frozen.go
//	                   (members of atomic deletions), quotas, acknowledgements
//	internal/prepare   a write as a value (saving.go), validated and compared with the stored resources;
//	                   request.go the recorded outcomes of requests with an id
//	internal/attempt   establishes the references of a write elsewhere, aborts attempts, answers
//	                   questions about them (blockade.go)
//	internal/write     create and update: save.go, then one transaction: write.go, lock.go locks and
//	                   checks, store.go writes;
//	                   rights.go references to other deployments under rights; columns.go, status.go,
//	                   finalizer.go, protect.go what is beside bodies
//	internal/cascade   a deletion in one database: closure.go reads and locks its members, carry.go
//	                   carries out the
//	                   decision on them; owner_change.go for lost owners; progress.go counts what each
//	                   deletion has done here
//	internal/rights    rights to block resources of other deployments without asking: rights.go
//	                   acquires, recall.go answers, look.go returns;
//	                   requests.go the rights that applications ask for before they write rows,
//	                   lacking_rows.go the rights that rows lack
//	internal/follow    acts on the holders here for deletions in other deployments, in batches (act.go)
//	internal/deletedrows carries out the deletion of rows of attached tables that are resources
//	internal/operate   decisions of operators: pauses, retries, recalls of rights, forced releases
//	                   (release.go); their questions: explanations,
//	                   removals, referrers, audits, stuck deletions
//	internal/owner     owners of resources: questions (owner_check.go), deletions (owner_drop.go),
//	                   version switches (owner_upgrade.go);
//	                   lists.go compares the lists of owners, which are stored with bodies, with owner
//	                   references
//	internal/deletion  a user's delete: delete.go tries it in one transaction, gathered.go several in
//	                   one, lookahead.go finds the refusing blockers, plan.go answers one, trace.go upwards;
//	                   atomic.go coordinates an atomic deletion, freeze.go takes part in one;
//	                   closing.go keeps new references away from targets meanwhile
//	internal/verify    compares references, blockades and owners with other deployments, and inside one
//	                   database bodies (bodies.go),
//	                   lists of owners, rows of attached tables (rows.go); repairs the differences
//	internal/admin     version switches (derive.go: references anew), decommissioned deployments, kept
//	                   environments, tidying, and the loops that run them
//
// Locks. A write transaction runs at READ COMMITTED: it takes a lock in one statement and reads the protected
// rows in the next one, whose snapshot contains everything that was committed before the lock was granted. A
// holder's transaction locks its targets FOR SHARE; a transaction that removes or marks a resource locks it
// FOR UPDATE; one that removes a blockade locks the target FOR NO KEY UPDATE. Targets are locked before their
// holders, and rows of one statement by id. PostgreSQL breaks the deadlocks that remain (cycles of
// references), and the transaction runs again. No transaction is open during an RPC. Plans read at REPEATABLE
// READ: they show one moment and decide nothing.
package shadow
