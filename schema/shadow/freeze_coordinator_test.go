package shadow_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
)

// A participant is told the id of a deletion, and freezes a resource of its own at another participant under
// that id, before the coordinator does: the coordinator's freeze is refused there, so that the participant
// cannot open its members.
func TestAFreezeIsThatOfItsCoordinator_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	const mine = "//" + bEast + "/holders/mine"
	b.MustPut(mine, body{"cascade": target})
	b.Settle()
	id := uuid.Must(uuid.NewV7()) // aEast, a participant, is told of it by aWest
	plan := func(by, of string) error {
		_, err := b.Stores[b.ID(bEast)].Deletions.Plan(t.Context(), peer.PlanQuestion{
			Targets: []peer.PlanTarget{{Deployment: b.ID(by), UID: b.Get(of).UID}}, Limit: 10,
			Freeze: &peer.Freeze{
				Coordinator: b.ID(by), Epoch: b.Stores[b.ID(by)].Gate.PresentEpoch(), Deletion: id,
				Root: "targets/t", For: time.Minute,
			},
		})
		return err
	}
	require.NoError(t, plan(aEast, middle))
	require.Equal(t, 1, b.Count(bEast, "frozen"))
	require.ErrorIs(t, plan(aWest, target), peer.ErrAborted)
	require.Equal(t, 1, b.Count(bEast, "frozen"))
	require.NoError(t, b.Stores[b.ID(bEast)].Targets.Release(t.Context(), b.ID(aEast),
		b.Stores[b.ID(aEast)].Gate.PresentEpoch(), nil, []peer.AttemptID{id}))
	require.Zero(t, b.Count(bEast, "frozen"))
}
