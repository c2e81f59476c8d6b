// Package db is the base of all rooms of the store: the pool and its transactions, the numbers of names, the
// feeds that watches read, the settings, and the version that writes are validated with.
package db

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/standby"
)

// Config of a Store. Zero means the default.
type Config struct {
	// Pool of the deployment's own database, migrated; from postgres.Connect, which sets the session settings
	// that a Store needs.
	Pool postgres.Pool
	// Deployment of the database; stored there by the first Open.
	Deployment schema.DeploymentID
	Peers      peer.Peers
	Logger     *zap.Logger
	Times      Times
	Limits     Limits
	Retention  Retention
	// Standby answers reads of people; nil: the primary does.
	Standby *standby.Standby
	// Guest is set by an application that shares the database: the process adopts the version and the epoch,
	// and changes neither.
	Guest bool
	// Delegations lets this deployment grant and use delegations: acting references to other deployments
	// without asking.
	Delegations bool
	// DeletionEnded is called when the root of a user's delete is removed, with the time since the request;
	// may be nil.
	DeletionEnded func(took time.Duration)
}

// Times bound undecided attempts, missing owners and targets, calls about ownees, and watches of this
// process.
type Times struct {
	// TentativeTTL is the expiry of a tentative blockade: afterwards the target's deployment asks the
	// holder's about it (default 15 s). A short one aborts slow writes; with a long one, a crashed writer
	// delays deletes.
	TentativeTTL time.Duration
	// DeleteTimeout is the time for which a delete waits for undecided blockades when its caller gives no
	// deadline (default 5 s).
	DeleteTimeout time.Duration
	// OwnerGrace is the time for which an owner that was named without a uid may be missing, or an owner may
	// lack its required reference, before the owner reference is dropped (default 5 min).
	OwnerGrace time.Duration
	// MissingGrace is the time for which the target of rows of attached tables may be missing before they are
	// unset or deleted, where that is declared: two databases are two commits. 0 stands for the default.
	MissingGrace time.Duration
	// OwneeCall is the approximate time for which a call about many ownees works before it returns with more
	// to do (default 2 s).
	OwneeCall time.Duration
	// PollInterval is the maximum delay of a watch after a commit of another process without notifications
	// (default 500 ms); ten times this when notifications arrive and one is lost.
	PollInterval time.Duration
	// SlowTimeout is the time that the reader of a watch may take for pending events before the watch ends
	// with ErrSlow (default 1 min).
	SlowTimeout time.Duration
}

// Limits bound one transaction, and the rows of other deployments here.
type Limits struct {
	// LocalCascade is the maximum number of resources that one delete removes or marks in its transaction
	// (default 10,000); the others follow asynchronously.
	LocalCascade int
	// Batch is the number of holders or ownees that one transaction handles (default 4,000). Larger batches
	// hold locks longer; smaller ones cost more for each row.
	Batch int
	// BlockRightFrom is the number of blocking references to a resource elsewhere from which on this
	// deployment asks for the right to block it without asking; 0: it never does.
	BlockRightFrom int
	// Quotas of each holder deployment.
	Quotas peer.Quotas
	// QuotaOf returns lower numbers for one holder deployment; 0 in it, and nil, for none.
	QuotaOf func(holder schema.DeploymentID) peer.Quotas
}

// Retention has the times for which records of the past are kept.
type Retention struct {
	// Changes are rows for watches that resume (default 24 h).
	Changes time.Duration
	// Removals are the records of removals and their causes (default 90 days).
	Removals time.Duration
}

// DB is the database of one deployment, as one process uses it.
type DB struct {
	Pool     postgres.Pool
	Self     schema.DeploymentID
	SelfID   int32 // the number of Self
	Peers    peer.Peers
	Log      *zap.Logger
	Names    *names
	Feeds    *feed.Log
	Cfg      Config
	Rollback rollbackDetector
	// Version validates writes; nil before the first switch.
	Version atomic.Pointer[Version]

	// Written is the number of rows, about, that the committed transactions of this process concerned.
	Written atomic.Int64
	// Wrote receives when Written has grown. It has one place, for the one reader.
	Wrote chan struct{}

	// Retries makes the loops of this process try the work for a deployment at once.
	Retries retry.Bell[schema.DeploymentID]

	Now func() time.Time // the clock of this process; tests move it

	// Tuning are the settings that may change; all of them are set.
	Tuning atomic.Pointer[Tuning]

	watchers  *feed.Broadcast // wakes the watches of this process
	committed *feed.Broadcast // commits of this process, for RunNotifications to send
	confirms  *feed.Pace      // of the wake-ups by commits with confirms
	// when the last notification of this process to itself arrived; nil: none on this connection
	notifiedAt atomic.Pointer[time.Time]
}

const claimSQL = `
INSERT INTO dbcontroller.meta (service, region) VALUES ($1, $2)
ON CONFLICT (singleton) DO UPDATE SET singleton = true
RETURNING service, region`

const selectOwnerSQL = `SELECT service, region FROM dbcontroller.meta`

// Open opens the database of a deployment, or gives an unused database to the deployment. It fails when the
// database belongs to another deployment.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	cfg.setDefaults()
	s := &DB{
		Pool: cfg.Pool, Self: cfg.Deployment, Peers: cfg.Peers, Log: cfg.Logger, Names: newNames(cfg.Pool), Cfg: cfg,
		Now: time.Now, watchers: feed.NewBroadcast(), committed: feed.NewBroadcast(), Wrote: make(chan struct{}, 1),
	}
	s.Tuning.Store(Tuning{
		TentativeTTL: cfg.Times.TentativeTTL, OwnerGrace: cfg.Times.OwnerGrace,
		MissingGrace: cfg.Times.MissingGrace, ChangesKept: cfg.Retention.Changes, RemovalsKept: cfg.Retention.Removals,
		Quotas: cfg.Limits.Quotas,
	}.Complete())
	s.confirms = feed.NewPace(confirmPace, func() { s.Touched(WorkFeed) })
	state := stateSQL
	if cfg.Guest {
		state = guestStateSQL()
	}
	s.Feeds = feed.NewLog(feed.Config{
		Pool: cfg.Pool, StateSQL: state, WrittenSQL: writtenSQL, Wake: s.watchers,
		PollInterval: cfg.Times.PollInterval, Heard: s.NotificationsAlive, SlowTimeout: cfg.Times.SlowTimeout,
		Ahead: s.tokenAhead, Witness: s.Rollback.witness, Lost: lost,
	})
	var owner schema.DeploymentID
	sql, args := claimSQL, []any{s.Self.Service, s.Self.Region}
	if cfg.Guest {
		sql, args = selectOwnerSQL, nil
	}
	if err := s.Pool.QueryRow(ctx, sql, args...).Scan(&owner.Service, &owner.Region); err != nil {
		return nil, fmt.Errorf("open the constraint store: %w", err)
	}
	if owner != s.Self {
		return nil, fmt.Errorf("this database belongs to %s, not to %s: give each deployment a database of its own",
			owner, s.Self)
	}
	var err error
	s.SelfID, err = s.Names.Deployment(ctx, s.Self)
	return s, err
}

func (c *Config) setDefaults() {
	defaults := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	defaults(&c.Times.DeleteTimeout, 5*time.Second)
	defaults(&c.Times.PollInterval, 500*time.Millisecond)
	defaults(&c.Times.OwneeCall, 2*time.Second)
	if c.Limits.LocalCascade <= 0 {
		c.Limits.LocalCascade = 10_000
	}
	if c.Limits.Batch <= 0 {
		c.Limits.Batch = 4_000
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	c.Logger, _ = postgres.LogOutageOnce(c.Logger)
}

// Logger returns the store's logger, for callers that log on its behalf.
func (s *DB) Logger() *zap.Logger { return s.Log }

// Deployment returns the deployment of the store.
func (s *DB) Deployment() schema.DeploymentID { return s.Self }
