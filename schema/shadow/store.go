package shadow

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
)

// Peers is what the store needs from other deployments. Errors other than *RefusedError mean that nobody knows
// whether the other side did it.
type Peers interface {
	// Establish answers what was established, or *RefusedError.
	Establish(ctx context.Context, target schema.DeploymentID, attempt AttemptID, refs []EstablishReference) (*Established, error)
	// WouldEstablish answers as Establish would, and nothing is stored.
	WouldEstablish(ctx context.Context, target schema.DeploymentID, refs []EstablishReference) ([]uuid.UUID, error)
	// Resolve answers a verdict for each question, in order.
	Resolve(ctx context.Context, holder schema.DeploymentID, questions []Question) (*Answers, error)
	// CheckReferences answers what is known there of references of this deployment, in order.
	CheckReferences(ctx context.Context, at schema.DeploymentID, refs []CheckedReference) ([]Known, error)
	// WouldCheckOwners answers as an owners' deployment does, which notes nothing.
	WouldCheckOwners(ctx context.Context, at schema.DeploymentID, questions []OwnerQuestion) (*OwnerAnswers, error)
	// Plan answers what the deletion of targets would take along there.
	Plan(ctx context.Context, at schema.DeploymentID, q PlanQuestion) (*Plan, error)
	// Trace answers what resources there would be deleted with.
	Trace(ctx context.Context, at schema.DeploymentID, uids []uuid.UUID) (map[uuid.UUID]Trace, error)
}

// Config of a Store. Zero means the default.
type Config struct {
	// Pool of the deployment's own database, migrated; from postgres.Connect, whose sessions have the settings that a Store needs.
	Pool *pgxpool.Pool
	// Deployment that the database belongs to, or will from now on.
	Deployment schema.DeploymentID
	Peers      Peers
	Logger     *zap.Logger
	// TentativeTTL is how long a tentative blockade stands before its holder must decide (default 15 s). Too short,
	// and slow writes are aborted; too long, and a crashed writer delays deletes.
	TentativeTTL time.Duration
	// DeleteTimeout is how long a delete waits for undecided blockades when its caller gives no deadline (default 5 s).
	DeleteTimeout time.Duration
	// MaxLocalCascade is how many resources one transaction takes along (default 10,000); what is beyond goes later.
	MaxLocalCascade int
	// BatchSize is how many holders of a deletion elsewhere one transaction handles (default 4,000). Larger batches
	// hold locks longer; smaller ones pay more for each row.
	BatchSize int
	// PollInterval is how late a watch can notice what another process committed where no notifications come; ten times as late
	// where they do and one is lost (default 500 ms).
	PollInterval time.Duration
	// SlowTimeout is how long the reader of a watch may take for what has changed, before the watch ends with ErrSlow
	// (default 1 min).
	SlowTimeout time.Duration
	// OwnerGrace is how long an owner may be missing that was named without a uid, or may lack the reference that it
	// needs, before it counts as gone (default 5 min).
	OwnerGrace time.Duration
	// Retention is how long change rows are kept for watches that resume (default 24 h).
	Retention time.Duration
	// RemovalsKept is how long it is kept why resources were removed (default 90 days).
	RemovalsKept time.Duration
	// Quotas of each holder's deployment.
	Quotas Quotas
}

// Store is the constraint store of one deployment. It is safe for concurrent use.
type Store struct {
	pool  *pgxpool.Pool
	self  schema.DeploymentID
	peers Peers
	log   *zap.Logger
	names *names
	feeds *feed.Log
	wake  *feed.Broadcast           // watches of this process
	told  *feed.Broadcast           // RunNotifications: what this process committed itself
	heard atomic.Pointer[time.Time] // RunNotifications: when a word of this process itself came back; nil: not since it listens
	cfg   Config
	usage *usage

	selfID int32
	// epoch of the database, as noticed last; moved says that another one has begun.
	epoch atomic.Pointer[uuid.UUID]
	moved chan struct{}
	marks marks
	// outrun says that another process has switched the version.
	outrun chan struct{}
	// database is the identity of this deployment's, from the first look on; met are those of the others (uuid.UUID by
	// schema.DeploymentID) as far as they were compared a moment ago, strangers those that differed, and stakes what is
	// known to be noted as at stake.
	database               atomic.Pointer[uuid.UUID]
	met, strangers, stakes sync.Map
	// environment is the one of the last Recover of this process.
	environment atomic.Pointer[schema.Environment]
	// tidied is the last foreign target that Tidy has looked at.
	tidied atomic.Int64
	// sampled is the last resource whose body an audit has compared.
	sampled atomic.Int64
	// walks over the holders of targets that were broken off; see acting.
	walks walks
	// pointed are the deployments (int32) that are known to be noted as pointed to.
	pointed sync.Map
	// barred are the deployments that operators declared gone, as far as this process knows.
	barred atomic.Pointer[[]schema.DeploymentID]
	// The version that writes are validated with, or nil until Switch.
	version atomic.Pointer[version]
}

type version struct {
	model      *schema.Model
	generation int64
	hiding     []int32 // kinds
	keeps      bool    // there may be resources that the version has no place for
}

const claimSQL = `
INSERT INTO dbcontroller.meta (service, region) VALUES ($1, $2)
ON CONFLICT (singleton) DO UPDATE SET singleton = true
RETURNING service, region`

// Open takes the database for a deployment. It fails when the database belongs to another.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	defaults := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	defaults(&cfg.TentativeTTL, 15*time.Second)
	defaults(&cfg.DeleteTimeout, 5*time.Second)
	defaults(&cfg.PollInterval, 500*time.Millisecond)
	defaults(&cfg.OwnerGrace, 5*time.Minute)
	defaults(&cfg.Retention, 24*time.Hour)
	defaults(&cfg.RemovalsKept, 90*24*time.Hour)
	if cfg.MaxLocalCascade <= 0 {
		cfg.MaxLocalCascade = 10_000
	}
	if cfg.BatchSize <= 0 {
		cfg.BatchSize = 4_000
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	cfg.Logger, _ = postgres.LogOutageOnce(cfg.Logger)
	s := &Store{
		pool: cfg.Pool, self: cfg.Deployment, peers: cfg.Peers, log: cfg.Logger, names: newNames(cfg.Pool), wake: feed.NewBroadcast(), told: feed.NewBroadcast(), cfg: cfg, usage: newUsage(cfg.Quotas),
		moved: make(chan struct{}, 1), outrun: make(chan struct{}, 1),
	}
	s.feeds = feed.NewLog(feed.Config{Pool: cfg.Pool, StateSQL: stateSQL, WrittenSQL: writtenSQL, Wake: s.wake, PollInterval: cfg.PollInterval, Heard: s.hears, SlowTimeout: cfg.SlowTimeout})
	var owner schema.DeploymentID
	if err := s.pool.QueryRow(ctx, claimSQL, s.self.Service, s.self.Region).Scan(&owner.Service, &owner.Region); err != nil {
		return nil, fmt.Errorf("open the constraint store: %w", err)
	}
	if owner != s.self {
		return nil, fmt.Errorf("this database belongs to %s, not to %s: give each deployment a database of its own", owner, s.self)
	}
	var err error
	if s.selfID, err = s.names.deployment(ctx, s.self); err != nil {
		return nil, err
	}
	if _, err := s.NoticeEpoch(ctx); err != nil {
		return nil, err
	}
	return s, s.learnBarred(ctx)
}

// Logger is where it writes what operators should hear of.
func (s *Store) Logger() *zap.Logger { return s.log }

// Deployment is whose store it is.
func (s *Store) Deployment() schema.DeploymentID { return s.self }

// Model is what writes are validated with; nil before the first Switch.
func (s *Store) Model() *schema.Model {
	if v := s.version.Load(); v != nil {
		return v.model
	}
	return nil
}

func (s *Store) current() (*version, error) {
	if v := s.version.Load(); v != nil {
		return v, nil
	}
	return nil, &UnavailableError{Deployments: []schema.DeploymentID{s.self}, Err: errors.New("its version is not known yet: is it registered?")}
}

// inTx runs fn in a transaction, again when PostgreSQL broke a deadlock. After the commit it wakes the watches of what
// the transaction touches.
func (s *Store) inTx(ctx context.Context, touches feed.Topics, fn func(pgx.Tx) error) error {
	const tries = 10
	for try := 1; ; try++ {
		err := s.once(ctx, fn)
		if err == nil && touches != noFeed {
			s.touched(touches)
		}
		if !again(err) || try == tries {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(rand.Int64N(int64(try) * int64(5*time.Millisecond)))):
		}
	}
}

func (s *Store) once(ctx context.Context, fn func(pgx.Tx) error) error {
	// Said each time: a database, a role or a pooler can have another level by default.
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // without effect after the commit
	if err := enforce(ctx, tx); err != nil {
		return err
	}
	m := &marked{Tx: tx}
	if err := fn(m); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) || errors.Is(err, pgx.ErrTxCommitRollback) {
			return err // the server's word: it rolled back
		}
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	s.marks.see(m.mark)
	return nil
}

// Wake tells the watchers that something was committed: for callers of SaveTx, after their commit. It costs nothing;
// without it watchers notice within a few seconds.
func (s *Store) Wake() { s.touched(allFeeds) }

func (s *Store) touched(t feed.Topics) {
	s.wake.Wake(t)
	s.told.Wake(t)
}
