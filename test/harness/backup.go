package harness

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
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
	b.close(id)
	backup := server.NewDatabase(b.t, present)
	b.reopen(id, server.DSN(present))
	return func() {
		b.t.Helper()
		b.close(id)
		b.reopen(id, backup)
	}
}

// Replace starts a deployment over an empty database, and answers what lets it go on with the one that it had.
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

// reopen lets a deployment go on with a database that it has, or has had.
func (b *Box) reopen(id schema.DeploymentID, dsn string) {
	b.t.Helper()
	cfg := b.configs[id]
	b.Pools[id], cfg.Pool = b.connect(dsn)
	model := b.Stores[id].Model()
	store, err := shadow.Open(context.Background(), cfg)
	require.NoError(b.t, err)
	require.NoError(b.t, store.Switch(context.Background(), model))
	b.Stores[id], b.configs[id] = store, cfg
}

func (b *Box) close(id schema.DeploymentID) {
	b.Pools[id].Close()
	b.configs[id].Pool.Close()
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

// Renew lets a deployment's database begin a new epoch, without having lost anything.
func (b *Box) Renew(deployment string) {
	b.t.Helper()
	_, err := b.Pools[b.ID(deployment)].Exec(context.Background(), `UPDATE dbcontroller.meta SET server = 'another'`)
	require.NoError(b.t, err)
	b.Recover(deployment)
}

// Copy takes a copy of a deployment's database, and answers what puts it in the place of the present one, under the process
// that runs: as a standby that takes over behind one address.
func (b *Box) Copy(deployment string) (takeOver func()) {
	b.t.Helper()
	ctx := context.Background()
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
			_, err := admin.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, present)
			var n int
			err = errors.Join(err, admin.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = $1`, present).Scan(&n))
			return err == nil && n == 0
		}, 10*time.Second, 5*time.Millisecond)
	}
	alone()
	copied, err := pgx.ParseConfig(server.NewDatabase(b.t, present))
	require.NoError(b.t, err)
	return func() {
		b.t.Helper()
		alone()
		for _, rename := range [][2]string{{present, present + "_lost"}, {copied.Database, present}, {present + "_lost", copied.Database}} {
			_, err := admin.Exec(ctx, "ALTER DATABASE "+pgx.Identifier{rename[0]}.Sanitize()+" RENAME TO "+pgx.Identifier{rename[1]}.Sanitize())
			require.NoError(b.t, err)
		}
		pool.Reset()
		serving.Reset()
	}
}
