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

// Peers calls other deployments. After an error other than *RefusedError it is unknown whether the call took effect.
type Peers interface {
	// Establish establishes all references under the attempt, or none and returns *RefusedError.
	Establish(ctx context.Context, target schema.DeploymentID, attempt AttemptID, refs []EstablishReference) (*Established, error)
	// WouldEstablish is Establish without storing anything: it returns the uids of the targets.
	WouldEstablish(ctx context.Context, target schema.DeploymentID, refs []EstablishReference) ([]uuid.UUID, error)
	// Resolve returns a verdict for each question, in order.
	Resolve(ctx context.Context, holder schema.DeploymentID, questions []Question) (*Answers, error)
	// CheckReferences returns the states there of references of this deployment, in order.
	CheckReferences(ctx context.Context, at schema.DeploymentID, refs []CheckedReference) ([]Known, error)
	// WouldCheckOwners is CheckOwners without writing ownee entries.
	WouldCheckOwners(ctx context.Context, at schema.DeploymentID, questions []OwnerQuestion) (*OwnerAnswers, error)
	// Plan returns the effects there of a deletion of targets.
	Plan(ctx context.Context, at schema.DeploymentID, q PlanQuestion) (*Plan, error)
	// Trace returns, for resources there, the targets and owners whose deletion would remove them.
	Trace(ctx context.Context, at schema.DeploymentID, uids []uuid.UUID) (map[uuid.UUID]Trace, error)
}

// Config of a Store. Zero means the default.
type Config struct {
	// Pool of the deployment's own database, migrated; from postgres.Connect, which sets the session settings that a Store needs.
	Pool *pgxpool.Pool
	// Deployment of the database; stored there by the first Open.
	Deployment schema.DeploymentID
	Peers      Peers
	Logger     *zap.Logger
	// TentativeTTL is the expiry of a tentative blockade: afterwards the target's deployment asks the holder's about it (default
	// 15 s). A short one aborts slow writes; with a long one, a crashed writer delays deletes.
	TentativeTTL time.Duration
	// DeleteTimeout is how long a delete waits for undecided blockades when its caller gives no deadline (default 5 s).
	DeleteTimeout time.Duration
	// MaxLocalCascade is the maximum number of resources that one delete removes or marks in its transaction (default 10,000); the
	// others follow asynchronously.
	MaxLocalCascade int
	// BatchSize is the number of holders or ownees that one transaction handles (default 4,000). Larger batches hold locks longer;
	// smaller ones cost more for each row.
	BatchSize int
	// PollInterval is the maximum delay of a watch after a commit of another process without notifications (default 500 ms); ten
	// times this when notifications arrive and one is lost.
	PollInterval time.Duration
	// SlowTimeout is how long the reader of a watch may take for pending events before the watch ends with ErrSlow (default
	// 1 min).
	SlowTimeout time.Duration
	// OwnerGrace is how long an owner that was named without a uid may be missing, or an owner may lack its required reference,
	// before the owner reference is dropped (default 5 min).
	OwnerGrace time.Duration
	// Retention is how long change rows are kept for watches that resume (default 24 h).
	Retention time.Duration
	// RemovalsKept is how long removals and their causes are kept (default 90 days).
	RemovalsKept time.Duration
	// Quotas of each holder deployment.
	Quotas Quotas
}

// Store is the constraint store of one deployment. It is safe for concurrent use.
type Store struct {
	pool       *pgxpool.Pool
	self       schema.DeploymentID
	peers      Peers
	log        *zap.Logger
	names      *names
	feeds      *feed.Log
	watchers   *feed.Broadcast           // wakes the watches of this process
	committed  *feed.Broadcast           // commits of this process, for RunNotifications to send
	notifiedAt atomic.Pointer[time.Time] // when the last notification of this process to itself arrived; nil: none on this connection
	cfg        Config
	now        func() time.Time // the clock of this process; tests move it
	usage      *usage

	selfID int32
	// epoch of the database, as of the last NoticeEpoch; moved receives when a transaction met another one (capacity one).
	epoch        atomic.Pointer[uuid.UUID]
	epochChanged chan struct{}
	rollback     rollbackDetector
	// outrun receives when another process has switched the version; see Outrun.
	superseded chan struct{}
	// database is the identity of this deployment's database, set by the first NoticeEpoch. met are those of the other deployments
	// (uuid.UUID by schema.DeploymentID) that were compared recently, strangers those that differed, and stakes a cache of the
	// stakes known to be stored.
	database                              atomic.Pointer[uuid.UUID]
	checkedDatabases, mismatches, flagged sync.Map
	// environment is the one of the last Recover of this process.
	environment atomic.Pointer[schema.Environment]
	// tidied is the id of the last foreign target that Tidy has visited.
	tidied atomic.Int64
	// sampled is the id of the last resource whose body an audit has compared.
	sampled atomic.Int64
	// walks are interrupted walks over the holders of targets; see acting.
	walks walks
	// pointed is a cache of the deployments (int32) that are stored as referred to.
	notedTargets sync.Map
	// barred are the decommissioned deployments that this process has read.
	decommissioned atomic.Pointer[[]schema.DeploymentID]
	// version validates writes; nil before the first Switch.
	version atomic.Pointer[version]
}

type version struct {
	model      *schema.Model
	generation int64
	hiding     []int32 // kinds with hide_while_deleting
	keeps      bool    // there may be kept resources, of kinds or patterns that the version lacks
}

const claimSQL = `
INSERT INTO dbcontroller.meta (service, region) VALUES ($1, $2)
ON CONFLICT (singleton) DO UPDATE SET singleton = true
RETURNING service, region`

// Open opens the database of a deployment, or makes an unused database that of the deployment. It fails when the database belongs to
// another deployment.
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
		pool: cfg.Pool, self: cfg.Deployment, peers: cfg.Peers, log: cfg.Logger, names: newNames(cfg.Pool), watchers: feed.NewBroadcast(), committed: feed.NewBroadcast(), cfg: cfg, now: time.Now, usage: newUsage(cfg.Quotas),
		epochChanged: make(chan struct{}, 1), superseded: make(chan struct{}, 1),
	}
	s.feeds = feed.NewLog(feed.Config{Pool: cfg.Pool, StateSQL: stateSQL, WrittenSQL: writtenSQL, Wake: s.watchers, PollInterval: cfg.PollInterval, Heard: s.notificationsAlive, SlowTimeout: cfg.SlowTimeout})
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
	return s, s.loadDecommissioned(ctx)
}

// Logger returns the store's logger, for callers that log on its behalf.
func (s *Store) Logger() *zap.Logger { return s.log }

// Deployment returns the deployment of the store.
func (s *Store) Deployment() schema.DeploymentID { return s.self }

// Model returns the model that validates writes; nil before the first Switch.
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
	return nil, &UnavailableError{Deployments: []schema.DeploymentID{s.self}, Err: errors.New("its version is not known yet: check that the deployment is registered and that the registry can be reached")}
}

// inTx runs fn in a transaction, and repeats it when PostgreSQL broke a deadlock. After the commit it wakes the watches of the feeds
// that the transaction has changed.
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
	// Set explicitly: the default of the database, the role or a pooler can be another level.
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
			return err // the server reported a rollback: the outcome is known
		}
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	s.rollback.observe(m.mark)
	return nil
}

// Wake wakes all watches, and sends a notification to the other processes. Callers of SaveTx call it after their commit; without it
// watches notice the commit with their next pulse, after seconds.
func (s *Store) Wake() { s.touched(allFeeds) }

func (s *Store) touched(t feed.Topics) {
	s.watchers.Wake(t)
	s.committed.Wake(t)
}
