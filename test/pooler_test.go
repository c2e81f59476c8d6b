package test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/harness"
)

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
		code, out := exitCode(t, "serve", "--deployment", id.String(), "--postgres", dsn, "--registry", "127.0.0.1:1",
			"--certs", certs, "--listen", "127.0.0.1:0", "--start-timeout", "10m")
		require.Equal(t, refused, code, out)
		return out
	}
	code, out := exitCode(t, "migrate", "up", "--postgres", server.DSN("own"))
	require.Zero(t, code, out)
	require.Contains(t, run(harness.Pooler(t, server, "own", "transaction", "").String()), "put into pgbouncer.ini: "+
		harness.IgnoredParameters()+";")
	ignoring := harness.Pooler(t, server, "own", "transaction", harness.IgnoredParameters())
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
		Databases: playground.Databases{DSNs: map[schema.DeploymentID]string{id: harness.Pooled(t, server, "own",
			"transaction")}}, Args: []string{"--tentative-ttl", "1s", "--lease", "2s"},
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
