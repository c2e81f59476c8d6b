package envregistry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// registration keeps the address of this process in the registry while it leads the deployment.
type registration struct {
	client *Client

	mu    sync.Mutex
	leads bool               // guarded by mu
	known bool               // guarded by mu: whether there is an environment
	entry *schema.Deployment // guarded by mu: this deployment in the newest environment; nil when it is not in it
	// guarded by mu: the reason why the last try failed; empty when the entry has changed since
	problem string
	code    codes.Code // guarded by mu: of that reason
	named   bool       // guarded by mu: the registry has the identity of the database

	// Of capacity one: a field above has changed. Sent by lead and see, received by run; never closed.
	changed chan struct{}
}

func newRegistration(c *Client) *registration {
	return &registration{client: c, changed: make(chan struct{}, 1)}
}

func (r *registration) tell() {
	select {
	case r.changed <- struct{}{}:
	default: // one is waiting already
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
		r.problem = ""
		r.tell()
	}
}

// own reports whether the registry has the address of this process.
func (r *registration) own() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entry != nil && r.entry.Address == r.client.cfg.Address
}

// failing reports whether this process could not replace the address that the registry has.
func (r *registration) failing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem != ""
}

// registered returns the reason while others cannot learn the address of this process, or of the leading
// process.
func (r *registration) registered() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.client.cfg.Deployment
	switch {
	case r.entry == nil || r.entry.Address == "":
		return fmt.Errorf("%s is not registered yet: others do not know where to reach it", id)
	case r.leads && r.entry.Address != r.client.cfg.Address:
		return fmt.Errorf("%s is registered at %s, not at %s: others do not reach this process", id, r.entry.Address,
			r.client.cfg.Address)
	}
	return nil
}

// due reports whether a registration is needed, and its generation: the next one for a new address, else the
// entry's.
func (r *registration) due() (generation int64, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leads || !r.known {
		return 0, false
	}
	if r.entry == nil { // the registry refuses, and says why
		return 1, true
	}
	if r.entry.Address != r.client.cfg.Address {
		return r.entry.Generation + 1, true
	}
	// A registry of an earlier version does not store the identity: it is sent once.
	return r.entry.Generation, r.entry.Database == uuid.Nil && !r.named
}

const (
	// firstPause and longestPause bound the pauses between two tries.
	firstPause, longestPause = 100 * time.Millisecond, 5 * time.Second
	// quiet is the time without a try after which the pauses begin anew.
	quiet = 10 * time.Second
)

// run registers until the environment shows the address of this process, and whenever it does not any more.
// The pauses grow whether or not a try succeeds: of two processes that believe to lead the deployment, one is
// wrong for the length of a lease, and each registration is sent to all deployments.
func (r *registration) run(ctx context.Context) {
	backoff := retry.Backoff{First: firstPause, Max: longestPause}
	var tried, next time.Time
	for {
		var again <-chan time.Time
		if generation, due := r.due(); due {
			if time.Since(tried) > quiet {
				backoff.Reset()
				next = time.Time{}
			}
			if !time.Now().Before(next) {
				r.register(ctx, generation)
				tried = time.Now()
				next = tried.Add(backoff.Next())
			}
			again = time.After(time.Until(next))
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
		Database: cfg.Database.String(),
	})
	if ctx.Err() != nil {
		return
	}
	problem := ""
	if err != nil {
		problem = "the registry refuses the registration: " + status.Convert(err).Message()
	}
	r.mu.Lock()
	changed := r.problem == "" || r.code != status.Code(err) // texts differ by the ids of requests
	r.problem, r.code = problem, status.Code(err)
	r.named = r.named || err == nil
	r.mu.Unlock()
	if changed && err != nil {
		cfg.Logger.Warn("the deployment could not be registered, it is tried again; others may not reach it",
			zap.Error(err))
	}
}

// why is the problem of the last try, unless this process does not lead, or is registered.
func (r *registration) why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leads || r.entry != nil && r.entry.Address == r.client.cfg.Address {
		return ""
	}
	return r.problem
}
