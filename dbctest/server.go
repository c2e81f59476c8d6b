package dbctest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/migrations"
)

// ApplicationRole is the role of applications in the databases of an installation.
const ApplicationRole = rolePrefix + "_application"

const (
	rolePrefix  = "dbctest"
	servingRole = rolePrefix + "_serving"
)

// server is a PostgreSQL server that the installations of this process share, with the templates of their
// databases.
type server struct {
	dsn string
	err error

	begin sync.Once
	// made by begin: names of databases.
	templates map[template]string
}

type template string

const (
	emptyTemplate      template = "template0"
	deploymentTemplate template = "deployment"
)

var servers sync.Map // *server by DSN; "" is the server that this process starts

// serverOf returns a server with its templates.
func serverOf(ctx context.Context, dsn string) (*server, error) {
	if dsn == "" {
		dsn = os.Getenv("DBCONTROLLER_TEST_DSN")
	}
	found, _ := servers.LoadOrStore(dsn, &server{dsn: dsn})
	s := found.(*server)
	s.begin.Do(func() { s.err = s.start(context.WithoutCancel(ctx)) })
	return s, s.err
}

// start starts a server unless there is one, and migrates the template of deployments.
func (s *server) start(ctx context.Context) error {
	if s.dsn == "" { // it ends with this process
		started, err := launcher.Start(ctx, launcher.Config{InMemory: true, Settings: map[string]string{
			"fsync":           "off",
			"max_connections": "500",
		}})
		if err != nil {
			return err
		}
		s.dsn = started.DSN("postgres")
	}
	name, err := s.create(ctx, string(emptyTemplate))
	if err != nil {
		return err
	}
	s.templates = map[template]string{emptyTemplate: string(emptyTemplate), deploymentTemplate: name}
	dsn := inDatabase(s.dsn, name)
	if _, err := migrations.Up(ctx, dsn, migrations.Deployment); err != nil {
		return err
	}
	if err := migrations.Roles(ctx, dsn, migrations.Deployment, rolePrefix); err != nil {
		return err
	}
	return execute(ctx, dsn, servingRoleSQL)
}

const servingRoleSQL = `
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '` + servingRole + `') THEN
        CREATE ROLE ` + servingRole + ` NOLOGIN;
    END IF;
    GRANT ` + rolePrefix + `_api, ` + rolePrefix + `_controller TO ` + servingRole + `;
END $$`

func (s *server) create(ctx context.Context, from string) (name string, err error) {
	name = "dbctest_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	return name, execute(ctx, s.dsn, `CREATE DATABASE `+pgx.Identifier{name}.Sanitize()+` TEMPLATE `+
		pgx.Identifier{from}.Sanitize())
}

// database makes a database for the test, which drops it at its end.
func (in *Installation) database(from template) (dsn string, err error) {
	name, err := in.server.create(in.t.Context(), in.server.templates[from])
	if err != nil {
		return "", err
	}
	in.t.Cleanup(func() {
		_ = execute(context.Background(), in.server.dsn, `DROP DATABASE IF EXISTS `+pgx.Identifier{name}.Sanitize()+
			` WITH (FORCE)`)
	})
	return inDatabase(in.server.dsn, name), nil
}

func execute(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// inDatabase returns the connection string of another database of the same server.
func inDatabase(dsn, name string) string {
	return rewritten(dsn, func(cfg *pgx.ConnConfig) { cfg.Database = name })
}

// rewritten returns a connection string as a URL, after a change.
func rewritten(dsn string, change func(*pgx.ConnConfig)) string {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return dsn // the first connection reports it
	}
	change(cfg)
	u := url.URL{Scheme: "postgres", User: url.UserPassword(cfg.User, cfg.Password), Path: "/" + cfg.Database}
	query := url.Values{"sslmode": {"disable"}}
	if strings.HasPrefix(cfg.Host, "/") {
		query.Set("host", cfg.Host)
		query.Set("port", strconv.Itoa(int(cfg.Port)))
	} else {
		u.Host = net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
	}
	if role := cfg.RuntimeParams["role"]; role != "" {
		query.Set("role", role)
	}
	u.RawQuery = query.Encode()
	return u.String()
}

func withRole(dsn, role string) string {
	return rewritten(dsn, func(cfg *pgx.ConnConfig) { cfg.RuntimeParams["role"] = role })
}

// throughLine makes the line to the deployment's database, and returns the connection string of its process.
func (d *deployment) throughLine(dsn string) (serving string, err error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return "", errors.New("not a PostgreSQL connection string")
	}
	if strings.HasPrefix(cfg.Host, "/") {
		d.store, err = newLineTo("unix", fmt.Sprintf("%s/.s.PGSQL.%d", cfg.Host, cfg.Port))
	} else {
		d.store, err = newLine(net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))))
	}
	if err != nil {
		return "", err
	}
	host, port, _ := net.SplitHostPort(d.store.address())
	number, _ := strconv.ParseUint(port, 10, 16)
	return rewritten(withRole(dsn, servingRole), func(cfg *pgx.ConnConfig) {
		cfg.Host, cfg.Port = host, uint16(number)
	}), nil
}
