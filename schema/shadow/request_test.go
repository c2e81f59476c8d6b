package shadow_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// A refusal is recorded with its request id if, and only if, it is definite: any other reason can pass, and
// then the same request is accepted.
func TestARequestIDKeepsOnlyDefiniteRefusals_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	store := b.Stores[b.ID(bEast)]
	var refuse []peer.Reason // not guarded, as the variables below: one write at a time
	var giveUp func()
	b.OnEstablish = func(_ schema.DeploymentID, _ peer.AttemptID, refs []peer.EstablishReference) error {
		if len(refuse) > 0 && refuse[0].Standing() == peer.Again {
			giveUp() // a temporary refusal is retried until the deadline
		}
		e := &peer.RefusedError{}
		for _, reason := range refuse {
			e.Refusals = append(e.Refusals, peer.Refusal{
				Holder: refs[0].HolderName, Path: refs[0].Path, Reason: reason,
				Target: schema.FullName{Deployment: b.ID(aWest), Name: refs[0].TargetName},
			})
		}
		if len(e.Refusals) == 0 {
			return nil
		}
		return e
	}
	definite := map[peer.Reason]bool{
		peer.TargetMissing: true, peer.TargetDeleting: true, peer.TargetDeleted: true,
		peer.TargetDecommissioned: true, peer.ReferDenied: true, peer.RemovalDenied: true,
	}
	reasons := peer.Reasons()
	require.Greater(t, len(reasons), len(definite))
	for i, reason := range reasons {
		for _, beside := range []peer.Reason{"", peer.TargetMissing} { // beside a definite one it may pass all the same
			id := uuid.New()
			write := []peer.Write{{
				Name: fmt.Sprintf("holders/h%d%s", i, beside[:min(len(beside), 1)]),
				Body: body{"block": target},
			}}
			if refuse = []peer.Reason{reason}; beside != "" {
				refuse = append([]peer.Reason{beside}, refuse...)
			}
			ctx, cancel := context.WithCancel(t.Context())
			giveUp = cancel
			_, err := store.Write.SaveRequested(ctx, id, write)
			cancel()
			require.Len(t, refusals(t, err), len(refuse), reason)
			require.Equal(t, definite[reason], peer.Definite(err), reason)
			refuse = nil
			_, again := store.Write.SaveRequested(t.Context(), id, write)
			if definite[reason] {
				require.Equal(t, err, again, reason)
			} else {
				require.NoError(t, again, "%s has passed", reason)
			}
		}
	}
	b.OnEstablish = nil
	b.Settle()
	b.Audit()
}

// A refusal by a version that is not the current one any more is not recorded.
func TestARefusalOfAnEarlierVersionIsNotKept_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, id := b.Stores[b.ID(bEast)], uuid.New()
	_, err := b.Pools[b.ID(bEast)].Exec(t.Context(), `UPDATE dbcontroller.meta SET version = 'v9'`)
	require.NoError(t, err)
	unknown := []peer.Write{{Name: "novelties/n"}}
	_, err = store.Write.SaveRequested(t.Context(), id, unknown)
	require.ErrorIs(t, err, peer.ErrAborted)
	_, err = store.Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "novelties/n", RequestID: id})
	require.ErrorIs(t, err, peer.ErrAborted)
	require.Zero(t, b.Count(bEast, "request"))
}

// A delete that is repeated with its request id returns the first answer, also when the resource is gone, was
// created again, or the delete would be accepted now.
func TestARepeatedDeleteReturnsTheFirstAnswer_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, ctx := b.Stores[b.ID(aWest)], t.Context()
	repeat := func(req shadow.DeleteRequest, first peer.DeleteResult, err error) {
		t.Helper()
		again, aerr := store.Deletions.Delete(ctx, req)
		require.Equal(t, err, aerr)
		require.Equal(t, first.Removed, again.Removed)
		require.Equal(t, first.Unasked, again.Unasked)
		require.Equal(t, first.Resource == nil, again.Resource == nil)
		if first.Resource != nil {
			require.Equal(t, first.Resource.UID, again.Resource.UID)
			require.Equal(t, first.Resource.Revision, again.Resource.Revision)
			require.Equal(t, first.Resource.State, again.Resource.State)
		}
	}
	delete := func(req shadow.DeleteRequest) (peer.DeleteResult, error) {
		result, err := store.Deletions.Delete(ctx, req)
		repeat(req, result, err)
		return result, err
	}

	// Removed at once.
	r := b.MustPut(target, nil)
	removed := shadow.DeleteRequest{Name: "targets/t", UID: r.UID, RequestID: uuid.New()}
	first, err := delete(removed)
	require.NoError(t, err)
	require.True(t, first.Removed)
	anew := b.MustPut(target, nil)
	repeat(removed, first, nil)
	require.Equal(t, anew.UID, b.Get(target).UID, "the later one is another resource (I9)")

	// Marked, with a deployment that could not be asked; then gone.
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.SetDown(bEast, true)
	marked := shadow.DeleteRequest{Name: "targets/t", RequestID: uuid.New()}
	first, err = delete(marked)
	require.NoError(t, err)
	require.False(t, first.Removed)
	require.Len(t, first.Unasked, 1)
	require.Equal(t, b.ID(bEast), first.Unasked[0].Deployment)
	other, err := delete(shadow.DeleteRequest{Name: "targets/t", RequestID: uuid.New()})
	require.NoError(t, err, "it is being deleted already")
	require.NotNil(t, other.Resource)
	b.SetDown(bEast, false)
	b.Settle()
	b.Gone(target, holder)
	repeat(marked, first, nil)

	// Refused, for each definite reason.
	missing := shadow.DeleteRequest{Name: "targets/t", UID: r.UID, RequestID: uuid.New()}
	_, err = delete(missing)
	require.ErrorIs(t, err, peer.ErrNotFound)
	r = b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	blocked := shadow.DeleteRequest{Name: "targets/t", UID: r.UID, RequestID: uuid.New()}
	_, refused := delete(blocked)
	require.ErrorAs(t, refused, new(*peer.BlockedError))
	b.MustDelete(holder)
	_, moved := delete(shadow.DeleteRequest{Name: "targets/t", Revision: r.Revision + 1, RequestID: uuid.New()})
	require.ErrorIs(t, moved, peer.ErrConflict)
	_, err = store.Write.SetBlockDeletion(ctx, "targets/t", uuid.Nil, true)
	require.NoError(t, err)
	protected := shadow.DeleteRequest{Name: "targets/t", RequestID: uuid.New()}
	_, perr := delete(protected)
	require.ErrorAs(t, perr, new(*peer.ProtectedError))
	_, err = store.Write.SetBlockDeletion(ctx, "targets/t", uuid.Nil, false)
	require.NoError(t, err)
	b.Settle()
	repeat(blocked, peer.DeleteResult{}, refused)
	repeat(protected, peer.DeleteResult{}, perr)
	require.NotNil(t, b.Get(target), "a refused delete has no effect")

	// The id stands for this one request.
	blocked.UID = uuid.Nil
	_, err = store.Deletions.Delete(ctx, blocked)
	require.ErrorIs(t, err, peer.ErrRequestReused)
	_, err = store.Write.SaveRequested(ctx, blocked.RequestID, []peer.Write{{Name: "targets/other"}})
	require.ErrorIs(t, err, peer.ErrRequestReused)
	b.Settle()
	b.Audit()
}

func TestConcurrentDeletesWithOneRequestIDHaveOneAnswer_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	r := b.MustPut(target, nil)
	store, req := b.Stores[b.ID(aWest)], shadow.DeleteRequest{Name: "targets/t", UID: r.UID, RequestID: uuid.New()}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			result, err := store.Deletions.Delete(context.Background(), req)
			if err != nil || !result.Removed {
				t.Errorf("%v, %v", result, err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, b.Count(aWest, "request"))
	b.Audit()
}

// A delete beside an undecided blockade is not definite: it can be repeated until it is.
func TestADeleteBesideAnUndecidedBlockadeIsNotDefinite_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	store, holding := b.Stores[b.ID(aWest)], uuid.New()
	_, err := store.Targets.Establish(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()),
		[]peer.EstablishReference{reference("block", 1, holding)})
	require.NoError(t, err)
	req := shadow.DeleteRequest{Name: "targets/t", RequestID: uuid.New()}
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = store.Deletions.Delete(short, req)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.True(t, blocked.Undecided)
	require.False(t, peer.Definite(err))
	b.Expire(aWest)
	result, err := store.Deletions.Delete(t.Context(), req)
	require.NoError(t, err)
	require.True(t, result.Removed)
	b.Audit()
}

// A write that is repeated while its target's deployment does not answer leaves one release behind, and none
// when the deployment was never reached. Blockades of these attempts are removed in the end.
func TestARepeatedWriteLeavesOneRelease_I5_I21(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	repeat := func(id uuid.UUID, left int) {
		t.Helper()
		for range 20 {
			_, err := b.Stores[b.ID(bEast)].Write.SaveRequested(t.Context(), id,
				[]peer.Write{{Name: "holders/h", Body: body{"block": target}}})
			require.Error(t, err)
			require.False(t, peer.Definite(err))
		}
		require.Equal(t, left, b.Count(bEast, "work"))
	}
	b.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error {
		return peer.ErrNotSent
	}
	repeat(uuid.New(), 0)
	b.OnEstablish = nil
	b.SetDown(aWest, true)
	id := uuid.New()
	repeat(id, 1)
	b.SetDown(aWest, false)
	b.OnEstablish = func(_ schema.DeploymentID, attempt peer.AttemptID, refs []peer.EstablishReference) error {
		_, err := b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), b.ID(bEast), attempt, refs)
		require.NoError(t, err)
		return context.DeadlineExceeded // the answer does not come in time
	}
	repeat(id, 1)
	require.Equal(t, 20, b.Count(aWest, "tentative"))
	b.OnEstablish = nil
	b.Settle()
	b.Expire(aWest)
	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"))
	_, err := b.Stores[b.ID(bEast)].Write.SaveRequested(t.Context(), id,
		[]peer.Write{{Name: "holders/h", Body: body{"block": target}}})
	require.NoError(t, err)
	b.Settle()
	b.Audit()
}

// A repeated write that one deployment accepts, and another one does not answer, leaves one release at the
// first one, which ends its newest attempts at once, also attempts that are added while it is under way.
func TestARepeatedWriteLeavesOneReleaseWhereItWasEstablished_I5_I21(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, services, nil, aWest, aEast, bEast)
	other := "//" + aEast + "/targets/t"
	b.MustPut(target, nil)
	b.MustPut(other, nil)
	b.OnEstablish = func(to schema.DeploymentID, _ peer.AttemptID, _ []peer.EstablishReference) error {
		if to == b.ID(aWest) {
			return peer.ErrNotSent
		}
		return nil
	}
	store, id := b.Stores[b.ID(bEast)], uuid.New()
	repeat := func(n int) {
		t.Helper()
		for range n {
			_, err := store.Write.SaveRequested(t.Context(), id,
				[]peer.Write{{Name: "holders/h", Body: body{"block": target, "cascade": other}}})
			require.False(t, peer.Definite(err))
		}
		require.Len(t, b.Work(b.ID(bEast)), 1, "one release")
	}
	repeat(3)
	work := b.Work(b.ID(bEast))
	m, err := store.Targets.Messages(t.Context(), b.ID(aEast), []int64{work[0].Seq})
	require.NoError(t, err)
	require.Len(t, m.Abandon, 3)
	repeat(2) // before the message arrives
	require.NoError(t, b.Stores[b.ID(aEast)].Targets.Release(t.Context(), b.ID(bEast), m.Epoch, nil, m.Abandon))
	require.NoError(t, store.Targets.Delivered(t.Context(), m))
	require.Equal(t, 2, b.Count(aEast, "tentative"))
	require.Len(t, b.Work(b.ID(bEast)), 1, "the later attempts are released as well")
	b.Settle()
	require.Zero(t, b.Count(aEast, "blockade"), "none has to expire")

	repeat(30) // the release is bounded, and the blockades of the oldest attempts expire
	again := b.Work(b.ID(bEast))
	m, err = store.Targets.Messages(t.Context(), b.ID(aEast), []int64{again[0].Seq})
	require.NoError(t, err)
	require.Len(t, m.Abandon, 10)
	b.Settle()
	require.Equal(t, 20, b.Count(aEast, "tentative"))
	b.MustDelete(other) // asks at once, and is not kept waiting by them
	b.Settle()
	b.Gone(other)
	b.Audit()
}

// A slow deployment is not reported as unreachable.
func TestAWriteReportsASlowDeployment(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error {
		return context.DeadlineExceeded
	}
	_, err := b.Put(holder, body{"block": target})
	require.Equal(t, peer.TargetSlow, refusals(t, err)[0].Reason)
	require.ErrorContains(t, err, "did not answer in time")
	require.False(t, peer.Definite(err))
	b.OnEstablish = nil
	b.Settle()
	b.Audit()
}
