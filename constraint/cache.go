package constraint

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// own is what this deployment has outstanding, of the node's shards.
type own struct {
	primed bool
	work   map[int64]schema.Work
}

func (o *own) take(e event) {
	switch {
	case e.started:
		o.primed = false
		clear(o.work)
	case e.lost:
		o.primed = false
	}
	for _, w := range e.work.Items {
		o.work[w.Seq] = w
	}
	if e.work.EndOfSnapshot {
		o.primed = true
	}
}

// foreign is what one deployment has deleted and waits for us to act upon.
type foreign struct {
	subscription Subscription
	run          *watchRun
	primed       bool
	// steps are deletions in the order of the watch, with the positions in between.
	steps []step
	// open tells that deletions were taken whose position has not come yet.
	open bool
	// failed are those that are tried again when retryAt has come; until they succeed, every acknowledgement excepts them.
	failed  map[uuid.UUID]schema.Deletion
	retryAt time.Time
	backoff backoff
	// stream counts the streams of the watch: what a worker reports about an earlier one is not true of this one.
	stream int
	// position is the newest one that has been acknowledged.
	position string
}

// step is either deletions, or the position after all deletions before it.
type step struct {
	deletions []schema.Deletion
	position  string
}

func (f *foreign) take(e event) {
	switch {
	case e.started:
		f.primed, f.steps, f.open, f.position = false, nil, false, ""
		clear(f.failed)
		f.stream++
	case e.lost:
		f.primed = false
	}
	switch d := e.deletion; {
	case len(d.Items) > 0:
		f.steps = append(f.steps, step{deletions: d.Items})
	case d.Token == "":
	case len(f.steps) > 0 || f.open: // an idle watch's position tells nothing new
		f.steps = append(f.steps, step{position: d.Token})
	}
	if e.deletion.EndOfSnapshot {
		f.primed = true
	}
}

// next takes about limit deletions off the front, and the newest position that all deletions before it have been taken
// with; it is empty while the position has not come. A position in the middle stands for what lies before it: what
// follows it is done as well, and told with the next one.
func (f *foreign) next(limit int) (deletions []schema.Deletion, position string) {
	n := 0
	for ; n < len(f.steps) && (len(deletions) < limit || len(f.steps[n].deletions) == 0); n++ {
		s := f.steps[n]
		deletions = append(deletions, s.deletions...)
		if f.open = s.position == ""; !f.open {
			position = s.position
		}
	}
	f.steps = f.steps[n:]
	return deletions, position
}

// batch gives the next deletions to act upon, with the position to acknowledge after them and what to except: what
// failed and is due again, and else what is new.
func (f *foreign) batch(now time.Time) (deletions []schema.Deletion, position string, except []uuid.UUID, retry bool) {
	if len(f.failed) > 0 && !now.Before(f.retryAt) {
		return slices.Collect(maps.Values(f.failed)), f.position, nil, true
	}
	deletions, position = f.next(batchLimit)
	trying := map[uuid.UUID]bool{}
	for _, d := range deletions {
		trying[d.UID] = true
	}
	for uid := range f.failed {
		if !trying[uid] {
			except = append(except, uid)
		}
	}
	return deletions, position, except, false
}
