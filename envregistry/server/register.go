package server

import (
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
)

// Each registration locks the environment, reads and checks all of it, and a changed address goes to every
// deployment, and stays a row for a day. Processes register when they start, and when the lead moves; one
// deployment may do so once a second, after the first 20.
const (
	registrationsPerSecond = 1
	registrationsAtOnce    = 20
)

// pace bounds the registrations of each deployment at this server.
type pace struct {
	mu    sync.Mutex
	paces map[schema.DeploymentID]*rate.Limiter // guarded by mu; of the deployments whose certificates have called
}

func newPace() *pace { return &pace{paces: map[schema.DeploymentID]*rate.Limiter{}} }

// check fails with RESOURCE_EXHAUSTED for a registration that comes too early.
func (p *pace) check(of schema.DeploymentID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.paces[of]
	if own == nil {
		own = rate.NewLimiter(registrationsPerSecond, registrationsAtOnce)
		p.paces[of] = own
	}
	if !own.Allow() {
		return status.Errorf(codes.ResourceExhausted,
			"%s registers more than %d times a second: wait; a process registers again by itself", of,
			registrationsPerSecond)
	}
	return nil
}
