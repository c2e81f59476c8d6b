package migrations

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
)

// A migration that programs without it can live with has this line. It names the oldest of such programs by
// the newest migration that the program knows. Without the line a migration needs a program that knows it.
var compatibleLine = regexp.MustCompile(`(?m)^-- compatible with programs that know migration (\d+)$`)

// markText is the comment on the table of applied migrations, which shows programs without its newest
// migrations whether they can work with the database.
const markText = "works with programs that know migration "

// source is an embedded migration.
type source struct {
	version int64
	name    string
	text    string
}

// oldest returns the newest migration of the oldest program that can work with a database that has this one.
func (s source) oldest() int64 {
	if m := compatibleLine.FindStringSubmatch(s.text); m != nil {
		n, _ := strconv.ParseInt(m[1], 10, 64) // digits
		return n
	}
	return s.version
}

// sources returns the embedded migrations of a set in their order.
func sources(set Set) ([]source, error) {
	names, err := fs.Glob(files, string(set)+"/*.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	out := make([]source, len(names))
	for i, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, err
		}
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		out[i] = source{version, path.Base(name), string(text)}
	}
	return out, nil
}

// known returns the newest migration that this program knows.
func known(set Set) (int64, error) {
	all, err := sources(set)
	if err != nil {
		return 0, err
	}
	return all[len(all)-1].version, nil
}

// needed returns the migration that a program has to know for a database with the migrations up to a version.
func needed(set Set, upTo int64) (oldest int64, err error) {
	all, err := sources(set)
	for _, s := range all {
		if s.version <= upTo {
			oldest = max(oldest, s.oldest())
		}
	}
	return oldest, err
}

const hasVersionsSQL = `
SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2)`

// appliedOf returns the newest applied migration of a database; 0: there is none.
func appliedOf(ctx context.Context, q Querier, set Set) (newest int64, err error) {
	var there bool // by the catalogue, which needs no right to the schema
	err = q.QueryRow(ctx, hasVersionsSQL, ownSchema, string(set)).Scan(&there)
	if err == nil && there {
		err = q.QueryRow(ctx, `SELECT COALESCE(max(version_id) FILTER (WHERE is_applied), 0) FROM `+set.versions()).
			Scan(&newest)
	}
	return newest, unread(err, set)
}

// unread is the error of a failed reading of the applied migrations; nil for nil. A user without rights gets
// the remedy.
func unread(err error, set Set) error {
	pg := (*pgconn.PgError)(nil)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pg) && pg.Code == lacksPrivilege:
		return fmt.Errorf("%w: its user lacks the right to read the applied migrations: %s", ErrNotReady,
			grantRemedy(set))
	}
	return fmt.Errorf("read the applied migrations of the database: %w", err)
}

const lacksPrivilege = "42501"

func grantRemedy(set Set) string {
	return fmt.Sprintf(
		"run `db-controller migrate up --set %s --roles`, with the role prefix of this database, and grant the roles that it names to the user", set)
}

// compatible fails for a database with newer migrations than this program knows, unless its mark says that it
// works with this program.
func compatible(ctx context.Context, q Querier, set Set) error {
	newest, err := appliedOf(ctx, q, set)
	if err != nil {
		return err
	}
	own, err := known(set)
	if err != nil || newest <= own {
		return err
	}
	oldest, marked, err := readMark(ctx, q, set)
	switch {
	case err != nil:
		return err
	case !marked:
		return fmt.Errorf(
			"%w: it has migration %d, this program knows %d, and no compatibility is recorded: run the program that migrated it, or a newer one", ErrNotReady, newest, own)
	case oldest > own:
		return fmt.Errorf(
			"%w: it has migration %d, and works with programs that know migration %d or a newer one; this one knows %d: run a newer program", ErrNotReady, newest, oldest, own)
	}
	return nil
}

func readMark(ctx context.Context, q Querier, set Set) (oldest int64, marked bool, err error) {
	var mark string
	if err := q.QueryRow(ctx, `SELECT COALESCE(obj_description($1::regclass, 'pg_class'), '')`, set.versions()).
		Scan(&mark); err != nil {
		return 0, false, fmt.Errorf("read the mark of the database's migrations: %w", err)
	}
	number, ok := strings.CutPrefix(mark, markText)
	oldest, err = strconv.ParseInt(number, 10, 64)
	return oldest, ok && err == nil, nil
}

// mark writes the migration that a program has to know once it has the migrations up to a version. Before a
// migration it is raised, so that no program takes a database for compatible that is about to change; lower
// is true after one was taken back.
func mark(ctx context.Context, dsn string, set Set, upTo int64, lower bool) error {
	oldest, err := needed(set, upTo)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// Writers of the mark take turns: a program that knows less must not lower it.
		if _, err := tx.Exec(ctx, `LOCK TABLE `+set.versions()+` IN SHARE UPDATE EXCLUSIVE MODE`); err != nil {
			return err
		}
		current, marked, err := readMark(ctx, tx, set)
		if err != nil || marked && (current == oldest || current > oldest && !lower) {
			return err
		}
		_, err = tx.Exec(ctx, fmt.Sprintf(`COMMENT ON TABLE %s IS '%s%d'`, set.versions(), markText, oldest))
		return err
	})
}

// otherSet returns the set that shares no database with this one.
func (s Set) otherSet() Set {
	if s == Deployment {
		return Registry
	}
	return Deployment
}

// earlierSQL finds a table of a program before version 0.1.0: its tables of applied migrations had other
// names, and its baseline had a table of pins, or attachments without a table of deleted rows.
const earlierSQL = `
SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname IN ('dbcontroller_migration_deployment', 'dbcontroller_migration_registry')
    OR relnamespace = pg_catalog.to_regnamespace('dbcontroller')
        AND (relname = 'pin' OR relname = 'attachment' AND pg_catalog.to_regclass('dbcontroller.deleted_row') IS NULL))`

// ofSet fails for a database that has migrations of the other set, because a deployment and the registry have
// a database each, and for a database that was made before version 0.1.0. remedy is a further way out of the
// first failure.
func ofSet(ctx context.Context, q Querier, set Set, remedy string) error {
	var earlier bool
	if err := q.QueryRow(ctx, earlierSQL).Scan(&earlier); err != nil {
		return err
	}
	if earlier {
		return refuse(
			"this database was made by a program before version 0.1.0, and there is no way from its schema to the present one: use an empty database")
	}
	newest, err := appliedOf(ctx, q, set.otherSet())
	if err == nil && newest > 0 {
		err = refuse("this is the database of a %s, and not of a %s: use another database%s", set.otherSet(),
			set, remedy)
	}
	return err
}

// migratable is ofSet for the commands that migrate.
func migratable(ctx context.Context, q Querier, set Set) error {
	return ofSet(ctx, q, set, fmt.Sprintf(", or --set %s", set.otherSet()))
}

// ofThisSet is migratable for a database by its connection string.
func ofThisSet(ctx context.Context, dsn string, set Set) error {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return migratable(ctx, conn, set)
}

// complete reports whether a database has every migration of its set. It fails for a database of the other
// set, and for a database that a newer program migrated, unless it works with this program.
func complete(ctx context.Context, dsn string, set Set) (bool, error) {
	all, err := sources(set)
	if err != nil {
		return false, err
	}
	conn, err := connect(ctx, dsn)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := migratable(ctx, conn, set); err != nil {
		return false, err
	}
	if err := compatible(ctx, conn, set); err != nil {
		return false, err
	}
	newest, err := appliedOf(ctx, conn, set)
	if err != nil || newest == 0 {
		return false, err
	}
	versions := make([]int64, len(all))
	for i, s := range all {
		versions[i] = s.version
	}
	var has int
	err = conn.QueryRow(ctx, `SELECT count(DISTINCT version_id) FROM `+set.versions()+
		` WHERE is_applied AND version_id = ANY ($1)`, versions).Scan(&has)
	if err != nil {
		return false, unread(err, set)
	}
	return has == len(all), nil
}

// Missing returns the SQL that Up would run, a migration each, and changes nothing.
func Missing(ctx context.Context, dsn string, set Set) ([]string, error) {
	if err := ofThisSet(ctx, dsn, set); err != nil {
		return nil, fmt.Errorf("migrate %s up: %w", set, err)
	}
	conn, err := connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	newest, err := appliedOf(ctx, conn, set)
	if err != nil {
		return nil, err
	}
	all, err := sources(set)
	var out []string
	for _, s := range all {
		if s.version > newest {
			up, _, _ := strings.Cut(s.text, "-- +goose Down")
			out = append(out, "-- "+s.name+"\n"+strings.TrimSpace(strings.Replace(up, "-- +goose Up\n", "", 1))+"\n")
		}
	}
	return out, err
}
