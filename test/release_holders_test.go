package test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// The resources that block a delete, or would be deleted along, are changed first, in all deployments, and
// only with --yes. Other resources stay as they are.
func TestADeleteReleasesTheHoldersFirst_I13_I14(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	command := func(args ...string) (int, string) {
		t.Helper()
		return exitCode(t, append(args, "--context", f.Context)...)
	}
	goal, stays := aWest+"targets/goal", aWest+"targets/stays"
	here, east, west, child := aWest+"targets/here", bEast+"holders/east", bWest+"holders/west",
		bWest+"targets/goal/parts/p"
	f.mustPut(goal, nil)
	f.mustPut(stays, nil)
	f.mustPut(here, fields{"needs": []any{stays, "targets/goal", goal}}) // the same target by both of its names
	f.mustPut(east, fields{"block": goal})
	f.mustPut(west, fields{"block": here})
	f.settled()

	code, out := command("delete", goal, "--detach")
	require.Equal(t, wrongUsage, code, out)
	require.Contains(t, out, east+": block no longer names "+goal)
	require.Contains(t, out, here+": needs.* no longer names "+goal)
	require.Contains(t, out, "nothing is changed or deleted: 2 changes are listed; add --yes to go on")
	f.mustPut(bEast+"holders/along", fields{"cascade": goal})
	f.settled()
	code, out = command("delete", goal, "--detach", "--orphan")
	require.Equal(t, wrongUsage, code, out)
	require.Contains(t, out, bEast+"holders/along: cascade no longer names "+goal)
	require.Contains(t, out, "nothing is changed or deleted: 3 changes are listed; add --yes to go on")
	f.mustPut(bEast+"holders/along", nil)
	f.settled()
	require.Equal(t, goal, f.get(east).GetBody().GetFields()["block"].GetStringValue())

	// A person who may not write one of them changes nothing else, and deletes nothing.
	f.apply(`
rights:
  default: deny
  grants:
    - { identity: "*", verbs: [read, delete] }
    - { identity: "*", verbs: [refer] }
`)
	person := f.asPerson("ann")
	f.eventually("the rights are in force", func() bool {
		code, _ = exitCode(t, "patch", stays, "--label", "a=b", "--context", person)
		return code == refused
	})
	code, out = exitCode(t, "delete", goal, "--detach", "--yes", "--context", person)
	require.Equal(t, refused, code, out)
	require.Contains(t, out, "is not carried out, and nothing is deleted")
	require.True(t, f.find(goal))

	code, out = command("delete", goal, "--detach", "--yes", "--wait", "1m")
	require.Zero(t, code, out)
	require.Contains(t, out, goal+" deleted")
	require.Empty(t, f.get(east).GetBody().GetFields())
	require.Len(t, f.get(here).GetBody().GetFields()["needs"].GetListValue().GetValues(), 1)

	// Holders that are deleted are blocked themselves, and wait for one another.
	code, out = command("delete", stays, "--detach=delete", "--yes", "--wait", "1m")
	require.Equal(t, refused, code, out)
	require.Contains(t, out, "nothing is deleted: 1 change is not possible, such as: "+here+" is deleted: ")
	require.Contains(t, out, "it is referred to by "+west)
	code, out = command("delete", stays, here, "--detach=delete", "--yes", "--wait", "1m")
	require.Zero(t, code, out)
	require.Contains(t, out, west+" is deleted")
	f.gone(stays, here, west)

	// Resources that would be deleted along stay, unless they cannot exist without the resource.
	f.mustPut(goal, nil)
	f.mustPut(east, fields{"cascade": goal, "unset": fields{"list": []any{goal}}})
	f.mustPut(west, nil, &resourcev1.OwnerReference{Name: goal, Kind: "Target"})
	f.mustPut(child, nil)
	f.settled()
	code, out = command("delete", goal, "--orphan", "--yes")
	require.Equal(t, refused, code, out)
	require.Contains(t, out, child+" is below "+goal+" and cannot stay without it: name it too, or delete it before")
	require.Equal(t, goal, f.get(east).GetBody().GetFields()["cascade"].GetStringValue(), "nothing is changed")
	code, out = command("delete", child, goal, "--orphan", "--yes", "--wait", "1m")
	require.Zero(t, code, out)
	require.Contains(t, out, west+" is no longer owned by "+goal)
	f.gone(goal, child)
	f.settled()
	require.Empty(t, f.get(west).GetOwnerReferences())
	require.NotContains(t, f.get(east).GetBody().GetFields(), "cascade")
}

// asPerson returns the client file of a user.
func (f *fixture) asPerson(name string) string {
	f.t.Helper()
	certs, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: name})
	require.NoError(f.t, err)
	file := filepath.Join(f.t.TempDir(), "client.yaml")
	require.NoError(f.t, os.WriteFile(file, fmt.Appendf(nil, "registry: %s\ncerts: %s\n", f.RegistryAddress, certs),
		0o600))
	return file
}
