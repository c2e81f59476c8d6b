package shadow_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// within writes resources in a transaction of an application that does nothing else.
func within(ctx context.Context, store *shadow.Store, pool *pgxpool.Pool, writes ...peer.Write) error {
	_, err := store.Write.SaveIn(ctx, &shadow.UserTransaction{Pool: pool, Also: func(pgx.Tx) error {
		return nil
	}}, writes)
	return err
}

// opened writes resources in a transaction that stays open until end, which commits it, or rolls it back with
// an error.
func opened(t *testing.T, store *shadow.Store, pool *pgxpool.Pool, writes ...peer.Write) (end func(error) error) {
	t.Helper()
	begun, ending, done := make(chan struct{}, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := store.Write.SaveIn(context.Background(), &shadow.UserTransaction{
			Pool: pool,
			Also: func(pgx.Tx) error {
				begun <- struct{}{}
				return <-ending
			},
		}, writes)
		done <- err
	}()
	select {
	case <-begun:
	case err := <-done:
		require.NoError(t, err)
	}
	return func(with error) error {
		ending <- with
		return <-done
	}
}

// pooled returns a pool of a database whose sessions have settings of their own.
func pooled(t *testing.T, dsn string, settings map[string]string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	for name, value := range settings {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// The properties of the application's transaction that a write relies on are checked before rows are read,
// and the error has the remedy.
func TestAnUnsuitableTransactionIsRefused(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, own := b.Stores[b.ID(bEast)], b.Pools[b.ID(bEast)].Config().ConnString()
	for what, c := range map[string]struct {
		pool *pgxpool.Pool
		says string
	}{
		"other encoding": {
			pooled(t, own, map[string]string{"client_encoding": "LATIN1"}),
			"SET LOCAL client_encoding = 'UTF8'",
		},
		"other deployment": {
			b.Pools[b.ID(aWest)],
			"it is in the database of a.example.com/us-west2: begin it in the database of b.example.com/eastus2",
		},
		"other database": {
			pooled(t, harness.Postgres(t).NewDatabase(t, ""), nil),
			"begin it in the database of b.example.com/eastus2",
		},
	} {
		err := within(t.Context(), store, c.pool, peer.Write{Name: "holders/x"})
		require.ErrorIs(t, err, peer.ErrTransaction, what)
		require.ErrorContains(t, err, c.says, what)
		b.Gone("//" + bEast + "/holders/x")
	}
}

// The statements of a write run with the store's settings; the application's statements with the settings of
// its sessions.
func TestAWriteHasSettingsOfItsOwnInAnApplicationsTransaction(t *testing.T) {
	t.Parallel()
	b, ctx := newPair(t, nil), context.Background()
	b.MustPut("//"+bEast+"/holders/y", nil)
	store, pool := b.Stores[b.ID(bEast)], b.Pools[b.ID(bEast)]
	for _, sql := range []string{
		`CREATE SCHEMA mine`,
		// Objects that would give wrong results, or errors, if names were looked up in their schema first.
		`CREATE FUNCTION mine.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz '2001-01-01' $$`,
		`CREATE FUNCTION mine.pg_advisory_xact_lock_shared(bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'mine'; END $$`,
		`CREATE FUNCTION mine.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS $$ SELECT 'mine' $$`,
	} {
		_, err := pool.Exec(ctx, sql)
		require.NoError(t, err)
	}
	own := pooled(t, pool.Config().ConnString(), map[string]string{
		"search_path": "mine, pg_catalog", "enable_seqscan": "on", "lock_timeout": "0", "statement_timeout": "7s",
		"idle_in_transaction_session_timeout": "0", "synchronous_commit": "off",
	})
	const settings = `
SELECT current_setting('search_path'), current_setting('enable_seqscan'), current_setting('lock_timeout'), current_setting('statement_timeout'),
    current_setting('idle_in_transaction_session_timeout'), current_setting('synchronous_commit')`
	saved, err := store.Write.SaveIn(ctx, &shadow.UserTransaction{Pool: own, Also: func(tx pgx.Tx) error {
		var path, seqscan, lock, statement, idle, durable string
		require.NoError(t, tx.QueryRow(ctx, settings).Scan(&path, &seqscan, &lock, &statement, &idle, &durable))
		require.Equal(t, []string{"mine, pg_catalog", "on", "0", "7s"}, []string{path, seqscan, lock, statement})
		require.Equal(t, "30s", idle, "it holds the lock of the version until it ends, which a switch waits for")
		require.Equal(t, "on", durable, "acknowledged commits are on disk")
		return nil
	}}, []peer.Write{{Name: "holders/x", Body: body{"near": body{"block": "holders/y"}}}})
	require.NoError(t, err)
	require.NotEqual(t, 2001, saved[0].CreatedAt.Year())
	b.Audit()
}

// A database or a role can have another isolation level by default; the store's own transactions do not take
// it.
func TestTheStoresTransactionsAreReadCommittedUnderAnyDefault_I3(t *testing.T) {
	t.Parallel()
	b, ctx := newPair(t, nil), context.Background()
	_, err := b.Pools[b.ID(bEast)].Exec(ctx, `
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''serializable''', current_database()); END $$`)
	require.NoError(t, err)
	b.Pools[b.ID(bEast)].Reset()
	store, err := shadow.Open(ctx, shadow.Config{Pool: b.Pools[b.ID(bEast)], Deployment: b.ID(bEast)})
	require.NoError(t, err)
	require.NoError(t, store.InTx(ctx, func(tx pgx.Tx) error {
		var isolation string
		require.NoError(t, tx.QueryRow(ctx, `SHOW transaction_isolation`).Scan(&isolation))
		require.Equal(t, "read committed", isolation)
		return nil
	}))
}
