package shadow

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MinConnections is what a deployment's controller needs to make progress: snapshots of its watches hold one for a
// while, and every transaction needs one only.
const MinConnections = 4

// settings of every session. The time-outs make sure that no transaction outlives the decisions on attempts: PostgreSQL
// cuts statements that wait for a lock too long, and transactions whose client went silent. Sequential scans are off
// because every statement here finds its rows by keys, and the planner cannot know it: with one hot target in the
// statistics, it thinks that any target has that many holders, and reads the whole table (measured: a cascade over
// 100,000 holders took 12 s instead of 1 s). A commit is answered when it is on disk, whatever the server's or the role's default
// is: what is told to other deployments is not taken back by a crash (I29).
var settings = map[string]string{
	"search_path":                         "pg_catalog",
	"statement_timeout":                   "60000", // milliseconds, as the server tells them
	"lock_timeout":                        "10000",
	"idle_in_transaction_session_timeout": "30000",
	"enable_seqscan":                      "off",
	"jit":                                 "off",
	"synchronous_commit":                  "on",
}

// Connect opens a pool as a Store needs it. The name is shown in pg_stat_activity.
func Connect(ctx context.Context, dsn, name string, connections int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errNotADSN
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
	if err := checkSettings(ctx, pool); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return pool, nil
}

// CheckTLS fails unless every host of a connection string is this machine, or is connected to with TLS that verifies who
// it is: sslmode=verify-full.
func CheckTLS(dsn string) error {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return errNotADSN
	}
	if err := verified(cfg.Host, cfg.TLSConfig); err != nil {
		return err
	}
	for _, f := range cfg.Fallbacks {
		if err := verified(f.Host, f.TLSConfig); err != nil {
			return err
		}
	}
	return nil
}

func verified(host string, config *tls.Config) error {
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() || host == "localhost" || strings.HasPrefix(host, "/") {
		return nil
	}
	if config == nil || config.InsecureSkipVerify || config.ServerName == "" {
		return fmt.Errorf("PostgreSQL at %s would be connected to without TLS, or whoever answers there: use sslmode=verify-full (and sslrootcert=…)", host)
	}
	return nil
}

// errNotADSN stands for errors that would show the password.
var errNotADSN = errors.New("not a PostgreSQL connection string")

const missingSettingsSQL = `
SELECT format('ALTER DATABASE %I SET %s = %L;', current_database(), i.name, i.value)
FROM unnest($1::text[], $2::text[]) AS i (name, value) JOIN pg_settings s USING (name) WHERE s.setting <> i.value ORDER BY 1`

// checkSettings fails where a connection does not have what it was opened with: a connection pooler in between may ignore
// it. The error says what to do.
func checkSettings(ctx context.Context, pool *pgxpool.Pool) error {
	var names, values []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if name == "search_path" { // every name is qualified anyway, and migrations need another one
			continue
		}
		names, values = append(names, name), append(values, settings[name])
	}
	rows, err := pool.Query(ctx, missingSettingsSQL, names, values)
	if err != nil {
		return err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(missing) == 0 {
		return err
	}
	return fmt.Errorf("the connection does not have its settings, a pooler ignores them; run once, directly at the server: %s", strings.Join(missing, " "))
}
