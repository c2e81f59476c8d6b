package shadow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// MinConnections is what a deployment's controller needs to make progress: snapshots of its watches hold one for a
// while, and every transaction needs one only.
const MinConnections = 4

// settings of every session. The time-outs make sure that no transaction outlives the decisions on attempts: PostgreSQL
// cuts statements that wait for a lock too long, and transactions whose client went silent. Sequential scans are off
// because every statement here finds its rows by keys, and the planner cannot know it: with one hot target in the
// statistics, it thinks that any target has that many holders, and reads the whole table (measured: a cascade over
// 100,000 holders took 12 s instead of 1 s).
var settings = map[string]string{
	"search_path":                         "pg_catalog",
	"statement_timeout":                   "60s",
	"lock_timeout":                        "10s",
	"idle_in_transaction_session_timeout": "30s",
	"enable_seqscan":                      "off",
	"jit":                                 "off",
}

// Connect opens a pool as a Store needs it. The name is shown in pg_stat_activity.
func Connect(ctx context.Context, dsn, name string, connections int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("not a PostgreSQL connection string") // the error itself would show the password
	}
	cfg.MaxConns = max(connections, MinConnections)
	cfg.ConnConfig.RuntimeParams["application_name"] = name
	for key, value := range settings {
		cfg.ConnConfig.RuntimeParams[key] = value
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return pool, nil
}
