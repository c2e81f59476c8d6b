// Package migrations has the database schemas of a deployment and of the registry: numbered SQL files, embedded, each run
// in one transaction. A migration is never edited once it is released; checksums.txt, and a test, hold it to that.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose uses
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed deployment/*.sql registry/*.sql
var files embed.FS

// Set is one of the two database schemas.
type Set string

// The sets. Each has a table of its applied migrations.
const (
	Deployment Set = "deployment"
	Registry   Set = "registry"
)

// versions returns the name of the table of applied migrations.
func (s Set) versions() string { return "dbcontroller_migration_" + string(s) }

// Status is one migration and whether the database has it.
type Status struct {
	Name    string
	Applied bool
}

// Up applies all missing migrations, and returns their names. Processes that start at the same time take turns by an
// advisory lock; where no migration is missing, Up waits for nobody.
func Up(ctx context.Context, dsn string, set Set) ([]string, error) {
	var applied []string
	if all, err := complete(ctx, dsn, set); err != nil || all {
		if err != nil {
			err = fmt.Errorf("migrate %s up: %w", set, err)
		}
		return nil, err
	}
	newest, err := known(set)
	if err != nil {
		return nil, err
	}
	err = with(ctx, dsn, set, func(p *goose.Provider) error {
		version, err := p.GetDBVersion(ctx) // makes the table of applied migrations, which has the mark
		if err != nil {
			return err
		}
		if version < newest {
			if err := mark(ctx, dsn, set, newest, false); err != nil {
				return err
			}
		}
		applied, err = upBesideWriters(ctx, p)
		return err
	})
	if err != nil {
		return applied, fmt.Errorf("migrate %s up: %w", set, err)
	}
	return applied, nil
}

const (
	deadlockTries = 20
	deadlockPause = 100 * time.Millisecond
)

// upBesideWriters repeats a migration that a deadlock has ended: processes that serve lock tables in another order than a migration,
// which changes several in one transaction.
func upBesideWriters(ctx context.Context, p *goose.Provider) (applied []string, err error) {
	for range deadlockTries {
		var results []*goose.MigrationResult
		results, err = p.Up(ctx)
		failed := (*goose.PartialError)(nil)
		if errors.As(err, &failed) {
			results = failed.Applied
		}
		for _, r := range results {
			applied = append(applied, r.Source.Path)
		}
		if !isDeadlock(err) {
			return applied, err
		}
		select {
		case <-ctx.Done():
			return applied, err
		case <-time.After(deadlockPause):
		}
	}
	return applied, err
}

func isDeadlock(err error) bool {
	found := (*pgconn.PgError)(nil)
	return errors.As(err, &found) && found.Code == "40P01"
}

// Down takes back the newest migration, and returns its name; empty when there is none.
func Down(ctx context.Context, dsn string, set Set) (string, error) {
	var name string
	err := with(ctx, dsn, set, func(p *goose.Provider) error {
		version, err := p.GetDBVersion(ctx)
		if err != nil || version == 0 {
			return err
		}
		result, err := p.Down(ctx)
		if err != nil {
			return err
		}
		name = result.Source.Path
		left, err := p.GetDBVersion(ctx)
		if err == nil {
			err = mark(ctx, dsn, set, left, true)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("migrate %s down: %w", set, err)
	}
	return name, nil
}

// List returns all migrations of a set, and which of them the database has. It changes nothing. It fails for a database of the other set.
func List(ctx context.Context, dsn string, set Set) ([]Status, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("migrate %s status: %w", set, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var out []Status
	if err = migratable(ctx, conn, set); err == nil {
		out, err = list(ctx, conn, set)
	}
	if err != nil {
		return nil, fmt.Errorf("migrate %s status: %w", set, err)
	}
	return out, nil
}

func list(ctx context.Context, conn *pgx.Conn, set Set) ([]Status, error) {
	has, err := appliedIn(ctx, conn, set)
	if err != nil {
		return nil, err
	}
	all, err := sources(set)
	out := make([]Status, len(all))
	for i, s := range all {
		out[i] = Status{Name: s.name, Applied: has[s.version]}
	}
	return out, err
}

// appliedIn returns the applied migrations of a database.
func appliedIn(ctx context.Context, conn *pgx.Conn, set Set) (map[int64]bool, error) {
	_, table, err := appliedOf(ctx, conn, set)
	if err != nil || table == "" {
		return nil, err
	}
	rows, err := conn.Query(ctx, `SELECT DISTINCT version_id FROM `+table+` WHERE is_applied`)
	if err != nil {
		return nil, unread(err, set)
	}
	versions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	has := make(map[int64]bool, len(versions))
	for _, v := range versions {
		has[v] = true
	}
	return has, unread(err, set)
}

// Current fails unless the database has every migration of the set, newer ones only if they are known to be compatible, and unless its user has
// the rights of a serving process. It changes nothing. The error has the remedy.
func Current(ctx context.Context, dsn string, set Set) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := notOfTheOther(ctx, conn, set); err != nil {
		return err
	}
	if err := compatible(ctx, conn, set); err != nil {
		return err
	}
	states, err := list(ctx, conn, set)
	if err != nil {
		return err
	}
	for _, s := range states {
		if !s.Applied {
			return fmt.Errorf("%w: it lacks migration %s: run `db-controller migrate up --set %s`, or start with --migrate", ErrNotReady, s.Name, set)
		}
	}
	return Ready(ctx, conn, set)
}

// versionTable returns the name of the table of applied migrations: with the schema in which it is, whatever search_path says now. In a
// database without one it is to be made in a schema of its own: the first migration, when it is taken back, drops the schema of the set.
func versionTable(ctx context.Context, db *sql.DB, set Set) (string, error) {
	var table string
	err := db.QueryRowContext(ctx, versionTableSQL, set.versions()).Scan(&table)
	if errors.Is(err, sql.ErrNoRows) {
		_, err = db.ExecContext(ctx, makeOwnSchemaSQL)
		table = ownSchema + "." + set.versions()
	}
	return table, err
}

// ownSchema has the tables of applied and of undone migrations.
const ownSchema = "dbcontroller_migrations"

// Processes that start at the same time take turns: IF NOT EXISTS fails when another transaction makes it.
const makeOwnSchemaSQL = `
DO $$ BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('` + ownSchema + `'));
    CREATE SCHEMA IF NOT EXISTS ` + ownSchema + `;
END $$`

// MoveTable moves the tables of applied and of undone migrations into the schema of their own, where an earlier program has made them in the
// first schema of search_path, and reports whether it moved any. It is one transaction, and idempotent. Programs that look for the
// table by search_path alone do not find it any more.
func MoveTable(ctx context.Context, dsn string, set Set) (moved bool, err error) {
	if err := ofThisSet(ctx, dsn, set); err != nil {
		return false, fmt.Errorf("move the table of applied migrations: %w", err)
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return false, fmt.Errorf("move the table of applied migrations: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, makeOwnSchemaSQL); err != nil { // its lock is held until the end
			return err
		}
		for _, name := range []string{set.versions(), undone} {
			var table string
			err := tx.QueryRow(ctx, versionTableSQL, name).Scan(&table)
			if errors.Is(err, pgx.ErrNoRows) || err == nil && table == ownSchema+"."+name {
				continue
			}
			if err == nil {
				_, err = tx.Exec(ctx, `ALTER TABLE `+table+` SET SCHEMA `+ownSchema)
			}
			if err != nil {
				return err
			}
			moved = true
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("move the table of applied migrations: %w", err)
	}
	return moved, nil
}

func with(ctx context.Context, dsn string, set Set, use func(*goose.Provider) error) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	dir, err := fs.Sub(files, string(set))
	if err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return err
	}
	table, err := versionTable(ctx, db, set)
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, dir, goose.WithTableName(table), goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	return use(provider)
}
