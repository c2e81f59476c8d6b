package test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// delete --wait shows the counts of a deletion in all deployments, and the work that goes on when its time is
// up.
func TestADeleteShowsItsProgress(t *testing.T) {
	f := newFixture(t)
	f.mustPut(aWest+"targets/x", fields{})
	f.mustPut(bEast+"holders/h", fields{"cascade": aWest + "targets/x"})
	f.mustPut(bWest+"holders/u", fields{"unset": fields{"list": []any{aWest + "targets/x"}}})
	out, err := run(t, "delete", aWest+"targets/x", "--wait", "1m", "--context", f.Context, "--progress", "plain")
	require.NoError(t, err, out)
	require.Regexp(t, `targets/x deleted, after .*: 2 resources removed, 1 reference unset in 3 deployments`, out)

	f.mustPut(aWest+"targets/y", fields{})
	f.mustPut(bEast+"holders/y", fields{"asyncCascade": aWest + "targets/y"})
	f.settled()
	dark := f.Deployments[f.id(bEast+"holders/h")]
	require.NoError(t, dark.Stop())
	out, err = run(t, "delete", aWest+"targets/y", "--wait", "4s", "--context", f.Context, "--progress", "plain")
	require.Error(t, err)
	require.Contains(t, out,
		"targets/y still exists after 4s; its deletion continues (0 of 1 resource removed in 1 deployment so far); explain //")
	require.Contains(t, out, "0 of 1 resource removed in 1 deployment\n", "a line of progress")
	out, err = run(t, "explain", aWest+"targets/y", "--context", f.Context)
	require.NoError(t, err)
	require.Regexp(t, `deletion of //a.example.com/us-west2/targets/y, for .*: here 0 of 1 resource removed`, out)
	out, err = run(t, "status", "a.example.com/us-west2", "--context", f.Context)
	require.NoError(t, err)
	require.Contains(t, out, "deletion of //a.example.com/us-west2/targets/y")

	require.NoError(t, dark.Start())
	f.ready("b.example.com/eastus2")
	f.gone(bEast+"holders/y", aWest+"targets/y")
}
