package migrations

import (
	"crypto/sha256"
	_ "embed" // checksums.txt
	"encoding/hex"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// checksums has a line for each migration, as sha256sum prints it. Lines are appended, never changed.
//
//go:embed checksums.txt
var checksums string

// A database that has a migration never runs it again: an edit of it would leave old databases different from
// new ones.
func TestMigrationsAreNotEdited(t *testing.T) {
	t.Parallel()
	listed := readChecksums(t)
	for _, set := range []Set{Deployment, Registry} {
		names, err := fs.Glob(files, string(set)+"/*.sql")
		require.NoError(t, err)
		require.NotEmpty(t, names)
		for _, name := range names {
			text, err := files.ReadFile(name)
			require.NoError(t, err)
			sum := sha256.Sum256(text)
			got := hex.EncodeToString(sum[:])
			want, ok := listed[name]
			delete(listed, name)
			switch {
			case !ok:
				t.Errorf(
					"migrations/%s is new: once it is final, append this line to migrations/checksums.txt:\n%s  %s",
					name, got, name)
			case got != want:
				t.Errorf(
					"migrations/%s was edited, and databases that already have it will never run the edited one: restore the file, "+
						"and put the change into a new migration with the next number", name)
			}
		}
	}
	for name := range listed {
		t.Errorf(
			"migrations/%s was removed or renamed, and databases that already have it need it to be taken back: restore the file", name)
	}
}

// readChecksums reads the lines of `sha256sum`: SHA-256 and file name.
func readChecksums(t *testing.T) map[string]string {
	t.Helper()
	listed := map[string]string{}
	for line := range strings.Lines(checksums) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		require.True(t, ok, "migrations/checksums.txt: %q: want SHA-256, two spaces, and the name of a file", line)
		require.NotContains(t, listed, name, "migrations/checksums.txt lists a file twice")
		listed[name] = sum
	}
	return listed
}
