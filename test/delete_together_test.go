package test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// Several resources, of one deployment and of several, are planned and deleted by one command. A named
// resource that blocks another named one is deleted first. In one deployment nothing is deleted unless all
// are; the resources of another one do not depend on that.
func TestACommandDeletesSeveralResources_I13_I14(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	command := func(args ...string) (int, string) {
		t.Helper()
		return exitCode(t, append(args, "--context", f.Context)...)
	}
	t1, t2, t3, h1, h2, h3 := aWest+"targets/t1", aWest+"targets/t2", aWest+"targets/t3", bEast+"holders/h1",
		bEast+"holders/h2", bEast+"holders/h3"
	for _, name := range []string{t1, t2, t3} {
		f.mustPut(name, nil)
	}
	f.mustPut(h1, fields{"block": t1})
	f.mustPut(h2, fields{"cascade": t1, "block": t2}) // it goes with t1
	f.mustPut(h3, fields{"block": t3})
	f.settled()

	code, out := command("plan", t1, t2, "-o", "json")
	require.Zero(t, code, out)
	var plan struct {
		Accepted bool
		Refusal  string
		Blockers []struct{ Holder string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &plan), out)
	require.False(t, plan.Accepted)
	require.Len(t, plan.Blockers, 1)
	require.Equal(t, h1, plan.Blockers[0].Holder, "h2 goes with t1")
	code, out = command("plan", t1, t2, h1)
	require.Zero(t, code, out)
	require.Contains(t, out, t1+", "+t2+"  Target\n")
	require.Contains(t, out, "What refuses it is deleted with the other resources of this command")

	code, out = command("delete", t1, t2, t3)
	require.Equal(t, refused, code, out)
	require.Contains(t, out, "a.example.com/us-west2: none of 3 resources is deleted")
	code, out = command("delete", t1, t3, h3, "--wait", "1m")
	require.Equal(t, refused, code, out)
	require.Contains(t, out, h3+" deleted")
	require.Contains(t, out, h1+" (block)")
	for _, name := range []string{t1, t2, t3, h1, h2} {
		require.True(t, f.find(name), name)
	}

	code, out = command("delete", t1, t2, t3, h1, "--wait", "1m")
	require.Zero(t, code, out)
	for _, name := range []string{t1, t2, t3, h1, h2} {
		require.False(t, f.find(name), name)
	}
	f.mustPut(t1, nil)
	f.mustPut(h2, fields{"cascade": t1})
	f.settled()
	code, out = command("delete", t1, bEast+"holders/none")
	require.Equal(t, refused, code, out)
	require.Contains(t, out, t1+" ")
	f.settled()
	f.mustPut(t1, nil)
	f.mustPut(h2, fields{"cascade": t1})
	f.settled()
	code, out = command("delete", t1, h2, "--wait", "1m")
	require.Zero(t, code, "h2 has gone with t1, and is not looked for in vain: %s", out)
	require.Regexp(t, h2+" deleted", out)
	code, out = command("delete", t1, h2)
	require.Equal(t, refused, code, "they do not exist: %s", out)

	code, out = command("delete", t1, t2, h1, "--ignore-not-found")
	require.Zero(t, code, out)
	f.settled()
}
