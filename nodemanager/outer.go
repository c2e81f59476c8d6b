package nodemanager

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// Runner is a node.
type Runner interface {
	Run(ctx context.Context) error
}

// Share is what one node of the inner manager takes care of, under a term that ends with its Member.
type Share struct {
	Name          string
	Member        uuid.UUID
	Shards        []uint32
	Subscriptions <-chan []schema.Subscription
	// First is true for one node of a deployment, which does what is to be done once.
	First bool
}

// Leases divide the ring among the processes of a deployment.
type Leases interface {
	// Renew keeps what a member holds and takes its part of what is free; without a member it joins. It fails with
	// schema.ErrFenced when the member was given up; another error does not tell, and nothing takes effect any more when it
	// was.
	Renew(ctx context.Context, member uuid.UUID) (schema.Grant, error)
	// Release lets others have shards; without any, the member leaves.
	Release(ctx context.Context, member uuid.UUID, shards []uint32) error
}

// Config of a Manager. All fields but Nodes are needed.
type Config struct {
	Deployment schema.DeploymentID
	// Environments is sent whole environments; of several, the newest counts. Run ends with its context, not with it.
	Environments <-chan *schema.Environment
	// Nodes is how many nodes share the deployment's work (default 2).
	Nodes int
	// Switch makes a version the one that the store works with. Called before any node of that version runs, and when
	// no node of another one does.
	Switch func(ctx context.Context, model *schema.Model) error
	// Refresh gives the store a model of the version that runs, made of all that is described now; may be nil.
	Refresh func(model *schema.Model)
	// PointedTo names deployments that stored references point to; they are of interest whatever the version imports.
	PointedTo func(ctx context.Context) ([]schema.DeploymentID, error)
	Leases    Leases
	// LeaseTTL is how long the deployment waits for a process that does not renew (default 5 s).
	LeaseTTL time.Duration
	// Leads is told when this process begins to speak for the deployment, and when it ends to; may be nil.
	Leads func(bool)
	// Renewed says that the deployment's database is another one than before: what nodes know of it, and the version that it
	// runs, may be lost with it. May be nil; never closed.
	Renewed <-chan struct{}
	// Runs reports whether the deployment's database runs what a model says; may be nil. When it does not, another process has
	// switched the version: this one gives its shards up, is not ready, and goes on when it knows what it says.
	Runs func(ctx context.Context, model *schema.Model) (bool, error)
	// Outrun lets that be looked at at once; else it is looked at each second. May be nil; never closed.
	Superseded <-chan struct{}
	// Kept reads the environment that processes of the deployment keep in its database, nil for none; Follows is told when
	// the manager goes on by it. Needed with Runs.
	Kept    func(ctx context.Context) (*schema.Environment, error)
	Follows func(env *schema.Environment)
	// NewNode makes a node.
	NewNode func(share Share) (Runner, error)
	Logger  *zap.Logger
}

// Manager is the outer manager. Run it once.
type Manager struct {
	cfg     Config
	running atomic.Pointer[schema.ServiceVersion]
	reason  atomic.Pointer[string]
}

// New makes a manager.
func New(cfg Config) (*Manager, error) {
	if cfg.Environments == nil || cfg.Switch == nil || cfg.PointedTo == nil || cfg.Leases == nil || cfg.NewNode == nil || cfg.Logger == nil {
		return nil, errors.New("a node manager needs environments, a switch, leases, nodes and a logger")
	}
	if cfg.Runs != nil && (cfg.Kept == nil || cfg.Follows == nil) {
		return nil, errors.New("a node manager that is to notice switches of others needs the kept environment")
	}
	if cfg.Nodes <= 0 {
		cfg.Nodes = 2
	}
	if cfg.LeaseTTL <= 0 {
		cfg.LeaseTTL = 5 * time.Second
	}
	if cfg.Leads == nil {
		cfg.Leads = func(bool) {}
	}
	m := &Manager{cfg: cfg}
	m.setReason("no environment has come from the registry yet, and none was kept from earlier")
	return m, nil
}

func (m *Manager) setReason(s string) { m.reason.Store(&s) }

// Ready fails with the reason while no version runs, and until the process has joined those that share its work.
func (m *Manager) Ready() error {
	if m.running.Load() == nil {
		return errors.New(*m.reason.Load())
	}
	return nil
}

// inner is a running inner manager.
type inner struct {
	model         *schema.Model
	subscriptions chan []schema.Subscription
	cancel        context.CancelFunc
	done          chan struct{} // closed when every node has returned
}

// following is what Run goes by.
type following struct {
	manager *Manager
	env     *schema.Environment
	running *inner // nil: no version runs here
	// pointedTo are the deployments of interest that the version does not name.
	pointedTo []schema.DeploymentID
	// superseded is the model that ran here when another process switched the version; nil: none did.
	superseded *schema.Model
}

// Run blocks until ctx ends and all nodes have returned.
func (m *Manager) Run(ctx context.Context) error {
	var again, look <-chan time.Time // after something that failed; at what the database runs
	f := &following{manager: m}
	defer f.stop()
	if m.cfg.Runs != nil {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		look = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case f.env = <-m.cfg.Environments:
		case <-again:
		case <-m.cfg.Renewed:
			f.stop()
			f.superseded = nil // whatever was switched is lost
		case <-look:
			if f.inStep(ctx) && !f.pointsElsewhere(ctx) {
				continue
			}
		case <-m.cfg.Superseded:
			if f.inStep(ctx) {
				continue
			}
		}
		if again = nil; f.env == nil {
			continue
		}
		if err := f.follow(ctx); err != nil {
			again = time.After(time.Second)
		}
	}
}

// stop ends what runs, if anything does, and waits for it.
func (f *following) stop() {
	if f.running != nil {
		f.running.cancel()
		<-f.running.done
	}
	f.running = nil
	f.manager.running.Store(nil)
}

// pointsElsewhere reports whether other deployments are of interest than those that are followed: one that was restored hears
// of them from others.
func (f *following) pointsElsewhere(ctx context.Context) bool {
	if f.running == nil {
		return false
	}
	pointedTo, err := f.manager.cfg.PointedTo(ctx)
	return err == nil && !slices.Equal(schema.SortedDeployments(slices.Clone(pointedTo)), schema.SortedDeployments(slices.Clone(f.pointedTo)))
}

// follow lets what the environment says be what runs. What it fails with is tried again.
func (f *following) follow(ctx context.Context) error {
	m := f.manager
	if f.superseded != nil && !f.catchUp(ctx) {
		return nil
	}
	model, err := f.env.Model(m.cfg.Deployment)
	if err != nil {
		// What runs goes on: the registry is advisory (I27).
		m.setReason(err.Error())
		m.cfg.Logger.Warn("the environment does not tell what this deployment runs", zap.Error(err))
		return nil
	}
	if f.running == nil || f.running.model.Digest != model.Digest {
		f.stop()
		m.setReason("switching to " + model.Descriptor.String())
		if err := m.cfg.Switch(ctx, model); err != nil {
			m.setReason(err.Error())
			m.cfg.Logger.Warn("the version could not be switched, it is tried again", zap.Error(err))
			return err
		}
		m.setReason("joining the processes of the deployment")
		f.running = m.startInner(ctx, model)
		m.cfg.Logger.Info("running", zap.Stringer("version", model.Descriptor.ServiceVersion), zap.Int("nodes", m.cfg.Nodes))
	}
	if m.cfg.Refresh != nil {
		m.cfg.Refresh(model)
	}
	pointedTo, err := m.cfg.PointedTo(ctx)
	if err != nil {
		m.cfg.Logger.Warn("the interested deployments are not known yet, it is tried again", zap.Error(err))
		return err
	}
	f.pointedTo = pointedTo
	select {
	case f.running.subscriptions <- m.subscriptions(f.env, model, pointedTo):
	case <-ctx.Done():
	}
	return nil
}

// subscriptions gives the interested deployments with what makes a subscription another one.
func (m *Manager) subscriptions(env *schema.Environment, model *schema.Model, pointedTo []schema.DeploymentID) []schema.Subscription {
	var out []schema.Subscription
	for _, id := range env.Interested(model, pointedTo) {
		d, _ := env.Deployment(id)
		if d.Disabled || d.Address == "" && id != m.cfg.Deployment {
			continue // cannot be asked; its references stay as they are
		}
		out = append(out, schema.Subscription{DeploymentID: id, Version: d.Version, Address: d.Address})
	}
	return out
}

func (m *Manager) startInner(ctx context.Context, model *schema.Model) *inner {
	ctx, cancel := context.WithCancel(ctx)
	// Unbuffered: sent by Run, received by the inner manager's loop until cancel, closed by nobody.
	i := &inner{model: model, subscriptions: make(chan []schema.Subscription), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(i.done)
		newInner(m.cfg, i.subscriptions, func() { m.running.Store(&model.Descriptor.ServiceVersion) }).run(ctx)
	}()
	return i
}
