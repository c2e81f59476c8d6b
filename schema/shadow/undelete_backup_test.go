package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The coordinator is restored to a backup in which a deletion is scheduled that was undeleted days ago: the other
// deployments, whose resources were visible and changed since, remember it.
func TestAnUndeleteThatAnOldBackupHasLost_I12_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	schedule(t, b, target)
	restore := b.Backup(aWest)
	_, err := undelete(t, b, target)
	require.NoError(t, err)
	b.Settle()
	requireVisible(t, b, target, middle, holder)
	for _, at := range everywhere {
		_, err = b.Pools[b.ID(at)].Exec(t.Context(),
			`UPDATE dbcontroller.closed_attempt SET closed_at = closed_at - interval '300 days'`)
		require.NoError(t, err)
		_, err = b.Stores[b.ID(at)].Admin.Tidy(t.Context())
		require.NoError(t, err)
	}
	b.MustPut(holder, body{"cascade": middle, "title": "used since"})
	b.Settle()
	restore()
	b.Recover(aWest)
	b.Settle()
	require.NoError(t, comeDue(t, b, aWest))
	b.Settle()
	requireVisible(t, b, target, middle, holder)
}
