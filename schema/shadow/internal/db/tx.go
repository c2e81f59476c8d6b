package db

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

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
	// Delegations lets this deployment grant and use delegations: acting references to other deployments without asking.
	Delegations bool
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

// InTx runs fn in a transaction, and repeats it when PostgreSQL broke a deadlock. After the commit it wakes the watches of the feeds
// that the transaction has changed.
func (s *DB) InTx(ctx context.Context, touches feed.Topics, fn func(pgx.Tx) error) error {
	const tries = 10
	for try := 1; ; try++ {
		err := s.once(ctx, fn)
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

func (s *DB) once(ctx context.Context, fn func(pgx.Tx) error) error {
	// Set explicitly: the default of the database, the role or a pooler can be another level.
	tx, err := s.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
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
	if err := tx.Commit(ctx); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) || errors.Is(err, pgx.ErrTxCommitRollback) {
			return err // the server reported a rollback: the outcome is known
		}
		return fmt.Errorf("%w: %w", peer.ErrUnknown, err)
	}
	s.Rollback.Observe(m.Mark)
	return nil
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
