package serve

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/service"
)

// failures holds the last failure of each handler for each deployment until the handler succeeds.
type failures struct {
	mu   sync.Mutex
	last map[failureKey]service.Failure // guarded by mu
}

type failureKey struct {
	handler    string
	deployment schema.DeploymentID
}

func (f *failures) ran(handler string, d schema.DeploymentID, err error, next time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.last, failureKey{handler, d})
		return
	}
	if f.last == nil {
		f.last = map[failureKey]service.Failure{}
	}
	f.last[failureKey{handler, d}] = service.Failure{
		Handler: handler, Deployment: d, Error: err.Error(),
		Time: time.Now(), Next: next,
	}
}

func (f *failures) list() []service.Failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]service.Failure, 0, len(f.last))
	for _, failure := range f.last {
		out = append(out, failure)
	}
	slices.SortFunc(out, func(a, b service.Failure) int {
		return cmp.Or(cmp.Compare(a.Handler, b.Handler), cmp.Compare(a.Deployment.String(), b.Deployment.String()))
	})
	return out
}
