// Package envregistry is the client of the environment registry: it delivers the newest environment, and
// registers the address of its process while that leads the deployment. The registry is advisory: while it is
// unreachable the last environment counts, which is kept in the deployment's own database.
package envregistry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// Keeper keeps the last environment.
type Keeper interface {
	// LoadEnvironment returns nil when none was kept.
	LoadEnvironment(ctx context.Context) (*schema.Environment, error)
	KeepEnvironment(ctx context.Context, env *schema.Environment) error
}

// Config of a Client. All fields are needed.
type Config struct {
	Deployment schema.DeploymentID
	// Address under which other deployments reach this one: host:port.
	Address string
	// Database is the identity of this deployment's database.
	Database uuid.UUID
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
	// problem is the reason why the registry cannot be followed; nil while it is.
	problem atomic.Pointer[string]
	lostBy  codes.Code // of the last problem; used by Run alone
	// seen is the greatest revision of a whole environment, with the part of the registry's history that came
	// with it: a registry that has not reached both has lost commits. Stored by Run.
	seen atomic.Pointer[seen]
	// listed: the environment that counts lists this deployment, or may. Of the goroutine of Run.
	listed bool
	// rights are the last declared ones, which only Run uses, and rightsLost whether the registry has none
	// any more.
	rights     *schema.Rights
	rightsLost atomic.Bool
	// another is the reason why the registry knows another database of this deployment; nil while it does
	// not.
	another atomic.Pointer[anotherDatabase]
	// heard is the time of the last message of the registry; nil before the first. Stored by Run.
	heard atomic.Pointer[time.Time]
	// unlisted is the time since which the registry does not list this deployment; nil while it does.
	unlisted atomic.Pointer[time.Time]
}

// seen is a revision of the registry, with the part of its history that came with it.
type seen struct {
	revision int64
	history  string
}

// New makes a client.
func New(cfg Config) (*Client, error) {
	if cfg.Registry == nil || cfg.Keeper == nil || cfg.Logger == nil || cfg.Address == "" {
		return nil, errors.New("a registry client needs a connection, a keeper, a logger and its own address")
	}
	c := &Client{
		cfg: cfg, registry: registryv1.NewRegistryServiceClient(cfg.Registry),
		// Of capacity one, for the newest environment: sent by Run, which takes an older one out first; never
		// closed.
		out: make(chan *schema.Environment, 1),
	}
	c.seen.Store(&seen{})
	c.registration = newRegistration(c)
	return c, nil
}

// Lead notes whether this process leads its deployment: the registry has the address of the leading process.
func (c *Client) Lead(leads bool) { c.registration.lead(leads) }

// Leads reports whether this process leads its deployment.
func (c *Client) Leads() bool { return c.registration.leading() }

// CanLead reports whether other deployments learn the address of this process when it leads: it is
// registered, or follows the registry and has not failed to register.
func (c *Client) CanLead() bool {
	return c.registration.own() || c.problem.Load() == nil && !c.registration.failing()
}

// Registered returns the reason while the registry lacks the address of this process, when it leads the
// deployment, or any address of the deployment, when another process does; nil otherwise.
func (c *Client) Registered() error { return c.registration.registered() }

// Environments delivers whole environments, the newest only: a slow reader skips older ones.
func (c *Client) Environments() <-chan *schema.Environment { return c.out }

// Problem is the reason why the registry cannot be followed, or refuses the registration; empty without one.
func (c *Client) Problem() string {
	if p := c.problem.Load(); p != nil {
		return *p
	}
	if why, _ := c.AnotherDatabase(); why != "" {
		return why
	}
	return c.registration.why()
}

// anotherDatabase is the finding that the registry knows this deployment over another database.
type anotherDatabase struct {
	why   string
	since time.Time
}

// AnotherDatabase returns why the other deployments do not believe this process, whose database differs from
// the database that the registry knows, and since when; empty when they are the same.
func (c *Client) AnotherDatabase() (why string, since time.Time) {
	if a := c.another.Load(); a != nil {
		return a.why, a.since
	}
	return "", since
}

// Heard returns the time of the last message of the registry, zero before the first, and whether it is
// followed now.
func (c *Client) Heard() (last time.Time, followed bool) {
	if t := c.heard.Load(); t != nil {
		return *t, c.problem.Load() == nil
	}
	return last, false
}

// Unlisted reports whether the registry has an environment without this deployment, which is not taken, and
// since when.
func (c *Client) Unlisted() (since time.Time, unlisted bool) {
	if t := c.unlisted.Load(); t != nil {
		return *t, true
	}
	return time.Time{}, false
}

// Ask reads the environment from the registry now. A deployment that it lacks may exist all the same: the
// registry can have lost it (Environment.Incomplete).
func (c *Client) Ask(ctx context.Context) (*schema.Environment, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	told := c.seen.Load()
	answer, err := c.registry.GetEnvironment(ctx, &registryv1.GetEnvironmentRequest{
		SeenRevision: told.revision,
		SeenHistory:  told.history,
	})
	if err != nil {
		return nil, err
	}
	env := wire.Environment(answer.GetEnvironment())
	env.Incomplete, env.Unheard = answer.GetIncomplete(), answer.GetUnheard()
	return env, nil
}

// Run starts with the environment that was kept, if any, then follows the registry and keeps each
// environment. It blocks until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	kept, err := c.cfg.Keeper.LoadEnvironment(ctx)
	switch {
	case err != nil:
		c.listed = true // unknown: an environment without this deployment does not replace the kept one
		c.cfg.Logger.Warn("the kept environment cannot be read", zap.Error(err))
	case kept != nil:
		c.rights = kept.Rights
		c.seen.Store(&seen{kept.Revision, kept.History})
		_, c.listed = kept.Deployment(c.cfg.Deployment)
		c.registration.see(kept)
		c.publish(kept)
	}
	var registering sync.WaitGroup
	defer registering.Wait()
	registering.Go(func() { c.registration.run(ctx) })
	b := newBuilder()
	retry.Forever(ctx, retry.Backoff{First: firstPause, Max: longestPause}, func(ctx context.Context) error {
		return c.follow(ctx, b)
	}, c.lost)
	return nil
}

// lost notes that a watch of the registry has ended. While it cannot be followed, a further warning means
// another code: texts of errors differ by the ids of requests.
func (c *Client) lost(err error, pause time.Duration, _ bool) {
	problem, code, level := "the registry cannot be followed: "+status.Convert(err).Message(), status.Code(err),
		zap.WarnLevel
	if before := c.problem.Swap(&problem); before != nil && c.lostBy == code {
		level = zap.DebugLevel
	}
	c.lostBy = code
	c.cfg.Logger.Log(level, "the registry cannot be followed; the last environment counts", zap.Error(err),
		zap.Duration("again_in", pause))
}

func (c *Client) publish(env *schema.Environment) {
	select {
	case <-c.out:
	default:
	}
	c.out <- env
}

// follow watches until the stream ends. It goes on after the last token of the stream before it, if there is
// one.
func (c *Client) follow(ctx context.Context, b *builder) error {
	return retry.Watch(ctx, func(ctx context.Context, heard func()) error {
		told := c.seen.Load()
		stream, err := c.registry.WatchEnvironment(ctx, &registryv1.WatchEnvironmentRequest{
			ResumeToken:  b.begin(),
			SeenRevision: told.revision, SeenHistory: told.history,
		})
		if err != nil {
			return err
		}
		for {
			msg, err := stream.Recv()
			if status.Code(err) == codes.OutOfRange {
				b.token = "" // the next stream begins with a snapshot
			}
			if err != nil {
				return err
			}
			heard()
			now := time.Now()
			c.heard.Store(&now)
			c.take(ctx, b, msg)
		}
	})
}

// take publishes the environment when it is whole: at the end of the snapshot, and at each bookmark after it.
func (c *Client) take(ctx context.Context, b *builder, msg *registryv1.WatchEnvironmentResponse) {
	whole, changed := b.take(msg)
	if whole && b.revision >= c.seen.Load().revision {
		c.seen.Store(&seen{b.revision, b.history})
	}
	if whole && c.problem.Swap(nil) != nil {
		c.cfg.Logger.Info("the registry is followed again")
	}
	if !whole || !changed && !b.unkept {
		return
	}
	env := b.build()
	if !c.lists(env) {
		return
	}
	c.keepRights(env)
	c.knowsDatabase(env)
	err := c.cfg.Keeper.KeepEnvironment(ctx, env)
	if b.unkept = err != nil; b.unkept {
		c.cfg.Logger.Warn("the environment could not be kept for the next start, it is tried again", zap.Error(err))
	}
	if changed {
		c.registration.see(env)
		c.publish(env)
	}
}

// lists reports whether an environment may replace the present one. An environment without this deployment
// does not replace an environment with it: the registry has lost its database, or an operator has removed a
// deployment that still runs. Without the former environment no process could start again, and none would
// know the addresses of others.
func (c *Client) lists(env *schema.Environment) bool {
	_, listed := env.Deployment(c.cfg.Deployment)
	if !listed && c.listed {
		now := time.Now()
		if c.unlisted.CompareAndSwap(nil, &now) {
			c.cfg.Logger.Warn(
				"the registry no longer lists this deployment; the last environment that lists it stays in use",
				zap.Int("deployments_listed", len(env.Deployments)))
		}
		return false
	}
	if c.listed = listed; c.unlisted.Swap(nil) != nil {
		c.cfg.Logger.Info("the registry lists this deployment again")
	}
	return true
}

// RightsLost reports whether the registry lacks the last declared rights, which stay in use here.
func (c *Client) RightsLost() bool { return c.rightsLost.Load() }

// keepRights gives an environment without rights, or with an earlier declaration, the last declared ones. A
// registry in which rights were declared has that declaration or a later one from then on, at least an empty
// one, unless its database has lost commits or is another one: that must not open anything.
func (c *Client) keepRights(env *schema.Environment) {
	if c.rights == nil || env.Rights != nil && env.Rights.Declaration >= c.rights.Declaration {
		c.rights = env.Rights
		c.rightsLost.Store(false)
		return
	}
	if !c.rightsLost.Swap(true) {
		c.cfg.Logger.Warn("the registry no longer has the last declared rights; they stay in use: apply them again",
			zap.Bool("has_earlier", env.Rights != nil))
	}
	env.Rights = c.rights
}

// knowsDatabase reports when the registry knows this deployment over another database than this process runs
// over.
func (c *Client) knowsDatabase(env *schema.Environment) {
	d, _ := env.Deployment(c.cfg.Deployment)
	if d.Database == uuid.Nil || d.Database == c.cfg.Database {
		c.another.Store(nil)
		return
	}
	why := fmt.Sprintf(
		"the registry knows this deployment over the database %s, and this process runs over %s: start it over the former one, or, "+
			"if that one is lost for good, db-controller decommission %s --former-database", d.Database, c.cfg.Database,
		c.cfg.Deployment)
	found := &anotherDatabase{why, time.Now()}
	if before := c.another.Load(); before != nil {
		found.since = before.since
	} else {
		c.cfg.Logger.Warn(why)
	}
	c.another.Store(found)
}

// builder builds an environment from a watch.
type builder struct {
	regions     map[string]bool
	services    map[schema.ServiceVersion]*schema.Descriptor
	deployments map[schema.DeploymentID]schema.Deployment
	rights      *schema.Rights
	revision    int64
	// history is the part of the registry's history in which revision was read.
	history string
	// token resumes the watch where the environment was whole the last time; empty before the first time.
	token   string
	changed bool
	// unkept: the environment could not be kept yet.
	unkept bool
}

func newBuilder() *builder {
	b := &builder{}
	b.begin()
	return b
}

// begin prepares for a new stream, and returns the token to resume it with. Without a token the stream begins
// with a snapshot, which replaces everything.
func (b *builder) begin() string {
	if b.token == "" {
		*b = builder{
			regions: map[string]bool{}, services: map[schema.ServiceVersion]*schema.Descriptor{},
			deployments: map[schema.DeploymentID]schema.Deployment{},
		}
	}
	return b.token
}

// take reports whether the environment is whole now, and whether it has changed since it was whole the last
// time.
func (b *builder) take(msg *registryv1.WatchEnvironmentResponse) (whole, changed bool) {
	switch e := msg.GetEvent().(type) {
	case *registryv1.WatchEnvironmentResponse_Upsert:
		b.set(e.Upsert, true)
	case *registryv1.WatchEnvironmentResponse_Delete:
		b.set(e.Delete, false)
	case *registryv1.WatchEnvironmentResponse_EndOfSnapshot_:
		b.revision, b.token = max(b.revision, e.EndOfSnapshot.GetRevision()), e.EndOfSnapshot.GetResumeToken()
		b.history = e.EndOfSnapshot.GetHistory()
		b.changed = false
		return true, true
	case *registryv1.WatchEnvironmentResponse_Bookmark_:
		if b.token == "" {
			return false, false // the snapshot has not ended
		}
		b.revision, b.token = max(b.revision, e.Bookmark.GetRevision()), e.Bookmark.GetResumeToken()
		b.history = e.Bookmark.GetHistory()
		changed, b.changed = b.changed, false
		return true, changed
	}
	return false, false // an event that only newer servers send
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
	case *registryv1.WatchEnvironmentResponse_Change_Rights:
		if b.rights = wire.Rights(item.Rights); !present {
			b.rights = nil
		}
	case *registryv1.WatchEnvironmentResponse_Change_Deployment:
		d := wire.Deployment(item.Deployment)
		if b.deployments[d.DeploymentID] = d; !present {
			delete(b.deployments, d.DeploymentID)
		}
	}
}

func (b *builder) build() *schema.Environment {
	env := &schema.Environment{Revision: b.revision, History: b.history, Rights: b.rights}
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
