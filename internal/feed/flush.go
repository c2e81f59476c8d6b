package feed

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/db-controller/db-controller/internal/postgres"
)

const (
	flushedSQL = `SELECT pg_current_wal_flush_lsn()::text`

	// A transaction that has written nothing to the log does not wait for it: with the log on disk up to $1
	// it need not.
	flushSQL = `
SELECT set_config('synchronous_commit', 'on', true), CASE WHEN pg_current_wal_flush_lsn() < $1::text::pg_lsn THEN pg_logical_emit_message(true, 'db-controller', '') END`

	// othersFlush is how long the commits of others have to flush the log.
	othersFlush = time.Millisecond

	// restAfter is the pause after which a round waits for no others. It is more than the time between two
	// reads of a watch under load.
	restAfter = coalesce + othersFlush
)

// flush returns when the log is on disk up to a position. Only then the position may be sent: a crash of
// PostgreSQL loses the later log, and with it the transaction ids that were assigned, even to transactions
// that were rolled back; assigned again, they would lie before the position.
func (l *Log) flush(ctx context.Context, st state) error {
	if st.flushed {
		return nil
	}
	until, err := parseLSN(st.lsn)
	if err != nil {
		return err
	}
	for asked := false; ; asked = true {
		r := l.flushes.join(l.cfg.Pool, until, asked) //nolint:contextcheck // for all watches
		select {
		case <-r.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if r.err != nil || r.reached >= until {
			return r.err
		}
	}
}

// flushes are the waits of all watches of a log for the disk. Under load the commits of others flush the log,
// and one statement asks for all; at rest the first round commits a transaction of its own at once, and the
// second one looks how far that went. The watches that a commit has woken wait together.
type flushes struct {
	mu      sync.Mutex
	next    *flushRound // guarded by mu; the round that begins next, if any
	running bool        // guarded by mu
	ended   time.Time   // guarded by mu; when the last round ended
}

// flushRound is one look at the log, or one flush of it, after the reads of all watches that wait for it: an
// earlier round may have asked another server.
type flushRound struct {
	until   uint64        // guarded by mu of flushes; the farthest place that one of its watches waits for
	commits bool          // guarded by mu of flushes: one of its watches has waited for the others' commits already
	soon    chan struct{} // closed with commits

	done    chan struct{} // closed when the fields below are set
	reached uint64        // the place up to which the log is on disk
	err     error
}

// join returns the next round, which flushes the log itself when commits is set, or no watch has waited for a
// while.
func (f *flushes) join(pool postgres.Pool, until uint64, commits bool) *flushRound {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next = &flushRound{soon: make(chan struct{}), done: make(chan struct{})}
	}
	r, rests := f.next, !f.running && time.Since(f.ended) > restAfter
	r.until = max(r.until, until)
	if (commits || rests) && !r.commits {
		r.commits = true
		close(r.soon)
	}
	if !f.running {
		f.running = true
		go f.run(pool, rests)
	}
	return r
}

// run runs rounds while watches wait for one. Watches that come while the first round after a pause flushes
// the log are likely to be served by that flush, so the second round looks at once.
func (f *flushes) run(pool postgres.Pool, rested bool) {
	for n := 1; ; n++ {
		f.mu.Lock()
		r := f.next
		if f.running = r != nil; r == nil {
			f.ended = time.Now()
		}
		f.mu.Unlock()
		if r == nil {
			return
		}
		wait := othersFlush
		if rested && n == 2 {
			wait = 0
		}
		select {
		case <-r.soon:
		case <-time.After(wait):
		}
		f.mu.Lock()
		f.next = nil
		f.mu.Unlock()
		r.reached, r.err = r.look(pool)
		close(r.done)
	}
}

// look runs in a context of its own: no watch can cancel it for the others.
func (r *flushRound) look(pool postgres.Pool) (reached uint64, err error) {
	ctx, cancel := context.WithTimeout(postgres.InControl(context.Background()), lookTimeout)
	defer cancel()
	if r.commits {
		if _, err = pool.Exec(ctx, flushSQL, fmt.Sprintf("%X/%X", r.until>>32, uint32(r.until))); err != nil { //nolint:gosec // the lower half
			return 0, fmt.Errorf("flush the log: %w", err)
		}
		return r.until, nil
	}
	var text string
	if err = pool.QueryRow(ctx, flushedSQL).Scan(&text); err != nil {
		return 0, fmt.Errorf("read how much of the log is on disk: %w", err)
	}
	return parseLSN(text)
}

// parseLSN reads a place in the log: two hexadecimal numbers.
func parseLSN(text string) (uint64, error) {
	high, low, _ := strings.Cut(text, "/")
	h, err := strconv.ParseUint(high, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("a place in the log: %w", err)
	}
	n, err := strconv.ParseUint(low, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("a place in the log: %w", err)
	}
	return h<<32 | n, nil
}
