package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Operators see the state of the PostgreSQL server that the role of the process may see: settings,
// connections, old transactions.
func TestTheStateOfTheServerIsSeenByTheServingRole(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	pool := b.Pools[b.ID(aWest)]
	before, err := b.Stores[b.ID(aWest)].Operate.Server(t.Context())
	require.NoError(t, err)
	require.Regexp(t, `^\d+\.\d+$`, before.Version)
	require.Greater(t, before.Size, int64(1<<20))
	require.False(t, before.Fsync, "tests run without")
	require.True(t, before.OldestPrepared.IsZero())
	require.Greater(t, before.Connections, 0)
	require.Less(t, before.Connections, before.Most)

	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'server_status'`)
	require.NoError(t, err)
	defer func() { _, _ = pool.Exec(t.Context(), `ROLLBACK PREPARED 'server_status'`) }()
	after, err := b.Stores[b.ID(aWest)].Operate.Server(t.Context())
	require.NoError(t, err)
	require.False(t, after.OldestPrepared.IsZero())
}
