// Package nodemanager follows the environment and keeps the nodes of this process running.
//
// The outer manager (Manager.Run) receives environments; the newest counts. When the version of the
// deployment changes, it stops the inner manager, waits for it, switches the store, and starts a new one;
// after any other change, it sends the inner manager the subscriptions to the interested deployments. The
// inner manager leases shards of the ring, runs the nodes, and divides shards and subscriptions among them.
// The two share no state but the channel between them.
package nodemanager
