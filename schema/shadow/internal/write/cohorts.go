package write

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/db-controller/db-controller/internal/gather"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
)

const (
	// fewWrites is the number of writes with references to other deployments that are in no cohort: one
	// establishes while another commits.
	fewWrites = 8
	// cohortPace is the time for which writes wait for the cohort before theirs, so that a deployment that is
	// far away delays them only so long.
	cohortPace = 10 * time.Millisecond
	// cohortLasts is the maximum time for which a cohort counts as under way: a write that waits for a lock
	// delays no cohort.
	cohortLasts = 50 * time.Millisecond
	// cohortsBeside is more than cohortLasts has of cohortPace.
	cohortsBeside = 10
)

// cohorts lets many writes that refer to one deployment establish and commit together: writes that come while
// others are at it are the next cohort. Otherwise they spread over the steps of a write, so that each step
// has small batches, of which each costs several round trips.
type cohorts struct {
	underWay atomic.Int64 // writes, in a cohort or not
	running  sync.WaitGroup
	mu       sync.Mutex
	at       map[schema.DeploymentID]*gather.Queue[*member] // guarded by mu
}

// member is a write in a cohort.
type member struct {
	ctx   context.Context //nolint:containedctx // of its own
	do    func(ctx context.Context) error
	err   error
	ended chan struct{} // closed after err is set
}

// join runs do, which establishes references at a deployment and commits: at once, or together with others.
func (c *cohorts) join(ctx context.Context, target schema.DeploymentID, do func(ctx context.Context) error) error {
	defer c.underWay.Add(-1)
	if c.underWay.Add(1) <= fewWrites {
		return do(ctx)
	}
	mine := &member{ctx: ctx, do: do, ended: make(chan struct{})}
	alone := func() error {
		close(mine.ended)
		mine.err = do(ctx)
		return mine.err
	}
	switch err := c.queue(target).Do(ctx, postgres.CallerOf(ctx).Who, mine, alone); {
	case errors.Is(err, gather.ErrTooMany):
		return do(ctx)
	case errors.Is(err, gather.ErrWaiting):
		return err
	}
	<-mine.ended // also when its deadline has passed: it ends soon then, and has an outcome
	return mine.err
}

// queue returns the cohorts at a deployment.
func (c *cohorts) queue(target schema.DeploymentID) *gather.Queue[*member] {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.at[target]
	if q == nil {
		q = gather.New(gather.Config[*member]{
			Run: c.run, Most: mostGathered, Beside: cohortsBeside, Pace: cohortPace,
			Waiting: mostWaiting,
		})
		c.at[target] = q
	}
	return q
}

// run runs a cohort, and returns when all its writes have ended or after cohortLasts. The writes have their
// outcomes themselves.
func (c *cohorts) run(together []*member) []error {
	var all sync.WaitGroup
	for _, one := range together {
		all.Go(func() {
			defer close(one.ended)
			one.err = one.do(gather.WithCompany(one.ctx, len(together)))
		})
	}
	ended := make(chan struct{})
	c.running.Go(func() {
		all.Wait()
		close(ended)
	})
	select {
	case <-ended:
	case <-time.After(cohortLasts):
	}
	return make([]error, len(together))
}

// wait waits until no cohort runs. Nothing may join one any more.
func (c *cohorts) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.at {
		q.Wait()
	}
	c.running.Wait()
}
