package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// An hour after the decision its coordinator forgets it, while the deployment of a member's target is away; then
// the coordinator fails over, and has lost nothing. The member stays closed: its mark still comes.
func TestAFailoverAfterTheDecisionIsForgotten_I35(t *testing.T) {
	t.Parallel()
	b := newCommittedChain(t)
	_, err := b.Pools[b.ID(aWest)].Exec(t.Context(), `UPDATE dbcontroller.attempt SET decided_at = now() - interval '61 min'`)
	require.NoError(t, err)
	_, err = b.Stores[b.ID(aWest)].Admin.Tidy(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, b.Count(bEast, "frozen"))
	b.SetDown(aEast, true)
	b.Renew(aWest)
	_, _ = b.Do(b.ID(aWest), schema.AnnounceEpoch) // one deployment is away
	_ = b.Resolve(b.ID(bEast))
	require.Equal(t, 1, b.Count(bEast, "frozen"))
	late := "//" + bEast + "/holders/late"
	err = putOnce(t, b, late, body{"near": map[string]any{"block": "holders/h"}})
	require.Error(t, err, "a new blocker of the member")
	b.SetDown(aEast, false)
	b.Settle()
	b.Gone(target, middle, holder)
}

// The same when a scheduled deletion is carried out: the member stays hidden.
func TestAHiddenMemberStaysHiddenAfterThePurge_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	schedule(t, b, target)
	requireHidden(t, b, target, middle, holder)
	require.NoError(t, comeDue(t, b, aWest))
	_, err := b.Do(b.ID(aWest), schema.Confirm)
	require.NoError(t, err)
	_, err = b.Pools[b.ID(aWest)].Exec(t.Context(), `UPDATE dbcontroller.attempt SET decided_at = now() - interval '61 min'`)
	require.NoError(t, err)
	_, err = b.Stores[b.ID(aWest)].Admin.Tidy(t.Context())
	require.NoError(t, err)
	require.Empty(t, b.Work(b.ID(aWest)))
	b.SetDown(aEast, true)
	b.Renew(aWest)
	_, _ = b.Do(b.ID(aWest), schema.AnnounceEpoch) // one deployment is away
	_ = b.Resolve(b.ID(bEast))
	require.NotContains(t, listedNames(t, b, bEast, false), "holders/h", "its deletion is carried out: it is not seen again")
}
