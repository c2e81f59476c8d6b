package shadow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// While an operator has paused deletions, nothing is marked or removed: not by users, not for others, not at last. References are
// written all the same, and everything goes on afterwards.
func TestPausedDeletionsGoOnWhenTheyAreResumed(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	west, east := b.Stores[b.ID(aWest)], b.Stores[b.ID(bEast)]
	pause := func(at *shadow.Store, of schema.DeploymentID, paused bool) {
		t.Helper()
		require.NoError(t, at.Pause(t.Context(), of, paused, "ticket 1", "operator/eve"))
	}
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()

	pause(west, b.ID(aWest), true)
	_, err := b.Delete(target)
	require.ErrorIs(t, err, peer.ErrPaused)
	require.ErrorContains(t, err, "an operator has paused deletions until db-controller resume")
	b.MustPut(holder2, body{"cascade": target})
	paused, err := west.Paused(t.Context())
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{b.ID(aWest)}, paused)
	pause(west, b.ID(aWest), false)

	pause(east, b.ID(aWest), true) // what is done there for the deletions of a
	b.MustDelete(target)
	_, err = b.Act(b.ID(bEast), b.ID(aWest))
	require.ErrorIs(t, err, peer.ErrPaused)
	require.NotNil(t, b.Get(holder))
	stuck, err := west.Stuck(t.Context(), time.Nanosecond, 10)
	require.NoError(t, err)
	require.Len(t, stuck, 1)
	require.Equal(t, "targets/t", stuck[0].Name)
	require.Contains(t, stuck[0].Conditions[0].Message, b.ID(bEast).String())
	none, err := west.Stuck(t.Context(), time.Hour, 10)
	require.NoError(t, err)
	require.Empty(t, none)
	pause(east, b.ID(aWest), false)
	pause(east, b.ID(aWest), false) // changes nothing

	pause(east, b.ID(bEast), true) // everything there
	_, err = b.Act(b.ID(bEast), b.ID(aWest))
	require.ErrorIs(t, err, peer.ErrPaused)
	pause(east, b.ID(bEast), false)
	b.Settle()
	b.Gone(target, holder, holder2)
	decisions, err := east.OperatorDecisions(t.Context())
	require.NoError(t, err)
	require.Len(t, decisions, 4)
	require.Equal(t, "DELETIONS_RESUMED", decisions[0].What)
	require.Equal(t, "operator/eve", decisions[0].By)
	b.Audit()
}
