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
// advisory lock.
func Up(ctx context.Context, dsn string, set Set) ([]string, error) {
	var applied []string
	if err := ofThisSet(ctx, dsn, set); err != nil {
		return nil, fmt.Errorf("migrate %s up: %w", set, err)
	}
	newest, err := known(set)
	if err != nil {
		return nil, err
	}
	err = with(dsn, set, func(p *goose.Provider) error {
		version, err := p.GetDBVersion(ctx) // makes the table of applied migrations, which has the mark
		if err != nil {
			return err
		}
		if version < newest {
			if err := mark(ctx, dsn, set, newest, false); err != nil {
				return err
			}
		}
		results, err := p.Up(ctx)
		for _, r := range results {
			applied = append(applied, r.Source.Path)
		}
		return err
	})
	if err != nil {
		return applied, fmt.Errorf("migrate %s up: %w", set, err)
	}
	return applied, nil
}

// Down takes back the newest migration, and returns its name; empty when there is none.
func Down(ctx context.Context, dsn string, set Set) (string, error) {
	var name string
	err := with(dsn, set, func(p *goose.Provider) error {
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

// List returns all migrations of a set, and which of them the database has.
func List(ctx context.Context, dsn string, set Set) ([]Status, error) {
	var out []Status
	err := with(dsn, set, func(p *goose.Provider) error {
		states, err := p.Status(ctx)
		for _, s := range states {
			out = append(out, Status{Name: s.Source.Path, Applied: s.State == goose.StateApplied})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migrate %s status: %w", set, err)
	}
	return out, nil
}

// Current fails unless the database has every migration of the set, and newer ones only if they are known to be compatible. The
// error has the remedy.
func Current(ctx context.Context, dsn string, set Set) error {
	if err := CompatibleAt(ctx, dsn, set); err != nil {
		return err
	}
	states, err := List(ctx, dsn, set)
	if err != nil {
		return err
	}
	for _, s := range states {
		if !s.Applied {
			return fmt.Errorf("the database lacks migration %s: run `db-controller migrate up --set %s`, or start with --migrate", s.Name, set)
		}
	}
	return nil
}

// versionTable returns the name of the table of applied migrations: with the schema in which it is, whatever search_path says now. The first
// migration makes it in the first schema of search_path.
func versionTable(db *sql.DB, set Set) (string, error) {
	var table string
	err := db.QueryRow(versionTableSQL, set.versions()).Scan(&table)
	if errors.Is(err, sql.ErrNoRows) {
		return set.versions(), nil
	}
	return table, err
}

func with(dsn string, set Set, use func(*goose.Provider) error) error {
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
	table, err := versionTable(db, set)
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, dir, goose.WithTableName(table), goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	return use(provider)
}
