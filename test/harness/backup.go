package harness

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// Backup takes a copy of a deployment's database, and answers what restores it: the deployment then goes on with the copy,
// which is another database, and has lost everything since. Nothing else may be under way.
func (b *Box) Backup(deployment string) (restore func()) {
	b.t.Helper()
	id := b.ID(deployment)
	server := Postgres(b.t)
	present := b.Pools[id].Config().ConnConfig.Database
	b.Pools[id].Close()
	backup := server.NewDatabase(b.t, present)
	b.reopen(id, server.DSN(present))
	return func() {
		b.t.Helper()
		b.Pools[id].Close()
		b.reopen(id, backup)
	}
}

// reopen lets a deployment go on with a database that it has, or has had.
func (b *Box) reopen(id schema.DeploymentID, dsn string) {
	b.t.Helper()
	pool, err := shadow.Connect(context.Background(), dsn, "test", 12)
	require.NoError(b.t, err)
	b.t.Cleanup(pool.Close)
	cfg := b.configs[id]
	cfg.Pool = pool
	model := b.Stores[id].Model()
	store, err := shadow.Open(context.Background(), cfg)
	require.NoError(b.t, err)
	require.NoError(b.t, store.Switch(context.Background(), model))
	b.Pools[id], b.Stores[id], b.configs[id] = pool, store, cfg
}

// Environment is what a registry would say of the box.
func (b *Box) Environment() *schema.Environment {
	env := &schema.Environment{Services: b.services}
	for id, store := range b.Stores {
		env.Deployments = append(env.Deployments, schema.Deployment{DeploymentID: id, Version: store.Model().Descriptor.Version, Address: "box"})
	}
	return env
}

// Recover lets a deployment notice that its database was restored. What there is to do about it becomes work.
func (b *Box) Recover(deployment string) {
	b.t.Helper()
	store := b.Stores[b.ID(deployment)]
	awaiting, err := store.NoticeEpoch(context.Background())
	require.NoError(b.t, err)
	require.True(b.t, awaiting, "a new epoch")
	require.NoError(b.t, store.Recover(context.Background(), b.Environment()))
}
