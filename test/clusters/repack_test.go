package clusters

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/test/harness"
)

// All of our tables are written anew under load: by VACUUM FULL, which keeps everybody away from a table
// meanwhile, and by pg_repack, which collects the changes by a trigger and swaps the files. Nothing is lost,
// nothing fails for good, and no epoch begins.
func TestClustersRepack(t *testing.T) {
	chosen(t)
	server, dsns := harness.NewCluster(t), map[string]string{}
	for database, at := range map[string]string{"a": aWest, "b": bWest} {
		server.CreateDatabase(database)
		dsns[at] = server.DSN(database)
	}
	f := start(t, services, dsns)
	for i := range targets {
		f.mustPut(fmt.Sprintf("%stargets/%d", aWest, i), nil)
	}
	l := f.load("repack", map[string]string{aWest: "west"})
	for way, rewrite := range map[string]func(t *testing.T, dsn string){
		"VACUUM FULL": vacuumFull,
		"pg_repack":   repack,
	} {
		for at, dsn := range dsns {
			began := time.Now()
			rewrite(t, dsn)
			t.Logf("%s of %s: %.1f s", way, at, time.Since(began).Seconds())
		}
		l.flows()
	}
	l.end()
	f.settled()
	for name, w := range l.writers {
		t.Logf("%s: %d written, at most %.1f s without one, errors %v", name, len(w.done),
			w.longest.Seconds(), w.errors)
		require.Empty(t, w.odd, "definite answers")
		for _, written := range w.done {
			require.True(t, f.exists(written), written)
		}
	}
	for i := range targets {
		require.Equal(t, codes.FailedPrecondition, status.Code(f.delete(fmt.Sprintf("%stargets/%d", aWest, i))),
			"live holders block it")
	}
	for at := range dsns {
		require.EqualValues(t, 1, f.status(t, strings.Trim(at, "/")).GetEpoch().GetOrdinal())
	}
	f.verified()
}

func vacuumFull(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	rows, err := conn.Query(t.Context(),
		`SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'dbcontroller'::regnamespace AND c.relkind = 'r'`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Greater(t, len(tables), 20)
	for _, table := range tables {
		_, err := conn.Exec(t.Context(), "VACUUM FULL "+table)
		require.NoError(t, err, table)
	}
}

func repack(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	_, err = conn.Exec(t.Context(), "CREATE EXTENSION pg_repack")
	require.NoError(t, err)
	at := conn.Config()
	cmd := exec.CommandContext(t.Context(), filepath.Join(launcher.Binaries(t.Context()), "pg_repack"), "--schema",
		"dbcontroller", "--no-kill-backend",
		"--dbname", at.Database, "--host", at.Host, "--port", strconv.Itoa(int(at.Port)), "--username", at.User)
	cmd.Env = append(cmd.Environ(), "PGPASSWORD="+at.Password)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), `repacking table "dbcontroller.shadow"`)
}
