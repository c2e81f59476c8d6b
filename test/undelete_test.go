package test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What one delete has hidden comes back with one command, whichever of its names that has. A resource that
// another deletion hides as well is said to be hidden.
func TestUndeleteSaysWhatIsBack_I36(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	command := func(args ...string) (int, string) {
		t.Helper()
		return exitCode(t, append(args, "--context", f.Context)...)
	}
	one, two, holder := aWest+"targets/one", aWest+"targets/two", bEast+"holders/h"
	f.mustPut(one, nil)
	f.mustPut(two, nil)
	f.mustPut(holder, fields{"cascade": one})
	f.settled()
	code, out := command("delete", one, two, "--retention", "1h")
	require.Zero(t, code, out)
	f.settled()
	code, out = command("undelete", one, two)
	require.Zero(t, code, out)
	require.Contains(t, out, one+" is back")
	require.Contains(t, out, two+" is back")
	f.settled()
	code, out = command("undelete", two) // a second time, alone
	require.Equal(t, refused, code, out)

	code, out = command("delete", holder, "--retention", "1h")
	require.Zero(t, code, out)
	code, out = command("delete", one, "--retention", "1h")
	require.Zero(t, code, out)
	f.settled()
	code, out = command("removals", "--root", one)
	require.Equal(t, refused, code, out)
	require.Contains(t, out, one+" is hidden, and nothing is removed before")
	code, out = command("undelete", holder)
	require.Zero(t, code, out)
	require.Contains(t, out, holder+" is still hidden, by another deletion")
	code, out = command("undelete", one)
	require.Zero(t, code, out)
	f.settled()
	require.Nil(t, f.get(holder).GetPurgeTime())

	// Somebody has undeleted it: who wants it removed before its purge time says that it is to go all the
	// same.
	code, out = command("delete", two, "--now")
	require.Equal(t, wrongUsage, code, out)
	require.Contains(t, out, two+" is not hidden: --now deletes it for good, without a retention; add --yes to go on")
	code, out = command("delete", two, "--retention", "1h")
	require.Zero(t, code, out)
	code, out = command("delete", two, "--now", "--wait", "1m")
	require.Zero(t, code, out)
	f.gone(two)
	code, out = command("delete", holder, "--now", "--yes", "--wait", "1m")
	require.Zero(t, code, out)
	f.gone(holder)
}
