package shadow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The clock of the database jumps ahead by the retention, and that of the process does not: a purge is for good,
// and the answer has promised that the delete can be undone until its purge_time.
func TestOneClockEndsNoRetention_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	schedule(t, b, target)
	b.Stores[b.ID(aWest)].SetClock(func() time.Time { return time.Now().Add(-time.Hour) })
	exec(t, b, aWest,
		`UPDATE dbcontroller.freeze SET deleted_at = deleted_at - interval '1 hour', purge_at = purge_at - interval '1 hour'`)
	require.NoError(t, b.Resolve(b.ID(aWest)))
	b.Settle()
	require.NotNil(t, b.Get(target))
	_, err := undelete(t, b, target)
	require.NoError(t, err)
}
