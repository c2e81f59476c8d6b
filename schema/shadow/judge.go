package shadow

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// maxTraced is the maximum number of resources that a delete traces in order to judge blockers.
const maxTraced = 50_000

// Trace lists the resources whose deletion would remove one resource.
type Trace struct {
	// Cascades are the targets of its cascading references, and those of these targets, transitively in the same database.
	Cascades []PlanTarget
	// Owners are the owners of the resource and of the local Cascades. The deletion of one owner is not enough: an ownee is
	// deleted with the last one, which a trace does not decide.
	Owners []PlanTarget
}

// judge decides, after an incomplete walk (it reached its limit, or a deployment did not answer), which of the blocking holders the
// deletion removes too: it traces them upwards until it finds a member. A holder is unknown when a deployment on its way does not
// answer, or the limit of traces is reached; an unknown holder is neither excused nor a known blocker.
func (w *planWalk) judge(ctx context.Context, holders []PlanTarget) error {
	if !w.truncated && len(w.unasked) == 0 {
		return nil // the walk was complete
	}
	up := map[PlanTarget]Trace{}
	frontier := map[schema.DeploymentID][]uuid.UUID{}
	seen := map[PlanTarget]bool{}
	visit := func(t PlanTarget) {
		if !seen[t] && !w.goes(t) && !w.silent[t.Deployment] && len(seen) < maxTraced {
			seen[t] = true
			frontier[t.Deployment] = append(frontier[t.Deployment], t.UID)
		}
	}
	for _, h := range holders {
		visit(h)
	}
	for len(frontier) > 0 {
		asked := w.traceAll(ctx, frontier)
		frontier = map[schema.DeploymentID][]uuid.UUID{}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, a := range asked {
			if a.traces == nil {
				w.silent[a.from] = true
				w.unasked = append(w.unasked, a.unasked)
				continue
			}
			for uid, trace := range a.traces {
				up[PlanTarget{a.from, uid}] = trace
				for _, t := range trace.Cascades {
					if t.Deployment != a.from { // the answer is transitive inside its database
						visit(t)
					}
				}
			}
		}
	}
	w.unasked = sortUnasked(w.unasked)
	for _, h := range holders {
		w.judgeOne(h, up, seen)
	}
	return nil
}

type tracedAt struct {
	from    schema.DeploymentID
	traces  map[uuid.UUID]Trace
	unasked Unasked
}

// traceAll asks deployments concurrently, with half of the remaining time for each.
func (w *planWalk) traceAll(ctx context.Context, uids map[schema.DeploymentID][]uuid.UUID) []tracedAt {
	var out []tracedAt
	var mu sync.Mutex // of out
	var wg sync.WaitGroup
	free := make(chan struct{}, maxAsking)
	for d, uids := range uids {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			began := time.Now()
			ctx, cancel := inPart(ctx, 1, 2)
			defer cancel()
			a := tracedAt{from: d}
			traces, err := w.peers.Trace(ctx, d, uids)
			if err != nil {
				a.unasked = notAsked(ctx, d, began, err)
			} else if a.traces = traces; traces == nil {
				a.traces = map[uuid.UUID]Trace{}
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, a)
		})
	}
	wg.Wait()
	return out
}

func (w *planWalk) judgeOne(h PlanTarget, up map[PlanTarget]Trace, seen map[PlanTarget]bool) {
	if w.goes(h) {
		return
	}
	unknown := false
	been := map[PlanTarget]bool{h: true}
	for way := []PlanTarget{h}; len(way) > 0; {
		t := way[0]
		way = way[1:]
		if w.goes(t) {
			w.excused[h] = true
			return
		}
		unknown = unknown || w.silent[t.Deployment]
		for _, owner := range up[t].Owners {
			unknown = unknown || w.goes(owner) || w.silent[owner.Deployment]
		}
		for _, next := range up[t].Cascades {
			// Only targets in other deployments: a trace is transitive inside its database.
			unknown = unknown || next.Deployment != t.Deployment && !seen[next] && !w.goes(next)
			if !been[next] {
				been[next] = true
				way = append(way, next)
			}
		}
	}
	if unknown || !seen[h] {
		w.unknown[h] = true
	}
}
