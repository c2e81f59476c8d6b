package constraint

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/constraint/cache"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
)

// deletions is the cache of the deletions at one deployment that this deployment has not acknowledged. A
// deletion stays after it was acted upon, until it is acknowledged, so that a watch that is opened again
// repeats none that is unchanged.
type deletions struct {
	*cache.Cache[schema.Deletion]
	subscription schema.Subscription
	run          *watchRun
	began        time.Time // of the stream
	// steps are the new deletions in the order of the watch, with the positions between them.
	steps []step
	// acted are the deletions that are done and not acknowledged, with the number that was acted upon.
	acted map[uuid.UUID]int64
	// failed are the deletions that are handled again, beside new ones. Until they are done, every
	// acknowledgement excepts them.
	failed map[uuid.UUID]failure
	// stream counts the streams of the watch: a position of an earlier stream is not acknowledged any more.
	stream int
	// position is the newest position of this stream before which every deletion was taken; empty while there
	// is none. While open, deletions after it were taken as well.
	position string
	open     bool
}

// failure is a deletion that is not done: the number that was handled, and the time when it is handled again,
// zero when it only has too many holders for one run.
type failure struct {
	seq     int64
	backoff retry.Backoff
	due     time.Time
	problem error // nil: it has too many holders for one run
}

// exceptLimit is the number of deletions that an acknowledgement of deletions that are handled again may
// except, so that its message stays small: while more have failed, successful deletions are acknowledged
// together later.
const exceptLimit = 10 * batchLimit

// step is either deletions, by their keys, or the position after all deletions before it.
type step struct {
	keys     []deletionKey
	position string
}

// deletionKey names one arrival of a deletion: a deletion that arrives again has a greater number, and
// replaces it.
type deletionKey struct {
	uid uuid.UUID
	seq int64
}

func newDeletions(s schema.Subscription) *deletions {
	return &deletions{
		subscription: s, acted: map[uuid.UUID]int64{}, failed: map[uuid.UUID]failure{},
		Cache: cache.New(cache.Config[schema.Deletion]{
			Kind: "deletions of " + s.String(),
			ID:   func(d schema.Deletion) string { return d.UID.String() },
			// A deletion that arrives again has new holders, and is acted upon again.
			Version: func(d schema.Deletion) int64 { return d.Seq },
		}),
	}
}

// take puts an event into the cache, and appends new deletions to the steps.
func (d *deletions) take(e event) error {
	switch {
	case e.started:
		d.Begin()
		d.began = time.Now()
		d.steps = slices.DeleteFunc(d.steps, func(s step) bool { return s.position != "" })
		d.position = ""
		d.stream++
	case e.lost:
		d.Lost()
	}
	fresh, err := d.Upsert(e.deletion.Items...)
	if len(fresh) > 0 {
		d.steps = append(d.steps, step{keys: keysOf(fresh)})
	}
	if e.deletion.EndOfSnapshot {
		for _, gone := range d.End() { // an acknowledgement arrived late, or the deletion was called off
			delete(d.acted, gone.UID)
			delete(d.failed, gone.UID)
		}
	}
	switch {
	case e.deletion.Token == "":
	case d.open || len(d.steps) > 0: // acknowledged after the deletions before it
		d.steps = append(d.steps, step{position: e.deletion.Token})
	default: // the watch is idle
		d.position = e.deletion.Token
	}
	return err
}

func keysOf(all []schema.Deletion) []deletionKey {
	keys := make([]deletionKey, len(all))
	for i, d := range all {
		keys[i] = deletionKey{d.UID, d.Seq}
	}
	return keys
}

// batch is the input of one run.
type batch struct {
	stream int
	// retry: the deletions failed before.
	retry     bool
	deletions []schema.Deletion
	// position is acknowledged after the first deletions, as many as covered; empty while it has not come.
	position string
	covered  int
	except   []uuid.UUID
}

// fresh returns the next deletions that are new, with the position to acknowledge after them and the
// deletions to except.
func (d *deletions) fresh() batch {
	b := d.next(batchLimit)
	for uid := range d.failed {
		if !slices.ContainsFunc(b.deletions, func(x schema.Deletion) bool { return x.UID == uid }) {
			b.except = append(b.except, uid)
		}
	}
	return b
}

// hasNew reports whether the next batch has work: steps, or deletions that were done while an acknowledgement
// that excepted them was under way. The latter need no further event of the watch: an idle watch has none.
func (d *deletions) hasNew() bool { return len(d.steps) > 0 || d.unacknowledged() }

// unacknowledged reports whether deletions that are done can be acknowledged with the position.
func (d *deletions) unacknowledged() bool { return len(d.acted) > 0 && !d.open && d.position != "" }

// waits reports whether a deletion is to be handled again, and after which time.
func (d *deletions) waits(now time.Time) (waits bool, wait time.Duration) {
	v := d.View()
	for uid, f := range d.failed {
		if _, ok := f.current(v, uid); !ok {
			continue
		}
		if left := max(0, f.due.Sub(now)); !waits || left < wait {
			waits, wait = true, left
		}
	}
	return waits, wait
}

// again returns the deletions that are handled again. Deletions that have arrived again since are among the
// steps; the others lie before the newest position, unless that is open.
func (d *deletions) again(now time.Time) batch {
	b := batch{stream: d.stream, retry: true}
	v := d.View()
	for uid, f := range d.failed {
		x, ok := f.current(v, uid)
		if ok && !now.Before(f.due) && len(b.deletions) < batchLimit {
			b.deletions = append(b.deletions, x)
		} else {
			b.except = append(b.except, uid)
		}
	}
	if len(b.deletions) > 0 && !d.open && d.position != "" && len(b.except) <= exceptLimit {
		b.position, b.covered = d.position, len(b.deletions)
	}
	return b
}

// next takes about limit deletions from the front, and the newest position among them. A position in the
// middle is acknowledged after the deletions before it; deletions behind it are done in the same run, and
// acknowledged with the next position.
func (d *deletions) next(limit int) batch {
	b, n := batch{stream: d.stream}, 0
	if d.unacknowledged() {
		b.position = d.position
	}
	for ; n < len(d.steps) && (len(b.deletions) < limit || len(d.steps[n].keys) == 0); n++ {
		s := d.steps[n]
		if b.deletions = append(b.deletions, d.lookUp(s.keys)...); s.position != "" {
			b.position, b.covered = s.position, len(b.deletions)
		}
		d.open = d.open || s.position == ""
	}
	d.steps = d.steps[n:]
	return b
}

// atOnce makes the deletions that failed due, with the first pause after the next failure.
func (d *deletions) atOnce() {
	for uid, f := range d.failed {
		f.due, f.backoff = time.Time{}, retry.Backoff{}
		d.failed[uid] = f
	}
}

// lookUp returns the deletions of keys that are still to be done.
func (d *deletions) lookUp(keys []deletionKey) (todo []schema.Deletion) {
	v := d.View()
	for _, k := range keys {
		if x, ok := v.Get(k.uid.String()); ok && x.Seq == k.seq && d.acted[k.uid] < k.seq {
			todo = append(todo, x)
		}
	}
	return todo
}

// putBack puts a batch before all steps; its position only while its stream lasts.
func (d *deletions) putBack(b batch) {
	again := []step{{keys: keysOf(b.deletions[:b.covered])}}
	if b.position != "" && b.stream == d.stream {
		again = append(again, step{position: b.position})
	}
	again = append(again, step{keys: keysOf(b.deletions[b.covered:])})
	d.steps = append(again, d.steps...)
}

// done takes the result of a batch: deletions that failed are handled again later, and acknowledged ones
// leave the cache.
func (d *deletions) done(b batch, failed map[uuid.UUID]error) {
	if b.position != "" && !b.retry {
		d.acknowledged(b)
	}
	known := d.View()
	for i, x := range b.deletions {
		newest, ok := known.Get(x.UID.String())
		err, failing := failed[x.UID]
		switch {
		case !ok: // called off meanwhile
			delete(d.failed, x.UID)
		case d.acted[x.UID] > x.Seq || d.failed[x.UID].seq > x.Seq: // it has arrived again, and was handled since
		case failing:
			delete(d.acted, x.UID)
			d.failed[x.UID] = d.failed[x.UID].again(x.Seq, fmt.Errorf("%s: %w", x.Name, err))
		case newest.Seq > x.Seq: // it has arrived again, and is among the steps
		case i < b.covered:
			delete(d.failed, x.UID)
			d.Delete(x.Seq, x.UID.String())
		default:
			delete(d.failed, x.UID)
			d.acted[x.UID] = x.Seq
		}
	}
}

// acknowledged removes the deletions that were done before a batch: all lie before its position, unless it
// excepted them.
func (d *deletions) acknowledged(b batch) {
	for uid, seq := range d.acted {
		if !slices.Contains(b.except, uid) {
			d.Delete(seq, uid.String())
			delete(d.acted, uid)
		}
	}
	d.open = len(b.deletions) > b.covered
	if b.stream == d.stream {
		d.position = b.position
	}
}

// current returns the deletion that failed, unless it has arrived again or was called off since.
func (f failure) current(v *cache.View[schema.Deletion], uid uuid.UUID) (schema.Deletion, bool) {
	d, ok := v.Get(uid.String())
	return d, ok && d.Seq == f.seq
}

// again returns the failure after one more run. A deletion that fails waits by itself, each time longer, so
// that others that fail put it off no further (I20).
func (f failure) again(seq int64, err error) failure {
	if f.seq = seq; errors.Is(err, schema.ErrUnfinished) {
		return failure{seq: seq}
	}
	f.due, f.problem = time.Now().Add(f.backoff.Next()), err
	return f
}

// problem returns why a deletion is not done yet, and when it is handled again: of the failed deletion that
// is due first. It is nil when none has failed.
func (d *deletions) problem() (due time.Time, problem error) {
	for _, f := range d.failed {
		if f.problem != nil && (problem == nil || f.due.Before(due)) {
			problem, due = f.problem, f.due
		}
	}
	return due, problem
}
