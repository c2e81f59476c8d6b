package feed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
)

// written is a row of the log: its transaction, and its sequence number.
type written struct {
	xid  int
	seq  int64
	text string
}

// database is a double of PostgreSQL with one followed table. Transactions begin and commit in any order.
type database struct {
	postgres.Pool

	mu        sync.Mutex
	next      int          // guarded by mu; transaction id
	running   map[int]bool // guarded by mu
	rows      []written    // guarded by mu; also of running transactions
	epoch     string       // guarded by mu
	compacted string       // guarded by mu
	reads     []string     // guarded by mu; the statements
	fails     error        // guarded by mu
	lags      bool         // the log is never on disk without a flush, and rows begin with their transaction
	flushes   int          // guarded by mu; of the log, and questions for it
}

const (
	snapshotSQL, firstSQL, nextSQL, stateSQL, writtenSQL = "SNAPSHOT", "FIRST", "NEXT", "STATE", "WRITTEN"

	topic Topics = 4
)

func newDatabase() *database {
	return &database{next: 95, running: map[int]bool{}, epoch: "e1", compacted: "3"}
}

// begin begins a transaction, which takes its id and numbers of its rows at once.
func (d *database) begin(texts ...string) (xid int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	xid = d.next
	d.next++
	d.running[xid] = true
	for _, text := range texts {
		d.rows = append(d.rows, written{xid, int64(len(d.rows) + 1), text})
	}
	return xid
}

// end commits a transaction, or rolls it back.
func (d *database) end(xid int, commit bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.running, xid)
	if !commit {
		for i := range d.rows {
			if d.rows[i].xid == xid {
				d.rows[i].xid = -1 // the number stays taken
			}
		}
	}
}

// change changes the double.
func (d *database) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// count returns how many statements began so, and forgets all.
func (d *database) count(sql string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.reads {
		if s == sql {
			n++
		}
	}
	d.reads = nil
	return n
}

// position is pg_current_snapshot(); called with mu.
func (d *database) position() string {
	xmin, xip := d.next, []string{}
	for _, xid := range slices.Sorted(func(yield func(int) bool) {
		for xid := range d.running {
			if !yield(xid) {
				return
			}
		}
	}) {
		xmin = min(xmin, xid)
		xip = append(xip, strconv.Itoa(xid))
	}
	return fmt.Sprintf("%d:%d:%s", xmin, d.next, strings.Join(xip, ","))
}

// sees reports whether a snapshot sees a transaction.
func sees(position string, xid int) bool {
	p, err := parsePosition(position)
	if err != nil {
		panic(err)
	}
	xmax, _ := strconv.Atoi(p.xmax)
	return xid >= 0 && xid < xmax && !slices.Contains(p.xip, strconv.Itoa(xid))
}

// since returns the rows behind a position that another one sees, after a sequence number; called with mu.
func (d *database) since(xmax string, xip []string, until string, after int64, limit int) (found []written) {
	from, _ := strconv.Atoi(xmax)
	for _, r := range d.rows {
		isNew := r.xid >= from || slices.Contains(xip, strconv.Itoa(r.xid))
		if isNew && r.seq > after && sees(until, r.xid) && len(found) < limit {
			found = append(found, r)
		}
	}
	return found
}

func (d *database) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads = append(d.reads, sql)
	if d.fails != nil {
		return &answer{err: d.fails}
	}
	if sql == flushedSQL {
		d.flushes++
		return &answer{values: [][]any{{"0/0"}}, at: 1}
	}
	first := []any{d.position(), "0/0", !d.lags, d.epoch}
	if sql == writtenSQL {
		mask := int16(0)
		if len(d.since(args[0].(string), args[1].([]string), d.position(), 0, 1)) > 0 {
			mask = int16(topic)
		}
		return &answer{values: [][]any{append(first, mask)}, at: 1}
	}
	return &answer{values: [][]any{append(first, [][]byte{[]byte("key")}, d.compacted, "")}, at: 1}
}

func (d *database) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushes++
	return pgconn.CommandTag{}, d.fails
}

func (d *database) SendBatch(_ context.Context, b *pgx.Batch) pgx.BatchResults {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := b.QueuedQueries[len(b.QueuedQueries)-1]
	d.reads = append(d.reads, q.SQL)
	if d.fails != nil {
		return batch{answer: &answer{err: d.fails}}
	}
	var found []written
	switch a := q.Arguments; q.SQL {
	case snapshotSQL:
		found = d.since("0", nil, a[0].(string), a[2].(int64), a[1].(int))
	case firstSQL:
		until, ok := a[3].(string)
		if !ok {
			until = d.position()
		}
		found = d.since(a[0].(string), a[1].([]string), until, 0, a[2].(int))
	case nextSQL:
		found = d.since(a[0].(string), a[1].([]string), a[3].(string), a[4].(int64), a[2].(int))
	}
	out := &answer{}
	first := []any{d.position(), "0/0", !d.lags, d.epoch, d.compacted}
	for _, r := range found {
		row := slices.Clone(first)
		if d.lags {
			row = append(row, strconv.Itoa(r.xid))
		}
		out.values = append(out.values, append(row, r.seq, r.text))
	}
	if len(found) == 0 {
		nothing := []any{nil, nil}
		if d.lags {
			nothing = append(nothing, nil)
		}
		out.values = [][]any{append(first, nothing...)}
	}
	return batch{answer: out}
}

// answer is the result of a statement.
type answer struct {
	pgx.Rows
	values [][]any
	at     int // 1 for the first row
	err    error
}

func (a *answer) Err() error { return a.err }
func (a *answer) Close()     {}

func (a *answer) Next() bool {
	a.at++
	return a.at <= len(a.values)
}

func (a *answer) RawValues() (raw [][]byte) {
	for _, v := range a.values[a.at-1] {
		text, _ := v.(string)
		raw = append(raw, []byte(text))
	}
	return raw
}

func (a *answer) Scan(dest ...any) error {
	if a.err != nil {
		return a.err
	}
	for i, v := range a.values[a.at-1] {
		switch to := dest[i].(type) {
		case nil:
		case *string:
			*to, _ = v.(string)
		case **string:
			if text, ok := v.(string); ok {
				*to = &text
			}
		case *bool:
			*to = v.(bool)
		case *[][]byte:
			*to = v.([][]byte)
		case *int16:
			*to = v.(int16)
		case *int64:
			*to, _ = v.(int64)
		default:
			return fmt.Errorf("a destination of type %T", to)
		}
	}
	return nil
}

// batch is the result of the statements of a batch: only the last one has rows.
type batch struct {
	pgx.BatchResults
	*answer
}

func (b batch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b batch) Query() (pgx.Rows, error)         { return b.answer, b.err }
func (b batch) QueryRow() pgx.Row                { return b.answer }
func (b batch) Close() error                     { return nil }

// followed returns a log over the double, and a feed of its texts. Each commit that is heard wakes.
func followed(d *database, chunk int, change func(*Config)) (*Log, Feed[string]) {
	cfg := Config{Pool: d, StateSQL: stateSQL, WrittenSQL: writtenSQL, Wake: NewBroadcast()}
	if change != nil {
		change(&cfg)
	}
	return NewLog(cfg), Feed[string]{
		Filter: "texts", Topic: topic, Chunk: chunk, Aged: true, SnapshotSQL: snapshotSQL, FirstSQL: firstSQL,
		NextSQL: nextSQL,
		Scan: func(row pgx.CollectableRow) (string, int64, error) {
			var seq int64
			var text string
			err := row.Scan(&seq, &text)
			return text, seq, err
		},
	}
}

// reader is a watch of a feed, with the received events.
type reader struct {
	mu     sync.Mutex
	texts  []string // guarded by mu
	token  string   // guarded by mu; the last one
	seen   int      // guarded by mu; the texts that the token covers
	marks  int      // guarded by mu; events with a token and without texts
	ends   int      // guarded by mu; of snapshots
	cancel context.CancelFunc
	done   chan error
}

func (r *reader) take(e schema.Event[string]) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, e.Items...)
	if e.EndOfSnapshot {
		r.ends++
	}
	if e.Token != "" {
		r.token, r.seen = e.Token, len(r.texts)
		if len(e.Items) == 0 && !e.EndOfSnapshot {
			r.marks++
		}
	}
	return nil
}

// state returns the events of the reader, and the token that covers a part of them.
func (r *reader) state() (texts []string, token string, seen int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.texts), r.token, r.seen
}

// open begins a watch, or resumes one.
func open(ctx context.Context, l *Log, f Feed[string], token string,
	deliver func(*reader, schema.Event[string]) error,
) *reader {
	r := &reader{done: make(chan error, 1)}
	ctx, r.cancel = context.WithCancel(ctx)
	if deliver == nil {
		deliver = (*reader).take
	}
	go func() {
		r.done <- Follow(ctx, l, f, token, func(e schema.Event[string]) error { return deliver(r, e) })
	}()
	return r
}

// Random transactions commit late, early, never, and sometimes without a notification; watches come, end and
// resume at random. Each of them has every committed text once.
func TestEveryWatchHasEachRowOnce_I23(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			d := newDatabase()
			l, f := followed(d, 1+random.IntN(5), nil)
			var watches []*reader
			var running []int
			var committed []string
			written := map[int][]string{}
			for step := range 150 {
				switch n := random.IntN(12); {
				case n < 5 || len(running) == 0:
					texts := make([]string, random.IntN(4))
					for i := range texts {
						texts[i] = fmt.Sprintf("%d.%d", step, i)
					}
					xid := d.begin(texts...)
					running, written[xid] = append(running, xid), texts
				case n < 9:
					i := random.IntN(len(running))
					xid, commits := running[i], random.IntN(4) > 0
					running = slices.Delete(running, i, i+1)
					if d.end(xid, commits); commits {
						committed = append(committed, written[xid]...)
					}
					if random.IntN(3) > 0 { // others are found by the pulse
						l.cfg.Wake.Wake(topic)
					}
				case n == 9:
					watches = append(watches, open(t.Context(), l, f, "", nil))
				case n == 10 && len(watches) > 0:
					// a watch ends, and resumes at its token with the events that the token covers
					i := random.IntN(len(watches))
					watches[i].cancel()
					require.ErrorIs(t, <-watches[i].done, context.Canceled)
					texts, token, seen := watches[i].state()
					watches[i] = open(t.Context(), l, f, token, nil)
					if token != "" {
						watches[i].mu.Lock()
						watches[i].texts, watches[i].token, watches[i].seen = append(texts[:seen:seen],
							watches[i].texts...), token, seen
						watches[i].mu.Unlock()
					}
				default:
					time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
				}
			}
			time.Sleep(5 * time.Second)
			synctest.Wait()
			slices.Sort(committed)
			for i, w := range watches {
				texts, _, _ := w.state()
				slices.Sort(texts)
				require.Equal(t, committed, texts, "seed %d, watch %d", seed, i)
				w.cancel()
				<-w.done //nolint:errcheck // it was cancelled
			}
			require.Empty(t, l.tails.byKey, "tails end with their watches")
			require.Zero(t, l.kept.Load(), "and so do their pages")
		})
	}
}

// resumed opens a watch at a token, and returns the error with which it ends at once; nil if it goes on.
func resumed(t *testing.T, l *Log, f Feed[string], token string) error {
	t.Helper()
	w := open(t.Context(), l, f, token, nil)
	time.Sleep(time.Second)
	w.cancel()
	err := <-w.done
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// A token that cannot be resumed is a reset, and never a gap.
func TestATokenThatCannotBeResumedIsAReset_I24(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ahead []string
		d := newDatabase()
		l, f := followed(d, 10, func(c *Config) {
			c.Ahead = func(_ context.Context, epoch string) { ahead = append(ahead, epoch) }
		})
		d.end(d.begin("a"), true)
		w := open(t.Context(), l, f, "", nil)
		synctest.Wait()
		_, token, _ := w.state()
		w.cancel()
		<-w.done //nolint:errcheck // it was cancelled
		require.NoError(t, resumed(t, l, f, token))
		other := f
		other.Filter = "others"
		require.ErrorIs(t, resumed(t, l, other, token), ErrReset)
		require.ErrorIs(t, resumed(t, l, f, token[:len(token)-2]), ErrReset)
		require.Empty(t, ahead)

		was := d.next
		d.change(func() { d.next-- })
		require.ErrorIs(t, resumed(t, l, f, token), ErrReset, "an older copy of the database")
		require.Equal(t, []string{"e1"}, ahead)
		d.change(func() { d.next, d.compacted = was, "96" })
		require.ErrorIs(t, resumed(t, l, f, token), ErrReset, "rows behind the token may be removed")
		d.change(func() { d.compacted, d.epoch = "3", "e2" })
		require.ErrorIs(t, resumed(t, l, f, token), ErrReset, "another epoch")
		d.change(func() { d.epoch = "" })
		require.ErrorIs(t, resumed(t, l, f, token), ErrUnnoticed, "the new epoch has not begun")
		require.ErrorIs(t, resumed(t, l, f, ""), ErrUnnoticed)
	})
}

// An open watch ends with a new epoch, and with a database that goes back.
func TestAnOpenWatchEndsWithItsEpoch_I24(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(d *database){
		"failover":    func(d *database) { d.epoch = "e2" },
		"lost log":    func(d *database) { d.next-- },
		"no database": func(d *database) { d.fails = errors.New("connection refused") },
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDatabase()
			l, f := followed(d, 10, nil)
			d.end(d.begin("a"), true)
			w := open(t.Context(), l, f, "", nil)
			synctest.Wait()
			d.change(func() { change(d) })
			time.Sleep(3 * time.Second) // a pulse finds it
			err := <-w.done
			require.Error(t, err, name)
			require.Equal(t, name != "no database", errors.Is(err, ErrReset), "%s: %v", name, err)
			require.Empty(t, l.tails.byKey)
		})
	}
}

// A reader that takes nothing ends, and delays no other reader.
func TestASlowReaderEndsAlone_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDatabase()
		l, f := followed(d, 10, nil)
		stuck := make(chan struct{})
		slow := open(t.Context(), l, f, "", func(r *reader, e schema.Event[string]) error {
			if len(e.Items) > 0 {
				<-stuck
			}
			return r.take(e)
		})
		quick := open(t.Context(), l, f, "", nil)
		synctest.Wait()
		began := time.Now()
		d.end(d.begin("a"), true)
		l.cfg.Wake.Wake(topic)
		require.ErrorIs(t, <-slow.done, ErrSlow)
		require.InDelta(t, time.Minute, time.Since(began), float64(time.Second))
		texts, _, _ := quick.state()
		require.Equal(t, []string{"a"}, texts)
		close(stuck)
		quick.cancel()
		<-quick.done //nolint:errcheck // it was cancelled
	})
}

// A defect in a reader ends its watch with an error, not the process.
func TestAPanicEndsTheWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, f := followed(newDatabase(), 10, nil)
		w := open(t.Context(), l, f, "", func(*reader, schema.Event[string]) error { panic("a defect") })
		require.ErrorContains(t, <-w.done, "watch of texts panicked: a defect")
		failed := errors.New("the stream is closed")
		w = open(t.Context(), l, f, "", func(*reader, schema.Event[string]) error { return failed })
		require.ErrorIs(t, <-w.done, failed)
	})
}

// Many watches cost one read for each commit, and one question a second at rest; with notifications, one in
// ten seconds.
func TestWatchesShareTheirReads_I20(t *testing.T) {
	t.Parallel()
	for _, heard := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newDatabase()
			l, f := followed(d, 10, func(c *Config) { c.Heard = func() bool { return heard } })
			var watches []*reader
			for range 50 {
				watches = append(watches, open(t.Context(), l, f, "", nil))
			}
			time.Sleep(time.Minute)
			d.count("")
			time.Sleep(time.Minute)
			synctest.Wait()
			asked := d.count(writtenSQL)
			if heard {
				require.InDelta(t, 6, asked, 2)
			} else {
				require.InDelta(t, 60, asked, 3)
			}
			for range 5 {
				d.end(d.begin("a", "b"), true)
				l.cfg.Wake.Wake(topic)
				time.Sleep(100 * time.Millisecond)
			}
			require.LessOrEqual(t, d.count(firstSQL), 6, "one read for each commit, and one for the pause before it")
			for _, w := range watches {
				texts, _, _ := w.state()
				require.Len(t, texts, 10)
				require.Equal(t, 1, w.ends)
				require.GreaterOrEqual(t, w.marks, 20, "a bookmark each five seconds")
				w.cancel()
				<-w.done //nolint:errcheck // it was cancelled
			}
		})
	}
}

// The bookmarks of all watches come at the same time: an idle process is woken once for all.
func TestBookmarksComeTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDatabase()
		l, f := followed(d, 10, nil)
		times := map[time.Time]int{}
		var mu sync.Mutex
		ctx, cancel := context.WithCancel(t.Context())
		var watches sync.WaitGroup
		for range 20 {
			watches.Go(func() {
				_ = Follow(ctx, l, f, "", func(e schema.Event[string]) error {
					if e.Token != "" && !e.EndOfSnapshot && len(e.Items) == 0 {
						mu.Lock()
						times[time.Now()]++
						mu.Unlock()
					}
					return nil
				})
			})
			time.Sleep(700 * time.Millisecond)
		}
		time.Sleep(bookmarkInterval)
		mu.Lock()
		clear(times)
		mu.Unlock()
		time.Sleep(time.Minute)
		cancel()
		watches.Wait()
		require.Equal(t, 12, len(times), "times in a minute") //nolint:testifylint // the times are many when it fails
		for _, n := range times {
			require.Equal(t, 20, n)
		}
	})
}

// A watch at rest has the token of the last pulse: it reveals an older copy that the token of its last event
// would not.
func TestTheTokenOfAWatchAtRestIsYoung_I24(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDatabase()
		l, f := followed(d, 10, nil)
		w := open(t.Context(), l, f, "", nil)
		synctest.Wait()
		for range 30 { // transactions of other tables
			d.end(d.begin(), true)
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Second)
		_, token, _ := w.state()
		w.cancel()
		<-w.done //nolint:errcheck // it was cancelled
		st, err := l.state(t.Context(), d)
		require.NoError(t, err)
		at, err := l.open(t.Context(), st, token, f.Filter)
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(d.next), at.xmax)
		d.change(func() { d.next -= 5 })
		require.ErrorIs(t, l.CheckAhead(t.Context(), token, f.Filter), errAhead)
	})
}

// A broadcast wakes the watches of its topics, once.
func TestABroadcastWakesItsTopics(t *testing.T) {
	t.Parallel()
	b := NewBroadcast()
	one, two, both := b.Wait(1), b.Wait(2), b.Wait(3)
	require.Equal(t, one, b.Wait(1), "waiters of a topic share a channel")
	woken := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	b.Wake(4)
	require.Equal(t, []bool{false, false, false}, []bool{woken(one), woken(two), woken(both)})
	b.Wake(2)
	require.Equal(t, []bool{false, true, true}, []bool{woken(one), woken(two), woken(both)})
	require.False(t, woken(b.Wait(2)), "a channel is closed once")
	b.Wake(everything)
	require.True(t, woken(one))
}

// A page that was cut because of its bytes makes the next ones smaller, and then larger again.
func TestPagesFollowTheSizeOfTheRows(t *testing.T) {
	t.Parallel()
	s := sizer{most: 100}
	var asked []int
	for _, got := range []int{100, 30, 30, 60, 0, 1, 100} {
		n := s.next()
		asked = append(asked, n)
		s.saw(got > 0, min(got, n))
	}
	require.Equal(t, []int{100, 100, 30, 60, 100, 100, 1}, asked)
}

// A commit may be delivered in several pages: a token within them would resume behind rows that were not
// delivered.
func TestOnlyTheLastPageOfACommitHasAToken_I24(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDatabase()
		l, f := followed(d, 1, nil)
		var events []schema.Event[string]
		w := open(t.Context(), l, f, "", func(r *reader, e schema.Event[string]) error {
			if len(e.Items) > 0 {
				events = append(events, e)
			}
			return r.take(e)
		})
		synctest.Wait()
		d.end(d.begin("a", "b", "c"), true)
		l.cfg.Wake.Wake(topic)
		time.Sleep(time.Second)
		w.cancel()
		<-w.done //nolint:errcheck // it was cancelled
		texts, _, _ := w.state()
		require.Equal(t, []string{"a", "b", "c"}, texts)
		for _, e := range events[:len(events)-1] {
			require.Empty(t, e.Token)
		}
		require.NotEmpty(t, w.token)
	})
}
