package nodemanager

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/constraint"
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
	Subscriptions <-chan []constraint.Subscription
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

// Ready fails with the reason while no version runs.
func (m *Manager) Ready() error {
	if m.running.Load() == nil {
		return errors.New(*m.reason.Load())
	}
	return nil
}

// inner is a running inner manager.
type inner struct {
	version       schema.ServiceVersion
	subscriptions chan []constraint.Subscription
	cancel        context.CancelFunc
	done          chan struct{} // closed when every node has returned
}

func (i *inner) stop() {
	if i != nil {
		i.cancel()
		<-i.done
	}
}

// Run blocks until ctx ends and all nodes have returned.
func (m *Manager) Run(ctx context.Context) error {
	var (
		running *inner
		env     *schema.Environment
		again   <-chan time.Time // after a switch that failed
	)
	defer func() { running.stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case env = <-m.cfg.Environments:
		case <-again:
		case <-m.cfg.Renewed:
			running.stop()
			running = nil
			m.running.Store(nil)
		}
		if again = nil; env == nil {
			continue
		}
		model, err := env.Model(m.cfg.Deployment)
		if err != nil {
			// What runs goes on: the registry is advisory (I27).
			m.setReason(err.Error())
			m.cfg.Logger.Warn("the environment does not tell what this deployment runs", zap.Error(err))
			continue
		}
		if version := model.Descriptor.ServiceVersion; running == nil || running.version != version {
			running.stop()
			running = nil
			m.running.Store(nil)
			m.setReason("switching to " + version.String())
			if err := m.cfg.Switch(ctx, model); err != nil {
				m.setReason(err.Error())
				m.cfg.Logger.Error("the version could not be switched, it is tried again", zap.Error(err))
				again = time.After(time.Second)
				continue
			}
			running = m.startInner(ctx, version)
			m.running.Store(&version)
			m.cfg.Logger.Info("running", zap.Stringer("version", version), zap.Int("nodes", m.cfg.Nodes))
		}
		if m.cfg.Refresh != nil {
			m.cfg.Refresh(model)
		}
		pointedTo, err := m.cfg.PointedTo(ctx)
		if err != nil {
			m.cfg.Logger.Error("the interested deployments are not known yet, it is tried again", zap.Error(err))
			again = time.After(time.Second)
			continue
		}
		select {
		case running.subscriptions <- m.subscriptions(env, model, pointedTo):
		case <-ctx.Done():
		}
	}
}

// subscriptions gives the interested deployments with what makes a subscription another one.
func (m *Manager) subscriptions(env *schema.Environment, model *schema.Model, pointedTo []schema.DeploymentID) []constraint.Subscription {
	var out []constraint.Subscription
	for _, id := range env.Interested(model, pointedTo) {
		d, _ := env.Deployment(id)
		if d.Disabled || d.Address == "" && id != m.cfg.Deployment {
			continue // cannot be asked; its references stay as they are
		}
		out = append(out, constraint.Subscription{DeploymentID: id, Version: d.Version, Address: d.Address})
	}
	return out
}

func (m *Manager) startInner(ctx context.Context, version schema.ServiceVersion) *inner {
	ctx, cancel := context.WithCancel(ctx)
	// Unbuffered: sent by Run, received by the inner manager's loop until cancel, closed by nobody.
	i := &inner{version: version, subscriptions: make(chan []constraint.Subscription), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(i.done)
		newInner(m.cfg, i.subscriptions).run(ctx)
	}()
	return i
}
