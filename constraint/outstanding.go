package constraint

import (
	"strconv"
	"time"

	"github.com/db-controller/db-controller/constraint/cache"
	"github.com/db-controller/db-controller/schema"
)

// outstanding is the cache of the deployment's outstanding work in the node's shards.
type outstanding struct {
	*cache.Cache[*schema.Work]
	began time.Time // of the stream
}

func newOutstanding() *outstanding {
	return &outstanding{Cache: cache.New(cache.Config[*schema.Work]{
		Kind: "outstanding work",
		ID:   func(w *schema.Work) string { return workID(w.Seq) },
		// A piece of work does not change: it is there, or it is done.
		Version: func(*schema.Work) int64 { return 1 },
	})}
}

func workID(seq int64) string { return strconv.FormatInt(seq, 10) }

// take puts an event into the cache, and returns the work that was not in it: a watch that is opened again
// repeats no work that is unchanged.
func (o *outstanding) take(e event) (fresh []*schema.Work, err error) {
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
		o.End() // work that is removed from the cache here is not found when its turn comes
	}
	return fresh, err
}

func (o *outstanding) get(seq int64) (*schema.Work, bool) { return o.View().Get(workID(seq)) }

func (o *outstanding) remove(seqs []int64) {
	for _, seq := range seqs {
		o.Delete(0, workID(seq))
	}
}
