package shadow

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/admin"
	"github.com/db-controller/db-controller/schema/shadow/internal/attempt"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/deletedrows"
	"github.com/db-controller/db-controller/schema/shadow/internal/deletion"
	"github.com/db-controller/db-controller/schema/shadow/internal/follow"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/operate"

	"github.com/db-controller/db-controller/schema/shadow/internal/owner"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"

	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/rights"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
	"github.com/db-controller/db-controller/schema/shadow/internal/standby"

	"github.com/db-controller/db-controller/schema/shadow/internal/target"
	"github.com/db-controller/db-controller/schema/shadow/internal/verify"

	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// Store is the constraint store of one deployment: its rooms. It is safe for concurrent use. The methods of
// rooms with a transaction as a parameter are for other rooms.
type Store struct {
	// Read has resources, lists and watches.
	Read *read.Reader
	// Write creates and updates resources, and their statuses and finalizers.
	Write *write.Writer
	// Deletions has deletes and plans of them.
	Deletions *deletion.Deleter
	// Attempts answers questions about attempts, and aborts them.
	Attempts *attempt.Attempts
	// Targets is the side of targets: blockades, entries, quotas, acknowledgements.
	Targets *target.Keeper
	// Owners checks, drops and upgrades owners.
	Owners *owner.Owners
	// Rights acquires, recalls and returns rights to refer without asking; RightRequests answers applications
	// that ask for rights.
	Rights        *rights.Rights
	RightRequests *rights.Granter
	// Follow acts upon deletions in other deployments; Cascade removes resources that wait for nothing any
	// more; DeletedRows carries out the deletion of rows of attached tables.
	Follow      *follow.Follower
	Cascade     *cascade.Actor
	DeletedRows *deletedrows.Deleter
	// Progress has the counts of deletions.
	Progress *cascade.Book
	// Gate has the epochs, databases and versions of this deployment and of others.
	Gate *gate.Gate
	// Verify compares references with other deployments, and repairs differences.
	Verify *verify.Verifier
	// Operate has the decisions and questions of operators.
	Operate *operate.Operations
	// Admin switches versions, decommissions deployments and tidies.
	Admin *admin.Admin
	// Standby answers reads of people; nil: there is none.
	Standby *standby.Standby

	db *db.DB
}

// Open takes the database for a deployment. It fails when the database belongs to another one.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	d, err := db.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	g, err := gate.New(ctx, d)
	if err != nil {
		return nil, err
	}
	rs := rows.New(d)
	r := read.New(g, rs)
	if err := rs.Load(ctx); err != nil {
		return nil, err
	}
	t := target.New(g, rs)
	p, a := prepare.New(g), attempt.New(g)
	w := write.New(g, rs, p, a)
	b, recorder := cascade.NewBook(d)
	c := cascade.New(g, rs, recorder)
	o, f := operate.New(g, r, rs, c), follow.New(g, rs, c, recorder)
	rt := rights.New(g, rs, p, a)
	v := verify.New(g, o, t, w, f, rt, rs)
	return &Store{
		Read: r, Write: w, Deletions: deletion.New(g, t, p, a, c, f, rs), Attempts: a, Targets: t,
		Owners: owner.New(g, c),
		Rights: rt, RightRequests: rights.NewGranter(g, rs, rt), Follow: f, Cascade: c, DeletedRows: deletedrows.New(rs,
			c), Progress: b,
		Gate: g, Verify: v, Operate: o, Admin: admin.New(g, p, w, c, f, v, rt), Standby: cfg.Standby, db: d,
	}, nil
}

// Close ends the store's background work. Call it once, when no other method runs, and before the pool is
// closed.
func (s *Store) Close() {
	s.Deletions.Close()
	s.Write.Close()
	s.Targets.Close()
	s.Progress.Close()
}

// Logger for messages to operators.
func (s *Store) Logger() *zap.Logger { return s.db.Logger() }

// Deployment whose store it is.
func (s *Store) Deployment() schema.DeploymentID { return s.db.Deployment() }

// Tune changes settings while the store works; a zero is the default.
func (s *Store) Tune(t Tuning) { s.db.Tuning.Store(t.Complete()) }

// Model that writes are validated with; nil before the first Switch.
func (s *Store) Model() *schema.Model { return s.db.Model() }

// Members returns the live processes of this deployment, and the number of shards of each.
func (s *Store) Members(ctx context.Context) ([]peer.Member, error) { return gate.Members(ctx, s.db) }

// Leases returns the leases of a process by this name; Leases describes the time to live.
func (s *Store) Leases(name string, ttl time.Duration) *Leases {
	return &Leases{Gate: s.Gate, Name: name, TTL: ttl}
}

// RunNotifications listens for other processes' commits, and notifies them of this process's commits, until
// ctx ends.
func (s *Store) RunNotifications(ctx context.Context) error { return s.db.RunNotifications(ctx) }
