package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Undone is the record of a migration that was taken back.
type Undone struct {
	Name, By, Reason string
	At               time.Time
}

const (
	// A serving process has an application name of its own. A session whose name this user may not read
	// counts as one for a registry, whose processes have no rows in a table: unknown is not absent.
	sessionsSQL = `
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename IS NOT NULL
    AND (application_name LIKE 'db-controller%' OR application_name IS NULL AND $1)`

	membersSQL = `SELECT name FROM dbcontroller.member WHERE expires_at > clock_timestamp() ORDER BY name`

	undone = ownSchema + ".undone"

	makeUndoneSQL = `
CREATE TABLE IF NOT EXISTS ` + undone + ` (
    at     timestamptz NOT NULL DEFAULT now(),
    set    text NOT NULL,
    name   text NOT NULL,
    by     text NOT NULL DEFAULT session_user,
    reason text NOT NULL
)`
	noteUndoneSQL   = `INSERT INTO ` + undone + ` (set, name, reason) VALUES ($1, $2, $3) RETURNING at`
	strikeUndoneSQL = `DELETE FROM ` + undone + ` WHERE set = $1 AND name = $2 AND at = $3`
	selectUndoneSQL = `SELECT name, by, reason, at FROM ` + undone + ` WHERE set = $1 ORDER BY at`
)

// RefusedError says why a database is not changed: it is in use, or has the other set of migrations.
type RefusedError struct{ reason string }

func (e *RefusedError) Error() string { return e.reason }

func refuse(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// TakeBack is Down for operators: it refuses while a process uses the database, and stores the reason. The
// tables of the migration are dropped with their data, such as the records of removals.
func TakeBack(ctx context.Context, dsn string, set Set, reason string) (string, error) {
	if strings.TrimSpace(reason) == "" || len(reason) > 1000 {
		return "", errors.New("take back a migration: the reason is missing, or longer than 1000 bytes")
	}
	if err := ofThisSet(ctx, dsn, set); err != nil {
		return "", fmt.Errorf("take back a migration: %w", err)
	}
	conn, err := connect(ctx, dsn)
	if err != nil {
		return "", fmt.Errorf("take back a migration: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := unused(ctx, conn, set); err != nil {
		return "", err
	}
	newest, err := newestApplied(ctx, dsn, set)
	if err != nil || newest == "" {
		return "", err
	}
	// The reason is stored first: a crash in between leaves a record too many, not one too few.
	at, err := noteUndone(ctx, conn, set, newest, reason)
	if err != nil {
		return "", fmt.Errorf("take back a migration: store the reason: %w", err)
	}
	name, err := Down(ctx, dsn, set)
	if err != nil {
		_, failed := conn.Exec(ctx, strikeUndoneSQL, string(set), newest, at)
		err = errors.Join(err, failed)
	}
	return name, err
}

// newestApplied returns the name of the newest migration that the database has; empty when it has none.
func newestApplied(ctx context.Context, dsn string, set Set) (newest string, err error) {
	states, err := List(ctx, dsn, set)
	for _, s := range states {
		if s.Applied {
			newest = s.Name
		}
	}
	return newest, err
}

func noteUndone(ctx context.Context, conn *pgx.Conn, set Set, name, reason string) (at time.Time, err error) {
	if _, err = conn.Exec(ctx, makeUndoneSQL); err == nil {
		err = conn.QueryRow(ctx, noteUndoneSQL, string(set), name, reason).Scan(&at)
	}
	return at, err
}

// unused fails while a process uses the database.
func unused(ctx context.Context, conn *pgx.Conn, set Set) error {
	var members []string
	var there bool
	err := conn.QueryRow(ctx, `SELECT to_regclass('dbcontroller.member') IS NOT NULL`).Scan(&there)
	if err == nil && there {
		var rows pgx.Rows
		if rows, err = conn.Query(ctx, membersSQL); err == nil {
			members, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
	}
	var sessions int
	if err == nil {
		err = conn.QueryRow(ctx, sessionsSQL, set == Registry).Scan(&sessions)
	}
	switch {
	case err != nil:
		return fmt.Errorf("take back a migration: read the sessions and processes of the database: %w", err)
	case len(members) > 0:
		return refuse(
			"take back a migration: processes of this database are running: %s: stop them first (a killed process counts until its lease expires)", strings.Join(members, ", "))
	case sessions > 0:
		return refuse("take back a migration: processes have %d open connections to this database: stop them first",
			sessions)
	}
	return nil
}

// ListUndone returns the migrations that were taken back, the oldest first.
func ListUndone(ctx context.Context, dsn string, set Set) ([]Undone, error) {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("migrate %s status: %w", set, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var there bool
	if err := conn.QueryRow(ctx, hasVersionsSQL, ownSchema, "undone").Scan(&there); err != nil || !there {
		return nil, err
	}
	rows, err := conn.Query(ctx, selectUndoneSQL, string(set))
	if err != nil {
		return nil, fmt.Errorf("migrate %s status: %w", set, err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Undone])
}
