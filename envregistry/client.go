// Package envregistry is the client of the environment registry: it delivers the newest environment of all deployments,
// and registers its own one when it speaks for it. The registry is advisory: while it is away the last environment counts, which is kept in
// the deployment's own database.
package envregistry

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// Keeper keeps the last environment.
type Keeper interface {
	// LoadEnvironment answers nil when none was kept.
	LoadEnvironment(ctx context.Context) (*schema.Environment, error)
	KeepEnvironment(ctx context.Context, env *schema.Environment) error
}

// Config of a Client. All fields are needed.
type Config struct {
	Deployment schema.DeploymentID
	// Address under which other deployments reach this one: host:port.
	Address  string
	Registry grpc.ClientConnInterface
	Keeper   Keeper
	Logger   *zap.Logger
}

// Client follows the registry. Run it once.
type Client struct {
	cfg          Config
	registry     registryv1.RegistryServiceClient
	registration *registration
	out          chan *schema.Environment
	// problem is why the registry cannot be followed.
	problem atomic.Pointer[string]
}

// New makes a client.
func New(cfg Config) (*Client, error) {
	if cfg.Registry == nil || cfg.Keeper == nil || cfg.Logger == nil || cfg.Address == "" {
		return nil, errors.New("a registry client needs a connection, a keeper, a logger and its own address")
	}
	c := &Client{
		cfg: cfg, registry: registryv1.NewRegistryServiceClient(cfg.Registry),
		// One place, which holds the newest environment: sent by Run, which takes an older one out first; closed by nobody.
		out: make(chan *schema.Environment, 1),
	}
	c.registration = newRegistration(c)
	return c, nil
}

// Lead tells that this process speaks for the deployment, or does not: the registry has the address of the one that does.
func (c *Client) Lead(leads bool) { c.registration.lead(leads) }

// Leads tells whether this process speaks for the deployment.
func (c *Client) Leads() bool { return c.registration.leading() }

// Registered fails, with the reason, while others are not told where to reach this process, or, when another one speaks for
// the deployment, that one.
func (c *Client) Registered() error { return c.registration.registered() }

// Environments delivers whole environments, the newest only: what a slow reader missed is in the next one.
func (c *Client) Environments() <-chan *schema.Environment { return c.out }

// Problem is why the registry cannot be followed, or does not take the registration; empty while all is well.
func (c *Client) Problem() string {
	if p := c.problem.Load(); p != nil {
		return *p
	}
	return c.registration.why()
}

// Ask asks the registry now. Its answer says what there is, never what there is not.
func (c *Client) Ask(ctx context.Context) (*schema.Environment, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer, err := c.registry.GetEnvironment(ctx, &registryv1.GetEnvironmentRequest{})
	if err != nil {
		return nil, err
	}
	env := wire.Environment(answer.GetEnvironment())
	env.Incomplete = answer.GetIncomplete()
	return env, nil
}

// Run starts with the environment that was kept, if any, then follows the registry and keeps what it says. It blocks
// until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	kept, err := c.cfg.Keeper.LoadEnvironment(ctx)
	switch {
	case err != nil:
		c.cfg.Logger.Warn("the kept environment cannot be read", zap.Error(err))
	case kept != nil:
		c.registration.see(kept)
		c.publish(kept)
	}
	var registering sync.WaitGroup
	defer registering.Wait()
	registering.Go(func() { c.registration.run(ctx) })
	b := newBuilder()
	for wait := 100 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, 5*time.Second) {
		began := time.Now()
		lost := c.follow(ctx, b)
		if ctx.Err() != nil {
			break
		}
		problem, level := "the registry cannot be followed: "+status.Convert(lost).Message(), zap.WarnLevel
		if before := c.problem.Swap(&problem); before != nil && *before == problem {
			level = zap.DebugLevel // the same once more
		}
		if time.Since(began) > 10*time.Second {
			wait = 100 * time.Millisecond
		}
		c.cfg.Logger.Log(level, "the registry cannot be followed; the last environment counts", zap.Error(lost), zap.Duration("again in", wait))
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait/2+1)): // so that those of a whole fleet do not come back at once
		}
	}
	return nil
}

func (c *Client) publish(env *schema.Environment) {
	select {
	case <-c.out:
	default:
	}
	c.out <- env
}

// silence is how long a watch may say nothing, whose server speaks every few seconds: then its connection is half open,
// or its server hangs.
const silence = 30 * time.Second

var errSilent = errors.New("nothing was heard for too long")

// follow watches until the stream ends: on from where the one before it was, if it can.
func (c *Client) follow(ctx context.Context, b *builder) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer silent.Stop()
	stream, err := c.registry.WatchEnvironment(ctx, &registryv1.WatchEnvironmentRequest{ResumeToken: b.begin()})
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			if status.Code(err) == codes.OutOfRange {
				b.token = "" // the next stream begins with a snapshot
			}
			return errors.Join(err, context.Cause(ctx))
		}
		silent.Reset(silence)
		// Between the end of the snapshot and each bookmark the environment is whole; only then it is told.
		whole, changed := b.take(msg)
		if whole && c.problem.Swap(nil) != nil {
			c.cfg.Logger.Info("the registry is followed again")
		}
		if !whole || !changed && !b.unkept {
			continue
		}
		env := b.build()
		err = c.cfg.Keeper.KeepEnvironment(ctx, env)
		if b.unkept = err != nil; b.unkept {
			c.cfg.Logger.Warn("the environment could not be kept for the next start, it is tried again", zap.Error(err))
		}
		if changed {
			c.registration.see(env)
			c.publish(env)
		}
	}
}

// builder puts an environment together from a watch.
type builder struct {
	regions     map[string]bool
	services    map[schema.ServiceVersion]*schema.Descriptor
	deployments map[schema.DeploymentID]schema.Deployment
	revision    int64
	// token is of the last moment at which it was whole; empty before the first one.
	token   string
	changed bool
	// unkept: it could not be kept for the next start yet.
	unkept bool
}

func newBuilder() *builder {
	b := &builder{}
	b.begin()
	return b
}

// begin prepares for a new stream, and answers the token that it goes on from. Without one it begins with everything,
// and what it does not send is gone.
func (b *builder) begin() string {
	if b.token == "" {
		*b = builder{regions: map[string]bool{}, services: map[schema.ServiceVersion]*schema.Descriptor{}, deployments: map[schema.DeploymentID]schema.Deployment{}}
	}
	return b.token
}

// take tells whether the environment is whole now, and whether it is another one than when it was so before.
func (b *builder) take(msg *registryv1.WatchEnvironmentResponse) (whole, changed bool) {
	switch e := msg.GetEvent().(type) {
	case *registryv1.WatchEnvironmentResponse_Upsert:
		b.set(e.Upsert, true)
	case *registryv1.WatchEnvironmentResponse_Delete:
		b.set(e.Delete, false)
	case *registryv1.WatchEnvironmentResponse_EndOfSnapshot_:
		b.revision, b.token = max(b.revision, e.EndOfSnapshot.GetRevision()), e.EndOfSnapshot.GetResumeToken()
		b.changed = false
		return true, true
	case *registryv1.WatchEnvironmentResponse_Bookmark_:
		if b.token == "" {
			return false, false // the snapshot has not ended
		}
		b.revision, b.token = max(b.revision, e.Bookmark.GetRevision()), e.Bookmark.GetResumeToken()
		changed, b.changed = b.changed, false
		return true, changed
	}
	return false, false // a newer server may say more
}

func (b *builder) set(c *registryv1.WatchEnvironmentResponse_Change, present bool) {
	b.changed = true
	switch item := c.GetItem().(type) {
	case *registryv1.WatchEnvironmentResponse_Change_Region:
		if b.regions[item.Region.GetName()] = present; !present {
			delete(b.regions, item.Region.GetName())
		}
	case *registryv1.WatchEnvironmentResponse_Change_Service:
		d := wire.Descriptor(item.Service)
		if b.services[d.ServiceVersion] = d; !present {
			delete(b.services, d.ServiceVersion)
		}
	case *registryv1.WatchEnvironmentResponse_Change_Deployment:
		d := wire.Deployment(item.Deployment)
		if b.deployments[d.DeploymentID] = d; !present {
			delete(b.deployments, d.DeploymentID)
		}
	}
}

func (b *builder) build() *schema.Environment {
	env := &schema.Environment{Revision: b.revision}
	for r := range b.regions {
		env.Regions = append(env.Regions, r)
	}
	slices.Sort(env.Regions)
	for _, d := range b.services {
		env.Services = append(env.Services, d)
	}
	slices.SortFunc(env.Services, func(x, y *schema.Descriptor) int {
		return cmp.Compare(x.String(), y.String())
	})
	for _, d := range b.deployments {
		env.Deployments = append(env.Deployments, d)
	}
	slices.SortFunc(env.Deployments, func(x, y schema.Deployment) int {
		return cmp.Compare(x.String(), y.String())
	})
	return env
}
