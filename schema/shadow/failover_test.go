package shadow_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// newServer starts a server with an empty database of a deployment. A short run starts no servers beside the
// common one.
func newServer(t *testing.T) *harness.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a server of its own")
	}
	return harness.NewMigratedCluster(t)
}

// newStandby starts a server with three resources, and prepares an older copy of it, which is stopped.
func newStandby(t *testing.T) (primary, standby *harness.Cluster) {
	t.Helper()
	primary = newServer(t)
	store, pool := openOn(t, primary)
	newestXID(t, store, pool, "kept", 3)
	pool.Close()
	primary.Stop()
	standby = primary.Copy()
	primary.Start()
	return primary, standby
}

// openOn opens the deployment's database on a test's own server.
func openOn(t *testing.T, c *harness.Cluster) (*shadow.Store, *pgxpool.Pool) {
	t.Helper()
	pool, err := postgres.Connect(t.Context(), c.DSN("a"), "test", 8)
	require.NoError(t, err)
	return openOver(t, pool), pool
}

func openOver(t *testing.T, pool *pgxpool.Pool) *shadow.Store {
	t.Helper()
	return openWith(t, shadow.Config{Pool: pool})
}

func openWith(t *testing.T, cfg shadow.Config) *shadow.Store {
	t.Helper()
	file, err := schema.ParseFile("services.yaml", strings.NewReader(services))
	require.NoError(t, err)
	id := schema.DeploymentID{Service: file.Services[0].Service, Region: "us-west2"}
	cfg.Deployment, cfg.Times = id, shadow.Times{PollInterval: time.Hour}
	store, err := shadow.Open(t.Context(), cfg)
	require.NoError(t, err)
	model, err := schema.NewModel(file.Services[0].ServiceVersion, file.Services)
	require.NoError(t, err)
	require.NoError(t, store.Admin.Switch(t.Context(), model))
	return store
}

// newestXID writes resources and returns the transaction id of the last one.
func newestXID(t *testing.T, store *shadow.Store, pool *pgxpool.Pool, prefix string, n int) (xid string) {
	t.Helper()
	for i := range n {
		_, err := store.Write.Save(t.Context(), []peer.Write{{Name: fmt.Sprintf("targets/%s%d", prefix, i)}})
		require.NoError(t, err)
	}
	require.NoError(t,
		pool.QueryRow(t.Context(), `SELECT xid::text FROM dbcontroller.change ORDER BY seq DESC LIMIT 1`).Scan(&xid))
	return xid
}

// A standby without the last commits is promoted and assigns their transaction ids to other transactions: an
// older token would skip these silently. The token is reset, and an older position is not accepted in an
// acknowledgement.
func TestAPromotedStandbyResetsTokens_I24(t *testing.T) {
	t.Parallel()
	primary, standby := newStandby(t)
	store, pool := openOn(t, primary)
	early, stop := follow(t, store, "")
	early.until("the snapshot", func() bool { return early.ended })
	stop()
	newestXID(t, store, pool, "lost", 9)
	late, stop := follow(t, store, early.token)
	late.until("the changes that will be lost", func() bool { return len(late.state) == 9 && late.token != "" })
	stop()
	remote := schema.DeploymentID{Service: "b.example.com", Region: "us-west2"}
	var position string
	watching, cancel := context.WithCancel(t.Context())
	_ = store.Read.WatchDeletions(watching, remote, "", func(e schema.Event[schema.Deletion]) error {
		position = e.Token
		cancel()
		return nil
	})
	require.NoError(t, store.Targets.Acknowledge(t.Context(), remote, uuid.Nil, position, nil))
	var before string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT pg_current_snapshot()::text`).Scan(&before))
	pool.Close()
	primary.Stop()

	standby.StartPromoted()
	store, pool = openOn(t, standby)
	t.Cleanup(pool.Close)
	again := newestXID(t, store, pool, "other", 3)
	var seen bool
	require.NoError(t,
		pool.QueryRow(t.Context(), `SELECT pg_visible_in_snapshot($1::text::xid8, $2::text::pg_snapshot)`, again,
			before).Scan(&seen))
	require.True(t, seen, "the ids are assigned again: by the ids alone, the new writes would lie before the token")
	for _, token := range []string{early.token, late.token} {
		err := store.Read.WatchResources(t.Context(), "", "", token, func(schema.Event[peer.Resource]) error {
			return pgx.ErrNoRows
		})
		require.ErrorIs(t, err, peer.ErrReset)
		require.ErrorContains(t, err, "failed over")
	}
	require.ErrorIs(t, store.Targets.Acknowledge(t.Context(), remote, uuid.Nil, position, []uuid.UUID{}),
		peer.ErrPosition)
	f, _ := follow(t, store, "")
	f.until("the new snapshot", func() bool { return f.ended && len(f.state) == 6 })
}

// rollBack begins and rolls back n transactions, and returns the last one's id.
func rollBack(t *testing.T, pool *pgxpool.Pool, n int) (last uint64) {
	t.Helper()
	for range n {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text::bigint`).Scan(&last))
		require.NoError(t, tx.Rollback(t.Context()))
	}
	return last
}

// A crash loses the transaction ids that were not on disk, also of transactions that were rolled back: they
// are assigned again. A position is sent only when all ids before it are on disk.
func TestACrashDoesNotPutNewWritesBeforeOldTokens_I24(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	var address atomic.Value
	pool, store := movingPool(t, server, &address)
	newestXID(t, store, pool, "kept", 3)
	// stays open over the crash, or resumes if it reads at that moment
	rests, stopRests := followUntil(t, store, "", func(err error) bool { return !postgres.Unavailable(err) })
	defer stopRests()
	rests.until("the snapshot", func() bool { return rests.ended })
	newestXID(t, store, pool, "calm", 1)
	rests.until("the last change", func() bool { return len(rests.state) == 4 })
	rolledBack := rollBack(t, pool, 30)
	early, stop := follow(t, store, "")
	early.until("the snapshot", func() bool { return early.ended })
	stop()
	server.Crash()
	server.Start()
	address.Store(server.Address())
	pool.Reset()
	again := newestXID(t, store, pool, "other", 2)
	t.Logf("rolled back up to %d before the crash, wrote %s after it", rolledBack, again)
	late, _ := follow(t, store, early.token)
	late.until("the writes after the crash", func() bool { return len(late.state) == 2 })
	rests.until("the writes after the crash", func() bool { return len(rests.state) == 6 })
}

// A position behind an own commit is sent although another transaction has written log that is not on disk. A
// crash loses that transaction and none of the ids before the position: the writes after it lie behind the
// token.
func TestACrashBehindAnOwnCommitLosesNothing_I24(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	var address atomic.Value
	pool, store := movingPool(t, server, &address)
	newestXID(t, store, pool, "kept", 5)
	token := ""
	for i := range 4 {
		other, err := pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = other.Exec(t.Context(),
			`SELECT pg_current_xact_id(), pg_logical_emit_message(true, '', repeat('x', 1000))`)
		require.NoError(t, err)
		f, stop := follow(t, store, token)
		if token == "" {
			f.until("the snapshot", func() bool { return f.ended })
		}
		if i%2 == 1 { // read by the watch that stands open, or by a watch that resumes
			stop()
			f.mu.Lock()
			token = f.token
			f.mu.Unlock()
			f, stop = follow(t, store, token)
		}
		f.mu.Lock()
		before := f.token
		f.mu.Unlock()
		_, err = store.Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: fmt.Sprintf("targets/kept%d", i)})
		require.NoError(t, err)
		f.until("the removal", func() bool { return f.token != before })
		stop() // otherwise the watch meets the crash, and ends
		server.Crash()
		_ = other.Rollback(context.Background()) // its connection is broken
		f.mu.Lock()
		token = f.token
		f.mu.Unlock()
		server.Start()
		address.Store(server.Address())
		pool.Reset()
		newestXID(t, store, pool, fmt.Sprint("other", i), 1)
		late, stop := follow(t, store, token)
		late.until("the write after the crash", func() bool { return len(late.state) == 1 })
		stop()
		late.mu.Lock()
		token = late.token
		late.mu.Unlock()
	}
}

// movingPool returns a pool that connects to the server's present address.
func movingPool(t *testing.T, server *harness.Cluster, address *atomic.Value) (*pgxpool.Pool, *shadow.Store) {
	t.Helper()
	address.Store(server.Address())
	plain, err := postgres.Connect(t.Context(), server.DSN("a"), "test", 4)
	require.NoError(t, err)
	plain.Close()
	cfg := plain.Config()
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address.Load().(string))
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool, openOver(t, pool)
}

// A pool replaces broken connections: an idle watch, whose standby took over at the same address, would
// continue there with a position of another history.
func TestAWatchEndsWhenAnotherServerTakesOver_I24(t *testing.T) {
	t.Parallel()
	primary, standby := newStandby(t)
	var address atomic.Value
	pool, store := movingPool(t, primary, &address)
	newestXID(t, store, pool, "lost", 9)
	ended, ready, resting := make(chan error, 1), make(chan struct{}), make(chan struct{})
	rests := sync.OnceFunc(func() { close(resting) })
	var mu sync.Mutex
	var got []string
	go func() {
		ended <- store.Read.WatchResources(t.Context(), "", "", "", func(e schema.Event[peer.Resource]) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e.EndOfSnapshot:
				close(ready)
			case e.Token != "" && len(got) == 13:
				rests()
			}
			for _, r := range e.Items {
				got = append(got, r.Name)
			}
			return nil
		})
	}()
	<-ready
	newestXID(t, store, pool, "last", 1)
	<-resting
	primary.Stop()
	standby.StartPromoted()
	address.Store(standby.Address())
	pool.Reset() // as a pool does with connections that were idle for long
	_, err := store.Write.Save(t.Context(), []peer.Write{{Name: "targets/early"}})
	require.ErrorIs(t, err, peer.ErrAborted, "no write before the new epoch")
	awaiting, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.True(t, awaiting)
	newestXID(t, store, pool, "other", 3)
	require.ErrorIs(t, <-ended, peer.ErrReset)
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, got, 13)
}

// Two standbys of one primary are promoted one after the other, both to timeline 2: a token of the first is
// invalid at the second, which has assigned the same transaction ids to other transactions.
func TestTwoStandbysPromotedOneAfterTheOther_I23_I24(t *testing.T) {
	t.Parallel()
	primary, first := newStandby(t)
	primary.Stop()
	second := primary.Copy()
	holder := schema.DeploymentID{Service: "b.example.com", Region: "us-west2"}

	first.StartPromoted()
	store, pool := openOn(t, first)
	newestXID(t, store, pool, "first", 9)
	f, stop := follow(t, store, "")
	f.until("the snapshot", func() bool { return f.ended })
	stop()
	var position string
	watching, cancel := context.WithCancel(t.Context())
	_ = store.Read.WatchDeletions(watching, holder, "", func(e schema.Event[schema.Deletion]) error {
		position = e.Token
		cancel()
		return nil
	})
	require.NotEmpty(t, position)
	pool.Close()
	first.Stop()

	second.StartPromoted()
	store, pool = openOn(t, second)
	t.Cleanup(pool.Close)
	newestXID(t, store, pool, "other", 40)
	err := store.Read.WatchResources(t.Context(), "", "", f.token, func(e schema.Event[peer.Resource]) error {
		t.Logf("resumed with %d changes of 40", len(e.Items))
		return pgx.ErrNoRows
	})
	require.ErrorIs(t, err, peer.ErrReset)
	require.ErrorIs(t, store.Targets.Acknowledge(t.Context(), holder, uuid.Nil, position, nil), peer.ErrPosition)
}

// An idle watch at the first of two promoted standbys does not continue at the second.
func TestAWatchEndsWhenAnotherStandbyTakesOver_I24(t *testing.T) {
	t.Parallel()
	primary, first := newStandby(t)
	primary.Stop()
	second := primary.Copy()
	first.StartPromoted()
	var address atomic.Value
	pool, store := movingPool(t, first, &address)
	ended, resting := make(chan error, 1), make(chan struct{})
	rests := sync.OnceFunc(func() { close(resting) })
	go func() {
		ended <- store.Read.WatchResources(t.Context(), "", "", "", func(e schema.Event[peer.Resource]) error {
			if len(e.Items) == 0 && !e.EndOfSnapshot { // a bookmark: no read of the feed is in progress
				rests()
			}
			return nil
		})
	}()
	<-resting
	first.Stop()
	second.StartPromoted()
	address.Store(second.Address())
	pool.Reset()
	_, other := movingPool(t, second, &address) // a process that has noticed the new epoch
	_, err := other.Write.Save(t.Context(), []peer.Write{{Name: "targets/other"}})
	require.NoError(t, err)
	store.Wake()
	require.ErrorIs(t, <-ended, peer.ErrReset)
}
