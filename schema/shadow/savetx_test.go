package shadow_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// A transaction whose snapshot is older than a switch would commit with the old version: a field that blocks now would have no
// reference.
func TestATransactionWithASnapshotOfBeforeASwitchTakesNoWrite_I1_I2(t *testing.T) {
	t.Parallel()
	b, ctx := newVersions(t, nil), context.Background()
	b.MustPut(targetName("t"), nil)
	asleep := b.SecondProcess(bEast, shadow.Config{})
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		b.Switch(bEast, "v1")
		tx, err := b.Pools[b.ID(bEast)].BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		_, err = tx.Exec(ctx, `SELECT FROM dbcontroller.meta`)
		require.NoError(t, err)
		b.Switch(bEast, "v2")
		b.Settle()
		_, err = asleep.SaveTx(ctx, tx, []peer.Write{{Name: "holders/h", Body: body{"added": targetName("t")}}})
		require.ErrorIs(t, err, peer.ErrTransaction)
		require.ErrorContains(t, err, "begin it READ COMMITTED")
		require.NoError(t, tx.Commit(ctx), "it can go on")
		b.Gone(holder)
	}
	b.Audit()
}

// The properties of the caller's transaction that a write relies on are checked before anything is read, and the error has the
// remedy; the transaction can go on.
func TestAnUnsuitableTransactionIsRefused(t *testing.T) {
	t.Parallel()
	b, ctx := newPair(t, nil), context.Background()
	store := b.Stores[b.ID(bEast)]
	empty, err := pgx.Connect(ctx, harness.Postgres(t).NewDatabase(t, ""))
	require.NoError(t, err)
	defer func() { _ = empty.Close(ctx) }()
	for what, c := range map[string]struct {
		begin interface {
			BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
		}
		options pgx.TxOptions
		first   string
		says    string
	}{
		"read-only":             {b.Pools[b.ID(bEast)], pgx.TxOptions{AccessMode: pgx.ReadOnly}, "", "begin it READ WRITE"},
		"read-only since":       {b.Pools[b.ID(bEast)], pgx.TxOptions{}, `SET TRANSACTION READ ONLY`, "begin it READ WRITE"},
		"other encoding":        {b.Pools[b.ID(bEast)], pgx.TxOptions{}, `SET LOCAL client_encoding = 'LATIN1'`, "SET LOCAL client_encoding = 'UTF8'"},
		"isolation, set inside": {b.Pools[b.ID(bEast)], pgx.TxOptions{}, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`, "begin it READ COMMITTED"},
		"other deployment":      {b.Pools[b.ID(aWest)], pgx.TxOptions{}, "", "it is in the database of a.example.com/us-west2: begin it in the database of b.example.com/eastus2"},
		"other database":        {empty, pgx.TxOptions{}, "", "begin it in the database of b.example.com/eastus2"},
	} {
		t.Run(what, func(t *testing.T) {
			tx, err := c.begin.BeginTx(ctx, c.options)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(ctx) }()
			if c.first != "" {
				_, err = tx.Exec(ctx, c.first)
				require.NoError(t, err)
			}
			_, err = store.SaveTx(ctx, tx, []peer.Write{{Name: "holders/x"}})
			require.ErrorIs(t, err, peer.ErrTransaction)
			require.ErrorContains(t, err, c.says)
			_, err = tx.Exec(ctx, `SELECT 1`)
			require.NoError(t, err, "it can go on")
			require.NoError(t, tx.Commit(ctx))
			b.Gone("//" + bEast + "/holders/x")
		})
	}
}

func TestAnAbortedOrEndedTransactionIsRefused(t *testing.T) {
	t.Parallel()
	b, ctx := newPair(t, nil), context.Background()
	store := b.Stores[b.ID(bEast)]
	tx, err := b.Pools[b.ID(bEast)].Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, `SAVEPOINT mine`)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `SELECT 1 / 0`)
	require.Error(t, err)
	write := []peer.Write{{Name: "holders/x"}}
	_, err = store.SaveTx(ctx, tx, write)
	require.ErrorIs(t, err, peer.ErrTransaction)
	require.ErrorContains(t, err, "roll it back")
	_, err = tx.Exec(ctx, `ROLLBACK TO mine`)
	require.NoError(t, err)
	_, err = store.SaveTx(ctx, tx, write)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(ctx))
	require.NotNil(t, b.Get("//"+bEast+"/holders/x"))
	_, err = store.SaveTx(ctx, tx, write)
	require.ErrorIs(t, err, peer.ErrTransaction)
	require.ErrorContains(t, err, "begin another")
}

// A caller's rollback to a savepoint undoes a write completely: another write of the same names and targets in the same transaction is
// compared with the restored rows.
func TestAWriteAfterACallersSavepointCanBeRolledBack(t *testing.T) {
	t.Parallel()
	b, ctx := newPair(t, nil), context.Background()
	store := b.Stores[b.ID(bEast)]
	require.NoError(t, pgx.BeginFunc(ctx, b.Pools[b.ID(bEast)], func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SAVEPOINT mine`)
		require.NoError(t, err)
		_, err = store.SaveTx(ctx, tx, []peer.Write{{Name: "holders/x"}, {Name: "holders/y", Body: body{"near": body{"block": "holders/x"}}}})
		require.NoError(t, err)
		_, err = tx.Exec(ctx, `ROLLBACK TO mine`)
		require.NoError(t, err)
		_, err = store.SaveTx(ctx, tx, []peer.Write{{Name: "holders/y", Body: body{"near": body{"block": "holders/x"}}}})
		require.Equal(t, peer.TargetMissing, refusals(t, err)[0].Reason)
		_, err = store.SaveTx(ctx, tx, []peer.Write{{Name: "holders/x"}})
		return err
	}))
	require.NotNil(t, b.Get("//"+bEast+"/holders/x"))
	b.Gone("//" + bEast + "/holders/y")
	b.Audit()
}

// The statements of a write run with the store's settings; afterwards the caller's settings are restored.
func TestAWriteHasSettingsOfItsOwnInTheCallersTransaction(t *testing.T) {
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
	const settings = `
SELECT current_setting('search_path'), current_setting('enable_seqscan'), current_setting('lock_timeout'), current_setting('statement_timeout'),
    current_setting('idle_in_transaction_session_timeout'), current_setting('synchronous_commit')`
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SET LOCAL search_path = mine, pg_catalog; SET LOCAL enable_seqscan = on; SET LOCAL lock_timeout = 0;
SET LOCAL statement_timeout = '7s'; SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL synchronous_commit = off`)
		require.NoError(t, err)
		saved, err := store.SaveTx(ctx, tx, []peer.Write{{Name: "holders/x", Body: body{"near": body{"block": "holders/y"}}}})
		require.NoError(t, err)
		require.NotEqual(t, 2001, saved[0].CreatedAt.Year())
		_, err = store.SaveTx(ctx, tx, []peer.Write{{Name: "holders/z", Body: body{"near": body{"block": "holders/none"}}}})
		require.Error(t, err)
		var path, seqscan, lock, statement, idle, durable string
		require.NoError(t, tx.QueryRow(ctx, settings).Scan(&path, &seqscan, &lock, &statement, &idle, &durable))
		require.Equal(t, []string{"mine, pg_catalog", "on", "0", "7s"}, []string{path, seqscan, lock, statement})
		require.Equal(t, "30s", idle, "it holds the lock of the version until it ends, which a switch waits for")
		require.Equal(t, "on", durable, "acknowledged commits are on disk")
		return nil
	}))
	b.Audit()
}

// A database or a role can have another isolation level by default; the store's own transactions do not take it.
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
