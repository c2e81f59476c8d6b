package feed

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres"
)

// disk is a database of which only the log is asked.
type disk struct {
	postgres.Pool
	mu              sync.Mutex
	reached         string // guarded by mu, like all below
	err             error
	asked, flushed  int
	flushesAtCommit string // the place that a flush reaches
}

func (d *disk) QueryRow(context.Context, string, ...any) pgx.Row {
	time.Sleep(100 * time.Microsecond)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	return place{d.reached, d.err}
}

func (d *disk) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	time.Sleep(time.Millisecond)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushed++
	d.reached = d.flushesAtCommit
	return pgconn.CommandTag{}, d.err
}

type place struct {
	text string
	err  error
}

func (p place) Scan(dest ...any) error {
	*dest[0].(*string) = p.text
	return p.err
}

// flushAll waits for a place in the log as so many watches at once, and returns how long that took.
func flushAll(t *testing.T, l *Log, lsn string, watches int) time.Duration {
	t.Helper()
	began := time.Now()
	var g sync.WaitGroup
	for range watches {
		g.Go(func() { require.NoError(t, l.flush(t.Context(), state{lsn: lsn})) })
	}
	g.Wait()
	return time.Since(began)
}

// underLoad returns a log that has just had a round, so that it waits for the commits of others.
func underLoad(t *testing.T, d *disk) *Log {
	t.Helper()
	l := NewLog(Config{Pool: d})
	flushAll(t, l, d.reached, 1)
	d.asked, d.flushed = 0, 0
	return l
}

// All watches that wait for the disk at the same time ask once, and flush the log when the commits of others
// do not: once, and once more for those that come while it is flushed.
func TestWatchesWaitForTheDiskTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{reached: "0/FFFFFFFF", flushesAtCommit: "0/FFFFFFFF"}
		l := underLoad(t, d)
		d.flushesAtCommit = "1/1"
		took := flushAll(t, l, "1/1", 100)
		require.LessOrEqual(t, took, 4*time.Millisecond)
		require.Equal(t, 1, d.asked)
		require.NotZero(t, d.flushed)
		require.LessOrEqual(t, d.flushed, 2)

		before := d.flushed
		flushAll(t, l, "1/1", 100)
		require.Equal(t, []int{2, before}, []int{d.asked, d.flushed}, "others have flushed it")
	})
}

// The result of an earlier look does not hold for a later read, which may come from another server.
func TestEachWaitForTheDiskLooksAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{reached: "2/0", flushesAtCommit: "2/0"}
		l := underLoad(t, d)
		d.flushesAtCommit = "1/8"
		flushAll(t, l, "1/8", 1)
		require.Equal(t, 0, d.flushed)
		d.reached = "1/7" // another one took its place
		flushAll(t, l, "1/8", 1)
		require.Equal(t, []int{2, 1}, []int{d.asked, d.flushed})
	})
}

// At rest no other transaction flushes the log: the first watch flushes it at once, and the watches that come
// meanwhile look how far that flush went. Under load all watches wait for the commits of others first.
func TestAtRestTheLogIsFlushedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{reached: "0/1", flushesAtCommit: "1/1"}
		l := NewLog(Config{Pool: d})
		for n := 1; n <= 3; n++ {
			var g sync.WaitGroup
			began := time.Now()
			g.Go(func() {
				require.NoError(t, l.flush(t.Context(), state{lsn: "1/1"}))
				require.Equal(t, time.Millisecond, time.Since(began), "the flush itself")
			})
			time.Sleep(time.Microsecond)
			require.LessOrEqual(t, flushAll(t, l, "1/1", 10), 1200*time.Microsecond)
			g.Wait()
			require.Equal(t, []int{n, n}, []int{d.asked, d.flushed})
			time.Sleep(restAfter + time.Millisecond)
			d.reached = "0/1"
		}
		flushAll(t, l, "1/1", 1)
		d.reached, d.asked, d.flushed = "1/1", 0, 0
		for range 10 {
			time.Sleep(coalesce)
			flushAll(t, l, "1/1", 1)
		}
		require.Equal(t, []int{10, 0}, []int{d.asked, d.flushed},
			"watches that read as often as they do under load leave it to others")
	})
}

func TestAWaitForTheDiskFailsWithItsStatements(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("the database is away")
		d := &disk{reached: "0/1", err: away}
		l := NewLog(Config{Pool: d})
		require.ErrorIs(t, l.flush(t.Context(), state{lsn: "0/1"}), away)
		require.Error(t, l.flush(t.Context(), state{lsn: "nowhere"}))
		require.Error(t, l.flush(t.Context(), state{lsn: "0/nowhere"}))
		require.NoError(t, l.flush(t.Context(), state{flushed: true}))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, l.flush(ctx, state{lsn: "0/1"}), context.Canceled)
		synctest.Wait()
		time.Sleep(time.Second) // its round ends by itself
	})
}
