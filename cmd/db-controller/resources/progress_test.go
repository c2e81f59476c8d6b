package resources

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// The counts of a deployment never fall, whichever of its processes answers, also when none knows the
// deletion any more; the expected number of resources may fall.
func TestTheProgressOfADeletionOnlyGrows(t *testing.T) {
	t.Parallel()
	var last []*adminv1.Deletion
	var lines []string
	var shown strings.Builder
	out := &progressLines{to: &shown}
	for _, answer := range [][]*adminv1.Deletion{
		{{Found: 5, Removed: 2, Expected: 9}},
		{{Found: 4, Removed: 1, Expected: 9}},
		nil,
		{{Found: 5, Removed: 3, Expected: 5}},
		{{Found: 6, Removed: 6, Expected: 6, Unset: 1}},
		{{Found: 6, Removed: 6, Expected: 6}},
	} {
		last = grown(last, answer)
		lines = append(lines, cli.ProgressOf(last[0]).String())
		var sum totals
		sum.add(last[0])
		out.show(sum)
	}
	require.Equal(t, []string{
		"2 of 9 resources removed", "2 of 9 resources removed", "2 of 9 resources removed", "3 of 5 resources removed",
		"6 resources removed, 1 reference unset", "6 resources removed, 1 reference unset",
	}, lines)
	require.Len(t, strings.Split(strings.TrimSpace(shown.String()), "\n"), 3, "a line for each change: %s",
		shown.String())
}
