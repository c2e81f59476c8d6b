package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

func TestTheProgressOfADeletionInWords(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]*adminv1.Deletion{
		"5 resources removed":      {Found: 5, Removed: 5, Expected: 5},
		"0 of 1 resource removed":  {Found: 1, Expected: 1},
		"0 of 2 resources removed": {Found: 2}, // of an earlier release
		"40 of 100 resources removed, about 12s left at this rate": {
			Found: 40, Removed: 40, Expected: 100,
			Left: durationpb.New(12300 * time.Millisecond),
		},
		"1 resource removed, 7 of 9 references unset": {
			Found: 1, Removed: 1, Expected: 1, Unset: 7,
			ExpectedUnset: 9, Left: durationpb.New(300 * time.Millisecond),
		},
		"1 resource removed, 9 references unset": {
			Found: 1, Removed: 1, Expected: 1, Unset: 9,
			ExpectedUnset: 9,
		},
		"1 of 3 resources removed, 1 reference unset": {Found: 3, Removed: 1, Unset: 1},
		"9 of 10 resources removed, about 1h0m0s left at this rate": {
			Found: 9, Removed: 9, Expected: 10,
			Left: durationpb.New(time.Hour),
		},
	} {
		p := ProgressOf(d)
		require.Equal(t, want, p.String()+p.Estimate())
	}
}

// Deployments work at the same time: the last one ends the deletion.
func TestTheProgressInSeveralDeploymentsEndsWithTheLast(t *testing.T) {
	t.Parallel()
	sum := Progress{Removed: 1, Expected: 2, Left: 3 * time.Second}.Plus(Progress{
		Removed: 4, Expected: 8, Unset: 1,
		ExpectedUnset: 1, Left: 2 * time.Second,
	})
	require.Equal(t, Progress{Removed: 5, Expected: 10, Unset: 1, ExpectedUnset: 1, Left: 3 * time.Second}, sum)
}
