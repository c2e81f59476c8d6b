package shadow_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// A deployment has acknowledged very many deletions that are still under way, and its database is restored to
// before it acted upon them. Its epoch is recorded at once, and it is told again page by page; until then its
// comparison is not accepted, and nothing is removed.
func TestVeryManyDeletionsAreToldAgainInPages_I1_I21(t *testing.T) {
	t.Parallel()
	const n = 25_000
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"unset": target})
	b.Settle()
	exec(t, b, aWest, `
WITH s AS (
    INSERT INTO dbcontroller.shadow (id, uid, kind_id, state, shard, revision, generation, name)
    SELECT nextval('dbcontroller.object_id'), gen_random_uuid(), kind_id, 2, 0, nextval('dbcontroller.revision'), 1, 'targets/x' || g
    FROM dbcontroller.shadow, generate_series(1, $1) AS g WHERE name = 'targets/t' RETURNING id
)
INSERT INTO dbcontroller.holder_entry (target_id, deployment_id) SELECT s.id, e.deployment_id FROM s, dbcontroller.holder_entry e`, n)
	store := b.Stores[b.ID(aWest)]
	epoch := uuid.Must(uuid.NewV7())
	_, err := store.Gate.RecordPeerEpoch(t.Context(), b.ID(bEast), epoch, peer.TargetKinds{})
	require.NoError(t, err)
	require.Zero(t, b.Count(aWest, "notice"), "the transaction is small")
	require.ErrorAs(t, store.Gate.MarkReferencesConfirmed(t.Context(), b.ID(bEast), store.Gate.PresentEpoch(), epoch),
		new(*peer.UnavailableError))
	require.NotEmpty(t, unconfirmed(t, b, aWest))
	b.SetDown(bEast, true)
	_, err = b.Do(b.ID(aWest), schema.VerifyBlockades)
	require.Error(t, err, "the deployment is away")
	require.Equal(t, n, b.Count(aWest, "notice"), "it is told again all the same")
	b.SetDown(bEast, false)
	_, err = b.Do(b.ID(aWest), schema.VerifyBlockades)
	require.NoError(t, err)
	require.Equal(t, n, b.Count(aWest, "notice"), "once")
	require.NoError(t, store.Gate.MarkReferencesConfirmed(t.Context(), b.ID(bEast), store.Gate.PresentEpoch(), epoch))
	require.Empty(t, unconfirmed(t, b, aWest))
}
