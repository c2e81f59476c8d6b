// Package harness starts the servers that tests need.
//
// Postgres is one PostgreSQL server per test process, started at the first use
// and gone with the process. Tests get databases of their own on it, as clones
// of a template that is migrated once:
//
//	server := harness.Postgres(t)
//	template := server.Template(t, "registry", migrate)
//	dsn := server.NewDatabase(t, template)
//
// It is the server that DBCONTROLLER_TEST_DSN names, with a user that may create databases; else package
// launcher starts it: from the PostgreSQL programs on this machine, or in a container. Without a server the
// tests are skipped; they fail when the variable is set, and on a build machine (CI=true).
package harness

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/test/wait"
)

const (
	// databaseAge is the age at which a test process removes a database of an
	// earlier one. No test runs as long.
	databaseAge = 24 * time.Hour
)

// serverSettings give up durability, which no test needs, for speed. All servers
// that the harness starts have them.
var serverSettings = map[string]string{
	"fsync":                     "off",
	"synchronous_commit":        "off",
	"full_page_writes":          "off",
	"jit":                       "off", // connections of tests and oracles do not set it
	"max_connections":           "600",
	"max_prepared_transactions": "8",
	"wal_level":                 "logical", // a checker of watches reads the log
	"shared_buffers":            "256MB",
	"max_wal_size":              "256MB", // it is in memory, once per test process
	"timezone":                  "UTC",
	"log_timezone":              "UTC",
}

// Server is a PostgreSQL server for tests. Its methods may be called from
// parallel tests.
type Server struct {
	postgres *launcher.Server
	source   string
	stop     func() error // stops everything that the harness has started

	// prefix begins the names of this process's databases: the server may be
	// shared with other test processes.
	prefix string
	count  atomic.Int64

	mu        sync.Mutex
	templates map[string]*template

	seats seats
}

// template is a database to clone from.
type template struct {
	database string
	once     sync.Once
	err      error
}

// shared is the one server of this process.
var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Postgres returns the server of this test process. The test is skipped, or
// fails, when there is none (see the package comment).
func Postgres(t testing.TB) *Server {
	t.Helper()
	from := choiceFromEnvironment()
	shared.once.Do(func() { shared.server, shared.err = startAndTell(from) })
	if shared.err != nil {
		refuse(t, from, shared.err)
	}
	return shared.server
}

// Main runs the tests and stops the server. Using it is optional; the server
// then stops in order, and early:
//
//	func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
//
// Without it the server ends with the process. A check for leaked goroutines
// has to run after Main: the running server has some.
func Main(m *testing.M) int {
	code := m.Run()
	if migrated.parent != "" {
		_ = os.RemoveAll(migrated.parent)
	}
	shared.once.Do(func() { shared.err = errors.New("the tests are over") })
	if shared.server == nil {
		return code
	}
	if err := errors.Join(shared.server.dropSeats(), shared.server.stop()); err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		return max(code, 1)
	}
	return code
}

// choice has the choices of the environment variables.
type choice struct {
	dsn string // of an existing server
	ci  bool   // this is a build machine
}

func choiceFromEnvironment() choice {
	return choice{dsn: os.Getenv("DBCONTROLLER_TEST_DSN"), ci: os.Getenv("CI") == "true"}
}

// refuse skips or fails a test that has no server. A skip on a build machine, or
// when a certain server was selected, would hide that nothing was tested.
func refuse(t testing.TB, from choice, err error) {
	t.Helper()
	if from != (choice{}) {
		t.Fatalf("no postgresql for this test: %v", err)
	}
	t.Skipf("skipped without postgresql: %v", err)
}

func startAndTell(from choice) (*Server, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	s, err := start(ctx, from)
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness: no postgresql:", err)
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "harness: tests use %s (ready after %v)\n", s.source,
		time.Since(began).Round(time.Millisecond))
	return s, nil
}

// start connects to the given server, or starts one.
func start(ctx context.Context, from choice) (*Server, error) {
	if from.dsn != "" {
		return useGiven(ctx, from.dsn)
	}
	return startLocal(ctx)
}

func useGiven(ctx context.Context, dsn string) (*Server, error) {
	postgres, err := launcher.Start(ctx, launcher.Config{DSN: dsn})
	if err != nil {
		return nil, fmt.Errorf("look at DBCONTROLLER_TEST_DSN: %w", err)
	}
	s := newServer(postgres, postgres.Source())
	s.stop = func() error { return errors.Join(s.dropTemplates(), postgres.Stop()) }
	if err := s.dropLeftovers(ctx, time.Now().Add(-databaseAge)); err != nil {
		return nil, err
	}
	return s, nil
}

func startLocal(ctx context.Context) (*Server, error) {
	postgres, err := launcher.Start(ctx, launcher.Config{Settings: serverSettings, InMemory: true})
	if err != nil {
		return nil, err
	}
	if err := cheapPassword(ctx, postgres.DSN("postgres")); err != nil {
		return nil, errors.Join(err, postgres.Stop())
	}
	s := newServer(postgres, postgres.Source())
	s.stop = postgres.Stop
	return s, nil
}

func newServer(postgres *launcher.Server, source string) *Server {
	return &Server{
		postgres: postgres, source: source,
		prefix:    databasePrefix(time.Now()),
		templates: map[string]*template{},
	}
}

// Source describes the server in one readable phrase.
func (s *Server) Source() string { return s.source }

// DSN returns the connection string to a database for a superuser (for a server
// that was given: for the given user).
func (s *Server) DSN(database string) string { return s.postgres.DSN(database) }

// NewDatabase creates a database for this test alone and returns its connection
// string. It starts as a copy of the template, and empty for an empty template.
// It is removed at the end of the test, also while there are connections.
func (s *Server) NewDatabase(t testing.TB, template string) string {
	t.Helper()
	database, drop, err := s.createDatabase(t.Context(), template)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
		defer cancel()
		if err := drop(ctx); err != nil {
			t.Error(err)
		}
	})
	return s.DSN(database)
}

func (s *Server) createDatabase(ctx context.Context, template string) (name string, drop func(context.Context) error,
	err error,
) {
	name = s.newName()
	if template == "" {
		err = s.postgres.CreateDatabase(ctx, name)
	} else {
		err = s.postgres.CloneDatabase(ctx, name, template)
	}
	return name, func(ctx context.Context) error { return s.postgres.DropDatabase(ctx, name) }, err
}

// Template returns the database to clone with NewDatabase. The first call for a
// name in this process creates it and has migrate fill it, calls meanwhile wait
// for that. Connections to it are refused afterwards, so that it can be cloned at
// any time and stays unchanged.
func (s *Server) Template(t testing.TB, name string, migrate func(ctx context.Context, dsn string) error) string {
	t.Helper()
	made := s.template(name)
	made.once.Do(func() {
		// The error that other tests get when migrate ends this test.
		made.err = errors.New("its migration did not come to an end")
		made.err = s.makeTemplate(made.database, migrate)
	})
	if made.err != nil {
		t.Fatalf("no template %s: %v", name, made.err)
	}
	return made.database
}

func (s *Server) template(name string) *template {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.templates[name] == nil {
		s.templates[name] = &template{database: s.newName()}
	}
	return s.templates[name]
}

// makeTemplate has a context of its own: the template outlives the test that
// happens to need it first.
func (s *Server) makeTemplate(database string, migrate func(ctx context.Context, dsn string) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	if err := s.postgres.CreateDatabase(ctx, database); err != nil {
		return err
	}
	if err := migrate(ctx, s.DSN(database)); err != nil {
		return fmt.Errorf("migrate it: %w", err)
	}
	return s.seal(ctx, database)
}

// seal refuses and ends all connections to the database. One that migrate left
// open would make every clone fail.
func (s *Server) seal(ctx context.Context, database string) error {
	conn, err := pgx.Connect(ctx, s.DSN(""))
	if err != nil {
		return fmt.Errorf("seal it: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "ALTER DATABASE "+pgx.Identifier{database}.Sanitize()+
		" ALLOW_CONNECTIONS false"); err != nil {
		return fmt.Errorf("seal it: %w", err)
	}
	const endConnections = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
	if _, err := conn.Exec(ctx, endConnections, database); err != nil {
		return fmt.Errorf("end the connections to it: %w", err)
	}
	return nil
}

// dropTemplates removes the databases that no test removes. That matters only on
// a server that outlives the process.
func (s *Server) dropTemplates() error {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, made := range s.templates {
		errs = append(errs, s.postgres.DropDatabase(ctx, made.database))
	}
	return errors.Join(errs...)
}

// ourDatabases is the common beginning of all prefixes.
const ourDatabases = "dbctest_"

// databasePrefix contains the creation time, which PostgreSQL does not store.
func databasePrefix(now time.Time) string {
	random := strings.ToLower(rand.Text()[:8])
	return ourDatabases + strconv.FormatInt(now.Unix(), 36) + "_" + random + "_"
}

func (s *Server) newName() string { return s.prefix + strconv.FormatInt(s.count.Add(1), 10) }

// madeAt returns the creation time of a database; false when the harness has not
// created it.
func madeAt(database string) (time.Time, bool) {
	rest, ours := strings.CutPrefix(database, ourDatabases)
	stamp, _, more := strings.Cut(rest, "_")
	seconds, err := strconv.ParseInt(stamp, 36, 64)
	if !ours || !more || err != nil {
		return time.Time{}, false
	}
	return time.Unix(seconds, 0), true
}

// dropLeftovers removes the databases of test processes that were killed. Only an
// existing server (DBCONTROLLER_TEST_DSN) can have any.
func (s *Server) dropLeftovers(ctx context.Context, before time.Time) error {
	conn, err := pgx.Connect(ctx, s.DSN(""))
	if err != nil {
		return fmt.Errorf("look for leftover databases: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, "SELECT datname FROM pg_database WHERE starts_with(datname, $1)", ourDatabases)
	if err != nil {
		return fmt.Errorf("look for leftover databases: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for leftover databases: %w", err)
	}
	for _, name := range names {
		if made, ours := madeAt(name); ours && made.Before(before) {
			// Without FORCE, so that a database with connections stays. An error is
			// ignored: a parallel test process may have removed it.
			_, _ = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize())
		}
	}
	return nil
}
