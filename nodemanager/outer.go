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

// Share is the part of one node, for the term of its Member.
type Share struct {
	Name          string
	Member        uuid.UUID
	Shards        []uint32
	Subscriptions <-chan []schema.Subscription
	// First is true for one node of a deployment: it does the work that one node has to do for all.
	First bool
}

// Leases divide the ring among the processes of a deployment.
type Leases interface {
	// Renew renews the leases of a member, and leases its part of the free shards; without a member the
	// process joins. lead: the shard that leads too if it is free, also beyond its part; otherwise it is left
	// to others. It fails with schema.ErrFenced when the member has expired. After any other error the member
	// may have expired as well; then its transactions take no effect.
	Renew(ctx context.Context, member uuid.UUID, lead bool) (schema.Grant, error)
	// Release releases shards to other members; without shards the member leaves.
	Release(ctx context.Context, member uuid.UUID, shards []uint32) error
}

// Config of a Manager. All fields are needed unless their comment says otherwise.
type Config struct {
	Deployment schema.DeploymentID
	// Environments delivers whole environments; the newest counts. It is never closed; Run ends with its
	// context.
	Environments <-chan *schema.Environment
	Store        Store
	// Others may be empty: then no other process of the deployment switches the version.
	Others  Others
	Sharing Sharing
	// NewNode makes a node.
	NewNode func(share Share) (Runner, error)
	Logger  *zap.Logger
}

// Store has the methods of the deployment's store that a Manager calls.
type Store struct {
	// Switch makes the store work with a version. It is called while no node runs.
	Switch func(ctx context.Context, model *schema.Model) error
	// Refresh gives the store the model of the running version from the newest descriptors; may be nil.
	Refresh func(model *schema.Model)
	// PointedTo names the deployments that stored references point to; they are of interest with any imports
	// of the version.
	PointedTo func(ctx context.Context) ([]schema.DeploymentID, error)
	// Renewed delivers a new epoch of the deployment's database: the caches of the nodes, and the version in
	// the database, may be out of date. May be nil; never closed.
	Renewed <-chan struct{}
}

// Others are the other processes of the deployment, which may switch the version.
type Others struct {
	// Look reports whether the deployment's database has the version of a model, and names the deployments of
	// Store.PointedTo; may be nil. When runs is false, another process has switched the version: this process
	// releases its shards, is not ready, and goes on when it knows that version.
	Look func(ctx context.Context, model *schema.Model) (runs bool, pointedTo []schema.DeploymentID, err error)
	// Superseded makes the manager call Look: the database may have another version, or point to other
	// deployments, than the manager has read. It is sent again until the manager has. Needed with Look; never
	// closed.
	Superseded <-chan struct{}
	// Kept reads the environment that processes of the deployment keep in its database, nil for none; Follows
	// is called when the manager follows that one. Needed with Look.
	Kept    func(ctx context.Context) (*schema.Environment, error)
	Follows func(env *schema.Environment)
}

// Sharing says by which rules the processes of a deployment share its work.
type Sharing struct {
	Leases Leases
	// TTL is the time after which a process that does not renew loses its shards (default 5 s). A short one
	// costs renewals, five in that time; a long one delays the work of a process that died.
	TTL time.Duration
	// Nodes is the number of nodes that share the work of this process (default 2).
	Nodes int
	// Leads is called when this process begins to lead the deployment, and when it ends to; may be nil.
	Leads func(bool)
	// CanLead reports whether others learn the address of this process when it leads; may be nil: they do. A
	// process of which they do not leaves the lead to another one, if there is one.
	CanLead func() bool
}

// Manager is the outer manager. Run it once.
type Manager struct {
	cfg     Config
	running atomic.Pointer[schema.ServiceVersion]
	reason  atomic.Pointer[string]
}

// New makes a manager.
func New(cfg Config) (*Manager, error) {
	if cfg.Environments == nil || cfg.Store.Switch == nil || cfg.Store.PointedTo == nil || cfg.Sharing.Leases == nil ||
		cfg.NewNode == nil || cfg.Logger == nil {
		return nil, errors.New("a node manager needs environments, a switch, leases, nodes and a logger")
	}
	if cfg.Others.Look != nil && (cfg.Others.Superseded == nil || cfg.Others.Kept == nil || cfg.Others.Follows == nil) {
		return nil, errors.New("a node manager that is to notice switches of others needs the kept environment")
	}
	cfg.Sharing.setDefaults()
	m := &Manager{cfg: cfg}
	m.setReason("no environment has come from the registry yet, and none was kept from earlier")
	return m, nil
}

func (s *Sharing) setDefaults() {
	if s.Nodes <= 0 {
		s.Nodes = 2
	}
	if s.TTL <= 0 {
		s.TTL = 5 * time.Second
	}
	if s.Leads == nil {
		s.Leads = func(bool) {}
	}
	if s.CanLead == nil {
		s.CanLead = func() bool { return true }
	}
}

func (m *Manager) setReason(s string) { m.reason.Store(&s) }

// Ready returns the reason while no version runs, and until the process has joined the processes of its
// deployment.
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

// following is the state of Run.
type following struct {
	manager *Manager
	env     *schema.Environment
	running *inner // nil: no version runs here
	// pointedTo are the deployments that stored references point to, as they were read last.
	pointedTo []schema.DeploymentID
	// superseded is the model that ran here when another process switched the version; nil: no process did.
	superseded *schema.Model
}

// Run blocks until ctx ends and all nodes have returned.
func (m *Manager) Run(ctx context.Context) error {
	var again <-chan time.Time // after a failure
	f := &following{manager: m}
	defer f.stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f.env = <-m.cfg.Environments:
		case <-again:
		case <-m.cfg.Store.Renewed:
			f.stop()
			f.superseded = nil // the switch may be lost with the old database
		case <-m.cfg.Others.Superseded:
			if f.inStep(ctx) {
				continue
			}
		}
		if again = nil; f.env == nil {
			continue
		}
		if !f.follow(ctx) {
			again = time.After(time.Second)
		}
	}
}

// stop ends the inner manager, if one runs, and waits for it.
func (f *following) stop() {
	if f.running != nil {
		f.running.cancel()
		<-f.running.done
	}
	f.running = nil
	f.manager.running.Store(nil)
}

// pointsToOther reports whether stored references point to other deployments than when they were read last: a
// deployment that was restored learns of references from others.
func (f *following) pointsToOther(now []schema.DeploymentID) bool {
	return !slices.Equal(schema.SortedDeployments(slices.Clone(now)),
		schema.SortedDeployments(slices.Clone(f.pointedTo)))
}

// follow runs the version of the environment, with its subscriptions. It returns false after a failure, which
// it has logged: it has to be called again.
func (f *following) follow(ctx context.Context) bool {
	m := f.manager
	if f.superseded != nil && !f.catchUp(ctx) {
		return false
	}
	model, err := f.env.Model(m.cfg.Deployment)
	if err != nil {
		// The version that runs goes on: the registry is advisory (I27).
		m.setReason(err.Error())
		m.cfg.Logger.Warn("the environment has no version for this deployment", zap.Error(err))
		return true // called again with the next environment
	}
	if (f.running == nil || f.running.model.Digest != model.Digest) && !f.switchTo(ctx, model) {
		return false
	}
	if m.cfg.Store.Refresh != nil {
		m.cfg.Store.Refresh(model)
	}
	pointedTo, err := m.cfg.Store.PointedTo(ctx)
	if err != nil {
		m.cfg.Logger.Warn("the interested deployments could not be read, it is tried again", zap.Error(err))
		return false
	}
	f.pointedTo = pointedTo
	select {
	case f.running.subscriptions <- m.subscriptions(f.env, model, pointedTo):
	case <-ctx.Done():
	}
	return true
}

// switchTo replaces the version that runs: no node runs while the store is switched.
func (f *following) switchTo(ctx context.Context, model *schema.Model) bool {
	m := f.manager
	f.stop()
	m.setReason("switching to " + model.Descriptor.String())
	if err := m.cfg.Store.Switch(ctx, model); err != nil {
		m.setReason(err.Error())
		m.cfg.Logger.Warn("the version could not be switched, it is tried again", zap.Error(err))
		return false
	}
	m.setReason("joining the processes of the deployment")
	f.running = m.startInner(ctx, model)
	m.cfg.Logger.Info("running", zap.Stringer("version", model.Descriptor.ServiceVersion),
		zap.Int("nodes", m.cfg.Sharing.Nodes))
	return true
}

// subscriptions returns a subscription to each interested deployment that can be reached.
func (m *Manager) subscriptions(env *schema.Environment, model *schema.Model,
	pointedTo []schema.DeploymentID,
) []schema.Subscription {
	var out []schema.Subscription
	for _, id := range env.Interested(model, pointedTo) {
		d, _ := env.Deployment(id)
		if d.Disabled || d.Address == "" && id != m.cfg.Deployment {
			continue // it cannot be watched; references to it stay as they are
		}
		out = append(out, schema.Subscription{DeploymentID: id, Version: d.Version, Address: d.Address})
	}
	return out
}

func (m *Manager) startInner(ctx context.Context, model *schema.Model) *inner {
	ctx, cancel := context.WithCancel(ctx)
	// Unbuffered: sent by Run, received by the inner manager's loop until cancel, never closed.
	i := &inner{
		model: model, subscriptions: make(chan []schema.Subscription), cancel: cancel,
		done: make(chan struct{}),
	}
	go func() {
		defer close(i.done)
		newInner(m.cfg, i.subscriptions, func() { m.running.Store(&model.Descriptor.ServiceVersion) }).run(ctx)
	}()
	return i
}
