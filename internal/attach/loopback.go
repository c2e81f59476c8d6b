package attach

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/db-controller/db-controller/schema"
)

// A statement that lacks a right asks for it in a session of its own, since a question counts from its
// commit, and waits (dbcontroller.await_rights). That session is opened by dblink: a foreign server of this
// name, and a role that may ask and nothing else. Its password stands in the user mapping alone.
const (
	loopbackServer = "dbcontroller_loopback"
	// loopbackSchema has the extension dblink, when attach has created that.
	loopbackSchema = "dbcontroller_loopback"
)

// loopback is the way in to a database from its own server.
type loopback struct {
	host, port, user, password string
}

// place has the database, the asking role and the addresses of the server for the statements of a loopback.
type place struct {
	database, role, owner, port string
	hosts                       []string
	me                          string
}

const placeSQL = `
SELECT pg_catalog.current_database(), 'dbcontroller_ask_' || d.oid, pg_catalog.pg_get_userbyid(n.nspowner), pg_catalog.current_setting('port'),
    CASE WHEN pg_catalog.current_setting('listen_addresses') <> '' THEN ARRAY['127.0.0.1'] ELSE ARRAY[]::text[] END
        || (SELECT COALESCE(pg_catalog.array_agg(pg_catalog.btrim(s)) FILTER (WHERE pg_catalog.btrim(s) LIKE '/%'), '{}') FROM pg_catalog.unnest(pg_catalog.string_to_array(CASE WHEN pg_catalog.pg_has_role('pg_read_all_settings', 'USAGE') THEN pg_catalog.current_setting('unix_socket_directories') END, ',')) AS s),
    current_user
FROM pg_catalog.pg_database d, pg_catalog.pg_namespace n WHERE d.datname = pg_catalog.current_database() AND n.nspname = 'dbcontroller'`

// Waiting checks that statements of strict tables can ask for rights and wait for them, and sets it up
// otherwise: with a DSN by that role, which exists, else by a role that it makes. It returns why they cannot,
// with the statements that help.
func Waiting(ctx context.Context, conn *pgx.Conn, dsn string) ([]Finding, error) {
	if dsn == "" && asks(ctx, conn) == nil {
		return nil, nil
	}
	var p place
	if err := conn.QueryRow(ctx, placeSQL).Scan(&p.database, &p.role, &p.owner, &p.port, &p.hosts, &p.me); err != nil {
		return nil, fmt.Errorf("read how to connect to the database from its server: %w", err)
	}
	if why, err := p.extend(ctx, conn); why != nil || err != nil {
		return why, err
	}
	ways, err := p.ways(ctx, conn, dsn)
	if err != nil {
		return cannot(err, "CREATE "+p.roleSQL("'…'")+"; Then attach with --loopback-dsn."), nil
	}
	for _, w := range ways {
		if err = p.connect(ctx, conn, w); err != nil {
			return cannot(err, p.usageSQL()), nil
		}
		if err = asks(ctx, conn); err == nil {
			return nil, nil
		}
	}
	if _, derr := conn.Exec(ctx, "DROP SERVER IF EXISTS "+loopbackServer+" CASCADE"); derr != nil {
		return nil, fmt.Errorf("remove a way to ask for rights that does not work: %w", errors.Join(derr, err))
	}
	return cannot(err, ""), nil
}

// WhyNotWaiting returns why statements on strict tables do not wait for rights; nil: they do, or there is no
// such table.
func WhyNotWaiting(ctx context.Context, conn *pgx.Conn) error {
	var strict bool
	if err := conn.QueryRow(ctx, strictLeftSQL).Scan(&strict); err != nil || !strict {
		return err
	}
	return asks(ctx, conn)
}

// asks asks for nothing, by the way that statements take.
func asks(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	if err := conn.QueryRow(ctx, `SELECT dbcontroller.loopback() IS NOT NULL`).Scan(&there); err != nil {
		return err
	}
	if !there {
		return errors.New("they have no connection of their own: attach makes it")
	}
	_, err := conn.Exec(ctx, `SELECT dbcontroller.ask_outside('{}', 'attach')`)
	return err
}

// cannot returns the reason why statements do not wait, and the remedy in an application.
func cannot(err error, sql string) []Finding {
	text := err.Error()
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		text = strings.TrimSpace(pg.Message + " " + pg.Detail + " " + pg.Hint)
	}
	return []Finding{
		{Text: "statements on strict tables do not wait for rights: " + text, SQL: sql},
		{
			Text: "until then they fail with RD001 while a right is lacking: the application's role (here app) calls these functions, and repeats the transaction. " +
				"--loopback-dsn names a connection from the server to this database by a role with a password",
			SQL: "GRANT USAGE ON SCHEMA dbcontroller TO app; GRANT EXECUTE ON FUNCTION dbcontroller.acquire, dbcontroller.acquired TO app;",
		},
	}
}

// extend creates the extension when it is missing.
func (p *place) extend(ctx context.Context, conn *pgx.Conn) ([]Finding, error) {
	var there bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'dblink')`).
		Scan(&there); err != nil || there {
		return nil, err
	}
	statements := []string{
		"CREATE SCHEMA IF NOT EXISTS " + loopbackSchema,
		"CREATE EXTENSION dblink SCHEMA " + loopbackSchema,
		fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", loopbackSchema, schema.QuoteIdentifier(p.owner)),
	}
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, sql := range statements {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return cannot(err, strings.Join(statements, "; ")+"; "+p.usageSQL()), nil
	}
	return nil, nil
}

func (p *place) usageSQL() string {
	return fmt.Sprintf("GRANT USAGE ON FOREIGN DATA WRAPPER dblink_fdw TO %s, %s;", schema.QuoteIdentifier(p.me),
		schema.QuoteIdentifier(p.owner))
}

// ways returns the connections to try. The role has a new password, which any earlier mapping lacks.
func (p *place) ways(ctx context.Context, conn *pgx.Conn, dsn string) ([]loopback, error) {
	user := p.role
	var out []loopback
	if dsn != "" {
		cfg, err := pgconn.ParseConfig(dsn)
		if err != nil {
			// the parser's error contains the password
			return nil, errors.New("--loopback-dsn is not a PostgreSQL connection string")
		}
		user = cfg.User
		out = append(out, loopback{host: cfg.Host, port: fmt.Sprint(cfg.Port), user: user, password: cfg.Password})
	} else {
		password := newPassword()
		var exists bool
		if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)`, user).
			Scan(&exists); err != nil {
			return nil, err
		}
		verb := "CREATE "
		if exists {
			verb = "ALTER "
		}
		if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			return execWithPassword(ctx, tx, verb+p.roleSQL(thePassword), password)
		}); err != nil {
			return nil, err
		}
		for _, host := range p.hosts {
			out = append(out, loopback{host: host, port: p.port, user: user, password: password})
		}
	}
	_, err := conn.Exec(ctx,
		fmt.Sprintf(
			`GRANT USAGE ON SCHEMA dbcontroller TO %[1]s; GRANT EXECUTE ON FUNCTION dbcontroller.ask, dbcontroller.unanswered TO %[1]s`, schema.QuoteIdentifier(user)), pgx.QueryExecModeSimpleProtocol)
	return out, err
}

// roleSQL has the role, for CREATE and ALTER. Connections are scarce: a statement that finds none waits for
// its turn.
func (p *place) roleSQL(password string) string {
	return fmt.Sprintf("ROLE %s LOGIN NOINHERIT CONNECTION LIMIT 20 PASSWORD %s", schema.QuoteIdentifier(p.role),
		password)
}

// connect makes the foreign server and its user mapping, which belong to the owner of the functions that use
// them.
func (p *place) connect(ctx context.Context, conn *pgx.Conn, w loopback) error {
	owner := schema.QuoteIdentifier(p.owner)
	option := func(name, value string) string {
		return name + " '" + strings.ReplaceAll(value, "'", "''") + "'"
	}
	server := []string{
		option("host", w.host), option("port", w.port), option("dbname", p.database), option("connect_timeout", "2"),
		// Short: dblink answers no cancellation of the statement that waits.
		option("options", "-c lock_timeout=100 -c statement_timeout=2000"),
		option("application_name", "db-controller asks for rights"),
	}
	mapping := []string{option("user", w.user)}
	if w.password != "" {
		mapping = append(mapping, "password "+thePassword)
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var may bool
		if err := tx.QueryRow(ctx, `SELECT pg_catalog.has_foreign_data_wrapper_privilege($1, 'dblink_fdw', 'USAGE')`,
			p.owner).Scan(&may); err != nil {
			return err
		}
		if !may {
			if _, err := tx.Exec(ctx, "GRANT USAGE ON FOREIGN DATA WRAPPER dblink_fdw TO "+owner); err != nil {
				return err
			}
		}
		for _, sql := range []string{
			"SET LOCAL standard_conforming_strings = on",
			"DROP SERVER IF EXISTS " + loopbackServer + " CASCADE",
			fmt.Sprintf("CREATE SERVER %s FOREIGN DATA WRAPPER dblink_fdw OPTIONS (%s)", loopbackServer,
				strings.Join(server, ", ")),
			fmt.Sprintf("ALTER SERVER %s OWNER TO %s", loopbackServer, owner),
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return execWithPassword(ctx, tx, fmt.Sprintf("CREATE USER MAPPING FOR %s SERVER %s OPTIONS (%s)", owner,
			loopbackServer, strings.Join(mapping, ", ")), w.password)
	})
}

// thePassword stands in a statement for the password.
const thePassword = "\x00"

// execWithPassword executes a statement that has thePassword, which is sent as a parameter:
// pg_stat_statements, the activity of sessions and a log of DDL have the text of a statement, and the text
// has no password.
func execWithPassword(ctx context.Context, tx pgx.Tx, sql, password string) error {
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('dbcontroller.password', $1, true)`, password); err != nil {
		return err
	}
	format := strings.ReplaceAll(strings.ReplaceAll(sql, "%", "%%"), thePassword, "%L")
	_, err := tx.Exec(ctx,
		fmt.Sprintf("DO %s",
			quoteLiteral(
				fmt.Sprintf(
					"BEGIN EXECUTE pg_catalog.format(%s, pg_catalog.current_setting('dbcontroller.password')); END",
					quoteLiteral(format)))))
	return err
}

// quoteLiteral quotes a text for SQL, whatever standard_conforming_strings is.
func quoteLiteral(text string) string {
	return "E'" + strings.ReplaceAll(strings.ReplaceAll(text, `\`, `\\`), "'", "''") + "'"
}

const mappedUserSQL = `
SELECT COALESCE((SELECT substr(o, 6) FROM unnest(m.umoptions) AS o WHERE o LIKE 'user=%'), '')
FROM pg_catalog.pg_user_mappings m WHERE m.srvname = $1 AND m.usename = $2`

// RotatePassword gives the role by which statements ask for rights a new password. It reports false when
// attach has made no such role. Statements that ask meanwhile use the password before, or the new one: both
// change in one transaction.
func RotatePassword(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var p place
	if err := conn.QueryRow(ctx, placeSQL).Scan(&p.database, &p.role, &p.owner, &p.port, &p.hosts, &p.me); err != nil {
		return false, fmt.Errorf("read how to connect to the database from its server: %w", err)
	}
	var user string
	err := conn.QueryRow(ctx, mappedUserSQL, loopbackServer, p.owner).Scan(&user)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && user != "" && user != p.role {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the role by which statements ask for rights: %w", err)
	}
	password := newPassword()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, sql := range []string{
			fmt.Sprintf("ALTER ROLE %s PASSWORD %s", schema.QuoteIdentifier(p.role), thePassword),
			fmt.Sprintf("ALTER USER MAPPING FOR %s SERVER %s OPTIONS (SET password %s)",
				schema.QuoteIdentifier(p.owner), loopbackServer, thePassword),
		} {
			if err := execWithPassword(ctx, tx, sql, password); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("change the password by which statements ask for rights: %w", err)
	}
	return true, nil
}

// newPassword returns a random password of letters, digits, - and _.
func newPassword() string {
	secret := make([]byte, 24)
	_, _ = rand.Read(secret) // it never fails
	return base64.RawURLEncoding.EncodeToString(secret)
}

const strictLeftSQL = `SELECT EXISTS (SELECT FROM dbcontroller.attachment WHERE strict AND ready)`

// StopWaiting removes the objects that Waiting has made, unless a strict table is still attached.
func StopWaiting(ctx context.Context, conn *pgx.Conn) error {
	var left, exists, extended bool
	var p place
	if err := conn.QueryRow(ctx, strictLeftSQL).Scan(&left); err != nil || left {
		return err
	}
	if err := conn.QueryRow(ctx, placeSQL).Scan(&p.database, &p.role, &p.owner, &p.port, &p.hosts, &p.me); err != nil {
		return err
	}
	if err := conn.QueryRow(ctx,
		`SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1), EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $2)`, p.role, loopbackSchema).
		Scan(&exists, &extended); err != nil {
		return err
	}
	statements := []string{"DROP SERVER IF EXISTS " + loopbackServer + " CASCADE"}
	if exists {
		role := schema.QuoteIdentifier(p.role)
		statements = append(statements, "REVOKE ALL ON FUNCTION dbcontroller.ask, dbcontroller.unanswered FROM "+role,
			"REVOKE ALL ON SCHEMA dbcontroller FROM "+role, "DROP ROLE "+role)
	}
	if extended {
		statements = append(statements, "DROP SCHEMA "+loopbackSchema+" CASCADE")
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, sql := range statements {
			_, err := tx.Exec(ctx, sql)
			if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "42501" {
				return fmt.Errorf(
					"remove the role and the server of strict statements: %w; repeat it as the superuser who attached",
					err)
			}
			if err != nil {
				return fmt.Errorf("remove the role and the server of strict statements: %w", err)
			}
		}
		return nil
	})
}
