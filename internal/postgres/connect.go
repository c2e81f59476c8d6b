// Package postgres connects to PostgreSQL with the session settings and the TLS checks that the deployments
// and the registry need, classifies its errors, and keeps an outage of the database to one line of the log.
package postgres

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
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/db-controller/db-controller/internal/trace"
)

// MinConnections is the smallest pool with which a deployment's controller makes progress: each lane of Lanes
// has one connection, and every transaction needs one only.
const MinConnections = 4

// Settings of every session, by name. The timeouts bound how long a transaction can outlive the decision on
// its attempt: PostgreSQL cancels statements that wait too long for a lock, and ends transactions whose
// client has gone silent. Sequential scans are off because every statement finds its rows by keys, and the
// planner cannot know that: with one hot target in the statistics it expects as many holders of every target,
// and reads the whole table (measured: a cascade over 100,000 holders took 12 s instead of 1 s). Parallel
// plans are off for the same reason: with those statistics each delete started a worker process to look for
// the blocking references of one resource (measured beside 1,000,000 references to a hot target: 30 ms, and
// 0.1 ms without). A commit returns when it is on disk, also if the default of the server or the role
// differs: a crash must not undo commits that other deployments know (I29). A statement on a table whose
// policies apply to the role fails: a row that they hide would count as deleted, and their code would run
// with the rights of the session.
var Settings = map[string]string{
	"search_path":                         "pg_catalog, pg_temp", // temporary tables last
	"statement_timeout":                   "60000",               // milliseconds, the unit in which the server shows it
	"lock_timeout":                        "10000",
	"idle_in_transaction_session_timeout": "30000",
	"enable_seqscan":                      "off",
	"jit":                                 "off",
	"max_parallel_workers_per_gather":     "0",
	"synchronous_commit":                  "on",
	"row_security":                        "off",
	"DateStyle":                           "ISO, YMD", // texts of times are names
	"TimeZone":                            "UTC",
}

// cancelGrace is how long a statement may still run when its context ends. One that runs longer loses its
// connection, which costs PostgreSQL more than most statements: callers who end their calls at once must not
// take that from others.
const cancelGrace = 300 * time.Millisecond

// trustedIdle is how long a connection is taken to live without a question. It is longer than the second
// between two statements of an idle process, each of which would need a round trip more.
const trustedIdle = 3 * time.Second

// Connect opens a pool whose sessions have Settings. The name is shown in pg_stat_activity.
func Connect(ctx context.Context, dsn, name string, connections int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, notADSN(err)
	}
	return ConnectBeside(ctx, cfg, name, connections)
}

// ConnectBeside is Connect with the address and the credentials of another pool: it keeps the hooks of
// connections, but not the hooks of sessions.
func ConnectBeside(ctx context.Context, of *pgxpool.Config, name string, connections int32) (*pgxpool.Pool, error) {
	cfg := of.Copy()
	cfg.AfterConnect, cfg.PrepareConn, cfg.AfterRelease, cfg.BeforeClose = uuidsByBytes, nil, nil, nil
	cfg.MinConns, cfg.MinIdleConns = 0, 0
	cfg.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > trustedIdle }
	maps.DeleteFunc(cfg.ConnConfig.RuntimeParams, func(name, _ string) bool {
		return strings.HasPrefix(name, "default_transaction_")
	})
	cfg.MaxConns = max(connections, MinConnections)
	cfg.ConnConfig.RuntimeParams["application_name"] = name
	for key, value := range Settings {
		cfg.ConnConfig.RuntimeParams[key] = value
	}
	cfg.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn(), DeadlineDelay: cancelGrace}
	}
	if tracer := trace.Statements(); tracer != nil {
		cfg.ConnConfig.Tracer = tracer
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = checkSettings(ctx, pool)
	if err == nil {
		err = checkServer(ctx, pool)
	}
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to PostgreSQL: %w", ofPooler(err))
	}
	return pool, nil
}

// Beside returns the configuration of a connection beside a pool's connections, with the present password.
func Beside(ctx context.Context, of *pgxpool.Config) (*pgx.ConnConfig, error) {
	cfg := of.ConnConfig.Copy()
	if of.BeforeConnect == nil {
		return cfg, nil
	}
	return cfg, of.BeforeConnect(ctx, cfg)
}

// CheckTLS returns an error unless every host of a connection string is this machine, or is connected to with
// TLS that verifies the server's certificate and name: sslmode=verify-full.
func CheckTLS(dsn string) error {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return notADSN(err)
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
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() || host == "localhost" ||
		strings.HasPrefix(host, "/") {
		return nil
	}
	if config == nil || config.InsecureSkipVerify || config.ServerName == "" {
		return fmt.Errorf(
			"the connection to PostgreSQL at %s would be unencrypted, or would not verify the server: use sslmode=verify-full (and sslrootcert=…)", host)
	}
	return nil
}

// ErrNotADSN replaces errors of the parser, which contain the password.
var ErrNotADSN = errors.New("not a PostgreSQL connection string")

// ErrNoService is the error of a connection string with a service that cannot be looked up. The reason names
// the service or the file.
var ErrNoService = errors.New("the service of the connection string")

// notADSN replaces an error of the parser.
func notADSN(err error) error {
	if reason := errors.Unwrap(err); reason != nil && strings.Contains(err.Error(), "failed to read service") {
		return fmt.Errorf("%w: %w", ErrNoService, reason)
	}
	return ErrNotADSN
}

// The functions by which a failover, a restore and the durability of commits are noticed. A standby has no
// position to write at.
const serverSQL = `
SELECT session_user::text, current_setting('session_replication_role'), CASE WHEN NOT pg_is_in_recovery() THEN
    pg_walfile_name(pg_current_wal_lsn()) || pg_current_wal_insert_lsn()::text || pg_current_wal_flush_lsn()::text || (SELECT system_identifier FROM pg_control_system())::text END`

// checkServer returns an error when the server does not have what the program is built on, or does not give
// it to the role.
func checkServer(ctx context.Context, pool *pgxpool.Pool) error {
	var user, replication string
	err := pool.QueryRow(ctx, serverSQL).Scan(&user, &replication, nil)
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && (pg.Code == "0A000" || pg.Code == "42501"):
		return &SettingError{
			"the server does not say its identity, its timeline, or its position in the log, by which failovers and restores are noticed; docs/managed.md has the query, and what services need for it", err,
		}
	case err != nil:
		return err
	case replication == "replica":
		role := pgx.Identifier{user}.Sanitize()
		return &SettingError{
			Remedy: "session_replication_role is replica by default: triggers would not fire; run ALTER ROLE " + role +
				" RESET session_replication_role, also IN DATABASE, or find it in ALTER DATABASE or postgresql.conf",
		}
	}
	return nil
}

const missingSettingsSQL = `
SELECT format('ALTER ROLE %I IN DATABASE %I SET %s = %L;', session_user, current_database(), i.name, i.value)
FROM unnest($1::text[], $2::text[]) AS i (name, value) JOIN pg_settings s USING (name) WHERE s.setting <> i.value ORDER BY 1`

// checkSettings returns an error when the sessions do not have Settings: a connection pooler may ignore
// startup parameters. The error contains the statements that set them for the role in the database: the
// sessions of applications keep theirs.
func checkSettings(ctx context.Context, pool *pgxpool.Pool) error {
	var names, values []string
	for _, name := range slices.Sorted(maps.Keys(Settings)) {
		if name == "search_path" { // statements qualify every name, and migrations need another search_path
			continue
		}
		names, values = append(names, name), append(values, Settings[name])
	}
	rows, err := pool.Query(ctx, missingSettingsSQL, names, values)
	if err != nil {
		return err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(missing) == 0 {
		return err
	}
	return &SettingError{
		Remedy: "the session does not have the settings that it was opened with, a connection pooler ignores them; run once, directly at the server: " + strings.Join(missing, " "),
	}
}
