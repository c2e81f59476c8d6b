package harness

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/migrations"
)

// RolePrefix is the prefix of the roles in the databases of boxes; ServingRole has the rights that `serve`
// needs there.
const (
	RolePrefix  = "dbcontroller_box"
	ServingRole = RolePrefix + "_serving"
	// ApplicationRole has the rights of an application that writes in its own transactions.
	ApplicationRole = RolePrefix + "_application"
)

const servingRoleSQL = `
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'dbcontroller_box_serving') THEN
        CREATE ROLE dbcontroller_box_serving NOLOGIN;
    END IF;
    GRANT dbcontroller_box_api, dbcontroller_box_controller TO dbcontroller_box_serving;
END $$`

// leastPrivileges creates the roles of a box: every test of the store shows that their rights are sufficient.
func leastPrivileges(ctx context.Context, dsn string) error {
	if err := migrations.Roles(ctx, dsn, migrations.Deployment, RolePrefix); err != nil {
		return err
	}
	return grantServing(ctx, dsn)
}

// grantServing makes ServingRole.
func grantServing(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, servingRoleSQL)
	return err
}

// AsServing returns a connection string whose sessions have only the rights that `serve` needs.
func AsServing(dsn string) string { return asRole(dsn, ServingRole) }

// AsAPI and AsController return connection strings whose sessions have only the rights that `serve` needs for
// calls, and for its own work.
func AsAPI(dsn string) string { return asRole(dsn, RolePrefix+"_api") }

// AsController is described at AsAPI.
func AsController(dsn string) string { return asRole(dsn, RolePrefix+"_controller") }

// AsApplication returns a connection string whose sessions have only the rights of an application.
func AsApplication(dsn string) string { return asRole(dsn, ApplicationRole) }

func asRole(dsn, role string) string {
	separator := "?"
	if strings.Contains(dsn, "?") {
		separator = "&"
	}
	return dsn + separator + "role=" + role
}
