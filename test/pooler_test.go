package test

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// pooled starts pgbouncer in transaction mode before a database, as the manual says, and returns the DSN through it.
func pooled(t *testing.T, server *harness.Cluster, database string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN(database))
	require.NoError(t, err)
	for name, value := range postgres.Settings { // as the first start says
		if name == "search_path" {
			continue
		}
		_, err := conn.Exec(t.Context(), "ALTER ROLE CURRENT_USER IN DATABASE "+pgx.Identifier{database}.Sanitize()+" SET "+name+" = '"+value+"'")
		require.NoError(t, err)
	}
	require.NoError(t, conn.Close(t.Context()))
	dsn := bouncer(t, server, database, "ignore_startup_parameters = "+strings.Join(slices.Sorted(maps.Keys(postgres.Settings)), ", "))
	query := dsn.Query()
	query.Set("default_query_exec_mode", "cache_describe")
	dsn.RawQuery = query.Encode()
	return dsn.String()
}

// bouncer starts pgbouncer in transaction mode before a database, with a further line in its file.
func bouncer(t *testing.T, server *harness.Cluster, database, line string) *url.URL {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("pgbouncer is not installed")
	}
	dsn, err := url.Parse(server.DSN(database))
	require.NoError(t, err)
	addresses, err := playground.FreeAddresses(1)
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(addresses[0])
	require.NoError(t, err)
	password, _ := dsn.User.Password()
	dir, err := os.MkdirTemp("", "db-controller-pooler-") // which the pooler's user can read
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // as said
	file := filepath.Join(dir, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `[databases]
* = host=%s port=%s user=%s password=%s
[pgbouncer]
listen_addr = %s
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = transaction
%s
`, dsn.Hostname(), dsn.Port(), dsn.User.Username(), password, host, port, line), 0o644)) //nolint:gosec // as said
	args := []string{file}
	if os.Getuid() == 0 { // it refuses to run as root
		args = append(args, "-u", "nobody")
	}
	cmd := exec.Command(program, args...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	dsn.Host = addresses[0]
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(t.Context(), dsn.String())
		if err == nil {
			err = conn.Close(t.Context())
		}
		return err == nil
	}, wait.Limit, poll)
	return dsn
}

// A pooler that is not set up is told from an outage: the process ends at once, with exit code 4 and the
// remedy, for each mistake.
func TestAPoolerThatIsNotSetUpIsNoOutage(t *testing.T) {
	t.Parallel()
	server := harness.NewCluster(t)
	server.CreateDatabase("own")
	id, err := schema.ParseDeploymentID("b.example.com/us-west2")
	require.NoError(t, err)
	authority, err := playground.NewAuthority()
	require.NoError(t, err)
	certs := filepath.Join(t.TempDir(), "certs")
	require.NoError(t, authority.Issue(certs, identity.Deployment(id)))
	run := func(dsn string) string {
		code, out := exitCode(t, "serve", "--deployment", id.String(), "--postgres", dsn, "--registry", "127.0.0.1:1", "--certs", certs, "--listen", "127.0.0.1:0", "--start-timeout", "10m")
		require.Equal(t, refused, code, out)
		return out
	}
	code, out := exitCode(t, "migrate", "up", "--postgres", server.DSN("own"))
	require.Zero(t, code, out)
	require.Contains(t, run(bouncer(t, server, "own", "").String()), "put into pgbouncer.ini: ignore_startup_parameters = enable_seqscan, idle_in_transaction_session_timeout, jit, ")
	ignoring := bouncer(t, server, "own", "ignore_startup_parameters = "+strings.Join(slices.Sorted(maps.Keys(postgres.Settings)), ", "))
	query := ignoring.Query()
	query.Set("default_query_exec_mode", "cache_describe")
	ignoring.RawQuery = query.Encode()
	require.Contains(t, run(ignoring.String()), "run once, directly at the server: ALTER ROLE ")
}

// Behind a pooler in transaction mode, processes share the work, pause and crash as without one.
func TestProcessesBehindAPooler_I18(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts six processes")
	}
	const deployment = "b.example.com/us-west2"
	server := harness.NewCluster(t)
	server.CreateDatabase("own")
	id, err := schema.ParseDeploymentID(deployment)
	require.NoError(t, err)
	f := &fixture{t: t, Processes: harness.NewProcessesWith(t, everything, playground.Config{
		Databases: playground.Databases{DSNs: map[schema.DeploymentID]string{id: pooled(t, server, "own")}}, Args: []string{"--tentative-ttl", "1s", "--lease", "2s"},
	})}
	second := f.another(deployment, "second")
	f.shared(deployment, 2)
	f.tearDown("pauses", 2000, func() { require.NoError(t, second.Signal(syscall.SIGSTOP)) })
	f.shared(deployment, 1)
	require.NoError(t, second.Signal(syscall.SIGCONT))
	f.shared(deployment, 2)
	f.tearDown("dies", 2000, func() { require.NoError(t, second.Kill()) })
	f.shared(deployment, 1)
	f.settled()
}
