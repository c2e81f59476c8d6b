package harness

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/wait"
)

// Backup copies a deployment's database, and returns a function that restores it: the deployment then
// continues with the copy, and has lost all later commits. Nothing else may be under way.
func (b *Box) Backup(deployment string) (restore func()) {
	b.t.Helper()
	id := b.ID(deployment)
	server := Postgres(b.t)
	present := b.Pools[id].Config().ConnConfig.Database
	b.close(id)
	backup := server.NewDatabase(b.t, present)
	b.reopen(id, server.DSN(present))
	return func() {
		b.t.Helper()
		b.close(id)
		b.reopen(id, backup)
	}
}

// Replace starts a deployment over an empty database, and returns a function that gives it its former
// database again.
func (b *Box) Replace(deployment string) (back func()) {
	b.t.Helper()
	id := b.ID(deployment)
	server := Postgres(b.t)
	had := b.Pools[id].Config().ConnConfig.Database
	b.close(id)
	b.reopen(id, server.NewDatabase(b.t, deploymentTemplate(b.t, server)))
	return func() {
		b.t.Helper()
		b.close(id)
		b.reopen(id, server.DSN(had))
	}
}

// reopen opens a deployment's store over a database of its own.
func (b *Box) reopen(id schema.DeploymentID, dsn string) {
	b.t.Helper()
	cfg := b.configs[id]
	b.Pools[id], cfg.Pool = b.connect(dsn)
	model := b.Stores[id].Model()
	store, err := shadow.Open(context.Background(), cfg)
	require.NoError(b.t, err)
	require.NoError(b.t, store.Admin.Switch(context.Background(), model))
	b.Stores[id], b.configs[id] = store, cfg
	// as a process does with its first environment
	if epoch, err := store.Operate.Epoch(context.Background()); err != nil || !epoch.Awaiting {
		require.NoError(b.t, err)
		require.NoError(b.t, store.Gate.Recover(context.Background(), b.Environment()))
	}
}

func (b *Box) close(id schema.DeploymentID) {
	b.seats[id].spoiled = true
	b.Pools[id].Close()
	b.configs[id].Pool.Close()
}

// Environment returns the environment that a registry of the box would store.
func (b *Box) Environment() *schema.Environment {
	env := &schema.Environment{Services: b.services}
	for id, store := range b.Stores {
		env.Deployments = append(env.Deployments, schema.Deployment{
			DeploymentID: id,
			Version:      store.Model().Descriptor.Version, Address: "box", Database: b.databases[id],
		})
	}
	return env
}

// Recover makes a deployment notice that its database was restored, and creates the resulting work.
func (b *Box) Recover(deployment string) {
	b.t.Helper()
	store := b.Stores[b.ID(deployment)]
	awaiting, err := store.Gate.NoticeEpoch(context.Background())
	require.NoError(b.t, err)
	require.True(b.t, awaiting, "a new epoch")
	require.NoError(b.t, store.Gate.Recover(context.Background(), b.Environment()))
}

// Renew begins a new epoch of a deployment's database that has lost nothing.
func (b *Box) Renew(deployment string) {
	b.t.Helper()
	_, err := b.Pools[b.ID(deployment)].Exec(context.Background(), `UPDATE dbcontroller.meta SET server = 'another'`)
	require.NoError(b.t, err)
	b.Recover(deployment)
}

// Copy copies a deployment's database, and returns a function that replaces the database by the copy under
// the running process: like a standby that takes over behind one address.
func (b *Box) Copy(deployment string) (takeOver func()) {
	b.t.Helper()
	ctx := context.Background()
	b.seats[b.ID(deployment)].spoiled = true
	pool, server := b.Pools[b.ID(deployment)], Postgres(b.t)
	serving := b.configs[b.ID(deployment)].Pool
	present := pool.Config().ConnConfig.Database
	admin, err := pgx.Connect(ctx, server.DSN("postgres"))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = admin.Close(ctx) })
	alone := func() {
		b.t.Helper()
		pool.Reset()
		serving.Reset()
		require.Eventually(b.t, func() bool {
			_, err := admin.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`,
				present)
			var n int
			err = errors.Join(err, admin.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = $1`,
				present).Scan(&n))
			return err == nil && n == 0
		}, wait.Limit, 5*time.Millisecond)
	}
	alone()
	copied, err := pgx.ParseConfig(server.NewDatabase(b.t, present))
	require.NoError(b.t, err)
	return func() {
		b.t.Helper()
		alone()
		for _, rename := range [][2]string{
			{present, present + "_lost"},
			{copied.Database, present},
			{present + "_lost", copied.Database},
		} {
			_, err := admin.Exec(ctx, "ALTER DATABASE "+pgx.Identifier{rename[0]}.Sanitize()+" RENAME TO "+
				pgx.Identifier{rename[1]}.Sanitize())
			require.NoError(b.t, err)
		}
		pool.Reset()
		serving.Reset()
	}
}
