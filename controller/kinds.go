package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
)

// kinds finds the declared kind of a resource: its kind may have been renamed since.
type kinds struct {
	source Source
	// declared are the kinds by the deployment and the root of their names.
	declared map[schema.DeploymentID]map[string]Kind

	mu    sync.Mutex
	env   *schema.Environment // guarded by mu
	names *schema.Kinds       // guarded by mu
}

// describe reads the environment until it is there, and compares the watched kinds with it.
func (c *Controller) describe(ctx context.Context) (*kinds, error) {
	k := &kinds{source: c.source, declared: map[schema.DeploymentID]map[string]Kind{}}
	ready, stop := context.WithCancel(ctx)
	defer stop()
	retry.Forever(ready, retry.Backoff{}, func(ctx context.Context) error {
		err := k.refresh(ctx)
		if err == nil {
			stop()
		}
		return err
	}, func(err error, pause time.Duration, repeated bool) {
		level := zap.WarnLevel
		if repeated {
			level = zap.DebugLevel
		}
		c.log.Log(level, "the environment could not be read, it is tried again", zap.Error(err),
			zap.Duration("in", pause))
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, w := range c.watched {
		if err := k.declare(w.kind); err != nil {
			return nil, err
		}
	}
	return k, nil
}

func (k *kinds) refresh(ctx context.Context) error {
	env, err := k.source.Refresh(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.env, k.names = env, schema.NewKinds(env.Services)
	return nil
}

func (k *kinds) declare(kind Kind) error {
	if _, err := k.present(kind); err != nil {
		return err
	}
	of := k.declared[kind.Deployment]
	if of == nil {
		of = map[string]Kind{}
		k.declared[kind.Deployment] = of
	}
	root := k.root(kind.id())
	if twin, twice := of[root]; twice {
		return fmt.Errorf("%s and %s are names of the same kind", twin, kind)
	}
	of[root] = kind
	return nil
}

// declares reports whether a kind is watched by this name.
func (k *kinds) declares(kind Kind) bool {
	for _, declared := range k.declared[kind.Deployment] {
		if declared == kind {
			return true
		}
	}
	return false
}

// present returns the name that a kind has in the version of its deployment.
func (k *kinds) present(kind Kind) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	model, err := k.env.Model(kind.Deployment)
	if err != nil {
		return "", err
	}
	for _, name := range model.KindNames() {
		if k.names.Root(schema.KindID{Service: kind.Deployment.Service, Kind: name}) == k.names.Root(kind.id()) {
			return name, nil
		}
	}
	return "", fmt.Errorf("%w kind %s: the kinds of %s are %s", ErrUnknown, kind, kind.Deployment,
		strings.Join(model.KindNames(), ", "))
}

// finalizers returns the finalizers of a kind, which has this name now.
func (k *kinds) finalizers(kind Kind, name string) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	model, err := k.env.Model(kind.Deployment)
	if err != nil {
		return nil, err
	}
	m, err := model.Kind(name)
	if err != nil {
		return nil, err
	}
	return m.FinalizerNames(), nil
}

func (k *kinds) root(id schema.KindID) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.names.Root(id).Kind
}

// of returns the declared kind of a deployment that has a name now.
func (k *kinds) of(id schema.DeploymentID, name string) (Kind, bool) {
	kind, ok := k.declared[id][k.root(schema.KindID{Service: id.Service, Kind: name})]
	return kind, ok
}

// ofResource returns the declared kind of a resource. The environment may be older than the version by which
// it was sent.
func (k *kinds) ofResource(ctx context.Context, id schema.DeploymentID, r *Resource) (Kind, error) {
	if kind, ok := k.of(id, r.GetKind()); ok {
		return kind, nil
	}
	if err := k.refresh(ctx); err != nil {
		return Kind{}, err
	}
	if kind, ok := k.of(id, r.GetKind()); ok {
		return kind, nil
	}
	return Kind{}, fmt.Errorf("%s has the %w kind %s", nameOf(r), ErrUnknown, r.GetKind())
}

// canBe reports whether a name is one of a kind's resources.
func (k *kinds) canBe(name schema.FullName, kind Kind) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, _ := k.env.Deployment(name.Deployment)
	return name.Deployment == kind.Deployment &&
		slices.Contains(k.names.Of(kind.Deployment.Service, d.Version, name.Name), k.names.Root(kind.id()))
}
