// Package db is the base of all rooms of the store: the pool and its transactions, the numbers of names, the feeds that watches
// read, leases, and the version that writes are validated with.
package db

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

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
	Unknown  *Allowance // of attempts that have nothing here
	// Version validates writes; nil before the first switch.
	Version atomic.Pointer[Version]

	Now func() time.Time // the clock of this process; tests move it

	watchers   *feed.Broadcast           // wakes the watches of this process
	committed  *feed.Broadcast           // commits of this process, for RunNotifications to send
	notifiedAt atomic.Pointer[time.Time] // when the last notification of this process to itself arrived; nil: none on this connection
}

const claimSQL = `
INSERT INTO dbcontroller.meta (service, region) VALUES ($1, $2)
ON CONFLICT (singleton) DO UPDATE SET singleton = true
RETURNING service, region`

const selectOwnerSQL = `SELECT service, region FROM dbcontroller.meta`

// Open opens the database of a deployment, or makes an unused database that of the deployment. It fails when the database belongs to
// another deployment.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	cfg.setDefaults()
	s := &DB{
		Pool: cfg.Pool, Self: cfg.Deployment, Peers: cfg.Peers, Log: cfg.Logger, Names: newNames(cfg.Pool), Cfg: cfg,
		Now: time.Now, watchers: feed.NewBroadcast(), committed: feed.NewBroadcast(),
	}
	s.Unknown = newAllowance(cfg.Limits.Quotas.Tentative, func() time.Time { return s.Now() })
	s.Feeds = feed.NewLog(feed.Config{Pool: cfg.Pool, StateSQL: stateSQL, WrittenSQL: writtenSQL, Wake: s.watchers, PollInterval: cfg.Watches.PollInterval, Heard: s.NotificationsAlive, SlowTimeout: cfg.Watches.SlowTimeout, Ahead: s.tokenAhead})
	var owner schema.DeploymentID
	sql, args := claimSQL, []any{s.Self.Service, s.Self.Region}
	if cfg.Guest {
		sql, args = selectOwnerSQL, nil
	}
	if err := s.Pool.QueryRow(ctx, sql, args...).Scan(&owner.Service, &owner.Region); err != nil {
		return nil, fmt.Errorf("open the constraint store: %w", err)
	}
	if owner != s.Self {
		return nil, fmt.Errorf("this database belongs to %s, not to %s: give each deployment a database of its own", owner, s.Self)
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
	defaults(&c.Times.TentativeTTL, 15*time.Second)
	defaults(&c.Times.DeleteTimeout, 5*time.Second)
	defaults(&c.Watches.PollInterval, 500*time.Millisecond)
	defaults(&c.Times.OwnerGrace, 5*time.Minute)
	defaults(&c.Retention.Changes, 24*time.Hour)
	defaults(&c.Retention.Removals, 90*24*time.Hour)
	if c.Limits.LocalCascade <= 0 {
		c.Limits.LocalCascade = 10_000
	}
	if c.Limits.Batch <= 0 {
		c.Limits.Batch = 4_000
	}
	if c.Limits.Quotas.Tentative <= 0 {
		c.Limits.Quotas.Tentative = 100_000
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	c.Logger, _ = postgres.LogOutageOnce(c.Logger)
}
