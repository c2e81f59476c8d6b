package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed roles/*.sql
var roles embed.FS

var rolePrefix = regexp.MustCompile(`^[a-z][a-z0-9_]{0,40}$`)

// Roles creates the roles of a migrated database, or brings them up to date: <prefix>_owner, which owns all
// tables and is used for migrations only; <prefix>_api and, for a deployment, <prefix>_controller, which the
// user of a serving process needs both; <prefix>_application, for a program that writes resources in its own
// transactions; <prefix>_audit, which may read the history, but neither the bodies of resources nor secrets.
// Roles belong to the whole server: databases of one server need different prefixes. The user of dsn has to
// have CREATEROLE.
func Roles(ctx context.Context, dsn string, set Set, prefix string) error {
	if !rolePrefix.MatchString(prefix) {
		return fmt.Errorf("role prefix %q: want at most 41 lower-case letters, digits and underscores", prefix)
	}
	script, err := roles.ReadFile("roles/" + string(set) + ".sql")
	if err != nil {
		return err
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return errNotADSN
	}
	cfg.RuntimeParams["dbcontroller.role_prefix"] = prefix
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("roles of %s: %w", set, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	// Roles belong to the server, and advisory locks to a database: two databases cannot exclude one another,
	// and try again when they create the same roles at the same time.
	for try := 1; ; try++ {
		_, err := conn.Exec(ctx, string(script)) // one statement, so one transaction
		if err == nil {
			return nil
		}
		if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == lacksPrivilege {
			return refuse("roles of %s: %s: run it as a superuser, or as the owner of the database with CREATEROLE",
				set, pg.Message)
		}
		if !atTheSameTime(err) || try == 5 {
			return fmt.Errorf("roles of %s: %w", set, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(try) * 100 * time.Millisecond):
		}
	}
}

const rolePrefixSQL = `
SELECT left(o.rolname, -6) FROM pg_namespace n JOIN pg_roles o ON o.oid = n.nspowner
WHERE n.nspname = $1 AND o.rolname LIKE '%\_owner' AND EXISTS (SELECT FROM pg_roles a WHERE a.rolname = left(o.rolname, -6) || '_api')`

// RolePrefix returns the prefix of the roles that a database has; empty if it has none. Roles of another
// prefix would take its tables over, without the rights of the users that the former ones were granted to.
func RolePrefix(ctx context.Context, dsn string, set Set) (prefix string, err error) {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return "", fmt.Errorf("roles of %s: %w", set, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	schema := map[Set]string{Deployment: "dbcontroller", Registry: "dbcontroller_registry"}[set]
	if err := conn.QueryRow(ctx, rolePrefixSQL, schema).Scan(&prefix); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("roles of %s: %w", set, err)
	}
	return prefix, nil
}

// atTheSameTime reports whether another session created or granted the same role at the same time, or serves:
// it locks tables in another order than the script.
func atTheSameTime(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	return isDeadlock(err) || pg.Code == "42710" || pg.Code == "23505" || pg.Code == "XX000" &&
		strings.Contains(pg.Message, "concurrently")
}
