package test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A holder's process is started over an empty database by mistake. Other deployments ignore its answers, and
// status reports it. Over the right database everything continues; for a lost database an operator accepts
// the new one.
func TestAProcessOverAnEmptyDatabase_I2_I15(t *testing.T) {
	t.Parallel()
	const of = "b.example.com/eastus2"
	f, server, _ := movable(t, of)
	server.CreateDatabase("other")
	swap := func() {
		ctx := t.Context()
		admin, err := pgx.Connect(ctx, server.DSN("postgres"))
		require.NoError(t, err)
		defer func() { _ = admin.Close(ctx) }()
		for _, sql := range []string{
			`ALTER DATABASE own RENAME TO swapped`, `ALTER DATABASE other RENAME TO own`,
			`ALTER DATABASE swapped RENAME TO other`,
		} {
			_, err := admin.Exec(ctx, sql)
			require.NoError(t, err)
		}
	}
	p := f.Deployments[f.id(bEast+"x/y")]
	const held, acted, holder = aWest + "targets/held", aWest + "targets/acted", bEast + "holders/h"
	f.mustPut(held, nil)
	f.mustPut(acted, nil)
	f.mustPut(holder, fields{"block": held, "cascade": acted})
	f.settled()
	require.NoError(t, p.Stop())
	swap()
	require.NoError(t, p.Start())
	f.ready(of)
	f.eventually("status reports the other database", func() bool { return f.strangers("a.example.com/us-west2") })
	require.Error(t, f.delete(held))
	f.mustDelete(acted)
	out, err := run(t, "verify", "--repair", "--context", f.Context)
	require.Error(t, err, "it cannot be asked")
	require.Contains(t, out, "not compared: "+of)
	out, err = run(t, "status", "a.example.com/us-west2", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "decommission "+of+" --former-database")
	f.eventually("its own status says so too", func() bool {
		out, err = run(t, "status", of, "--context", f.Context)
		require.NoError(t, err, out)
		return strings.Contains(out, "last failure of registry for "+of) &&
			strings.Contains(out, "the registry knows this deployment over the database ")
	})
	require.NotNil(t, f.get(acted), "the holder's deployment has not acted upon its deletion")

	require.NoError(t, p.Stop())
	swap()
	require.NoError(t, p.Start())
	f.ready(of)
	f.eventually("the deletions are acted upon", func() bool { return f.get(acted) == nil && f.get(holder) == nil })
	f.mustDelete(held)
	f.mustPut(held, nil)
	f.mustPut(holder, fields{"block": held})
	f.settled()

	require.NoError(t, p.Stop())
	swap()
	require.NoError(t, p.Start())
	f.ready(of)
	out, err = run(t, "decommission", of, "--former-database", "--reason", "the disk is gone", "--context", f.Context)
	require.Error(t, err)
	require.Contains(t, out, "--yes")
	out, err = run(t, "decommission", of, "--former-database", "--reason", "the disk is gone", "--yes",
		"--context", f.Context)
	require.NoError(t, err, out)
	f.eventually("what blocked it is lost", func() bool { return f.delete(held) == nil })
	out, err = run(t, "status", "a.example.com/us-west2", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "DATABASE_ACCEPTED of "+of)
	require.False(t, f.strangers("a.example.com/us-west2"))
	out, err = run(t, "status", of, "--context", f.Context)
	require.NoError(t, err, out)
	require.NotContains(t, out, "the registry knows this deployment over")
}

// strangers reports whether a deployment has met another one with an unknown database identity.
func (f *fixture) strangers(deployment string) bool {
	for _, failure := range f.status(deployment).GetFailures() {
		if failure.GetHandler() == "database" {
			return true
		}
	}
	return false
}
