package harness

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
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/test/wait"
)

// IgnoredParameters is the line of pgbouncer.ini that db-controller needs.
func IgnoredParameters() string {
	return "ignore_startup_parameters = " + strings.Join(slices.Sorted(maps.Keys(postgres.Settings)), ", ")
}

// Pooled starts pgbouncer in a mode before a database, as the manual says, and returns the DSN through it.
func Pooled(t testing.TB, server *Cluster, database, mode string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN(database))
	require.NoError(t, err)
	for name, value := range postgres.Settings { // as the first start says
		if name == "search_path" {
			continue
		}
		_, err := conn.Exec(t.Context(), "ALTER ROLE CURRENT_USER IN DATABASE "+pgx.Identifier{database}.Sanitize()+
			" SET "+name+" = '"+value+"'")
		require.NoError(t, err)
	}
	require.NoError(t, conn.Close(t.Context()))
	dsn := Pooler(t, server, database, mode, IgnoredParameters())
	if mode == "transaction" {
		query := dsn.Query()
		query.Set("default_query_exec_mode", "cache_describe")
		dsn.RawQuery = query.Encode()
	}
	return dsn.String()
}

// Pooler starts pgbouncer in a mode before a database, with a further line in its file.
func Pooler(t testing.TB, server *Cluster, database, mode, line string) *url.URL {
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
pool_mode = %s
%s
`, dsn.Hostname(), dsn.Port(), dsn.User.Username(), password, host, port, mode, line), 0o644)) //nolint:gosec // as said
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
	}, wait.Limit, wait.Poll)
	return dsn
}
