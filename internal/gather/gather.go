// Package gather runs concurrent requests together: the requests that came while a batch was under way are
// the next batch.
package gather

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// ErrAlone is the outcome of a request that a batch has left out, without effect: it is to be run alone.
var ErrAlone = errors.New("the request was left out of its batch")

// ErrLeft is the error of a caller that did not wait for the end of its batch: the request may take effect.
var ErrLeft = errors.New("the request is under way")

// ErrWaiting is the error of a caller that did not wait until a batch took its request: it has no effect. The
// returned error wraps the context's error as well.
var ErrWaiting = errors.New("the request was waiting")

// ErrTooMany is the error of a caller with too many waiting requests.
var ErrTooMany = errors.New("too many requests of this caller are waiting")

// Config of a Queue.
type Config[R any] struct {
	// Run runs a batch and returns the outcome of each request, in their order.
	Run func(batch []R) []error
	// Most is the size of a batch.
	Most int
	// Beside is the number of batches that run at once (default 1). A second one begins when it is large, and
	// as large as the running one: it executes statements while the other one is flushed. Smaller batches
	// beside one another would cost more than they gain.
	Beside int
	// Pace, if not 0, is how long requests wait for the running ones at most: then a further batch begins
	// beside them. So requests that wait for a lock, or for an answer from far away, delay no other request.
	Pace time.Duration
	// Waiting bounds the waiting requests of one caller. The requests of the caller nil are not bounded.
	Waiting int
}

// Queue gathers requests. A request that finds nothing under way runs at once, by itself.
type Queue[R any] struct {
	cfg Config[R]

	mu sync.Mutex
	// guarded by mu, like all below; the request that runs by itself, for which the others wait; 0: none
	alone   int
	alones  int          // so far
	batches int          // that run
	running int          // requests in them
	began   int          // batches so far
	pacing  bool         // a timer runs that begins a further batch
	queued  int          // requests in waiting
	expects int          // requests for which the next batch waits, at most linger
	lingers bool         // it does
	waiting []*caller[R] // in the order of their turns

	ended sync.WaitGroup // has a count for each of batches
}

// caller is a caller with waiting requests.
type caller[R any] struct {
	who      any
	requests []*request[R]
}

type request[R any] struct {
	r     R
	taken bool // guarded by mu of the queue
	done  chan struct{}
	err   error // set before done is closed
}

// New returns an empty queue.
func New[R any](cfg Config[R]) *Queue[R] {
	cfg.Beside = max(cfg.Beside, 1)
	return &Queue[R]{cfg: cfg}
}

// Do runs a request, in a batch or by itself, and returns its outcome. The requests of several callers take
// turns: the argument who is a comparable key of the caller. When ctx ends first, the error is ErrWaiting for
// a request that no batch has taken, and ErrLeft otherwise.
func (q *Queue[R]) Do(ctx context.Context, who any, r R, alone func() error) error {
	req, n, err := q.enter(who, r, companyOf(ctx))
	if err != nil {
		return err
	}
	if req == nil {
		defer q.leave(n)
		return alone()
	}
	if err := q.wait(ctx, who, req); !errors.Is(err, ErrAlone) {
		return err
	}
	return alone()
}

// enter adds a request to the waiting ones, or returns the number of a request that runs alone.
func (q *Queue[R]) enter(who any, r R, company int) (req *request[R], alone int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.expects == 0 && company > 1 {
		q.expects = min(company, q.cfg.Most)
	}
	if q.alone == 0 && q.batches == 0 && q.expects == 0 {
		q.alones++
		q.alone = q.alones
		return nil, q.alone, nil
	}
	req, err = q.add(who, r)
	q.begin()
	return req, 0, err
}

// add adds a waiting request. The caller holds mu.
func (q *Queue[R]) add(who any, r R) (*request[R], error) {
	i := slices.IndexFunc(q.waiting, func(c *caller[R]) bool { return c.who == who })
	if i < 0 {
		i = len(q.waiting)
		q.waiting = append(q.waiting, &caller[R]{who: who})
	}
	c := q.waiting[i]
	if who != nil && len(c.requests) >= q.cfg.Waiting {
		return nil, ErrTooMany
	}
	req := &request[R]{r: r, done: make(chan struct{})}
	c.requests = append(c.requests, req)
	q.queued++
	return req, nil
}

// DoAll runs requests of one caller in batches, and returns their outcomes when all of them have ended:
// ErrAlone for requests that were left out.
func (q *Queue[R]) DoAll(who any, rs []R) []error {
	errs, added := make([]error, len(rs)), make([]*request[R], len(rs))
	q.mu.Lock()
	for i, r := range rs {
		added[i], errs[i] = q.add(who, r)
	}
	q.begin()
	q.mu.Unlock()
	for i, req := range added {
		if req != nil {
			<-req.done
			errs[i] = req.err
		}
	}
	return errs
}

func (q *Queue[R]) wait(ctx context.Context, who any, req *request[R]) error {
	select {
	case <-req.done:
		return req.err
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if req.taken {
		return ErrLeft
	}
	if i := slices.IndexFunc(q.waiting, func(c *caller[R]) bool { return c.who == who }); i >= 0 {
		q.queued--
		c := q.waiting[i]
		if c.requests = slices.DeleteFunc(c.requests, func(other *request[R]) bool {
			return other == req
		}); len(c.requests) == 0 {
			q.waiting = slices.Delete(q.waiting, i, i+1)
		}
	}
	return fmt.Errorf("%w: %w", ErrWaiting, ctx.Err())
}

// leave ends the request that ran alone, unless no request waits for it now.
func (q *Queue[R]) leave(alone int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.alone == alone {
		q.alone = 0
		q.begin()
	}
}

// large is the number of requests from which on a second batch is worth its cost.
const large = 8

// begin starts a batch if one may run now, or a timer that does so at the pace. The caller holds mu.
func (q *Queue[R]) begin() {
	underWay := q.batches + min(q.alone, 1)
	switch {
	case q.queued == 0:
	case underWay == 0 && q.queued < q.expects:
		if !q.lingers {
			q.lingers = true
			began := q.began
			time.AfterFunc(linger, func() { q.lingered(began) })
		}
	case underWay == 0, underWay == 1 && q.cfg.Beside > 1 && q.queued >= max(q.running, large):
		q.start()
		q.begin()
	case q.cfg.Pace > 0 && !q.pacing && q.batches < q.cfg.Beside:
		q.pacing = true
		began := q.began
		time.AfterFunc(q.cfg.Pace, func() { q.beside(began) })
	}
}

// start starts a batch. The caller holds mu.
func (q *Queue[R]) start() {
	q.batches++
	q.began++
	q.pacing, q.lingers, q.expects = false, false, 0
	batch := q.take()
	q.ended.Go(func() { q.run(batch) })
}

// lingered starts the batch that has waited for others, unless it has begun.
func (q *Queue[R]) lingered(began int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.began == began && q.lingers {
		q.expects, q.lingers = 0, false
		q.begin()
	}
}

// beside starts a batch beside the running requests, unless one has begun since the requests wait.
func (q *Queue[R]) beside(began int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.began != began {
		return
	}
	q.pacing, q.alone = false, 0
	if q.queued > 0 && q.batches < q.cfg.Beside {
		q.start()
	}
	q.begin()
}

// run runs a batch, and begins the next one.
func (q *Queue[R]) run(batch []*request[R]) {
	requests := make([]R, len(batch))
	for i, req := range batch {
		requests[i] = req.r
	}
	errs := q.cfg.Run(requests)
	for i, req := range batch {
		req.err = errs[i]
		close(req.done)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.batches--
	q.running -= len(batch)
	q.begin()
}

// take removes the next batch from the waiting requests: one request of each caller in turn, until it is
// full. The next batch begins with the caller after the last one. The caller holds mu.
func (q *Queue[R]) take() (batch []*request[R]) {
	for len(batch) < q.cfg.Most && len(q.waiting) > 0 {
		c := q.waiting[0]
		q.waiting = q.waiting[1:]
		c.requests[0].taken = true
		batch = append(batch, c.requests[0])
		if c.requests = c.requests[1:]; len(c.requests) > 0 {
			q.waiting = append(q.waiting, c)
		}
	}
	q.queued -= len(batch)
	q.running += len(batch)
	return batch
}

// Wait waits until no batch runs. Nothing may call Do any more.
func (q *Queue[R]) Wait() { q.ended.Wait() }
