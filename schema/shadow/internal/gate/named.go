package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// Names get numbers for good, and each process has all of them in memory. A request can make up any number of
// regions, services and kinds. So a name gets a number only if the environment lists it, or if it had one
// before: of a deployment or kind that was removed since.

var errNotListed = errors.New(
	"it is not in the environment that this deployment last received from the registry: correct the name, or apply its description")

// Follow lets the checks of names take the newest environment of the process, before it is recovered from.
func (s *Gate) Follow(latest func() *schema.Environment) { s.latest.Store(&latest) }

// newest returns the newest environment that lists this deployment; nil for none.
func (s *Gate) newest() *schema.Environment {
	if latest := s.latest.Load(); latest != nil {
		if env := (*latest)(); env != nil && lists(env, s.Self) {
			return env
		}
	}
	return s.environment.Load()
}

func lists(env *schema.Environment, d schema.DeploymentID) bool {
	_, listed := env.Deployment(d)
	return listed
}

// CheckNamed fails with *UnavailableError for a deployment that a request may have made up. The registry may
// list it later: the refusal is not definite. Before the first environment a process knows of nothing that it
// is made up.
func (s *Gate) CheckNamed(ctx context.Context, d schema.DeploymentID) error {
	env := s.newest()
	if env == nil && !s.Cfg.Guest || env != nil && lists(env, d) {
		return nil
	}
	there, err := s.Names.HasDeployment(ctx, d)
	if err == nil && !there {
		err = &peer.UnavailableError{Deployments: []schema.DeploymentID{d}, Err: errNotListed}
	}
	return err
}

// CheckNamedKind is CheckNamed for a kind.
func (s *Gate) CheckNamedKind(ctx context.Context, k schema.KindID) error {
	env := s.newest()
	if env == nil && !s.Cfg.Guest || env != nil && describes(env, k) {
		return nil
	}
	there, err := s.Names.HasKind(ctx, k)
	if err == nil && !there {
		err = s.undescribed("kind %s is of no version of %s", k.Kind, k.Service)
	}
	return err
}

// CheckNamedOwner is CheckNamedKind for a new owner, whose name has to fit a pattern of its kind in a
// described version. Nothing else would ever be found under the name, so that the ownee would be collected
// because of a slip.
func (s *Gate) CheckNamedOwner(ctx context.Context, k schema.KindID, name string) error {
	if err := s.CheckNamedKind(ctx, k); err != nil {
		return err
	}
	env := s.newest()
	if env == nil || !describes(env, k) {
		return nil
	}
	kinds := schema.NewKinds(slices.DeleteFunc(slices.Clone(env.Services), func(d *schema.Descriptor) bool {
		return d.Service != k.Service
	}))
	if slices.Contains(kinds.Of(k.Service, "", name), kinds.Root(k)) {
		return nil
	}
	return s.undescribed("the name %s fits no pattern of kind %s in any version of %s", name, k.Kind, k.Service)
}

func (s *Gate) undescribed(format string, args ...any) error {
	return &peer.UnavailableError{
		Deployments: []schema.DeploymentID{s.Self},
		Err:         fmt.Errorf("%s %w", fmt.Sprintf(format, args...), peer.ErrUndescribed),
	}
}

func describes(env *schema.Environment, k schema.KindID) bool {
	return slices.ContainsFunc(env.Services, func(d *schema.Descriptor) bool {
		return d.Service == k.Service && slices.ContainsFunc(d.Kinds, func(kind schema.Kind) bool {
			return kind.Name == k.Kind
		})
	})
}
