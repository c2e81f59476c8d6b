package test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An operator lets a deployment delete again that waits for another one's comparison: with a reason, with
// --yes, and once.
func TestDeletesGoOnWithoutAComparison_I13(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const deployment, other = "a.example.com/us-west2", "b.example.com/eastus2"
	f.mustPut(aWest+"targets/t", nil)
	require.NoError(t, f.Deployments[f.id(bEast+"x/y")].Kill())
	conn, err := pgx.Connect(t.Context(), f.Deployments[f.id(aWest+"x/y")].DSN)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	// As after a failover that the other one was told of, or has announced, before it went away.
	_, err = conn.Exec(t.Context(),
		`INSERT INTO dbcontroller.deployment (service, region) VALUES ('b.example.com', 'eastus2') ON CONFLICT DO NOTHING`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(),
		`UPDATE dbcontroller.deployment SET uncompared = true WHERE service = 'b.example.com' AND region = 'eastus2'`)
	require.NoError(t, err)
	err = f.delete(aWest + "targets/t")
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorContains(t, err, other)

	release := func(args ...string) (string, error) {
		return run(t, append([]string{"force-release", deployment, "--context", f.Context}, args...)...)
	}
	for want, args := range map[string][]string{
		"--comparison-of: ":                   {"--comparison-of", "", "--reason", "it burnt", "--yes"},
		"--reason is missing":                 {"--comparison-of", other, "--yes"},
		"add --yes to continue":               {"--comparison-of", other, "--reason", "it burnt"},
		`--comparison-of: region "eastus2/x"`: {"--comparison-of", other + "/x", "--reason", "it burnt", "--yes"},
	} {
		out, err := release(args...)
		require.Error(t, err)
		require.Contains(t, out, want)
	}
	require.Equal(t, codes.Unavailable, status.Code(f.delete(aWest+"targets/t")), "nothing was said yet")
	out, err := release("--comparison-of", other+"x", "--reason", "it burnt", "--yes")
	require.Error(t, err)
	require.Contains(t, out, other+"x is not registered, and "+deployment+" does not wait for it; it waits for: "+other+
		"\n")
	for _, says := range []string{" no longer waits for " + other, "nothing has changed: " + deployment +
		" did not wait for " + other + "; it waits for: none"} {
		out, err := release("--comparison-of", other, "--reason", "it burnt", "--yes")
		require.NoError(t, err, out)
		require.Contains(t, out, says)
	}
	f.mustDelete(aWest + "targets/t")
	out, err = run(t, "status", deployment, "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "it burnt")
	var words int
	require.NoError(t,
		conn.QueryRow(t.Context(),
			`SELECT count(*) FROM dbcontroller.word WHERE what = 'COMPARISON_WAIVED' AND reason = 'it burnt'`).
			Scan(&words))
	require.Equal(t, 1, words)
}
