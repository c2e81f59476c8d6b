package launcher

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"

	"github.com/db-controller/db-controller/test/rounds"
	"github.com/db-controller/db-controller/test/wait"
)

// parentEnv makes TestPostgresParent do its work.
const parentEnv = "PLAYGROUND_TEST_PARENT"

// openDir returns a temporary folder that every user can reach: the one of the
// testing package is closed, and servers do not run as root.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPostgresParent is no test but the process that TestPostgresEndsWithItsParent
// kills: it starts a server, says where, and waits for its end.
func TestPostgresParent(t *testing.T) {
	if os.Getenv(parentEnv) == "" {
		t.Skip("only for TestPostgresEndsWithItsParent")
	}
	p, err := Start(context.Background(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%s\n%s\n", p.folder.path, p.DSN(""))
	select {}
}

// localRunner returns the binaries on this machine; without any the test is
// skipped, except where a machine has been set up for the tests.
func localRunner(t *testing.T) serverRunner {
	t.Helper()
	r, err := findRunner(t.Context(), "")
	if _, local := r.(*binaryServer); err == nil && local {
		return r
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("no PostgreSQL binaries here, %s", installAdvice())
	}
	t.Skipf("no PostgreSQL binaries here, %s", installAdvice())
	return nil
}

func startLocal(t *testing.T, cfg Config) *Server {
	t.Helper()
	localRunner(t)
	cfg.Logger = zaptest.NewLogger(t)
	p, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, dsn, statement string) {
	t.Helper()
	if _, err := connect(t, dsn).Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func queryText(t *testing.T, dsn, query string) string {
	t.Helper()
	var text string
	if err := connect(t, dsn).QueryRow(t.Context(), query).Scan(&text); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return text
}

func TestPostgresStartsAndStops(t *testing.T) {
	p := startLocal(t, Config{Settings: map[string]string{"work_mem": "5MB", "max_connections": "20"}})
	t.Log(p.Source())
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", // durable by default
		"work_mem": "5MB", "max_connections": "20", "shared_buffers": "256MB",
		"listen_addresses": "127.0.0.1", "password_encryption": "scram-sha-256",
	} {
		if got := queryText(t, p.DSN(""), "SHOW "+setting); got != want {
			t.Errorf("%s is %s, want %s", setting, got, want)
		}
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("second stop: %v", err)
	}
	if _, err := os.Stat(p.folder.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary folder is still there: %v", err)
	}
	if _, err := pgx.Connect(t.Context(), p.DSN("")); err == nil {
		t.Error("the server still accepts connections")
	}
}

func TestPostgresStopEndsConnections(t *testing.T) {
	p := startLocal(t, Config{})
	conn := connect(t, p.DSN(""))
	began := time.Now()
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took >= fastLimit {
		t.Errorf("stop took %v with a client connected, that was no fast shutdown", took)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the connection survived the server")
	}
}

func TestPostgresAsksForThePassword(t *testing.T) {
	p := startLocal(t, Config{})
	wrong := strings.Replace(p.DSN(""), p.folder.password, "wrong", 1)
	if _, err := pgx.Connect(t.Context(), wrong); err == nil {
		t.Error("a wrong password was accepted over tcp")
	}
	info, err := os.Stat(p.folder.path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o700 {
		t.Errorf("the folder of the trusted socket has mode %v, want 0700", got)
	}
}

func TestPostgresDatabases(t *testing.T) {
	p := startLocal(t, Config{})
	const template, clone = "a template", `odd "name" with 'quotes'`
	if err := p.CreateDatabase(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, p.DSN(template))
	if _, err := conn.Exec(t.Context(), "CREATE TABLE note AS SELECT 'hello' AS text"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.CloneDatabase(t.Context(), clone, template); err != nil {
		t.Fatal(err)
	}
	if got := queryText(t, p.DSN(clone), "SELECT text FROM note"); got != "hello" {
		t.Errorf("the clone holds %q, want hello", got)
	}
	if err := p.DropDatabase(t.Context(), clone); err != nil { // a connection is open
		t.Fatal(err)
	}
	if err := p.DropDatabase(t.Context(), clone); err != nil {
		t.Errorf("drop a database that is gone: %v", err)
	}
	if _, err := pgx.Connect(t.Context(), p.DSN(clone)); err == nil {
		t.Error("the dropped database accepts connections")
	}
}

func TestPostgresKeepsItsFolder(t *testing.T) {
	dir := filepath.Join(openDir(t), "server")
	first := startLocal(t, Config{Dir: dir})
	execute(t, first.DSN(""), "CREATE TABLE note AS SELECT 'kept' AS text")
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	second := startLocal(t, Config{Dir: dir})
	if got := queryText(t, second.DSN(""), "SELECT text FROM note"); got != "kept" {
		t.Errorf("read %q, want kept", got)
	}
	if _, err := Start(t.Context(), Config{Dir: dir}); err == nil {
		t.Error("two servers run on one folder")
	} else {
		t.Log(err)
	}
	if got := queryText(t, second.DSN(""), "SELECT text FROM note"); got != "kept" {
		t.Errorf("after the refused start: read %q, want kept", got)
	}
}

func TestPostgresRefusesAForeignFolder(t *testing.T) {
	dir := openDir(t)
	mine := filepath.Join(dir, "mine.txt")
	if err := os.WriteFile(mine, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := startWith(t.Context(), Config{Dir: dir, Logger: zap.NewNop()}, localRunner(t), freePort)
	if err == nil || !strings.Contains(err.Error(), "holds other files") {
		t.Errorf("error is %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the folder holds %v (%v), want it untouched", entries, err)
	}
}

func TestPostgresSaysWhyItDoesNotStart(t *testing.T) {
	localRunner(t)
	_, err := Start(t.Context(), Config{Settings: map[string]string{"shared_buffers": "lots"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "shared_buffers"`) {
		t.Errorf("error is %v, want the server's own words", err)
	}
}

func TestPostgresRefusesContradictions(t *testing.T) {
	for want, cfg := range map[string]Config{
		"leave the setting port out": {Settings: map[string]string{"port": "5432"}},
		"leave out Dir or InMemory":  {Dir: openDir(t), InMemory: true},
	} {
		if _, err := Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %s", err, want)
		}
	}
}

func TestPostgresInMemory(t *testing.T) {
	memory := MemoryFolder()
	if memory == "" {
		t.Skip("no folder in memory here")
	}
	p := startLocal(t, Config{InMemory: true})
	if filepath.Dir(p.folder.path) != memory {
		t.Errorf("the folder is %s, want it in %s", p.folder.path, memory)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.folder.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary folder is still there: %v", err)
	}
}

func TestPostgresTakesAnotherPort(t *testing.T) {
	r := localRunner(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	var calls atomic.Int32
	choose := func() (int, error) {
		if calls.Add(1) == 1 {
			return listener.Addr().(*net.TCPAddr).Port, nil
		}
		return freePort()
	}
	p, err := startWith(t.Context(), Config{Logger: zaptest.NewLogger(t)}, r, choose)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := calls.Load(); got != 2 {
		t.Errorf("chose a port %d times, want 2", got)
	}
}

func TestPostgresUsesTheGivenServer(t *testing.T) {
	server := startLocal(t, Config{})
	given, err := Start(t.Context(), Config{DSN: server.DSN("")})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(given.Source(), server.folder.password) || !strings.HasPrefix(given.Source(), "PostgreSQL ") {
		t.Errorf("source is %q", given.Source())
	}
	if err := given.CreateDatabase(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if err := given.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := queryText(t, server.DSN("x"), "SELECT current_database()::text"); got != "x" {
		t.Errorf("current database is %q, want x", got)
	}
}

func TestPostgresReportsAMissingServer(t *testing.T) {
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), Config{DSN: ownDSN(port, "secret")})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error is %v", err)
	}
}

// TestPostgresEndsWithItsParent kills a process that has started a server, and
// expects neither server nor folder to outlive it.
func TestPostgresEndsWithItsParent(t *testing.T) {
	localRunner(t)
	parent := exec.Command(os.Args[0], "-test.run=^TestPostgresParent$")
	parent.Env = append(os.Environ(), parentEnv+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = parent.Process.Kill() })
	lines := bufio.NewScanner(out)
	read := func() string {
		if !lines.Scan() {
			t.Fatalf("the parent process ended: %v", lines.Err())
		}
		return lines.Text()
	}
	folder, dsn := read(), read()
	conn := connect(t, dsn)

	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // "killed"
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	if _, err := conn.WaitForNotification(ctx); err == nil || ctx.Err() != nil {
		t.Fatalf("the server outlives its parent: %v", err)
	}
	waitGone(ctx, t, folder)
}

// TestPostgresReportsItsEnd ends the server behind our back: that gets logged,
// and Stop cleans up all the same.
func TestPostgresReportsItsEnd(t *testing.T) {
	localRunner(t)
	reports := make(chan string, 1)
	logger := zaptest.NewLogger(t, zaptest.WrapOptions(zap.Hooks(func(entry zapcore.Entry) error {
		if entry.Level == zap.ErrorLevel {
			reports <- entry.Message
		}
		return nil
	})))
	p, err := Start(t.Context(), Config{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.process.command.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if got := <-reports; got != "postgresql ended unexpectedly" {
		t.Errorf("logged %q", got)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(p.folder.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary folder is still there: %v", err)
	}
}

// waitGone waits until the path does not exist.
func waitGone(ctx context.Context, t *testing.T, path string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s is still there", path)
		case <-tick.C:
		}
	}
}

// TestPostgresInAContainer covers the way for machines with a container engine
// and no binaries, with an image of the binaries on this machine.
func TestPostgresInAContainer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts containers")
	}
	if !engineAnswers(t.Context()) {
		t.Skip("no container engine answers")
	}
	local := localRunner(t).(*binaryServer)
	out, err := exec.CommandContext(t.Context(), "sh", "../../../test/containers/image.sh", local.dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	image := strings.TrimSpace(string(out))
	for name, dir := range map[string]string{"temporary": "", "kept": filepath.Join(t.TempDir(), "server")} {
		t.Run(name, func(t *testing.T) {
			if dir != "" {
				rounds.OnlyLong(t, "it starts two more containers")
			}
			if dir != "" && runtime.GOOS == "linux" && os.Geteuid() != 0 {
				t.Skip("only root can remove the files of the container's user")
			}
			cfg := Config{Dir: dir, Logger: zaptest.NewLogger(t)}
			p, err := startWith(t.Context(), cfg, &containerServer{image: image}, freePort)
			if err != nil {
				t.Fatal(err)
			}
			execute(t, p.DSN(""), "CREATE TABLE note AS SELECT 'kept' AS text")
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
			if dir == "" {
				return
			}
			p, err = startWith(t.Context(), cfg, &containerServer{image: image}, freePort)
			if err != nil {
				t.Fatal(err)
			}
			if got := queryText(t, p.DSN(""), "SELECT text FROM note"); got != "kept" {
				t.Errorf("read %q, want kept", got)
			}
			if err := p.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBinaryFolders(t *testing.T) {
	root := openDir(t)
	onPath := filepath.Join(root, "on-path")
	for _, dir := range []string{
		"on-path", "usr/lib/postgresql/9/bin", "usr/lib/postgresql/17/bin", "usr/lib/postgresql/15/bin",
		"opt/homebrew/opt/postgresql@16/bin", "opt/homebrew/opt/postgresql@18/bin",
		"Applications/Postgres.app/Contents/Versions/17/bin",
	} {
		writeBinaries(t, filepath.Join(root, dir), "1")
	}
	clients := filepath.Join(root, "usr/lib/postgresql/19/bin") // without a server
	if err := os.MkdirAll(clients, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", onPath)
	want := []string{
		"on-path", "usr/lib/postgresql/17/bin", "usr/lib/postgresql/15/bin", "usr/lib/postgresql/9/bin",
		"opt/homebrew/opt/postgresql@18/bin", "opt/homebrew/opt/postgresql@16/bin",
		"Applications/Postgres.app/Contents/Versions/17/bin",
	}
	var got []string
	for _, dir := range binaryFolders(root) {
		relative, err := filepath.Rel(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, relative)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("folders are\n%v, want\n%v", got, want)
	}
}

// writeBinaries writes programs that do nothing but name their version.
func writeBinaries(t *testing.T, dir, version string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFindRunnerMatchesTheData(t *testing.T) {
	bin, dir := openDir(t), openDir(t)
	writeBinaries(t, bin, "99.1 (Example 99.1-1)")
	t.Setenv("PATH", bin)
	if err := os.Mkdir(filepath.Join(dir, dataName), 0o700); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[int]string{99: "PostgreSQL 99.1 binaries in " + bin, 98: ""} {
		file := filepath.Join(dir, dataName, "PG_VERSION")
		if err := os.WriteFile(file, []byte(strconv.Itoa(version)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := findRunner(t.Context(), dir)
		switch {
		case want == "" && (err == nil || !strings.Contains(err.Error(), "needs PostgreSQL 98")):
			t.Errorf("version %d: runner %v, error %v", version, r, err)
		case want != "" && (err != nil || r.source() != want):
			t.Errorf("version %d: runner %v, error %v, want %s", version, r, err, want)
		}
	}
}

func TestChooseAccount(t *testing.T) {
	users := func(known ...user.User) func(string) (*user.User, error) {
		return func(name string) (*user.User, error) {
			for _, one := range known {
				if one.Username == name {
					return &one, nil
				}
			}
			return nil, user.UnknownUserError(name)
		}
	}
	nobody := user.User{Username: "nobody", Uid: "65534", Gid: "65533"}
	postgres := user.User{Username: "postgres", Uid: "70", Gid: "71"}
	for name, test := range map[string]struct {
		uid    int
		lookup func(string) (*user.User, error)
		want   string
	}{
		"not root":       {1000, users(nobody, postgres), "<nil> <nil>"},
		"postgres first": {0, users(nobody, postgres), "&{postgres 70 71} <nil>"},
		"else nobody":    {0, users(nobody), "&{nobody 65534 65533} <nil>"},
	} {
		found, err := chooseAccount(test.uid, test.lookup)
		if got := fmt.Sprint(found, err); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	if _, err := chooseAccount(0, users()); err == nil {
		t.Error("root without another user: no error")
	}
}

func TestCheckReachable(t *testing.T) {
	closed := filepath.Join(openDir(t), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	stranger := &serverAccount{name: "stranger", uid: 4000000, gid: 4000000}
	if err := checkReachable(closed, stranger); err != nil {
		t.Errorf("the parents are open: %v", err)
	}
	inside := filepath.Join(closed, "inside")
	if err := checkReachable(inside, stranger); err == nil || !strings.Contains(err.Error(), "chmod o+x "+closed) {
		t.Errorf("error is %v", err)
	}
	if err := checkReachable(inside, nil); err != nil {
		t.Errorf("for ourselves: %v", err)
	}
}

func TestInstallCommand(t *testing.T) {
	for _, test := range []struct {
		goos, release string
		root          bool
		want          string
	}{
		{"darwin", "", false, "brew install postgresql@17"},
		{"linux", "NAME=x\nID=debian\n", true, "apt-get install -y postgresql"},
		{"linux", "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", false, "sudo apt-get install -y postgresql"},
		{"linux", "VERSION_ID=42\nID=fedora\n", false, "sudo dnf install postgresql-server"},
		{"linux", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", true, "dnf install postgresql-server"},
		{"linux", "", true, "the package manager of this system (the PostgreSQL server package)"},
	} {
		if got := installCommand(test.goos, test.release, test.root); got != test.want {
			t.Errorf("%s %q: %q, want %q", test.goos, test.release, got, test.want)
		}
	}
}

func TestWithDatabase(t *testing.T) {
	for _, dsn := range []string{
		"postgres://me:pw@127.0.0.1:5433/postgres?sslmode=disable",
		"postgresql://me:pw@127.0.0.1:5433?sslmode=disable&dbname=other",
		"host=127.0.0.1 port=5433 user=me password=pw dbname=postgres sslmode=disable",
	} {
		for _, database := range []string{"plain", "two words", `odd'\name`, "a/b?c"} {
			parsed, err := pgx.ParseConfig(withDatabase(dsn, database))
			if err != nil {
				t.Errorf("%s with %s: %v", dsn, database, err)
				continue
			}
			if parsed.Database != database || parsed.Port != 5433 || parsed.User != "me" || parsed.Password != "pw" {
				t.Errorf("%s with %s names %s@%d/%s", dsn, database, parsed.User, parsed.Port, parsed.Database)
			}
		}
	}
}
