package shadow

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// Peers is what the store needs from other deployments. Errors other than *RefusedError mean that nobody knows
// whether the other side did it.
type Peers interface {
	// Establish answers the targets' uids in order, or *RefusedError.
	Establish(ctx context.Context, target schema.DeploymentID, attempt AttemptID, refs []EstablishReference) ([]uuid.UUID, error)
	// Resolve answers a verdict for each question, in order.
	Resolve(ctx context.Context, holder schema.DeploymentID, questions []Question) ([]Verdict, error)
	// Plan answers what the deletion of targets would take along there, up to limit resources.
	Plan(ctx context.Context, at schema.DeploymentID, targets []PlanTarget, limit int) (*Plan, error)
}

// Config of a Store. Zero means the default.
type Config struct {
	// Pool of the deployment's own database, migrated; from Connect, which has the settings that a Store needs.
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
	// PollInterval is how late a watch can notice what another process committed when notifications are lost
	// (default 500 ms).
	PollInterval time.Duration
	// Retention is how long change rows are kept for watches that resume (default 24 h).
	Retention time.Duration
}

// Store is the constraint store of one deployment. It is safe for concurrent use.
type Store struct {
	pool  *pgxpool.Pool
	self  schema.DeploymentID
	peers Peers
	log   *zap.Logger
	names *names
	wake  *broadcast // watches of this process
	told  *broadcast // RunNotifications: what this process committed itself
	cfg   Config

	selfID int32
	// snapshots has a place for each snapshot of resources that may be under way.
	snapshots chan struct{}
	// tidied is the last foreign target that Tidy has looked at.
	tidied atomic.Int64
	// The version that writes are validated with, or nil until Switch.
	version atomic.Pointer[version]
}

type version struct {
	model      *schema.Model
	generation int64
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
	defaults(&cfg.Retention, 24*time.Hour)
	if cfg.MaxLocalCascade <= 0 {
		cfg.MaxLocalCascade = 10_000
	}
	if cfg.BatchSize <= 0 {
		cfg.BatchSize = 4_000
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	s := &Store{
		pool: cfg.Pool, self: cfg.Deployment, peers: cfg.Peers, log: cfg.Logger, names: newNames(cfg.Pool), wake: newBroadcast(), told: newBroadcast(), cfg: cfg,
		snapshots: make(chan struct{}, max(1, cfg.Pool.Config().MaxConns/4)),
	}
	var owner schema.DeploymentID
	if err := s.pool.QueryRow(ctx, claimSQL, s.self.Service, s.self.Region).Scan(&owner.Service, &owner.Region); err != nil {
		return nil, fmt.Errorf("open the constraint store: %w", err)
	}
	if owner != s.self {
		return nil, fmt.Errorf("this database belongs to %s, not to %s: give each deployment a database of its own", owner, s.self)
	}
	var err error
	s.selfID, err = s.names.deployment(ctx, s.self)
	return s, err
}

// Deployment is whose store it is.
func (s *Store) Deployment() schema.DeploymentID { return s.self }

// Model is what writes are validated with; nil before the first Switch.
func (s *Store) Model() *schema.Model {
	if v := s.version.Load(); v != nil {
		return v.model
	}
	return nil
}

const switchSQL = `
UPDATE dbcontroller.meta SET version = $1, generation = generation + (version <> $1)::int
RETURNING generation`

// Switch makes the model the one that writes are validated with. Writes validated with another version, in whichever
// process, fail at their commit and are tried again: they hold the version's lock shared until they commit.
func (s *Store) Switch(ctx context.Context, model *schema.Model) error {
	// The names that transactions will need, so that none of them has to ask for a second connection (I22).
	for _, k := range model.KindNames() {
		kind, err := model.Kind(k)
		if err != nil {
			return err
		}
		for _, id := range kind.Kinds() {
			if _, err := s.names.kind(ctx, id); err != nil {
				return err
			}
		}
		for _, path := range kind.Paths() {
			if _, err := s.names.field(ctx, path); err != nil {
				return err
			}
		}
	}
	var generation int64
	err := s.inTx(ctx, noFeed, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, versionLock); err != nil {
			return err
		}
		return tx.QueryRow(ctx, switchSQL, model.Descriptor.Version).Scan(&generation)
	})
	if err != nil {
		return fmt.Errorf("switch to %s: %w", model.Descriptor.ServiceVersion, err)
	}
	s.version.Store(&version{model: model, generation: generation})
	return nil
}

// versionLock is the advisory lock that writers share and a switch of the version takes alone.
const versionLock int64 = 0x6462_6374_6c01

func (s *Store) current() (*version, error) {
	if v := s.version.Load(); v != nil {
		return v, nil
	}
	return nil, &UnavailableError{Deployments: []schema.DeploymentID{s.self}, Err: errors.New("its version is not known yet: is it registered?")}
}

// inTx runs fn in a transaction, again when PostgreSQL broke a deadlock. After the commit it wakes the watches of what
// the transaction touches.
func (s *Store) inTx(ctx context.Context, touches feeds, fn func(pgx.Tx) error) error {
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
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // without effect after the commit
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) || errors.Is(err, pgx.ErrTxCommitRollback) {
			return err // the server's word: it rolled back
		}
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return nil
}

// Wake tells the watchers that something was committed: for callers of SaveTx, after their commit. It costs nothing;
// without it watchers notice within a second.
func (s *Store) Wake() { s.touched(allFeeds) }

func (s *Store) touched(f feeds) {
	s.wake.Wake(f)
	s.told.Wake(f)
}
