// Package launcher starts PostgreSQL servers for development and tests. Start connects to the server that it
// is given, or starts one that needs no system service, no configuration and no root, and that ends with the
// calling process.
package launcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

const (
	superuser = "postgres"

	// readyLimit bounds the wait for the first connection. It has to cover the
	// recovery after a crash of a server with a kept folder.
	readyLimit = 60 * time.Second
	// portAttempts bounds how often another port is tried: another process may take the free port between the
	// choice and the start of the server.
	portAttempts = 5

	// maxIdle is how many connections to the maintenance database are kept.
	maxIdle = 4
)

// Config says which server to take. The zero value starts a server with
// durable settings in a temporary folder.
type Config struct {
	// DSN names a server to use instead of starting one, as URL or as keywords,
	// with a user that may create databases. Default: none, start a server.
	DSN string
	// Dir is the folder that holds the server's data, its log and its password.
	// It is created when missing, and continued when an earlier server left its
	// data there; any other content makes the start fail. Default: a temporary
	// folder, which goes away with the server.
	Dir string
	// InMemory puts the temporary folder into memory, where the system has a place
	// for that with enough room. It is not for use with Dir. Default: on disk.
	InMemory bool
	// Logger receives which server was taken, and its unexpected end.
	// Default: no log.
	Logger *zap.Logger
	// Settings are postgresql.conf settings for a server that is started, by name, in the notation of that
	// file without quotes. They win over defaultSettings, which win over PostgreSQL's defaults.
	Settings map[string]string
}

// defaultSettings suit many small clients on a developer's machine. Nothing here
// weakens durability, unless Config.Settings does.
var defaultSettings = map[string]string{
	"max_connections": "300",
	"shared_buffers":  "256MB",
	// Without these two the results would depend on the machine.
	"timezone":     "UTC",
	"log_timezone": "UTC",
}

// selfSettings make the server reachable, and cannot be configured.
var selfSettings = []string{"data_directory", "hba_file", "listen_addresses", "port", "unix_socket_directories"}

// Server is a PostgreSQL server, either one of our own or one that was given.
type Server struct {
	dsn    string // with the maintenance database
	source string

	folder  *serverFolder  // nil for a server that was given
	process *serverProcess // nil for a server that was given

	mu    sync.Mutex
	idle  []*pgx.Conn // guarded by mu; to the maintenance database, at most maxIdle
	claim *pgx.Conn   // guarded by mu; it holds the lock of Claim, nil without

	watching sync.WaitGroup // Stop waits for it
	stop     sync.Once
	stopErr  error
}

// Start takes the server named by cfg.DSN; else it starts one with the
// binaries on this machine; else one in a container; else it fails with the
// command that installs the binaries. A started server accepts connections when
// Start returns. It ends with Stop, and at the latest with this process,
// however that ends. ctx bounds the start alone.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.DSN != "" {
		return usePostgres(ctx, cfg)
	}
	for _, name := range selfSettings {
		if _, set := cfg.Settings[name]; set {
			return nil, fmt.Errorf("start postgresql: leave the setting %s out, the server chooses it itself", name)
		}
	}
	if cfg.InMemory && cfg.Dir != "" {
		return nil, errors.New("start postgresql: leave out Dir or InMemory, a folder that is kept is on disk")
	}
	found, err := findRunner(ctx, cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("start postgresql: %w", err)
	}
	p, err := startWith(ctx, cfg, found, freePort)
	if err != nil {
		return nil, fmt.Errorf("start postgresql with %s: %w", found.source(), err)
	}
	return p, nil
}

// usePostgres takes the server that cfg.DSN names.
func usePostgres(ctx context.Context, cfg Config) (*Server, error) {
	parsed, err := pgx.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, fmt.Errorf("use the given postgresql: %w", err)
	}
	p := &Server{dsn: cfg.DSN}
	version, err := p.serverVersion(ctx)
	if err != nil {
		return nil, fmt.Errorf("use the given postgresql: %w", err)
	}
	at := net.JoinHostPort(parsed.Host, strconv.Itoa(int(parsed.Port)))
	p.source = fmt.Sprintf("PostgreSQL %s at %s", version, at)
	cfg.Logger.Info("use a postgresql server that is there", zap.String("source", p.source))
	return p, nil
}

// startWith starts a server with the runner on a port that choosePort returns,
// and again while that port turns out to be taken.
func startWith(ctx context.Context, cfg Config, r serverRunner, choosePort func() (int, error)) (*Server, error) {
	began := time.Now()
	f, err := openFolder(cfg.Dir, cfg.InMemory, r.account())
	if err != nil {
		return nil, err
	}
	p := &Server{source: r.source(), folder: f}
	if err := p.start(ctx, cfg, r, choosePort); err != nil {
		return nil, errors.Join(err, f.removeTemporary())
	}
	cfg.Logger.Info("started a postgresql server", zap.String("source", p.source),
		zap.String("folder", f.path), zap.Int("pid", p.process.pid()), zap.Duration("took", time.Since(began)))
	return p, nil
}

func (p *Server) start(ctx context.Context, cfg Config, r serverRunner, choosePort func() (int, error)) error {
	if err := r.prepare(ctx, p.folder); err != nil {
		return err
	}
	settings := maps.Clone(defaultSettings)
	maps.Copy(settings, cfg.Settings)
	for attempt := 1; ; attempt++ {
		port, err := choosePort()
		if err != nil {
			return fmt.Errorf("find a free port: %w", err)
		}
		err = p.startOn(ctx, cfg, r, port, settings)
		if !errors.Is(err, errPortTaken) || attempt == portAttempts {
			return err
		}
		cfg.Logger.Info("port is taken, try another one", zap.Int("port", port))
	}
}

// startOn starts the server on the port and waits until it accepts connections.
// When that fails nothing of the attempt is left running.
func (p *Server) startOn(ctx context.Context, cfg Config, r serverRunner, port int, settings map[string]string) error {
	p.dsn = ownDSN(port, p.folder.password)
	c, err := startProcess(r.command(p.folder, port, settings), p.folder, cfg.Logger)
	if err != nil {
		return err
	}
	if err := p.waitReady(ctx, c); err != nil {
		return errors.Join(err, c.stop())
	}
	p.process = c
	p.watching.Go(c.watch)
	return nil
}

// waitReady returns once the server accepts a connection, or with the reason why
// it does not.
func (p *Server) waitReady(ctx context.Context, c *serverProcess) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	// Another server on the port must not delay us when ours could not listen and has ended.
	watching.Go(func() {
		select {
		case <-c.done:
			cancel()
		case <-ctx.Done():
		}
	})
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := p.serverVersion(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			if c.ended() {
				return c.explainExit()
			}
			return fmt.Errorf("the server accepts no connections (%w), it logged: %s", err, c.logTail())
		case <-tick.C:
		}
	}
}

// Source says in one readable phrase which server this is.
func (p *Server) Source() string { return p.source }

// DSN returns the connection string to the database of this server for its
// superuser (for a server that was given: for the given user). An empty database
// means the maintenance database.
func (p *Server) DSN(database string) string {
	if database == "" {
		return p.dsn
	}
	return withDatabase(p.dsn, database)
}

// Stop shuts the server down, in which clients lose their connections, and removes its temporary folder. A
// server that was given keeps running. Only the first call has an effect, and all calls return its error.
func (p *Server) Stop() error {
	p.stop.Do(func() {
		p.closeConnections()
		if p.process == nil {
			return
		}
		stopped := p.process.stop()
		if stopped == nil {
			p.watching.Wait()
		}
		if err := errors.Join(stopped, p.folder.removeTemporary()); err != nil {
			p.stopErr = fmt.Errorf("stop postgresql: %w", err)
		}
	})
	return p.stopErr
}

// CreateDatabase creates an empty database.
func (p *Server) CreateDatabase(ctx context.Context, name string) error {
	if err := p.exec(ctx, "CREATE DATABASE "+quoteIdentifier(name)); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// CloneDatabase creates a database with all content of the template. The template must have no connections.
func (p *Server) CloneDatabase(ctx context.Context, name, template string) error {
	if err := p.exec(ctx, "CREATE DATABASE "+quoteIdentifier(name)+" TEMPLATE "+quoteIdentifier(template)+
		" STRATEGY file_copy"); err != nil {
		return fmt.Errorf("clone database %s from %s: %w", name, template, err)
	}
	return nil
}

// DropDatabase removes the database and ends the connections to it. A database
// that does not exist is no error.
func (p *Server) DropDatabase(ctx context.Context, name string) error {
	if err := p.exec(ctx, "DROP DATABASE IF EXISTS "+quoteIdentifier(name)+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// Connections returns the limit of connections of the server, and how many of them others use.
func (p *Server) Connections(ctx context.Context) (most, used int, err error) {
	conn, err := pgx.Connect(ctx, p.dsn)
	if err != nil {
		return 0, 0, fmt.Errorf("count the connections: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	err = conn.QueryRow(ctx, `
SELECT current_setting('max_connections')::integer, (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid())`).Scan(&most, &used)
	if err != nil {
		return 0, 0, fmt.Errorf("count the connections: %w", err)
	}
	return most, used, nil
}

func (p *Server) serverVersion(ctx context.Context) (string, error) {
	conn, err := pgx.Connect(ctx, p.dsn)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	// "15.18 (Debian 15.18-0+deb12u1)" is cut to the number.
	version, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	return version, nil
}

// exec runs one statement outside of a transaction. Its connection is kept for the next one: tests create and
// drop thousands of databases, and a connection costs the server as much as a small database.
func (p *Server) exec(ctx context.Context, statement string) error {
	conn := p.takeIdle()
	if conn == nil || conn.Ping(ctx) != nil { // the server may have been restarted
		var err error
		if conn, err = pgx.Connect(ctx, p.dsn); err != nil {
			return err
		}
	}
	_, err := conn.Exec(ctx, statement)
	if conn.IsClosed() || !p.keep(conn) {
		_ = conn.Close(ctx)
	}
	return err
}

// takeIdle returns nil when no connection is idle.
func (p *Server) takeIdle() *pgx.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 {
		return nil
	}
	conn := p.idle[last]
	p.idle = p.idle[:last]
	return conn
}

// keep reports whether the connection is kept.
func (p *Server) keep(conn *pgx.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == maxIdle {
		return false
	}
	p.idle = append(p.idle, conn)
	return true
}

func (p *Server) closeConnections() {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, conn := range p.idle {
		_ = conn.Close(ctx)
	}
	p.idle = nil
	if p.claim != nil {
		// Before the end: the server gives the locks of a closed connection back some time later.
		_, _ = p.claim.Exec(ctx, `SELECT pg_advisory_unlock($1)`, int64(claimLock))
		_ = p.claim.Close(ctx)
		p.claim = nil
	}
}

func quoteIdentifier(identifier string) string { return pgx.Identifier{identifier}.Sanitize() }

func ownDSN(port int, password string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// withDatabase puts the database into the connection string, be it URL or
// keywords.
func withDatabase(dsn, database string) string {
	if u, err := url.Parse(dsn); err == nil && (u.Scheme == "postgres" || u.Scheme == "postgresql") {
		u.Path, u.RawPath = "/"+database, ""
		query := u.Query()
		query.Del("dbname") // would win over the path
		u.RawQuery = query.Encode()
		return u.String()
	}
	escaped := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(database)
	// The last one of two equal keywords counts.
	return fmt.Sprintf("%s dbname='%s'", dsn, escaped)
}

// freePort returns a TCP port of 127.0.0.1 without a listener.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// settingArguments turns settings into arguments of postgres, in a stable order.
func settingArguments(settings map[string]string) []string {
	var arguments []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		arguments = append(arguments, "-c", name+"="+settings[name])
	}
	return arguments
}
