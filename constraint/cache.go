package constraint

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/constraint/cache"
	"github.com/db-controller/db-controller/schema"
)

// own is what this deployment has outstanding, of the node's shards.
type own struct {
	*cache.Cache[*schema.Work]
	began time.Time // of the stream
}

func newOwn() *own {
	return &own{Cache: cache.New(cache.Config[*schema.Work]{
		Kind: "outstanding work",
		ID:   func(w *schema.Work) string { return workID(w.Seq) },
		// Work does not change; it is there, or it is done.
		Version: func(*schema.Work) int64 { return 1 },
	})}
}

func workID(seq int64) string { return strconv.FormatInt(seq, 10) }

// take puts an event into the cache, and answers the work that was not known before: a watch that is opened again
// replays nothing that has not changed.
func (o *own) take(e event) (fresh []*schema.Work, err error) {
	switch {
	case e.started:
		o.Begin()
		o.began = time.Now()
	case e.lost:
		o.Lost()
	}
	items := make([]*schema.Work, len(e.work.Items))
	for i := range items {
		items[i] = &e.work.Items[i]
	}
	fresh, err = o.Upsert(items...)
	if e.work.EndOfSnapshot {
		o.End() // what is gone is found missing when its turn comes
	}
	return fresh, err
}

func (o *own) get(seq int64) (*schema.Work, bool) { return o.View().Get(workID(seq)) }

func (o *own) done(seqs []int64) {
	for _, seq := range seqs {
		o.Delete(0, workID(seq))
	}
}

// foreign is what one deployment has deleted and waits for us to act upon. What was acted upon stays until it is
// acknowledged, so that a watch that is opened again brings only what is new.
type foreign struct {
	*cache.Cache[schema.Deletion]
	subscription schema.Subscription
	run          *watchRun
	began        time.Time // of the stream
	// steps are deletions in the order of the watch, with the positions in between.
	steps []step
	// acted are those that are done and wait for a position to be acknowledged with: the number that was acted upon.
	acted map[uuid.UUID]int64
	// failed are those that are handled again, beside what is new. Until they are done, every acknowledgement excepts them.
	failed map[uuid.UUID]failure
	// stream counts the streams of the watch: a position of an earlier one is not acknowledged any more.
	stream int
	// position is one of this stream that everything that was taken lies before, unless open tells that deletions after it were
	// taken. Empty while this stream has none.
	position string
	open     bool
}

// failure is a deletion that is not done yet: the number that was handled, and when it is handled again, which is at once
// when it only was too large for one run.
type failure struct {
	seq     int64
	backoff backoff
	due     time.Time
}

// exceptLimit is how many deletions an acknowledgement of what is handled again may except, so that its message stays small:
// while more have failed, what succeeds is acknowledged together.
const exceptLimit = 10 * batchLimit

// step is either deletions, by their keys, or the position after all deletions before it.
type step struct {
	keys     []deletionKey
	position string
}

// deletionKey is of one time that a deletion has come: once it has come again, that counts.
type deletionKey struct {
	uid uuid.UUID
	seq int64
}

func newForeign(s schema.Subscription) *foreign {
	return &foreign{
		subscription: s, acted: map[uuid.UUID]int64{}, failed: map[uuid.UUID]failure{},
		Cache: cache.New(cache.Config[schema.Deletion]{
			Kind: "deletions of " + s.String(),
			ID:   func(d schema.Deletion) string { return d.UID.String() },
			// One that comes again has holders that were not there before: it has to be acted upon again.
			Version: func(d schema.Deletion) int64 { return d.Seq },
		}),
	}
}

// take puts an event into the cache, and what was not known before behind the steps.
func (f *foreign) take(e event) error {
	switch {
	case e.started:
		f.Begin()
		f.began = time.Now()
		f.steps = slices.DeleteFunc(f.steps, func(s step) bool { return s.position != "" })
		f.position = ""
		f.stream++
	case e.lost:
		f.Lost()
	}
	fresh, err := f.Upsert(e.deletion.Items...)
	if len(fresh) > 0 {
		f.steps = append(f.steps, step{keys: keysOf(fresh)})
	}
	if e.deletion.EndOfSnapshot {
		for _, d := range f.End() { // acknowledged by what reached it late, or called off
			delete(f.acted, d.UID)
			delete(f.failed, d.UID)
		}
	}
	switch {
	case e.deletion.Token == "":
	case f.open || len(f.steps) > 0: // told after what lies before it
		f.steps = append(f.steps, step{position: e.deletion.Token})
	default: // of an idle watch
		f.position = e.deletion.Token
	}
	return err
}

func keysOf(deletions []schema.Deletion) []deletionKey {
	keys := make([]deletionKey, len(deletions))
	for i, d := range deletions {
		keys[i] = deletionKey{d.UID, d.Seq}
	}
	return keys
}

// batch is what one run is given.
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

// fresh gives the next deletions that are new, with the position to acknowledge after them and what to except.
func (f *foreign) fresh() batch {
	b := f.next(batchLimit)
	for uid := range f.failed {
		if !slices.ContainsFunc(b.deletions, func(d schema.Deletion) bool { return d.UID == uid }) {
			b.except = append(b.except, uid)
		}
	}
	return b
}

// news tells whether there is something for the next batch: steps, or what was done while an acknowledgement that excepted it
// was under way. No further word of the watch is needed for that one, and an idle watch has none to say.
func (f *foreign) news() bool { return len(f.steps) > 0 || f.untold() }

func (f *foreign) untold() bool { return len(f.acted) > 0 && !f.open && f.position != "" }

// waits tells whether something is to be handled again, and how long that has to wait.
func (f *foreign) waits(now time.Time) (waits bool, wait time.Duration) {
	v := f.View()
	for uid, x := range f.failed {
		if _, ok := x.of(v, uid); !ok {
			continue
		}
		if left := max(0, x.due.Sub(now)); !waits || left < wait {
			waits, wait = true, left
		}
	}
	return waits, wait
}

// again gives what is handled again. What has come again since stands among the steps; the others lie before the newest
// position, unless that is open.
func (f *foreign) again(now time.Time) batch {
	b := batch{stream: f.stream, retry: true}
	v := f.View()
	for uid, x := range f.failed {
		d, ok := x.of(v, uid)
		if ok && !now.Before(x.due) && len(b.deletions) < batchLimit {
			b.deletions = append(b.deletions, d)
		} else {
			b.except = append(b.except, uid)
		}
	}
	if len(b.deletions) > 0 && !f.open && f.position != "" && len(b.except) <= exceptLimit {
		b.position, b.covered = f.position, len(b.deletions)
	}
	return b
}

// next takes about limit deletions off the front, and the newest position that all deletions before it have been taken
// with. A position in the middle stands for what lies before it: what follows it is done as well, and told with the next
// one.
func (f *foreign) next(limit int) batch {
	b, n := batch{stream: f.stream}, 0
	if f.untold() {
		b.position = f.position
	}
	for ; n < len(f.steps) && (len(b.deletions) < limit || len(f.steps[n].keys) == 0); n++ {
		s := f.steps[n]
		if b.deletions = append(b.deletions, f.known(s.keys)...); s.position != "" {
			b.position, b.covered = s.position, len(b.deletions)
		}
		f.open = f.open || s.position == ""
	}
	f.steps = f.steps[n:]
	return b
}

// known looks up what keys stand for, as far as that is still to be done.
func (f *foreign) known(keys []deletionKey) (deletions []schema.Deletion) {
	v := f.View()
	for _, k := range keys {
		if d, ok := v.Get(k.uid.String()); ok && d.Seq == k.seq && f.acted[k.uid] < k.seq {
			deletions = append(deletions, d)
		}
	}
	return deletions
}

// putBack lets a batch come again, first of all; its position only as long as its stream lasts.
func (f *foreign) putBack(b batch) {
	again := []step{{keys: keysOf(b.deletions[:b.covered])}}
	if b.position != "" && b.stream == f.stream {
		again = append(again, step{position: b.position})
	}
	again = append(again, step{keys: keysOf(b.deletions[b.covered:])})
	f.steps = append(again, f.steps...)
}

// done takes what came of a batch: what failed is tried again later, and what is acknowledged is forgotten.
func (f *foreign) done(b batch, failed map[uuid.UUID]error) {
	if b.position != "" && !b.retry { // everything that was done before this batch lies before it, unless it was excepted
		for uid, seq := range f.acted {
			if !slices.Contains(b.except, uid) {
				f.Delete(seq, uid.String())
				delete(f.acted, uid)
			}
		}
		f.open = len(b.deletions) > b.covered
		if b.stream == f.stream {
			f.position = b.position
		}
	}
	known := f.View()
	for i, d := range b.deletions {
		now, ok := known.Get(d.UID.String())
		err, failing := failed[d.UID]
		switch {
		case !ok: // called off meanwhile
			delete(f.failed, d.UID)
		case f.acted[d.UID] > d.Seq || f.failed[d.UID].seq > d.Seq: // it has come again, and was handled since
		case failing:
			delete(f.acted, d.UID)
			f.failed[d.UID] = f.failed[d.UID].again(d.Seq, err)
		case now.Seq > d.Seq: // it has come again, and stands among the steps
		case i < b.covered:
			delete(f.failed, d.UID)
			f.Delete(d.Seq, d.UID.String())
		default:
			delete(f.failed, d.UID)
			f.acted[d.UID] = d.Seq
		}
	}
}

// of gives the deletion that has failed, unless it has come again or was called off since.
func (x failure) of(v *cache.View[schema.Deletion], uid uuid.UUID) (schema.Deletion, bool) {
	d, ok := v.Get(uid.String())
	return d, ok && d.Seq == x.seq
}

// again is the failure after one more run: what failed waits, each by itself and each time longer, so that others that fail
// put it off no further (I20).
func (x failure) again(seq int64, err error) failure {
	if x.seq = seq; errors.Is(err, schema.ErrUnfinished) {
		return failure{seq: seq}
	}
	x.due = time.Now().Add(x.backoff.next())
	return x
}
