package test

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// pooled starts pgbouncer in transaction mode before a database, and returns the DSN through it.
func pooled(t *testing.T, server *harness.Cluster, database string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("pgbouncer is not installed")
	}
	dsn, err := url.Parse(server.DSN(database))
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), server.DSN(database))
	require.NoError(t, err)
	for name, value := range map[string]string{ // as the first start says
		"enable_seqscan": "off", "jit": "off", "max_parallel_workers_per_gather": "0", "statement_timeout": "60000", "lock_timeout": "10000", "idle_in_transaction_session_timeout": "30000",
	} {
		_, err := conn.Exec(t.Context(), "ALTER DATABASE "+pgx.Identifier{database}.Sanitize()+" SET "+name+" = '"+value+"'")
		require.NoError(t, err)
	}
	require.NoError(t, conn.Close(t.Context()))
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
ignore_startup_parameters = statement_timeout,lock_timeout,idle_in_transaction_session_timeout,enable_seqscan,jit,max_parallel_workers_per_gather,search_path
`, dsn.Hostname(), dsn.Port(), dsn.User.Username(), password, host, port), 0o644)) //nolint:gosec // as said
	args := []string{file}
	if os.Getuid() == 0 { // it refuses to run as root
		args = append(args, "-u", "nobody")
	}
	cmd := exec.Command(program, args...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	dsn.Host = addresses[0]
	query := dsn.Query()
	query.Set("default_query_exec_mode", "cache_describe")
	dsn.RawQuery = query.Encode()
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(t.Context(), dsn.String())
		if err == nil {
			err = conn.Close(t.Context())
		}
		return err == nil
	}, wait.Limit, poll)
	return dsn.String()
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
		DSNs: map[schema.DeploymentID]string{id: pooled(t, server, "own")}, Args: []string{"--tentative-ttl", "1s", "--lease", "2s"},
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
