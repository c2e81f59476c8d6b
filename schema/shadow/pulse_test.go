package shadow_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// looks counts the queries of a process's watches: pulses, and reads of feeds.
type looks struct{ pulses, reads atomic.Int64 }

func (l *looks) await(t *testing.T, pulses int64) {
	t.Helper()
	until := l.pulses.Load() + pulses
	require.Eventually(t, func() bool { return l.pulses.Load() >= until }, wait.Limit, time.Millisecond)
}

// rest waits until the watches read nothing more while some pulses pass.
func (l *looks) rest(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		before := l.reads.Load()
		l.await(t, 20)
		return l.reads.Load() == before
	}, wait.Limit, time.Millisecond, "idle watches read")
}

// counted opens one more process of the deployment and counts its queries.
func counted(t *testing.T, b *harness.Box, interval time.Duration) (*shadow.Store, *looks) {
	t.Helper()
	l := &looks{}
	cfg := b.Pools[b.ID(aWest)].Config()
	cfg.ConnConfig.Tracer = tracer(func(sql string) {
		switch {
		case strings.Contains(sql, "2 * (EXISTS"):
			l.pulses.Add(1)
		case strings.Contains(sql, "LATERAL"):
			l.reads.Add(1)
		}
	})
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store, err := shadow.Open(t.Context(), shadow.Config{
		Pool: pool, Deployment: b.ID(aWest),
		Times: shadow.Times{PollInterval: interval},
	})
	require.NoError(t, err)
	require.NoError(t, store.Admin.Switch(t.Context(), b.Stores[b.ID(aWest)].Model()))
	return store, l
}

// One pulse serves all watches of a process; while nothing is written, none of them reads. Commits of another
// process are delivered without notifications too, also late ones.
func TestOnePulseServesAllIdleWatches_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	there := b.Stores[b.ID(aWest)]
	here, l := counted(t, b, 10*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	for i := range 30 {
		holder := schema.DeploymentID{Service: fmt.Sprintf("h%d.example.com", i), Region: "us-west2"}
		watching.Go(func() {
			_ = here.Read.WatchDeletions(ctx, holder, "", func(schema.Event[schema.Deletion]) error { return nil })
		})
	}
	defer watching.Wait()
	defer cancel()
	f, _ := follow(t, here, "")
	f.until("the end of the snapshot", func() bool { return f.ended })
	l.rest(t)

	end := opened(t, there, b.Pools[b.ID(aWest)], peer.Write{Name: "targets/late"})
	l.await(t, 5)
	for i := range 10 {
		_, err := there.Write.Save(t.Context(), []peer.Write{{Name: fmt.Sprintf("targets/t%d", i)}})
		require.NoError(t, err)
		f.until("the other process's write", func() bool { return len(f.state) == i+1 })
	}
	l.await(t, 5)
	require.NoError(t, end(nil))
	f.until("the late commit", func() bool { return len(f.state) == 11 })
	l.rest(t)
}

// An idle watch ends when a new epoch begins, also when nothing is written.
func TestAnIdleWatchEndsWithItsEpoch_I24(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	here, l := counted(t, b, 10*time.Millisecond)
	ended := make(chan error, 1)
	go func() {
		ended <- here.Read.WatchResources(t.Context(), "", "", "", func(schema.Event[peer.Resource]) error {
			return nil
		})
	}()
	l.await(t, 5)
	l.rest(t)
	_, err := b.Pools[b.ID(aWest)].Exec(t.Context(), `UPDATE dbcontroller.meta SET epoch = gen_random_uuid()`)
	require.NoError(t, err)
	require.ErrorIs(t, <-ended, peer.ErrReset)
}

// While notifications arrive, pulses are ten times rarer; a pulse replaces a lost notification, and pulses
// are frequent again while the connection for notifications is lost.
func TestPulsesReplaceLostNotifications_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	there := b.Stores[b.ID(aWest)] // sends no notifications
	here, l := counted(t, b, 20*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = here.RunNotifications(ctx) })
	defer running.Wait()
	defer cancel()
	f, _ := follow(t, here, "")
	f.until("the end of the snapshot", func() bool { return f.ended })
	for i := range 3 {
		require.Eventually(t, here.Hears, wait.Limit, time.Millisecond)
		l.await(t, 1)
		began := time.Now()
		l.await(t, 3)
		require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond, "rarely")
		_, err := there.Write.Save(t.Context(), []peer.Write{{Name: fmt.Sprintf("targets/t%d", i)}})
		require.NoError(t, err)
		f.until("a commit without a notification", func() bool { return len(f.state) == i+1 })
		_, err = b.Pools[b.ID(aWest)].Exec(t.Context(), `
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'`)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return !here.Hears() }, wait.Limit, time.Millisecond)
		l.await(t, 10)
	}
}
