package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// Two transactions that overlap exactly, and a transaction that takes its numbers first and commits last,
// with the database's housekeeping and many commits in between: each comes once, whole, when it commits.
func TestOverlappingTransactionsAreDeliveredOnceEach_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store, pool := context.Background(), b.Stores[b.ID(aWest)], b.Pools[b.ID(aWest)]
	f, _ := follow(t, store, "")
	f.until("the end of the snapshot", func() bool { return f.ended })
	begin := func(names ...string) func() {
		var writes []peer.Write
		for _, name := range names {
			writes = append(writes, peer.Write{Name: "targets/" + name})
		}
		end := opened(t, store, pool, writes...)
		return func() { require.NoError(t, end(nil)) }
	}
	seen := func(names ...string) func() bool {
		return func() bool {
			for _, name := range names {
				if _, ok := f.state["targets/"+name]; !ok {
					return false
				}
			}
			return f.events == len(f.state)
		}
	}
	late := begin("late1", "late2")
	first, second := begin("a1", "a2"), begin("b1", "b2")
	second()
	f.until("the second, which committed first", seen("b1", "b2"))
	first()
	f.until("the first", seen("a1", "a2"))
	for i := range 40 {
		b.MustPut(fmt.Sprintf("//%s/targets/t%d", aWest, i), nil)
		if i%10 == 0 {
			for _, sql := range []string{
				`VACUUM dbcontroller.change`, `ANALYZE dbcontroller.change`,
				`SELECT pg_current_xact_id()`,
			} {
				_, err := pool.Exec(ctx, sql)
				require.NoError(t, err)
			}
		}
	}
	var token string
	f.until("a token", func() bool { token = f.token; return token != "" })
	late()
	f.until("the longest transaction", func() bool { return seen("late1", "late2", "t39")() && f.events == 46 })
	g, _ := follow(t, store, token) // a token from before its commit
	g.until("the rest", func() bool { _, ok := g.state["targets/late2"]; return ok })
}

// Changes are compacted exactly up to a token, one short of it, and one too far, with a delete there.
func TestCompactionAtTheToken_I24(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		compacted int
		reset     bool
	}{{2, false}, {3, false}, {4, true}, {6, true}} {
		b := newPair(t, nil)
		ctx, store := context.Background(), b.Stores[b.ID(aWest)]
		for i := range 3 { // changes 1 to 3
			b.MustPut(fmt.Sprintf("//%s/targets/t%d", aWest, i), nil)
		}
		// A transaction that was open all the time, in any database of the server, would make a token older
		// than it is.
		require.Eventually(t, func() (younger bool) {
			sql := `SELECT pg_snapshot_xmin(pg_current_snapshot()) > ALL (SELECT xid FROM dbcontroller.change)`
			require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(ctx, sql).Scan(&younger))
			return younger
		}, wait.Limit, 10*time.Millisecond)
		f, stop := follow(t, store, "")
		f.until("the snapshot", func() bool { return f.ended && len(f.state) == 3 })
		stop()
		b.MustDelete("//" + aWest + "/targets/t0") // change 4
		b.MustPut("//"+aWest+"/targets/t1", body{"x": "y"})
		b.MustDelete("//" + aWest + "/targets/t2")
		tag, err := b.Pools[b.ID(aWest)].Exec(ctx, `
UPDATE dbcontroller.change SET changed_at = now() - interval '25 hours'
WHERE seq IN (SELECT seq FROM dbcontroller.change ORDER BY seq LIMIT $1)`, c.compacted)
		require.NoError(t, err)
		require.EqualValues(t, c.compacted, tag.RowsAffected())
		_, err = store.Admin.Tidy(ctx)
		require.NoError(t, err)
		require.Equal(t, 6-c.compacted, b.Count(aWest, "change"))
		if c.reset {
			err := store.Read.WatchResources(ctx, "", "", f.token, func(schema.Event[peer.Resource]) error {
				return nil
			})
			require.ErrorIs(t, err, peer.ErrReset, "compacted up to %d", c.compacted)
			continue
		}
		g, _ := follow(t, store, f.token)
		g.until("all later changes", func() bool { return g.events == 3 })
		require.Len(t, g.state, 1, "compacted up to %d", c.compacted)
	}
}

// A consumer that missed "created and removed", or "removed and created again", converges.
func TestAWatchThatMissedBothChangesConverges_I25(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	first := b.MustPut(target, nil)
	f, stop := follow(t, store, "")
	f.until("the snapshot", func() bool { return f.ended })
	stop()
	b.MustDelete(target)
	again := b.MustPut(target, body{"again": true})
	b.MustPut(target2, nil)
	b.MustDelete(target2)
	require.NotEqual(t, first.UID, again.UID)
	for _, token := range []string{f.token, ""} { // resumed, and from a new snapshot
		g, _ := follow(t, store, token)
		g.until("the state as it is", func() bool {
			return len(g.state) == 1 && g.state["targets/t"] == `{"again": true}`
		})
	}
}

// A watch whose reader reads nothing ends with an error that asks to open it again, and resumes at its token.
func TestAReaderThatReadsNothingIsEnded(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Times.SlowTimeout = 200 * time.Millisecond })
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	token, stuck := "", make(chan struct{})
	defer close(stuck)
	err := store.Read.WatchResources(ctx, "", "", "", func(e schema.Event[peer.Resource]) error {
		if e.EndOfSnapshot {
			token = e.Token
			b.MustPut(target, nil)
		}
		if len(e.Items) > 0 {
			<-stuck
		}
		return nil
	})
	require.ErrorIs(t, err, shadow.ErrSlow)
	g, _ := follow(t, store, token)
	g.until("the changes that it did not take", func() bool { return len(g.state) == 1 })
}

// An idle watch sends bookmarks, so that a half-open connection is noticed, and its token stays valid.
func TestAnIdleWatchSendsBookmarks(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	spoke := errors.New("spoke")
	ended := false
	err := b.Stores[b.ID(aWest)].Read.WatchResources(context.Background(), "", "", "",
		func(e schema.Event[peer.Resource]) error {
			if e.EndOfSnapshot {
				ended = true
			} else if ended && e.Token != "" {
				return spoke
			}
			return nil
		})
	require.ErrorIs(t, err, spoke)
}

// changed is one change, as the log of the database or a watch has it.
type changed struct {
	uid      uuid.UUID
	revision int64
	state    int
}

var (
	decodedUID      = regexp.MustCompile(` uid\[uuid\]:'([^']+)'`)
	decodedRevision = regexp.MustCompile(` revision\[bigint\]:(\d+)`)
	decodedState    = regexp.MustCompile(` state\[smallint\]:(\d)`)
)

// decoded reads the commits from the database's own log: transactions in the order of their commits. It
// shares only the table with the watches.
func decoded(t *testing.T, b *harness.Box, slot string) (transactions [][]changed) {
	t.Helper()
	// Decoding reads flushed records, and the test servers flush late: wait for the last commit.
	require.NoError(t, pgx.BeginFunc(context.Background(), b.Pools[b.ID(aWest)], func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(),
			`SET LOCAL synchronous_commit = on; SELECT pg_logical_emit_message(true, '', '')`)
		return err
	}))
	rows, err := b.Pools[b.ID(aWest)].Query(context.Background(),
		`SELECT data FROM pg_logical_slot_get_changes($1, NULL, NULL, 'skip-empty-xacts', '1')`, slot)
	require.NoError(t, err)
	var line string
	var open []changed
	_, err = pgx.ForEachRow(rows, []any{&line}, func() error {
		switch {
		case strings.HasPrefix(line, "BEGIN"):
			open = nil
		case strings.HasPrefix(line, "COMMIT"):
			if len(open) > 0 {
				transactions = append(transactions, open)
			}
		case strings.HasPrefix(line, "table dbcontroller.change: INSERT"):
			revision, _ := strconv.ParseInt(decodedRevision.FindStringSubmatch(line)[1], 10, 64)
			state, _ := strconv.Atoi(decodedState.FindStringSubmatch(line)[1])
			open = append(open, changed{uuid.MustParse(decodedUID.FindStringSubmatch(line)[1]), revision, state})
		}
		return nil
	})
	require.NoError(t, err)
	return transactions
}

// The events of watches equal the commits in the database's log: all changes, each once, each resource in the
// order of its commits, and no transaction on both sides of a token.
func TestWatchesGetExactlyWhatWasCommitted_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store, pool := context.Background(), b.Stores[b.ID(aWest)], b.Pools[b.ID(aWest)]
	slot := "check_" + strings.ReplaceAll(uuid.NewString(), "-", "_")
	_, err := pool.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'test_decoding')`, slot)
	require.NoError(t, err)
	defer func() { _, _ = pool.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, slot) }()

	const watchers = 9
	var mu sync.Mutex
	windows := make([][][]changed, watchers) // for each watcher, the changes between two tokens
	watching, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	ready := make(chan struct{}, watchers)
	errAgain := errors.New("opened again")
	for w := range watchers {
		running.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 8))
			var open []changed
			token, primed := "", false
			for watching.Err() == nil {
				open = nil // the changes after the last token are delivered again
				_ = store.Read.WatchResources(watching, "", "", token, func(e schema.Event[peer.Resource]) error {
					for _, r := range e.Items {
						open = append(open, changed{r.UID, int64(r.Revision), int(r.State)})
					}
					if e.EndOfSnapshot && !primed {
						primed = true
						ready <- struct{}{}
					}
					if e.Token != "" {
						if token = e.Token; len(open) > 0 {
							mu.Lock()
							windows[w] = append(windows[w], open)
							mu.Unlock()
							open = nil
						}
					}
					switch {
					case w%3 == 1 && r.IntN(3) == 0: // falls behind
						pause(time.Duration(r.IntN(int(30 * time.Millisecond))))
					case w%3 == 2 && primed && r.IntN(6) == 0: // after a token or before it
						return errAgain
					}
					return nil
				})
			}
		})
	}
	for range watchers {
		<-ready
	}
	var writers sync.WaitGroup
	for w := range 6 {
		writers.Go(func() { writeAtRandom(t, b, uint64(w)) })
	}
	writers.Wait()
	committed := decoded(t, b, slot)
	total := 0
	ofTransaction, ofUID := map[changed]int{}, map[uuid.UUID][]changed{}
	size := map[int]int{}
	for i, transaction := range committed {
		for _, c := range transaction {
			ofTransaction[c], size[i] = i, size[i]+1
			ofUID[c.uid] = append(ofUID[c.uid], c)
			total++
		}
	}
	require.Greater(t, total, 500)
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, w := range windows {
			n := 0
			for _, window := range w {
				n += len(window)
			}
			if n < total {
				return false
			}
		}
		return true
	}, wait.Limit, 10*time.Millisecond)
	cancel()
	running.Wait()
	for _, w := range windows {
		got := map[uuid.UUID][]changed{}
		for _, window := range w {
			whole := map[int]int{}
			for _, c := range window {
				at, ok := ofTransaction[c]
				require.True(t, ok, "%v was never committed", c)
				whole[at]++
				got[c.uid] = append(got[c.uid], c)
			}
			for at, n := range whole {
				require.Equal(t, size[at], n, "a transaction lies on both sides of a token")
			}
		}
		require.Equal(t, ofUID, got)
	}
}

// writeAtRandom creates, updates and deletes, some in transactions of its own that stay open for a while.
func writeAtRandom(t *testing.T, b *harness.Box, seed uint64) {
	ctx, store, pool := context.Background(), b.Stores[b.ID(aWest)], b.Pools[b.ID(aWest)]
	r := rand.New(rand.NewPCG(seed, 3))
	for i := range 80 {
		name := fmt.Sprintf("targets/t%d", r.IntN(15))
		switch r.IntN(4) {
		case 0:
			if _, err := store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: name}); err != nil &&
				!errors.Is(err, peer.ErrNotFound) {
				t.Error(err)
			}
		case 1:
			var writes []peer.Write
			for j := range 1 + r.IntN(4) {
				writes = append(writes, peer.Write{Name: fmt.Sprintf("targets/own%d-%d-%d", seed, i, j)})
			}
			pause := r.Float64() / 50
			if _, err := store.Write.SaveIn(ctx, &shadow.UserTransaction{Pool: pool, Also: func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, pause)
				return err
			}}, writes); err != nil {
				t.Error(err)
			}
		default:
			if _, err := store.Write.Save(ctx, []peer.Write{{Name: name, Body: body{"i": i}}}); err != nil {
				t.Error(err)
			}
		}
	}
}

func pause(d time.Duration) { <-time.After(d) }

// Watches at the end of a feed share one read; a watch that joins, or falls behind, reads by itself until it
// has caught up.
func TestWatchesAtTheEndReadItOnce(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	cfg := b.Pools[b.ID(aWest)].Config()
	var reads atomic.Int64
	cfg.ConnConfig.Tracer = tracer(func(sql string) {
		if strings.Contains(sql, "LATERAL") {
			reads.Add(1)
		}
	})
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store, err := shadow.Open(t.Context(), shadow.Config{
		Pool: pool, Deployment: b.ID(aWest),
		Times: shadow.Times{PollInterval: time.Hour},
	})
	require.NoError(t, err)
	require.NoError(t, store.Admin.Switch(t.Context(), b.Stores[b.ID(aWest)].Model()))
	const watchers, writes = 60, 20
	var followers []*follower
	for range watchers {
		f, _ := follow(t, store, "")
		followers = append(followers, f)
	}
	all := func(n int) {
		for _, f := range followers {
			f.until("every write", func() bool { return f.ended && len(f.state) == n })
		}
	}
	all(0)
	_, err = store.Write.Save(t.Context(), []peer.Write{{Name: "targets/first"}}) // brings all to one position
	require.NoError(t, err)
	all(1)
	reads.Store(0)
	for i := range writes {
		_, err := store.Write.Save(t.Context(), []peer.Write{{Name: fmt.Sprintf("targets/t%d", i)}})
		require.NoError(t, err)
		all(i + 2)
	}
	require.LessOrEqual(t, reads.Load(), int64(3*writes), "%d watches", watchers)

	// Changes of more than one page are read once as well.
	reads.Store(0)
	var burst []peer.Write
	for i := range 1000 {
		burst = append(burst, peer.Write{Name: fmt.Sprintf("targets/burst%d", i)})
	}
	_, err = store.Write.Save(t.Context(), burst)
	require.NoError(t, err)
	all(1 + writes + len(burst))
	require.Less(t, reads.Load(), int64(60), "ten pages, %d watches", watchers)
}

// A watch that is far behind reads each change about once, also without statistics for the planner.
func TestAWatchThatIsBehindReadsEachChangeOnce(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	writer := b.Stores[b.ID(aWest)]
	f, stop := follow(t, writer, "")
	f.until("the end of the snapshot", func() bool { return f.ended })
	stop()
	const transactions, size = 5, 1000
	for i := range transactions {
		var writes []peer.Write
		for j := range size {
			writes = append(writes, peer.Write{Name: fmt.Sprintf("targets/t%d-%d", i, j)})
		}
		_, err := writer.Write.Save(t.Context(), writes)
		require.NoError(t, err)
	}
	// A session reports its reads to the statistics when it ends.
	read := func() (n int) {
		require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(),
			`SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relid = 'dbcontroller.change'::regclass`).
			Scan(&n))
		return n
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), b.Pools[b.ID(aWest)].Config())
	require.NoError(t, err)
	store, err := shadow.Open(t.Context(), shadow.Config{Pool: pool, Deployment: b.ID(aWest)})
	require.NoError(t, err)
	require.NoError(t, store.Admin.Switch(t.Context(), writer.Model()))
	before := read()
	f, stop = follow(t, store, f.token)
	f.until("all writes", func() bool { return len(f.state) == transactions*size })
	stop()
	pool.Close()
	require.Eventually(t, func() bool { return read() > before }, wait.Limit, 50*time.Millisecond)
	require.Less(t, read()-before, 4*transactions*size)
}

// A change that commits while a watch reads the pages of a window is no part of that window: it comes once,
// with the next one.
func TestAChangeBesideAWindowComesOnce_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	f, stop := follow(t, store, "")
	f.until("the end of the snapshot", func() bool { return f.ended })
	stop()
	const size = 3000 // several pages
	for i := range 3 {
		var writes []peer.Write
		for j := range size / 3 {
			writes = append(writes, peer.Write{Name: fmt.Sprintf("targets/t%d-%d", i, j)})
		}
		_, err := store.Write.Save(t.Context(), writes)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := map[string]int{}
	late := 0
	err := store.Read.WatchResources(ctx, "", "", f.token, func(e schema.Event[peer.Resource]) error {
		write := func(name string) {
			_, err := store.Write.Save(ctx, []peer.Write{{Name: name}})
			require.NoError(t, err)
		}
		for _, r := range e.Items {
			switch seen[r.Name]++; {
			case r.Name == "targets/late5":
				write("targets/last")
			case r.Name == "targets/last":
				cancel()
			case len(seen)%500 == 1 && late < 5:
				late++
				write(fmt.Sprintf("targets/late%d", late))
			}
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, seen, size+5+1)
	for name, n := range seen {
		require.Equal(t, 1, n, name)
	}
}

// A panic while a watch reads ends that watch alone.
func TestAPanickingReadEndsOnlyItsWatch(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	var primed sync.WaitGroup
	var once atomic.Bool
	ended := make(chan error, 5)
	for range cap(ended) {
		primed.Add(1)
		go func() {
			ended <- shadow.WatchResourcesAs(t.Context(), store, shadow.WatchRequest{},
				func(r peer.Resource) (string, error) {
					if once.CompareAndSwap(false, true) {
						panic("a mistake")
					}
					return r.Name, nil
				}, func(e schema.Event[string]) error {
					if e.EndOfSnapshot {
						primed.Done()
					}
					return nil
				})
		}()
	}
	primed.Wait()
	b.MustPut(target, nil)
	for range cap(ended) {
		err := <-ended
		require.Error(t, err)
		require.NotErrorIs(t, err, peer.ErrReset)
	}
}

type tracer func(sql string)

func (tr tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	tr(d.SQL)
	return ctx
}

func (tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
