// Package nodemanager follows the environment of deployments and keeps the right nodes running.
//
// The outer manager (Manager.Run) takes environments, newest wins. When the deployment's own version changes, it stops
// the inner manager, waits for it, switches the store, and starts a new one; when anything else changes, it tells the
// inner manager which deployments it is interested in now. The inner manager runs the nodes and shares the ring of
// shards and the subscriptions out among them. No state is shared between the two but the channel between them.
package nodemanager
