// Package migrations has the database schemas of a deployment and of the registry: numbered SQL files,
// embedded, each run in one transaction. A migration is never edited once it is released; checksums.txt, and
// a test, hold it to that.
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

// ownSchema has the tables of applied migrations and the record of migrations that were taken back. It is not
// the schema of a set, which the first migration drops when it is taken back.
const ownSchema = "dbcontroller_migrations"

// versions returns the name of the table of applied migrations.
func (s Set) versions() string { return ownSchema + "." + string(s) }

// Status is one migration and whether the database has it.
type Status struct {
	Name    string
	Applied bool
}

// errNotADSN replaces errors of the parser, which contain the password.
var errNotADSN = errors.New("not a PostgreSQL connection string")

// connectTimeout bounds the way to a server: an address that does not answer is reported before the caller
// gives up.
const connectTimeout = 5 * time.Second

// connect opens a connection; the caller closes it.
func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, errNotADSN
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return conn, nil
}

// Up applies all missing migrations, and returns their names. It fails for a database that a newer program
// migrated unless it works with this one. Processes that start at the same time take turns by an advisory
// lock; where no migration is missing, Up does not wait.
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

// upBesideWriters repeats a migration that a deadlock has ended: processes that serve lock tables in another
// order than a migration, which changes several in one transaction.
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

// List returns all migrations of a set, and which of them the database has. It changes nothing.
func List(ctx context.Context, dsn string, set Set) ([]Status, error) {
	conn, err := connect(ctx, dsn)
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
	newest, err := appliedOf(ctx, conn, set)
	if err != nil || newest == 0 {
		return nil, err
	}
	rows, err := conn.Query(ctx, `SELECT DISTINCT version_id FROM `+set.versions()+` WHERE is_applied`)
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

// Current fails unless the database has every migration of the set, newer ones only if they are known to be
// compatible, and unless its user has the rights of a serving process. It changes nothing. The error has the
// remedy.
func Current(ctx context.Context, dsn string, set Set, of ...Role) error {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := ofSet(ctx, conn, set, ""); err != nil {
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
			return fmt.Errorf(
				"%w: it lacks migration %s: run `db-controller migrate up --set %s`, or start with --migrate",
				ErrNotReady, s.Name, set)
		}
	}
	return Ready(ctx, conn, set, of...)
}

// Processes that start at the same time take turns: IF NOT EXISTS fails when another transaction makes it.
const makeOwnSchemaSQL = `
DO $$ BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('` + ownSchema + `'));
    CREATE SCHEMA IF NOT EXISTS ` + ownSchema + `;
END $$`

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
	if _, err := db.ExecContext(ctx, makeOwnSchemaSQL); err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, dir, goose.WithTableName(set.versions()),
		goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	return use(provider)
}
