package envregistry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// registration sees to it that the registry has the address of this process while it speaks for the deployment.
type registration struct {
	client *Client

	mu      sync.Mutex
	leads   bool               // guarded by mu
	known   bool               // guarded by mu: whether there is an environment
	entry   *schema.Deployment // guarded by mu: this deployment's in the newest environment; nil when it lacks it
	problem string             // guarded by mu: why the last try failed

	// One place: something of the above has changed. Sent by lead and see, received by run.
	changed chan struct{}
}

func newRegistration(c *Client) *registration {
	return &registration{client: c, changed: make(chan struct{}, 1)}
}

func (r *registration) tell() {
	select {
	case r.changed <- struct{}{}:
	default: // it is told already
	}
}

func (r *registration) lead(leads bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leads = leads
	r.tell()
}

func (r *registration) leading() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leads
}

// see takes a newer environment.
func (r *registration) see(env *schema.Environment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.entry
	r.known, r.entry = true, nil
	if d, ok := env.Deployment(r.client.cfg.Deployment); ok {
		r.entry = &d
	}
	if before == nil || r.entry == nil || before.Address != r.entry.Address || before.Generation != r.entry.Generation {
		r.tell()
	}
}

// registered fails while others are not told where to reach this process, or the one that speaks for the deployment.
func (r *registration) registered() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.client.cfg.Deployment
	switch {
	case r.entry == nil || r.entry.Address == "":
		return fmt.Errorf("%s is not registered yet: others do not know where to reach it", id)
	case r.leads && r.entry.Address != r.client.cfg.Address:
		return fmt.Errorf("%s is registered at %s, not at %s: others do not reach this process", id, r.entry.Address, r.client.cfg.Address)
	}
	return nil
}

// due reports whether the registry has to be told, and the generation of that: the one after that which it has.
func (r *registration) due() (generation int64, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leads || !r.known {
		return 0, false
	}
	if r.entry == nil { // it says why it does not take it
		return 1, true
	}
	return r.entry.Generation + 1, r.entry.Address != r.client.cfg.Address
}

const (
	// firstPause and longestPause are between two tries.
	firstPause, longestPause = 100 * time.Millisecond, 5 * time.Second
	// quiet is after how long without a try the next one is a first one.
	quiet = 10 * time.Second
)

// run registers until the environment shows it, and whenever it does not any more. The pauses grow whether or not a try
// succeeds: of two processes that believe to speak for the deployment, one is wrong for the length of a lease, and each
// registration is told to all deployments.
func (r *registration) run(ctx context.Context) {
	var tried time.Time
	for pause := time.Duration(0); ; {
		var again <-chan time.Time
		if generation, due := r.due(); due {
			if time.Since(tried) > quiet {
				pause = 0
			}
			if wait := time.Until(tried.Add(pause)); wait > 0 {
				again = time.After(wait)
			} else {
				r.register(ctx, generation)
				pause = min(max(2*pause, firstPause), longestPause)
				tried = time.Now().Add(-rand.N(pause / 2)) // so that those of a whole fleet do not come back at once
				again = time.After(time.Until(tried.Add(pause)))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-again:
		}
	}
}

func (r *registration) register(ctx context.Context, generation int64) {
	asking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cfg := r.client.cfg
	_, err := r.client.registry.RegisterDeployment(asking, &registryv1.RegisterDeploymentRequest{
		Service: cfg.Deployment.Service, Region: cfg.Deployment.Region, Address: cfg.Address, Generation: generation,
	})
	if ctx.Err() != nil {
		return
	}
	problem := ""
	if err != nil {
		problem = "the registry does not take the registration: " + status.Convert(err).Message()
	}
	r.mu.Lock()
	changed := r.problem != problem
	r.problem = problem
	r.mu.Unlock()
	if changed && err != nil {
		cfg.Logger.Warn("the deployment could not be registered, it is tried again; others may not reach it", zap.Error(err))
	}
}

// why is the problem of the last try while it matters.
func (r *registration) why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leads || r.entry != nil && r.entry.Address == r.client.cfg.Address {
		return ""
	}
	return r.problem
}
