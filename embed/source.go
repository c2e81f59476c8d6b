package embed

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/service"
)

// Others delivers the resources of other deployments: a *client.Client.
type Others interface {
	Watch(ctx context.Context, id schema.DeploymentID, q client.WatchQuery) iter.Seq2[client.Event, error]
}

// Source delivers the resources of the application's deployment to controllers in this process
// (controller.New), from the database, without the deployment's process: over a channel that shares messages,
// which no receiver may change. A View of a controller returns copies.
type Source struct {
	app     *Application
	others  Others
	channel grpc.ClientConnInterface
}

// Source returns a Source. Others has the resources of other deployments; nil: they are errors. Run has to
// run; controllers end before Close.
func (a *Application) Source(others Others) *Source {
	return &Source{app: a, others: others, channel: service.NewReader(a.store, a.credentials.Identity, a.cfg.Logger)}
}

// Refresh returns the environment that the deployment's processes keep, in which the deployment has the
// version that it runs.
func (s *Source) Refresh(ctx context.Context) (*schema.Environment, error) {
	kept, err := s.app.store.Admin.KeptEnvironment(ctx)
	if err != nil {
		return nil, s.app.errorOf(err)
	}
	env, err := s.app.environment(kept)
	if err != nil {
		return nil, err
	}
	running, err := s.app.store.Gate.RunningVersion(ctx)
	if err != nil {
		return nil, s.app.errorOf(err)
	}
	for i, d := range env.Deployments {
		if d.DeploymentID == s.app.cfg.Deployment {
			env.Deployments[i].Version = running
		}
	}
	return env, nil
}

// Watch delivers the resources of a deployment as client.Client.Watch does. Tokens of its own deployment's
// events resume watches of this process alone.
func (s *Source) Watch(ctx context.Context, id schema.DeploymentID, q client.WatchQuery) iter.Seq2[client.Event,
	error] {
	if id != s.app.cfg.Deployment && s.others != nil {
		return s.others.Watch(ctx, id, q)
	}
	return func(yield func(client.Event, error) bool) {
		if id != s.app.cfg.Deployment {
			yield(client.Event{},
				fmt.Errorf("%s is another deployment than the application's: give Application.Source a client", id))
			return
		}
		env, err := s.Refresh(ctx)
		if err != nil {
			yield(client.Event{}, err)
			return
		}
		over := client.Over(env, map[schema.DeploymentID]grpc.ClientConnInterface{s.app.cfg.Deployment: s.channel})
		over.Watch(ctx, id, q)(yield)
	}
}

// RemoveFinalizer removes a finalizer whose holder is the application, as RemoveFinalizerIn does. That the
// resource, or its finalizer, is gone is no error.
func (s *Source) RemoveFinalizer(ctx context.Context, name, uid, finalizer string) error {
	of, err := uuid.Parse(uid)
	if err != nil {
		return &InvalidError{Name: name, Fields: []Field{{Path: "uid", Problem: err.Error()}}, err: err}
	}
	if _, err = s.app.RemoveFinalizerIn(ctx, Finalizer{Name: name, UID: of, Finalizer: finalizer}, nil); errors.Is(err,
		ErrNotFound) {
		return nil
	}
	return err
}
