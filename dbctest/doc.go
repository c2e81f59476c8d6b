// Package dbctest runs a registry and deployments inside a Go test, over databases of their own on a
// PostgreSQL server: with real certificates, real connections and real transactions.
//
//	in := dbctest.New(t, dbctest.Config{Services: services})
//	_, err := in.Client.Put(ctx, resource)
//
// Its faults are faults of machines and lines: a deployment that cannot be reached (Cut), a process that ends
// without a last word (Crash), time limits that pass at once (Expire). Advance moves its clock. Settle waits
// until nothing is left to do. A Fake has resources in memory, for unit tests that need no references and no
// database.
package dbctest
