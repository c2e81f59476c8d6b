package console

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// askInterval is the pause between two looks at all deployments, askTimeout the patience with one of
	// them.
	askInterval = 2 * time.Second
	askTimeout  = 3 * time.Second
	// askAtOnce bounds the deployments that are asked at the same time.
	askAtOnce = 32
)

// Poller asks all deployments while there are viewers, once for all of them.
type Poller struct {
	of       Deployments
	interval time.Duration

	mu      sync.Mutex
	states  map[string]State     // by deployment
	whole   bool                 // every deployment of the environment has been asked since began
	began   time.Time            // when the first viewer came
	problem string               // why the environment cannot be read; empty when it can
	viewers map[*viewer]struct{} // one for each browser
	stop    context.CancelFunc   // ends the looks; nil without viewers
	running sync.WaitGroup       // of the looks
}

// viewer has the changes that a browser has not received yet: the newest state of each deployment, so that a
// slow one costs no more.
type viewer struct {
	wake    chan struct{} // one place
	pending map[string]State
	gone    map[string]bool
	problem *string
	whole   bool // it has all states of the last look, or gets them with the next change
}

// Change has the changes since the last one.
type Change struct {
	Deployments []State  `json:"deployments,omitempty"`
	Gone        []string `json:"gone,omitempty"`
	// Problem is why the environment cannot be read; empty when it can be read again.
	Problem *string `json:"problem,omitempty"`
	// Whole: the deployments of this change and those before are all of the environment.
	Whole bool `json:"whole,omitempty"`
}

func (c Change) empty() bool {
	return len(c.Deployments) == 0 && len(c.Gone) == 0 && c.Problem == nil && !c.Whole
}

// NewPoller returns a poller that asks nothing yet.
func NewPoller(of Deployments) *Poller {
	return &Poller{of: of, interval: askInterval, states: map[string]State{}, viewers: map[*viewer]struct{}{}}
}

// Watch calls send with everything, and then with each change, until ctx ends or send fails.
func (p *Poller) Watch(ctx context.Context, send func(Change) error) error {
	v := p.join()
	defer p.leave(v)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-v.wake:
			c := p.take(v)
			if c.empty() { // it was taken with the change before
				continue
			}
			if err := send(c); err != nil {
				return err
			}
		}
	}
}

func (p *Poller) join() *viewer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop == nil { // there were no viewers: the states are old
		p.whole, p.began = false, time.Now()
		for name, s := range p.states {
			s.SilentSince, s.Answered = nil, false
			p.states[name] = s
		}
	}
	problem := p.problem
	v := &viewer{
		whole: p.whole, wake: make(chan struct{}, 1), pending: maps.Clone(p.states), gone: map[string]bool{},
		problem: &problem,
	}
	v.wake <- struct{}{}
	p.viewers[v] = struct{}{}
	if p.stop == nil {
		var ctx context.Context
		ctx, p.stop = context.WithCancel(context.Background())
		p.running.Go(func() { p.run(ctx) })
	}
	return v
}

func (p *Poller) leave(v *viewer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.viewers, v); len(p.viewers) == 0 && p.stop != nil {
		p.stop()
		p.stop = nil
	}
}

func (p *Poller) take(v *viewer) Change {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := Change{
		Deployments: slices.SortedFunc(maps.Values(v.pending), byName), Gone: slices.Sorted(maps.Keys(v.gone)),
		Problem: v.problem, Whole: v.whole,
	}
	v.pending, v.gone, v.problem, v.whole = map[string]State{}, map[string]bool{}, nil, false
	return c
}

func byName(a, b State) int {
	if a.Deployment < b.Deployment {
		return -1
	}
	return 1
}

// run looks until ctx ends.
func (p *Poller) run(ctx context.Context) {
	for ctx.Err() == nil {
		p.lookAtAll(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(p.interval):
		}
	}
}

func (p *Poller) lookAtAll(ctx context.Context) {
	env, err := p.of.Environment(ctx)
	if err != nil {
		p.report(ctx, plain(err))
		return
	}
	p.report(ctx, "")
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	known := map[string]bool{}
	for _, d := range env.Deployments {
		known[d.String()] = true
		g.Go(func() error {
			p.put(ctx, look(ctx, p.of, env, d))
			return nil
		})
	}
	_ = g.Wait() // errors are in the states
	p.forget(ctx, known)
	p.wholly(ctx)
}

// wholly notes that every deployment has been asked.
func (p *Poller) wholly(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.whole || ctx.Err() != nil {
		return
	}
	p.whole = true
	for v := range p.viewers {
		v.whole = true
		v.notify()
	}
}

// put stores a state, unless the looks have ended: the end itself causes errors.
func (p *Poller) put(ctx context.Context, s State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, known := p.states[s.Deployment]
	if ctx.Err() != nil {
		return
	}
	s = s.after(before, known && !before.Asked.Before(p.began))
	p.states[s.Deployment] = s
	if known && !s.changed(before) {
		return
	}
	for v := range p.viewers {
		v.pending[s.Deployment] = s
		delete(v.gone, s.Deployment)
		v.notify()
	}
}

func (p *Poller) report(ctx context.Context, problem string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil || problem == p.problem {
		return
	}
	p.problem = problem
	for v := range p.viewers {
		v.problem = &problem
		v.notify()
	}
}

// forget removes the deployments that the environment has no more.
func (p *Poller) forget(ctx context.Context, known map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.states {
		if known[name] || ctx.Err() != nil {
			continue
		}
		delete(p.states, name)
		for v := range p.viewers {
			delete(v.pending, name)
			v.gone[name] = true
			v.notify()
		}
	}
}

// notify is called with the lock of the poller.
func (v *viewer) notify() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}
