package test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// What a delete removes, in two services and regions, is exported first, and made anew from the file: with
// its bodies, owners, labels and references by name. Nothing is deleted when the export is not complete, or
// when the delete would remove more resources than the export has.
func TestADeletionIsExportedAndMadeAnew_I29(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	command := func(args ...string) (int, string) {
		t.Helper()
		return exitCode(t, append(args, "--context", f.Context)...)
	}
	file := filepath.Join(t.TempDir(), "acme.yaml")
	root, next, other := aWest+"targets/root", aEast+"targets/next", aWest+"others/o"
	holder, part, loser, owned := bEast+"holders/h", bWest+"targets/root/parts/p", bEast+"holders/loser",
		aWest+"others/owned"
	f.mustPut(other, nil)
	f.mustPut(root, fields{"needs": []any{"others/o"}, "text": "a 'quoted' # text"})
	f.mustPut(next, fields{"next": root})
	f.mustPut(holder, fields{"cascade": root, "block": next})
	f.mustPut(part, nil)
	f.mustPut(loser, fields{"unset": map[string]any{"list": []any{root}}})
	f.mustPut(owned, nil, &resourcev1.OwnerReference{Name: root, Kind: "Target"})
	f.settled()

	code, out := command("delete", root, "--export", file, "--wait", "1m")
	require.Zero(t, code, out)
	require.Contains(t, out, "5 resources written to "+file+": put -f "+file+" --create makes them anew")
	f.settled()
	for _, name := range []string{root, next, holder, part, owned} {
		require.False(t, f.find(name), name)
	}
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(content),
		"# Has lost its value, and is not in this file: unset.list.* of Holder (b.example.com/eastus2): "+loser+"\n")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	code, out = command("put", "-f", file, "--create")
	require.Zero(t, code, out)
	f.settled()
	require.Equal(t, "a 'quoted' # text", f.get(root).GetBody().GetFields()["text"].GetStringValue())
	require.Equal(t, root, f.get(owned).GetOwnerReferences()[0].GetName())
	require.Equal(t, f.get(root).GetUid(), f.get(owned).GetOwnerReferences()[0].GetUid())
	code, out = command("delete", next)
	require.Equal(t, refused, code, "its holder blocks it again: %s", out)

	code, out = command("delete", root, "--export", file)
	require.Equal(t, wrongUsage, code, out)
	require.Contains(t, out, "the file exists, and nothing is deleted: name a new one")
	blocker := bWest + "holders/blocker"
	f.mustPut(blocker, fields{"block": root})
	f.settled()
	code, out = command("delete", root, "--export", file+"2")
	require.Equal(t, refused, code, out)
	require.Contains(t, out, blocker+" (block)")
	require.NoFileExists(t, file+"2")
	require.True(t, f.find(root))
}
