package plan

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// MaxTraced is the maximum number of resources that a delete traces in order to judge blockers.
const MaxTraced = 50_000

// Judge decides, after an incomplete walk (it reached its limit, or a deployment did not answer), which of the blocking holders the
// deletion removes too: it traces them upwards until it finds a member. A holder is unknown when a deployment on its way does not
// answer, or the limit of traces is reached; an unknown holder is neither excused nor a known blocker.
func (w *PlanWalk) Judge(ctx context.Context, holders []peer.PlanTarget) error {
	if !w.Truncated && len(w.Unasked) == 0 {
		return nil // the walk was complete
	}
	up := map[peer.PlanTarget]peer.Trace{}
	frontier := map[schema.DeploymentID][]uuid.UUID{}
	seen := map[peer.PlanTarget]bool{}
	visit := func(t peer.PlanTarget) {
		if !seen[t] && !w.Goes(t) && !w.silent[t.Deployment] && len(seen) < MaxTraced {
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
				w.Unasked = append(w.Unasked, a.unasked)
				continue
			}
			for uid, trace := range a.traces {
				up[peer.PlanTarget{Deployment: a.from, UID: uid}] = trace
				for _, t := range trace.Cascades {
					if t.Deployment != a.from { // the answer is transitive inside its database
						visit(t)
					}
				}
			}
		}
	}
	w.Unasked = peer.SortUnasked(w.Unasked)
	for _, h := range holders {
		w.judgeOne(h, up, seen)
	}
	return nil
}

type tracedAt struct {
	from    schema.DeploymentID
	traces  map[uuid.UUID]peer.Trace
	unasked peer.Unasked
}

// traceAll asks deployments concurrently, with half of the remaining time for each.
func (w *PlanWalk) traceAll(ctx context.Context, uids map[schema.DeploymentID][]uuid.UUID) []tracedAt {
	var out []tracedAt
	var mu sync.Mutex // of out
	var wg sync.WaitGroup
	free := make(chan struct{}, maxAsking)
	for d, uids := range uids {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			began := time.Now()
			ctx, cancel := peer.InPart(ctx, 1, 2)
			defer cancel()
			a := tracedAt{from: d}
			traces, err := w.peers.Trace(ctx, d, uids)
			if err != nil {
				a.unasked = peer.NotAsked(ctx, d, began, err)
			} else if a.traces = traces; traces == nil {
				a.traces = map[uuid.UUID]peer.Trace{}
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, a)
		})
	}
	wg.Wait()
	return out
}

func (w *PlanWalk) judgeOne(h peer.PlanTarget, up map[peer.PlanTarget]peer.Trace, seen map[peer.PlanTarget]bool) {
	if w.Goes(h) {
		return
	}
	unknown := false
	been := map[peer.PlanTarget]bool{h: true}
	for way := []peer.PlanTarget{h}; len(way) > 0; {
		t := way[0]
		way = way[1:]
		if w.Goes(t) {
			w.excused[h] = true
			return
		}
		unknown = unknown || w.silent[t.Deployment]
		for _, owner := range up[t].Owners {
			unknown = unknown || w.Goes(owner) || w.silent[owner.Deployment]
		}
		for _, next := range up[t].Cascades {
			// Only targets in other deployments: a trace is transitive inside its database.
			unknown = unknown || next.Deployment != t.Deployment && !seen[next] && !w.Goes(next)
			if !been[next] {
				been[next] = true
				way = append(way, next)
			}
		}
	}
	if unknown || !seen[h] {
		w.Unknown[h] = true
	}
}
