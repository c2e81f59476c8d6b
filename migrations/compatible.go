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

// A migration that programs without it can live with has this line. It names the oldest of such programs by the newest migration
// that the program knows. Without the line a migration needs a program that knows it.
var compatibleLine = regexp.MustCompile(`(?m)^-- compatible with programs that know migration (\d+)$`)

// markText is the comment on the table of applied migrations, which shows programs without its newest migrations whether
// they can work with the database.
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

// appliedOf returns the newest applied migration of a database and the name of its table of applied migrations; an empty name: there is none.
func appliedOf(ctx context.Context, q Querier, set Set) (newest int64, table string, err error) {
	err = q.QueryRow(ctx, versionTableSQL, set.versions()).Scan(&table)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, "", nil
	}
	if err == nil {
		err = q.QueryRow(ctx, `SELECT COALESCE(max(version_id) FILTER (WHERE is_applied), 0) FROM `+table).Scan(&newest)
	}
	return newest, table, unread(err, set)
}

// unread is the error of a failed reading of the applied migrations; nil for nil. A user without rights gets the remedy.
func unread(err error, set Set) error {
	pg := (*pgconn.PgError)(nil)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pg) && pg.Code == lacksPrivilege:
		return fmt.Errorf("%w: its user lacks the right to read the applied migrations: %s", ErrNotReady, grantRemedy(set))
	}
	return fmt.Errorf("read the applied migrations of the database: %w", err)
}

const lacksPrivilege = "42501"

func grantRemedy(set Set) string {
	return fmt.Sprintf("run `db-controller migrate up --set %s --roles`, with the role prefix of this database, and grant the roles that it names to the user", set)
}

// compatible fails for a database with newer migrations than this program knows, unless its mark says that it works with this program.
func compatible(ctx context.Context, q Querier, set Set) error {
	newest, table, err := appliedOf(ctx, q, set)
	if err != nil {
		return err
	}
	own, err := known(set)
	if err != nil || newest <= own {
		return err
	}
	oldest, marked, err := readMark(ctx, q, table)
	switch {
	case err != nil:
		return err
	case !marked:
		return fmt.Errorf("%w: it has migration %d, this program knows %d, and no compatibility is recorded: run the program that migrated it, or a newer one", ErrNotReady, newest, own)
	case oldest > own:
		return fmt.Errorf("%w: it has migration %d, and works with programs that know migration %d or a newer one; this one knows %d: run a newer program", ErrNotReady, newest, oldest, own)
	}
	return nil
}

// CompatibleAt is compatible for a database by its connection string.
func CompatibleAt(ctx context.Context, dsn string, set Set) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return compatible(ctx, conn, set)
}

func readMark(ctx context.Context, q Querier, table string) (oldest int64, marked bool, err error) {
	var mark string
	if err := q.QueryRow(ctx, `SELECT COALESCE(obj_description($1::regclass, 'pg_class'), '')`, table).Scan(&mark); err != nil {
		return 0, false, fmt.Errorf("read the mark of the database's migrations: %w", err)
	}
	number, ok := strings.CutPrefix(mark, markText)
	oldest, err = strconv.ParseInt(number, 10, 64)
	return oldest, ok && err == nil, nil
}

// mark writes the migration that a program has to know once it has the migrations up to a version. Before a migration it is raised, so
// that no program takes a database for compatible that is about to change; lower is true after one was taken back.
func mark(ctx context.Context, dsn string, set Set, upTo int64, lower bool) error {
	oldest, err := needed(set, upTo)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, table, err := appliedOf(ctx, tx, set)
		if err != nil || table == "" {
			return err
		}
		// Writers of the mark take turns: a program that knows less must not lower it.
		if _, err := tx.Exec(ctx, `LOCK TABLE `+table+` IN SHARE UPDATE EXCLUSIVE MODE`); err != nil {
			return err
		}
		current, marked, err := readMark(ctx, tx, table)
		if err != nil || marked && (current == oldest || current > oldest && !lower) {
			return err
		}
		_, err = tx.Exec(ctx, fmt.Sprintf(`COMMENT ON TABLE %s IS '%s%d'`, table, markText, oldest))
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

// ofThisSet fails for a database that has migrations of the other set: a deployment and the registry have a database each.
func ofThisSet(ctx context.Context, dsn string, set Set) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return migratable(ctx, conn, set)
}

func notOfTheOther(ctx context.Context, q Querier, set Set) error {
	newest, _, err := appliedOf(ctx, q, set.otherSet())
	if err == nil && newest > 0 {
		err = refuse("this is the database of a %s, and not of a %s: use another database", set.otherSet(), set)
	}
	return err
}

// migratable is notOfTheOther with the further remedy of the commands that migrate.
func migratable(ctx context.Context, q Querier, set Set) error {
	err := notOfTheOther(ctx, q, set)
	if errors.As(err, new(*RefusedError)) {
		err = refuse("%s, or --set %s", err, set.otherSet())
	}
	return err
}

// complete reports whether a database has every migration of its set. It fails for a database of the other set.
func complete(ctx context.Context, dsn string, set Set) (bool, error) {
	all, err := sources(set)
	if err != nil {
		return false, err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := migratable(ctx, conn, set); err != nil {
		return false, err
	}
	_, table, err := appliedOf(ctx, conn, set)
	if err != nil || table == "" {
		return false, err
	}
	versions := make([]int64, len(all))
	for i, s := range all {
		versions[i] = s.version
	}
	var has int
	err = conn.QueryRow(ctx, `SELECT count(DISTINCT version_id) FROM `+table+` WHERE is_applied AND version_id = ANY ($1)`, versions).Scan(&has)
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
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	newest, _, err := appliedOf(ctx, conn, set)
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
