package shadow_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/wait"
)

// Every commit waits for a standby, which loses its connection. A wait that is cancelled, as at the end of a
// call, ends with a commit that others see and rely on, and that the standby lacks when it is promoted. The
// standby has all numbers of the sequence mark that were told or used: they are logged ahead. Nothing but the
// comparison shows that the blockade is lost.
func TestAPromotedSynchronousStandbyComparesThoughItHasAllMarks_I2_I3(t *testing.T) {
	t.Parallel()
	primary, address, ctx := newServer(t), &atomic.Value{}, t.Context()
	pool, store := movingPool(t, primary, address)
	newestXID(t, store, pool, "t", 2)
	admin, err := pgx.Connect(ctx, primary.DSN("a"))
	require.NoError(t, err)
	defer func() { _ = admin.Close(context.WithoutCancel(ctx)) }()
	establish := func(name string) error {
		ref := reference("block", schema.Block, uuid.New())
		ref.TargetName = name
		_, err := store.Targets.Establish(ctx, peerOfA, newAttempt(), []peer.EstablishReference{ref})
		return err
	}
	require.NoError(t, establish("targets/t1"))
	for logged := 0; logged < 16; { // numbers that are logged ahead
		_, err := pool.Exec(ctx, `SELECT nextval('dbcontroller.mark')`)
		require.NoError(t, err)
		require.NoError(t, pool.QueryRow(ctx, `SELECT log_cnt FROM dbcontroller.mark`).Scan(&logged))
	}
	token := deletionsToken(t, store)
	standby := primary.Copy() // of the moment at which it loses its connection
	for _, sql := range []string{`ALTER SYSTEM SET synchronous_standby_names = 'standby'`, `SELECT pg_reload_conf()`} {
		_, err := admin.Exec(ctx, sql)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		var set bool
		return admin.QueryRow(ctx, `SELECT setting <> '' FROM pg_settings WHERE name = 'synchronous_standby_names'`).
			Scan(&set) == nil && set
	}, wait.Limit, 5*time.Millisecond)

	told, cancelled := make(chan error, 1), false
	go func() { told <- establish("targets/t0") }()
	require.Eventually(t, func() bool {
		var waits bool
		err := admin.QueryRow(ctx,
			`SELECT count(pg_cancel_backend(pid)) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&waits)
		cancelled = cancelled || err == nil && waits
		return len(told) > 0
	}, wait.Limit, 5*time.Millisecond)
	require.True(t, cancelled)
	require.NoError(t, <-told, "the holder's deployment relies on it")
	require.NoError(t, admin.Close(ctx))
	before, used := store.Gate.PresentEpoch(), store.Mark()
	primary.Stop()
	standby.StartPromoted()
	address.Store(standby.Address())
	pool.Reset()

	var mark, blockades int64
	require.NoError(t,
		pool.QueryRow(ctx,
			`SELECT (SELECT last_value FROM dbcontroller.mark), (SELECT count(*) FROM dbcontroller.blockade)`).
			Scan(&mark, &blockades))
	require.EqualValues(t, 1, blockades, "that of the other target")
	require.GreaterOrEqual(t, mark, used)
	refused := func() {
		t.Helper()
		_, err := store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t0"})
		require.ErrorAs(t, err, new(*peer.UnavailableError))
	}
	refused()
	awaiting, err := store.Gate.NoticeEpoch(ctx)
	require.NoError(t, err)
	require.True(t, awaiting, "it is not known who has to compare")
	require.NotEqual(t, before, store.Gate.PresentEpoch())
	refused()
	require.ErrorIs(t, resumed(t, store, token), schema.ErrReset, "a token of before may have seen what is lost")
}
