package shadow_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
)

// One hot target has all references, and its holders are looked up by batches: each look-up reads the index
// of targets alone (I21).
func TestHoldersOfHoldersAreFoundByTheIndexOfTargets_I21(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	exec(t, b, bEast,
		`INSERT INTO dbcontroller.reference (holder_id, target_id, field_id, behaviour) SELECT i, 100000, 1, 4 FROM generate_series(1, 50000) AS i`)
	exec(t, b, bEast, `VACUUM (ANALYZE) dbcontroller.reference`)
	tx, err := b.Pools[b.ID(bEast)].Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
	_, err = tx.Exec(t.Context(), `SET LOCAL enable_seqscan = off`) // as the sessions of the store
	require.NoError(t, err)
	ids := make([]int64, 500)
	for i := range ids {
		ids[i] = int64(i + 1)
	}
	var raw []byte
	require.NoError(t, tx.QueryRow(t.Context(), `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+shadow.ReferredSQL,
		ids).Scan(&raw))
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	require.NoError(t, json.Unmarshal(raw, &plans))
	require.Less(t, plans[0].Plan.Hit+plans[0].Plan.Read, 10*len(ids), string(raw))
}
