package test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// stuck lists the waiting work of all deployments, with the deployment waited for; a pause stops deletes, is
// shown with its reason, and ends.
func TestOperatorsSeeWhatIsStuckAndPauseDeletions(t *testing.T) {
	f := newFixture(t)
	f.mustPut(aWest+"targets/x", fields{})
	f.mustPut(bEast+"holders/h", fields{"asyncCascade": aWest + "targets/x"})
	f.mustPut(aWest+"targets/z", fields{})
	f.mustPut(bEast+"holders/kept", fields{"asyncCascade": aWest + "targets/z"})
	f.settled()
	out, err := run(t, "pause", "b.example.com/eastus2", "--of", "a.example.com/us-west2", "--reason", "ticket 4711",
		"--context", f.Context)
	require.NoError(t, err, out)
	f.mustDelete(aWest + "targets/x")
	stuck := regexp.MustCompile(
		`a\.example\.com/us-west2 +DELETING +//a\.example\.com/us-west2/targets/x .*WAITING for b\.example\.com/eastus2`)
	f.eventually("it is stuck", func() bool {
		out, err = run(t, "stuck", "a.example.com", "--longer", "1s", "--context", f.Context)
		require.NoError(t, err, out)
		return stuck.MatchString(out)
	})
	out, err = run(t, "status", "b.example.com/eastus2", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "deletions of a.example.com/us-west2 are paused here")
	require.Regexp(t, "follows deletions of .*a.example.com/us-west2", out)
	require.Regexp(t, `DELETIONS_PAUSED of a\.example\.com/us-west2, by operator/.*: ticket 4711`, out)

	for args, want := range map[string]string{
		aWest +
			"targets/x": `b.example.com/eastus2 tries its work for a.example.com/us-west2 now`,
		"b.example.com/eastus2":                            `b.example.com/eastus2 tries all its work now`,
		"b.example.com/eastus2 --of a.example.com/eastus2": `b.example.com/eastus2 tries its work for a.example.com/eastus2 now`,
	} {
		out, err = run(t, append(append([]string{"retry"}, strings.Fields(args)...), "--reason", "ticket 4713",
			"--context", f.Context)...)
		require.NoError(t, err, out)
		require.Contains(t, out, want)
	}
	f.forceReleaseOfAnEntry()

	out, err = run(t, "pause", "a.example.com/eastus2", "--reason", "ticket 4712", "--context", f.Context)
	require.NoError(t, err, out)
	f.mustPut(aEast+"targets/y", fields{})
	out, err = run(t, "delete", aEast+"targets/y", "--timeout", "2s", "--context", f.Context)
	require.Error(t, err)
	require.Contains(t, out, "an operator has paused deletions")

	for _, args := range [][]string{{"resume", "a.example.com/eastus2"}, {
		"resume", "b.example.com/eastus2", "--of",
		"a.example.com/us-west2",
	}} {
		out, err = run(t, append(args, "--reason", "done", "--context", f.Context)...)
		require.NoError(t, err, out)
	}
	f.mustDelete(aEast + "targets/y")
	f.gone(bEast+"holders/h", aWest+"targets/x", aEast+"targets/y")
}

// forceReleaseOfAnEntry removes a resource that waits for a deployment that does not act, by the command
// alone; b.example.com/eastus2 is paused.
func (f *fixture) forceReleaseOfAnEntry() {
	t := f.t
	t.Helper()
	command := func(args ...string) (string, error) {
		return run(t, append([]string{"force-release", aWest + "targets/z", "--context", f.Context}, args...)...)
	}
	f.mustDelete(aWest + "targets/z")
	out, err := command()
	require.NoError(t, err, out)
	key := regexp.MustCompile(`'(HOLDER_ENTRY\|[^']+)'`).FindStringSubmatch(out)
	require.NotNil(t, key, out)
	for _, missing := range [][]string{{"--yes"}, {"--reason", "ticket 4714"}} {
		out, err = command(append(missing, "--key", key[1])...)
		require.Error(t, err)
		require.Contains(t, out, "only verify reports them")
	}
	out, err = command("--key", key[1], "--reason", "ticket 4714", "--yes")
	require.NoError(t, err, out)
	require.Contains(t, out, "released "+key[1])
	f.gone(aWest + "targets/z")
	require.NotNil(t, f.get(bEast+"holders/kept"), "nobody told its deployment")
}
