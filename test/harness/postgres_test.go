package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(stopped{m}) }

// stopped runs the tests through Main, so that the check for leaks covers a stopped
// server.
type stopped struct{ m *testing.M }

func (s stopped) Run() int { return Main(s.m) }

func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func queryText(t testing.TB, dsn, query string) string {
	t.Helper()
	var text string
	if err := connect(t, dsn).QueryRow(t.Context(), query).Scan(&text); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return text
}

// templates counts the names that newTemplateName has returned.
var templates atomic.Int64

// newTemplateName returns a name that no other test uses, nor an earlier run of
// the same one.
func newTemplateName() string { return fmt.Sprint("template ", templates.Add(1)) }

// migrateNote is a migration that writes a row and leaves its connection open: the
// template has to be usable nevertheless.
func migrateNote(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE TABLE note AS SELECT 'from the template' AS text")
	return err
}

func TestServerIsFastAndUnsafe(t *testing.T) {
	s := Postgres(t)
	if s != Postgres(t) {
		t.Error("a second server in one process")
	}
	if os.Getenv("DBCONTROLLER_TEST_DSN") != "" {
		t.Skip("the settings of the given server are not ours")
	}
	for name, want := range serverSettings {
		if got := queryText(t, s.DSN(""), "SHOW "+name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

func TestNewDatabaseIsACopyOfItsOwn(t *testing.T) {
	s := Postgres(t)
	template := s.Template(t, "note", migrateNote)
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			dsn := s.NewDatabase(t, template)
			if got := queryText(t, dsn, "SELECT text FROM note"); got != "from the template" {
				t.Errorf("the row is %q", got)
			}
			if _, err := connect(t, dsn).Exec(t.Context(), "UPDATE note SET text = 'mine'"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNewDatabaseGoesAwayWithTheTest(t *testing.T) {
	s := Postgres(t)
	var dsn string
	t.Run("inner", func(t *testing.T) {
		dsn = s.NewDatabase(t, "")
		if got := queryText(t, dsn, "SELECT count(*)::text FROM pg_tables WHERE schemaname = 'public'"); got != "0" {
			t.Errorf("an empty database has %s tables", got)
		}
		// Closed when the outer test ends, thus still open at the removal.
		if _, err := pgx.Connect(t.Context(), dsn); err != nil {
			t.Error(err)
		}
	})
	if _, err := pgx.Connect(t.Context(), dsn); err == nil {
		t.Error("the database is still there")
	}
}

func TestTemplateMigratesOnce(t *testing.T) {
	s := Postgres(t)
	var calls atomic.Int32
	var group sync.WaitGroup
	name, names := newTemplateName(), make([]string, 4)
	for i := range names {
		group.Go(func() {
			names[i] = s.Template(t, name, func(ctx context.Context, dsn string) error {
				calls.Add(1)
				return migrateNote(ctx, dsn)
			})
		})
	}
	group.Wait()
	if got := calls.Load(); got != 1 {
		t.Errorf("migrated %d times", got)
	}
	for _, database := range names {
		if database != names[0] {
			t.Errorf("templates are %v", names)
		}
	}
	if _, err := pgx.Connect(t.Context(), s.DSN(names[0])); err == nil {
		t.Error("the template accepts connections")
	}
	if other := s.Template(t, newTemplateName(), migrateNote); other == names[0] {
		t.Error("two templates share a database")
	}
}

func TestTemplateFailsEveryTestThatNeedsIt(t *testing.T) {
	s := Postgres(t)
	const brokenText = "no such column"
	broken, left := newTemplateName(), newTemplateName()
	migrate := func(context.Context, string) error { return errors.New(brokenText) }
	for range 2 {
		got := outcomeOf(func(t testing.TB) { s.Template(t, broken, migrate) })
		if !strings.Contains(got.failed, brokenText) {
			t.Errorf("outcome is %+v", got)
		}
	}
	got := outcomeOf(func(tb testing.TB) {
		s.Template(tb, left, func(context.Context, string) error { runtime.Goexit(); return nil })
	})
	if got != (outcome{ended: true}) {
		t.Errorf("outcome is %+v", got)
	}
	got = outcomeOf(func(tb testing.TB) { s.Template(tb, left, migrateNote) })
	if !strings.Contains(got.failed, "did not come to an end") {
		t.Errorf("outcome is %+v", got)
	}
}

// outcome is how a test ended.
type outcome struct {
	failed, skipped string
	ended           bool // before its function returned
}

// recorder is a test that remembers its outcome.
type recorder struct {
	testing.TB
	outcome outcome
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, arguments ...any) {
	r.outcome.failed = fmt.Sprintf(format, arguments...)
	runtime.Goexit()
}

func (r *recorder) Skipf(format string, arguments ...any) {
	r.outcome.skipped = fmt.Sprintf(format, arguments...)
	runtime.Goexit()
}

func outcomeOf(test func(testing.TB)) outcome {
	r := &recorder{outcome: outcome{ended: true}}
	var group sync.WaitGroup
	group.Go(func() {
		test(r)
		r.outcome.ended = false
	})
	group.Wait()
	return r.outcome
}

func TestRefuse(t *testing.T) {
	cause := errors.New("nothing here")
	for _, test := range []struct {
		from choice
		want outcome
	}{
		{choice{}, outcome{ended: true, skipped: "skipped without postgresql: nothing here"}},
		{choice{ci: true}, outcome{ended: true, failed: "no postgresql for this test: nothing here"}},
		{choice{dsn: "host=x"}, outcome{ended: true, failed: "no postgresql for this test: nothing here"}},
	} {
		if got := outcomeOf(func(t testing.TB) { refuse(t, test.from, cause) }); got != test.want {
			t.Errorf("%+v: %+v, want %+v", test.from, got, test.want)
		}
	}
}

func TestChoiceFromEnvironment(t *testing.T) {
	t.Setenv("DBCONTROLLER_TEST_DSN", "host=x")
	t.Setenv("CI", "true")
	if got, want := choiceFromEnvironment(), (choice{dsn: "host=x", ci: true}); got != want {
		t.Errorf("choice is %+v, want %+v", got, want)
	}
}

func TestGivenServer(t *testing.T) {
	admin := Postgres(t)
	old := ourDatabases + "1_oldold_1" // made in 1970
	foreign := ourDatabases + "notours"
	for _, name := range []string{old, foreign} {
		if err := admin.postgres.CreateDatabase(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := admin.postgres.DropDatabase(context.Background(), name); err != nil {
				t.Error(err)
			}
		})
	}
	given, err := start(t.Context(), choice{dsn: admin.DSN("")})
	if err != nil {
		t.Fatal(err)
	}
	dsn := given.NewDatabase(t, given.Template(t, "note", migrateNote))
	if got := queryText(t, dsn, "SELECT text FROM note"); got != "from the template" {
		t.Errorf("the row is %q", got)
	}
	if err := given.stop(); err != nil {
		t.Fatal(err)
	}
	exists := "SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database WHERE datname IN ('%s', '%s', '%s')"
	left := queryText(t, admin.DSN(""), fmt.Sprintf(exists, old, foreign, given.templates["note"].database))
	if left != foreign {
		t.Errorf("%q is left, want %s alone", left, foreign)
	}
}

func TestMadeAt(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	if got, ours := madeAt(databasePrefix(now) + "7"); !ours || !got.Equal(now) {
		t.Errorf("made at %v (%v), want %v", got, ours, now)
	}
	for _, name := range []string{
		"postgres", ourDatabases, ourDatabases + "1", ourDatabases + "!_1",
		"x" + ourDatabases + "1_1",
	} {
		if _, ours := madeAt(name); ours {
			t.Errorf("%s is taken for ours", name)
		}
	}
}

// BenchmarkNewDatabase measures the cost of a test's database.
func BenchmarkNewDatabase(b *testing.B) {
	s := Postgres(b)
	template := s.Template(b, "note", migrateNote)
	for b.Loop() {
		name := s.newName()
		if err := s.postgres.CloneDatabase(b.Context(), name, template); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.postgres.DropDatabase(b.Context(), name); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
