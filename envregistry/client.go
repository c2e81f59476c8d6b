// Package envregistry is the client of the environment registry: it registers its own deployment and delivers the
// newest environment of all. The registry is advisory: while it is away the last environment counts, which is kept in
// the deployment's own database.
package envregistry

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

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
	cfg        Config
	registry   registryv1.RegistryServiceClient
	generation int64
	out        chan *schema.Environment
}

// New makes a client. Of two processes that register the same deployment, the one made later counts.
func New(cfg Config) (*Client, error) {
	if cfg.Registry == nil || cfg.Keeper == nil || cfg.Logger == nil || cfg.Address == "" {
		return nil, errors.New("a registry client needs a connection, a keeper, a logger and its own address")
	}
	return &Client{
		cfg: cfg, registry: registryv1.NewRegistryServiceClient(cfg.Registry), generation: time.Now().UnixMilli(),
		// One place, which holds the newest environment: sent by Run, which takes an older one out first; closed by nobody.
		out: make(chan *schema.Environment, 1),
	}, nil
}

// Environments delivers whole environments, the newest only: what a slow reader missed is in the next one.
func (c *Client) Environments() <-chan *schema.Environment { return c.out }

// Run starts with the environment that was kept, if any, then follows the registry and keeps what it says. It blocks
// until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	kept, err := c.cfg.Keeper.LoadEnvironment(ctx)
	switch {
	case err != nil:
		c.cfg.Logger.Warn("the kept environment cannot be read", zap.Error(err))
	case kept != nil:
		c.publish(kept)
	}
	for wait := 100 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, 5*time.Second) {
		began := time.Now()
		lost := c.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > 10*time.Second {
			wait = 100 * time.Millisecond
		}
		c.cfg.Logger.Warn("the registry cannot be followed; the last environment counts", zap.Error(lost), zap.Duration("again in", wait))
		select {
		case <-ctx.Done():
		case <-time.After(wait):
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

// follow registers, then watches until the stream ends.
func (c *Client) follow(ctx context.Context) error {
	d := c.cfg.Deployment
	_, err := c.registry.RegisterDeployment(ctx, &registryv1.RegisterDeploymentRequest{
		Service: d.Service, Region: d.Region, Address: c.cfg.Address, Generation: c.generation,
	})
	if err != nil {
		return err
	}
	stream, err := c.registry.WatchEnvironment(ctx, &registryv1.WatchEnvironmentRequest{})
	if err != nil {
		return err
	}
	b := newBuilder()
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		// Between the end of the snapshot and each bookmark the environment is whole; only then it is told.
		whole, changed := b.take(msg)
		if !whole || !changed {
			continue
		}
		env := b.build()
		if err := c.cfg.Keeper.KeepEnvironment(ctx, env); err != nil {
			c.cfg.Logger.Warn("the environment could not be kept for the next start", zap.Error(err))
		}
		c.publish(env)
	}
}

// builder puts an environment together from a watch.
type builder struct {
	regions     map[string]bool
	services    map[schema.ServiceVersion]*schema.Descriptor
	deployments map[schema.DeploymentID]schema.Deployment
	revision    int64
	changed     bool
}

func newBuilder() *builder {
	return &builder{regions: map[string]bool{}, services: map[schema.ServiceVersion]*schema.Descriptor{}, deployments: map[schema.DeploymentID]schema.Deployment{}}
}

func (b *builder) take(msg *registryv1.WatchEnvironmentResponse) (whole, changed bool) {
	switch e := msg.GetEvent().(type) {
	case *registryv1.WatchEnvironmentResponse_Upsert:
		b.set(e.Upsert, true)
	case *registryv1.WatchEnvironmentResponse_Delete:
		b.set(e.Delete, false)
	case *registryv1.WatchEnvironmentResponse_EndOfSnapshot_:
		b.revision = e.EndOfSnapshot.GetRevision()
		b.changed = false
		return true, true
	case *registryv1.WatchEnvironmentResponse_Bookmark_:
		b.revision = e.Bookmark.GetRevision()
		changed, b.changed = b.changed, false
		return true, changed
	}
	return false, false
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
