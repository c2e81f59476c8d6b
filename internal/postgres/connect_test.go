package postgres_test

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// A session without its settings, as behind a pooler, is refused, and the error contains the statements that
// set them.
func TestConnectionsHaveTheirSettings_I22(t *testing.T) {
	t.Parallel()
	dsn := harness.Postgres(t).NewDatabase(t, "")
	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	defer pool.Close()
	err = postgres.CheckSettings(t.Context(), pool)
	require.ErrorContains(t, err, "a connection pooler ignores them; run once, directly at the server: ALTER ROLE ")
	for _, command := range []string{"SET enable_seqscan = 'off';", "SET statement_timeout = '60000';"} {
		require.ErrorContains(t, err, command)
	}
	_, commands, _ := strings.Cut(err.Error(), "server: ")
	_, err = pool.Exec(t.Context(), commands)
	require.NoError(t, err)
	pool.Reset()
	require.NoError(t, postgres.CheckSettings(t.Context(), pool))
}

// A row and a batch that are answered are as good as a ping: nothing is asked then, here of a pool that is
// closed.
func TestAnAnsweredStatementShowsThatTheDatabaseAnswers_I22(t *testing.T) {
	t.Parallel()
	dsn := harness.Postgres(t).NewDatabase(t, "")
	batch := &pgx.Batch{}
	batch.Queue("SELECT 1")
	for name, ask := range map[string]func(l *postgres.Lanes) error{
		"a row":   func(l *postgres.Lanes) error { return l.QueryRow(t.Context(), "SELECT 1").Scan(new(int)) },
		"a batch": func(l *postgres.Lanes) error { return l.SendBatch(t.Context(), batch).Close() },
	} {
		pool, err := postgres.Connect(t.Context(), dsn, "test", postgres.MinConnections)
		require.NoError(t, err)
		l := postgres.NewLanes(pool)
		require.NoError(t, l.Answers(t.Context()), "it asks")
		require.NoError(t, ask(l), name)
		answered := time.Now()
		l.Close()
		if err := l.Answers(t.Context()); time.Since(answered) < time.Second {
			require.NoError(t, err, name)
		}
		require.Eventually(t, func() bool {
			return l.Answers(t.Context()) != nil
		}, wait.Limit, 10*time.Millisecond, name)
	}
}

// Callers who end their calls at once do not make the server open connections for others: the statements of
// such calls end by themselves.
func TestCallsThatEndAtOnceKeepTheirConnections_I20(t *testing.T) {
	t.Parallel()
	const calls = 40
	pool, err := postgres.Connect(t.Context(), harness.Postgres(t).NewDatabase(t, ""), "test", postgres.MinConnections)
	require.NoError(t, err)
	defer pool.Close()
	before := pool.Stat().NewConnsCount()
	for range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, _ = pool.Exec(ctx, "SELECT pg_sleep(0.02)")
		cancel()
	}
	lost := pool.Stat().NewConnsCount() - before
	t.Logf("%d new connections", lost)
	require.LessOrEqual(t, lost, int64(calls/4))

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = pool.Exec(ctx, "SELECT pg_sleep(60)")
	require.Error(t, err)
	require.Less(t, time.Since(began), 30*time.Second, "a long statement ends with its call")
}

// A session that acknowledges commits before they are on disk is refused.
func TestASessionThatForgetsCommitsIsRefused_I29(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig(harness.Postgres(t).NewDatabase(t, ""))
	require.NoError(t, err)
	maps.Copy(cfg.ConnConfig.RuntimeParams, postgres.Settings)
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	err = postgres.CheckSettings(t.Context(), pool)
	require.ErrorContains(t, err, "SET synchronous_commit = 'on';")
	require.NotContains(t, err.Error(), "enable_seqscan")
}

func TestOtherMachinesAreConnectedToWithVerifiedTLS(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca")
	authority, err := playground.OpenAuthority(ca, "example.org")
	require.NoError(t, err)
	require.NoError(t, authority.IssueHost(ca, "db.example.org"))
	root := "&sslrootcert=" + filepath.Join(ca, "ca.crt")
	for dsn, ok := range map[string]bool{
		"postgres://u@127.0.0.1/db":                                                                    true,
		"postgres://u@[::1]/db?sslmode=disable":                                                        true,
		"postgres://u@localhost/db":                                                                    true,
		"host=/var/run/postgresql dbname=db":                                                           true,
		"postgres://u@db.example.org/db?sslmode=verify-full" + root:                                    true,
		"postgres://u@db.example.org/db":                                                               false,
		"postgres://u@db.example.org/db?sslmode=disable":                                               false,
		"postgres://u@db.example.org/db?sslmode=prefer":                                                false,
		"postgres://u@db.example.org/db?sslmode=require":                                               false,
		"postgres://u@db.example.org/db?sslmode=require" + root:                                        false,
		"postgres://u@db.example.org/db?sslmode=verify-ca" + root:                                      false,
		"postgres://u@127.0.0.1,db.example.org/db?sslmode=disable":                                     false,
		"postgres://u@127.0.0.1.example.org/db?sslmode=disable":                                        false,
		"postgres://u@db.example.org,other.example.org/db?sslmode=require":                             false,
		"postgres://u@10.0.0.7/db?sslmode=disable":                                                     false,
		"host=db.example.org dbname=db sslmode=verify-full sslrootcert=" + filepath.Join(ca, "ca.crt"): true,
	} {
		err := postgres.CheckTLS(dsn)
		require.Equal(t, ok, err == nil, "%s: %v", dsn, err)
		if !ok {
			require.ErrorContains(t, err, "use sslmode=verify-full", dsn)
		}
	}
	require.EqualError(t, postgres.CheckTLS("postgres://u:s3cr3t@host:port/db"), "not a PostgreSQL connection string")
	file := filepath.Join(ca, "services")
	require.NoError(t, os.WriteFile(file, []byte("[shop]\nhost=localhost\n"), 0o600))
	require.NoError(t, postgres.CheckTLS("service=shop servicefile="+file))
	err = postgres.CheckTLS("service=crm password=s3cr3t servicefile=" + file)
	require.EqualError(t, err, "the service of the connection string: unable to find service: crm")
}

// A real server with certificates: a connection to a server with another name or another authority is
// refused.
func TestTheCertificateOfTheServerIsVerified(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority, err := playground.OpenAuthority(filepath.Join(dir, "authority"), "example.org")
	require.NoError(t, err)
	other, err := playground.OpenAuthority(filepath.Join(dir, "other"), "example.org")
	require.NoError(t, err)
	good, wrong := filepath.Join(dir, "good"), filepath.Join(dir, "wrong")
	require.NoError(t, authority.IssueHost(good, "127.0.0.1"))
	require.NoError(t, authority.IssueHost(wrong, "db.example.org"))
	require.NoError(t, other.IssueHost(filepath.Join(dir, "theirs"), "127.0.0.1"))
	for certs, ok := range map[string]bool{good: true, wrong: false, filepath.Join(dir, "theirs"): false} {
		server := harness.NewClusterWith(t, certs)
		dsn, err := url.Parse(server.DSN(""))
		require.NoError(t, err)
		q := dsn.Query()
		q.Set("sslmode", "verify-full")
		q.Set("sslrootcert", filepath.Join(good, "ca.crt"))
		dsn.RawQuery = q.Encode()
		require.NoError(t, postgres.CheckTLS(dsn.String()))
		pool, err := postgres.Connect(t.Context(), dsn.String(), "test", 4)
		require.Equal(t, ok, err == nil, "%s: %v", certs, err)
		if !ok {
			require.ErrorContains(t, err, "certificate")
			continue
		}
		var version string
		require.NoError(t,
			pool.QueryRow(t.Context(), `SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&version))
		require.Equal(t, "TLSv1.3", version)
		pool.Close()
	}
}

// A server that fires no triggers by default, or does not say by what a failover is noticed, is refused at
// the start, with the remedy.
func TestAServerThatLacksWhatIsNeededIsRefused_I2(t *testing.T) {
	t.Parallel()
	dsn := harness.Postgres(t).NewDatabase(t, "")
	admin, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = admin.Close(context.Background()) }()
	exec := func(sql string) {
		t.Helper()
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	cfg := admin.Config()
	role := "managed_" + cfg.Database
	exec(fmt.Sprintf(
		`CREATE ROLE %[1]s LOGIN PASSWORD 'secret'; ALTER ROLE %[1]s IN DATABASE %[2]s SET session_replication_role = replica`, role, cfg.Database))
	defer func() {
		_, err := admin.Exec(context.Background(), fmt.Sprintf(`DROP OWNED BY %[1]s; DROP ROLE %[1]s`, role))
		require.NoError(t, err)
	}()
	as := fmt.Sprintf("postgres://%s:secret@%s:%d/%s?sslmode=disable", role, cfg.Host, cfg.Port, cfg.Database)
	connect := func() error {
		pool, err := postgres.Connect(t.Context(), as, "test", 4)
		if err == nil {
			pool.Close()
		}
		return err
	}
	err = connect()
	require.ErrorContains(t, err, `ALTER ROLE "`+role+`" RESET session_replication_role`)
	require.True(t, postgres.Refused(err), "waiting does not change it")

	exec(fmt.Sprintf(
		`ALTER ROLE %s IN DATABASE %s RESET session_replication_role; REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`, role, cfg.Database))
	err = connect()
	require.ErrorContains(t, err, "by which failovers and restores are noticed; docs/managed.md")
	require.ErrorContains(t, err, "permission denied for function pg_control_system")
	require.True(t, postgres.Refused(err))
	exec(`GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC`)
	require.NoError(t, connect())
}
