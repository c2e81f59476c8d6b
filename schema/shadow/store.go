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

	"github.com/db-controller/db-controller/schema/shadow/internal/target"
	"github.com/db-controller/db-controller/schema/shadow/internal/verify"

	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// Store is the constraint store of one deployment. It is safe for concurrent use. It has the methods of its
// rooms; of the rooms that serve other rooms as well, the methods in gate.go.
type Store struct {
	*reader
	*operations
	*keeper
	*attempts
	*writer
	*owners
	*deleter
	*verifier
	*administrator
	*rowDeleter
	*righter
	*granter
	*book
	epochs
	peerEpochs
	recovery
	databases
	others
	versions
	positions
	following
	finalising
	db *db.DB
}

// Embedded under these names, the rooms are not fields that callers see.
type (
	reader        = read.Reader
	operations    = operate.Operations
	keeper        = target.Keeper
	attempts      = attempt.Attempts
	writer        = write.Writer
	owners        = owner.Owners
	deleter       = deletion.Deleter
	verifier      = verify.Verifier
	administrator = admin.Admin
	rowDeleter    = deletedrows.Deleter
	righter       = rights.Rights
	granter       = rights.Granter
	book          = cascade.Book
)

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
		reader: r, operations: o, keeper: t, attempts: a, writer: w, owners: owner.New(g, c), deleter: deletion.New(g, t, w, c, f, rs), verifier: v,
		administrator: admin.New(g, p, w, c, f, v, rt), rowDeleter: deletedrows.New(rs, c), righter: rt, granter: rights.NewGranter(g, rs, rt), book: b, db: d,
		epochs: g, peerEpochs: g, recovery: g, databases: g, others: g, versions: g, positions: f, following: f, finalising: c,
	}, nil
}

// Close ends the store's background work. Call it once, when no other method runs, and before the pool is closed.
func (s *Store) Close() {
	s.deleter.Close()
	s.writer.Close()
	s.keeper.Close()
	s.book.Close()
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
	return &Leases{Store: s.db, Name: name, TTL: ttl}
}

// RunNotifications listens for other processes' commits, and notifies them of this process's commits, until
// ctx ends.
func (s *Store) RunNotifications(ctx context.Context) error { return s.db.RunNotifications(ctx) }
