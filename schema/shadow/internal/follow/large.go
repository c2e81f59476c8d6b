package follow

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/schema"
)

// actLarge pages through all holders of one target until patience ends, from where the last run stopped. The
// first large target of a run is paged at least once. Failed holders, in any number, are retried only after
// all others (I20).
func (a *acting) actLarge(ctx context.Context, id int64, patience time.Duration, first bool) error {
	began, uid := time.Now(), a.targets[id].UID
	w := a.store.walks.take(id, a.key(uid))
	w.resume(began)
	if w.meet {
		a.met(id)
	}
	delete(a.failed, uid) // set again if its pages fail
	delete(a.failedHolders, uid)
	for ; w.behaviour < len(actingBehaviours); first = false {
		if time.Since(began) >= patience && !first {
			w.paused, w.meet = time.Now(), a.meets(id)
			a.store.walks.put(id, w)
			a.failed[uid] = schema.ErrUnfinished
			return nil
		}
		last, passed, more, err := a.page(ctx, id, actingBehaviours[w.behaviour], w.after)
		if err != nil {
			return err
		}
		a.advance(ctx, id, &w, passed, last, more)
		if a.failed[uid] != nil {
			w.failed = a.failed[uid]
		}
	}
	if w.failed != nil {
		a.failed[uid] = w.failed
	}
	return nil
}

// page handles the holders behind one, in as many batches as may run at a time. It returns the last holder
// that it has passed, the number of references of the handled holders, and whether there may be more.
func (a *acting) page(ctx context.Context, target int64, b schema.Behaviour,
	after int64,
) (last int64, passed int, more bool, err error) {
	size := a.store.Cfg.Limits.Batch
	if !a.meets(target) {
		size *= abreast
	}
	rows, err := a.store.Pool.Query(ctx, nextHoldersSQL, target, int16(b), after, size)
	if err != nil {
		return after, 0, false, fmt.Errorf("read holders: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return after, 0, false, fmt.Errorf("read holders: %w", err)
	}
	if len(found) > 0 {
		after = found[len(found)-1]
	}
	// One with several references comes several times, and belongs to one batch.
	unreached, err := a.batches(ctx, target, slices.Compact(slices.Clone(found)))
	if err != nil || len(unreached) == 0 {
		return after, len(found), len(found) == size, err
	}
	for _, holder := range found {
		if _, left := slices.BinarySearch(unreached, holder); !left {
			passed++
		}
	}
	return unreached[0] - 1, passed, true, nil
}

// abreast is the number of batches of one large deletion that run at a time: while one commits, or its
// process computes, the database works on the other one. A fan-out of 100,000 takes two thirds of the time
// with it, on two processors; more were not tried.
const abreast = 2

// batches is batch for different holders of one target, in order, in up to abreast batches at a time. The
// batches of holders that are targets themselves can wait for each other's locks: then they run one after the
// other.
func (a *acting) batches(ctx context.Context, target int64, holders []int64) (unreached []int64, err error) {
	targets := []int64{target}
	if a.meets(target) || len(holders) <= min(smallTarget, a.store.Cfg.Limits.Batch) {
		return a.batch(ctx, targets, holders, false)
	}
	var g errgroup.Group // without a common context: one batch goes on when the other one fails
	var left [abreast][]int64
	each := (len(holders) + abreast - 1) / abreast
	for i, part := range slices.Collect(slices.Chunk(holders, each)) {
		g.Go(func() (err error) {
			left[i], err = a.batch(ctx, targets, part, true)
			return err
		})
	}
	err = g.Wait()
	return slices.Concat(left[:]...), err
}

// met notes that the batches of a target can wait for each other's locks.
func (a *acting) met(target int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.meeting[target] = true
}

func (a *acting) meets(target int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.meeting[target]
}
