package db

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// Config of a Store. Zero means the default.
type Config struct {
	// Pool of the deployment's own database, migrated; from postgres.Connect, which sets the session settings that a Store needs.
	Pool postgres.Pool
	// Deployment of the database; stored there by the first Open.
	Deployment schema.DeploymentID
	Peers      peer.Peers
	Logger     *zap.Logger
	Times      Times
	Limits     Limits
	Watches    Watches
	Retention  Retention
	// Guest is set by an application that shares the database: the process adopts the version and the epoch, and changes neither.
	Guest bool
	// Delegations lets this deployment grant and use delegations: acting references to other deployments without asking.
	Delegations bool
	// DeletionEnded is called when the root of a user's delete is removed, with the time since the request; may be nil.
	DeletionEnded func(took time.Duration)
}

// Times are how long undecided things may stay undecided.
type Times struct {
	// TentativeTTL is the expiry of a tentative blockade: afterwards the target's deployment asks the holder's about it (default
	// 15 s). A short one aborts slow writes; with a long one, a crashed writer delays deletes.
	TentativeTTL time.Duration
	// DeleteTimeout is how long a delete waits for undecided blockades when its caller gives no deadline (default 5 s).
	DeleteTimeout time.Duration
	// OwnerGrace is how long an owner that was named without a uid may be missing, or an owner may lack its required reference,
	// before the owner reference is dropped (default 5 min).
	OwnerGrace time.Duration
}

// Limits bound one transaction, and what other deployments may have here.
type Limits struct {
	// LocalCascade is the maximum number of resources that one delete removes or marks in its transaction (default 10,000); the
	// others follow asynchronously.
	LocalCascade int
	// Batch is the number of holders or ownees that one transaction handles (default 4,000). Larger batches hold locks longer;
	// smaller ones cost more for each row.
	Batch int
	// BlockRightFrom is the number of blocking references to a resource elsewhere from which on this deployment asks for the right
	// to block it without asking; 0: it never does.
	BlockRightFrom int
	// Quotas of each holder deployment.
	Quotas peer.Quotas
}

// Watches are the times of watches of this process.
type Watches struct {
	// PollInterval is the maximum delay of a watch after a commit of another process without notifications (default 500 ms); ten
	// times this when notifications arrive and one is lost.
	PollInterval time.Duration
	// SlowTimeout is how long the reader of a watch may take for pending events before the watch ends with ErrSlow (default
	// 1 min).
	SlowTimeout time.Duration
}

// Retention is how long records of the past are kept.
type Retention struct {
	// Changes are rows for watches that resume (default 24 h).
	Changes time.Duration
	// Removals are the records of removals and their causes (default 90 days).
	Removals time.Duration
}

type Version struct {
	Model      *schema.Model
	Generation int64
	Hiding     []int32 // kinds with hide_while_deleting
	Tables     bool    // a kind has a table
	Keeps      bool    // there may be kept resources, of kinds or patterns that the version lacks
}

// Logger returns the store's logger, for callers that log on its behalf.
func (s *DB) Logger() *zap.Logger { return s.Log }

// Deployment returns the deployment of the store.
func (s *DB) Deployment() schema.DeploymentID { return s.Self }

// Model returns the model that validates writes; nil before the first Switch.
func (s *DB) Model() *schema.Model {
	if v := s.Version.Load(); v != nil {
		return v.Model
	}
	return nil
}

func (s *DB) Current() (*Version, error) {
	if v := s.Version.Load(); v != nil {
		return v, nil
	}
	return nil, &peer.UnavailableError{Deployments: []schema.DeploymentID{s.Self}, Err: errors.New("its version is not known yet: check that the deployment is registered and that the registry can be reached")}
}

// QueueGenericPlans is for transactions of few rows: planning a statement for its values costs more than running it. Transactions of the
// caller's keep their plans.
func QueueGenericPlans(tx pgx.Tx, b *pgx.Batch) {
	if m, _ := own(tx); m != nil {
		b.Queue(`SELECT set_config('plan_cache_mode', 'force_generic_plan', true)`)
	}
}

// own returns a transaction of InTx; nil for that of another pool, or of the caller.
func own(tx pgx.Tx) (*Marked, *postgres.Tx) {
	m, ok := tx.(*Marked)
	if !ok {
		return nil, nil
	}
	inner, ok := m.Tx.(*postgres.Tx)
	if !ok {
		return nil, nil
	}
	return m, inner
}

// InTx runs fn in a transaction, and repeats it when PostgreSQL broke a deadlock. After the commit it wakes the watches of the feeds
// that the transaction has changed.
func (s *DB) InTx(ctx context.Context, touches feed.Topics, fn func(pgx.Tx) error) error {
	return s.inTx(ctx, func() (pgx.Tx, error) { return postgres.Begin(ctx, s.Pool) }, touches, fn)
}

// Beginner begins transactions: a pool.
type Beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// InTxOf is InTx with a transaction of another pool.
func (s *DB) InTxOf(ctx context.Context, pool Beginner, options pgx.TxOptions, touches feed.Topics, fn func(pgx.Tx) error) error {
	return s.inTx(ctx, func() (pgx.Tx, error) { return pool.BeginTx(ctx, options) }, touches, fn)
}

func (s *DB) inTx(ctx context.Context, begin func() (pgx.Tx, error), touches feed.Topics, fn func(pgx.Tx) error) error {
	const tries = 10
	for try := 1; ; try++ {
		err := s.once(ctx, begin, fn)
		if err == nil && touches != NoFeed {
			s.Touched(touches)
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

func (s *DB) once(ctx context.Context, begin func() (pgx.Tx, error), fn func(pgx.Tx) error) error {
	tx, err := begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // without effect after the commit
	if err := enforce(ctx, tx); err != nil {
		return err
	}
	m := &Marked{Tx: tx}
	if err := fn(m); err != nil {
		return err
	}
	if !m.committed {
		if err := ofCommit(tx.Commit(ctx)); err != nil {
			return err
		}
	}
	s.Rollback.Observe(m.Mark)
	for _, fn := range m.after {
		fn()
	}
	return nil
}

// ofCommit adds to an error of a commit that its outcome is unknown, unless the server reported a rollback, or nothing was sent.
func ofCommit(err error) error {
	var pg *pgconn.PgError
	if err == nil || errors.As(err, &pg) || errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err) {
		return err
	}
	return fmt.Errorf("%w: %w", peer.ErrUnknown, err)
}

// Sender sends statements of a transaction: Stay, or CommitWith, which also commits.
type Sender func(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error

// Stay is a Sender of a transaction that goes on, or is rolled back.
func Stay(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error { return tx.SendBatch(ctx, b).Close() }

// CommitWith sends the last statements of a transaction of InTx together with its commit. What they return must not decide whether it
// commits.
func CommitWith(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error {
	m, inner := own(tx)
	if m == nil {
		return errors.New("the transaction is not one of InTx")
	}
	err := inner.CommitWith(ctx, b)
	m.committed = err == nil
	return ofCommit(err)
}

// Wake wakes all watches, and sends a notification to the other processes. Callers of SaveTx call it after their commit; without it
// watches notice the commit with their next pulse, after seconds.
func (s *DB) Wake() { s.Touched(AllFeeds) }

func (s *DB) Touched(t feed.Topics) {
	s.watchers.Wake(t)
	s.committed.Wake(t)
}

// ErrStale means that stored rows changed after prepare had compared the write with them: Save prepares it again.
var ErrStale = errors.New("the resource changed while it was written")

func WithDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// Querier is the pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Decode reads stored JSON. Numbers keep their spelling (json.Number); a NULL column leaves into unchanged.
func Decode(raw []byte, into any) error {
	if raw == nil {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return d.Decode(into)
}

// Shapes returns pairs of a kind's id and a shape of its names. ids are in the order of the model's KindNames.
func (v *Version) Shapes(ids []int32) (kinds []int32, shapes []string) {
	for i, name := range v.Model.KindNames() {
		if kind, err := v.Model.Kind(name); err == nil {
			for _, shape := range kind.Shapes() {
				kinds, shapes = append(kinds, ids[i]), append(shapes, shape)
			}
		}
	}
	return kinds, shapes
}

const fenceSQL = `
SELECT set_config('idle_in_transaction_session_timeout', $2, true)
FROM dbcontroller.member WHERE id = $1 AND expires_at > clock_timestamp() FOR KEY SHARE`

// enforce checks the context's fence, if any. It is the first statement of a transaction.
func enforce(ctx context.Context, tx pgx.Tx) error {
	f, ok := ctx.Value(fenceKey{}).(fence)
	if !ok {
		return nil
	}
	ttl := strconv.FormatInt(f.ttl.Milliseconds(), 10)
	if tx, ok := tx.(*postgres.Tx); ok {
		tx.Open(holds, fenceSQL, f.member, ttl)
		return nil
	}
	return holds(tx.QueryRow(ctx, fenceSQL, f.member, ttl))
}

// holds checks the row of fenceSQL.
func holds(row pgx.Row) error {
	var set string
	err := row.Scan(&set)
	if errors.Is(err, pgx.ErrNoRows) {
		return schema.ErrFenced
	}
	return err
}

// rollbackDetector detects that the database was replaced by an older copy of itself. Every transaction that removes or decides
// something takes a number from the sequence mark, which nothing else uses: it is greater than each number that this process has
// committed with or has read from disk. An older copy returns a smaller number, even if its server has the same system identifier
// and timeline; from then on nothing is decided until a new epoch has begun.
type rollbackDetector struct {
	// seen only grows. Only numbers of committed transactions are included: a crash may lose the others.
	Seen atomic.Int64
	// EndedEpoch is the epoch in which a smaller number was taken. It counts as ended from then on, also when later transactions
	// take greater numbers: retries advance the copy's sequence.
	EndedEpoch atomic.Pointer[uuid.UUID]
}

func (m *rollbackDetector) Observe(n int64) {
	for {
		seen := m.Seen.Load()
		if n <= seen || m.Seen.CompareAndSwap(seen, n) {
			return
		}
	}
}

// HasEnded reports whether a smaller number was taken in an epoch.
func (m *rollbackDetector) HasEnded(epoch uuid.UUID) bool {
	behind := m.EndedEpoch.Load()
	return behind != nil && *behind == epoch
}
