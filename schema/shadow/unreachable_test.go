package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// deletes deletes a target at aWest.
func deletes(t *testing.T, b *harness.Box, request uuid.UUID) (peer.DeleteResult, error) {
	t.Helper()
	return b.Stores[b.ID(aWest)].Deletions.Delete(t.Context(), shadow.DeleteRequest{
		Name:      "targets/t",
		RequestID: request,
	})
}

// A request id changes no refusal beside a holder whose deployment cannot be reached: a confirmed blockade is
// a definite one, which is kept, and a tentative one is unknown, so that the same request is decided when the
// deployment is back.
func TestARequestIDChangesNoRefusalBesideAnUnreachableHolder_I13_I29(t *testing.T) {
	t.Parallel()
	for _, confirmed := range []bool{true, false} {
		b := newPair(t, nil)
		b.MustPut(target, nil)
		b.MustPut(holder, body{"block": target})
		if confirmed {
			b.Settle()
		}
		b.SetDown(bEast, true)
		request := uuid.New()
		for _, id := range []uuid.UUID{uuid.Nil, request, request} {
			_, err := deletes(t, b, id)
			require.Equal(t, confirmed, peer.Definite(err), "%v", err)
			if confirmed {
				require.ErrorContains(t, err, "could not be asked whether their holders still refer: "+bEast)
			} else {
				require.ErrorAs(t, err, new(*peer.UnavailableError))
			}
		}
		b.SetDown(bEast, false)
		b.MustPut(holder, nil)
		_, err := deletes(t, b, request)
		if confirmed {
			require.ErrorAs(t, err, new(*peer.BlockedError), "the first answer")
			_, err = deletes(t, b, uuid.New())
		}
		require.NoError(t, err)
		b.Settle()
		b.Gone(target)
		b.Audit()
	}
}

// After a restore to before a decommissioning the deployment blocks as before, and is waited for, until it is
// decommissioned again.
func TestARestoreToBeforeADecommissioning_I13_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Times.DeleteTimeout = 300 * time.Millisecond })
	cleanUp := func() {
		require.NoError(t, b.Stores[b.ID(aWest)].Admin.CleanUpDecommissioned(t.Context(), b.ID(bEast)))
	}
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore := b.Backup(aWest)
	b.SetDown(bEast, true)
	decommission(t, b, aWest, bEast, schema.Unset)
	cleanUp()
	restore()
	b.Recover(aWest)
	_, err := deletes(t, b, uuid.New())
	require.ErrorContains(t, err, "could not be asked whether their holders still refer: "+bEast)
	require.True(t, peer.Definite(err))
	var unavailable *peer.UnavailableError
	_, err = b.Delete(target2)
	require.ErrorAs(t, err, &unavailable)
	require.ErrorIs(t, err, peer.ErrRecovering)
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unavailable.Deployments)
	decommission(t, b, aWest, bEast, schema.Unset)
	require.True(t, b.MustDelete(target2).Removed)
	cleanUp()
	require.True(t, b.MustDelete(target).Removed)
}

// A decommissioned deployment refuses no delete: its blockades are about to be removed, so that a delete
// waits for that.
func TestADeleteWaitsForTheEndOfADecommissioning_I13_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	b.SetDown(bEast, true)
	decommission(t, b, aWest, bEast, schema.Unset)
	request := uuid.New()
	store := b.Stores[b.ID(aWest)]
	soon, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := store.Deletions.Delete(soon, shadow.DeleteRequest{Name: "targets/t", RequestID: request})
	require.Error(t, err)
	require.False(t, peer.Definite(err), "%v", err)
	cleaned := make(chan error, 1)
	go func() {
		<-time.After(100 * time.Millisecond) // beside the delete, mostly
		cleaned <- store.Admin.CleanUpDecommissioned(t.Context(), b.ID(bEast))
	}()
	result, err := deletes(t, b, request)
	require.NoError(t, err)
	require.True(t, result.Removed)
	require.NoError(t, <-cleaned)
}
