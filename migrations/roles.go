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

// Roles creates the roles of a database that was migrated, or brings them up to date: <prefix>_owner, who has everything
// and logs in nowhere but for migrations; <prefix>_api and, for a deployment, <prefix>_controller, both of which the user
// of serve needs; <prefix>_audit, who may read what happened and neither what users store nor any secret. Roles are those of the
// whole server: databases that share one have prefixes of their own. It needs a user who may create roles.
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
		return errors.New("not a PostgreSQL connection string") // the error itself would show the password
	}
	cfg.RuntimeParams["dbcontroller.role_prefix"] = prefix
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("roles of %s: %w", set, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	// Roles belong to the server, and locks to a database: two databases that make the same ones at a time try again.
	for try := 1; ; try++ {
		_, err := conn.Exec(ctx, string(script)) // one statement, so one transaction
		if err == nil {
			return nil
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

// atTheSameTime tells errors of somebody else making or granting the same role.
func atTheSameTime(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	return pg.Code == "42710" || pg.Code == "23505" || pg.Code == "XX000" && strings.Contains(pg.Message, "concurrently")
}
