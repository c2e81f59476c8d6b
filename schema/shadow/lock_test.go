package shadow_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// A confirm arrives while a cascade has marked its target and not committed yet: the confirm waits for the
// mark, and then creates a notice for the holder's deployment. Without the lock there would be a holder entry
// without a notice, and the target would wait for ever.
func TestAConfirmBesideAMarkThatIsUnderWayIsTold_I4(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	const near = "//" + bWest + "/holders/near"
	b.MustPut(target, nil)
	b.MustPut(near, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	h := b.MustPut(holder, body{"near": body{"asyncCascade": near}}) // its confirm is not delivered yet
	var attempt uuid.UUID
	require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(),
		`SELECT id FROM dbcontroller.attempt ORDER BY decided_at DESC LIMIT 1`).Scan(&attempt))
	deletions, _ := b.Seen(b.ID(bWest), b.ID(aWest))
	require.Len(t, deletions, 1)
	g := newGate("commit") // stops the commit of the transaction that marks
	g.whole = true
	process := gatedProcess(t, b, bWest, g, b.Stores[b.ID(bWest)].Model())
	peers, ok := b.Peers(bWest).Planner.(handlers.Acknowledger)
	require.True(t, ok)
	g.arm(0)
	acted := make(chan error, 1)
	go func() {
		failed, err := (&handlers.SubscribedDeleting{Store: process.Follow, Epoch: process.Gate, Peers: peers}).
			Handle(context.Background(), b.ID(aWest), deletions, "", nil, true)
		for _, e := range failed {
			err = e
		}
		acted <- err
	}()
	select {
	case <-g.reached:
	case err := <-acted:
		require.FailNow(t, "no mark", "%v", err)
	}
	require.NoError(t, beside(t, b.Pools[b.ID(bWest)], func() error {
		confirmed, err := b.Stores[b.ID(bWest)].Targets.Confirm(context.Background(), b.ID(bEast),
			peer.Confirm{Epoch: b.Stores[b.ID(bEast)].Gate.PresentEpoch(), Attempts: []peer.AttemptID{attempt}})
		if err == nil && len(confirmed.Unknown) > 0 {
			t.Errorf("the attempt of %s is not known", h.Name)
		}
		return err
	}, func() { close(g.open) }))
	require.NoError(t, <-acted)
	b.Settle()
	b.Gone(target, near, holder)
	b.Audit()
}

// A deployment is decommissioned while an establish of it is in progress: Decommission waits for it, and its
// blockade is worked off as well.
func TestADecommissionBesideAnEstablish_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	g := newGate("commit")
	g.whole = true
	process := gatedProcess(t, b, aWest, g, b.Stores[b.ID(aWest)].Model())
	ref := reference("block", schema.Block, uuid.New())
	g.arm(0)
	established := make(chan error, 1)
	go func() {
		_, err := process.Targets.Establish(context.Background(), b.ID(bEast), newAttempt(),
			[]peer.EstablishReference{ref})
		established <- err
	}()
	<-g.reached
	b.SetDown(bEast, true)
	require.NoError(t, beside(t, b.Pools[b.ID(aWest)], func() error {
		err := b.Stores[b.ID(aWest)].Admin.Decommission(context.Background(),
			shadow.Decommissioned{Deployment: b.ID(bEast), Blocking: schema.Unset, Reason: "fire", By: "eve"})
		if len(established) == 0 && !waiting(t, b.Pools[b.ID(aWest)]) {
			b.Settle() // working off starts before the establish commits
		}
		return err
	}, func() { close(g.open) }))
	require.NoError(t, <-established)
	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"))
	b.MustDelete(target)
}

// A verdict given in an epoch of either deployment that has ended settles nothing, and a process whose
// database has begun an epoch that it has not noticed gives none.
func TestAVerdictOfAnOldEpochSettlesNothing_I5_I8(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	restore := b.Backup(bEast)
	h := b.MustPut(holder, body{"block": target})
	key := keyOf(t, b, h, b.Get(target).UID) // its confirm is not delivered yet
	question := []peer.Question{{Key: key}}
	answers, err := b.Stores[b.ID(bEast)].Attempts.Answer(t.Context(), b.ID(aWest), question)
	require.NoError(t, err)
	require.Equal(t, []peer.Verdict{peer.Held}, answers.Verdicts)
	restore() // the reference is lost
	b.Recover(bEast)
	announced(t, b, bEast)
	late := b.SecondProcess(aWest, shadow.Config{})
	require.ErrorIs(t, b.Stores[b.ID(aWest)].Targets.Settle(t.Context(), b.ID(bEast), question, answers),
		peer.ErrStaleEpoch)
	require.Equal(t, 1, b.Count(aWest, "tentative"))
	b.Expire(aWest)
	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"))
	b.Audit()

	lateHolder := b.SecondProcess(bEast, shadow.Config{})
	b.Renew(aWest)
	b.Renew(bEast)
	b.Settle()
	_, err = lateHolder.Attempts.Answer(t.Context(), b.ID(aWest), question)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	for _, verdict := range []peer.Verdict{peer.Held, peer.GoneVerdict} {
		of := &peer.Answers{Verdicts: []peer.Verdict{verdict}, Epoch: b.Stores[b.ID(bEast)].Gate.PresentEpoch()}
		require.ErrorAs(t, late.Targets.Settle(t.Context(), b.ID(bEast), question, of), new(*peer.UnavailableError),
			"it caches numbers of the lost history")
	}
}

// A late duplicate of an Establish commits between the lock of a confirm and its statement: the confirm
// leaves the blockade on a target that it has not locked, which is resolved when it expires. Else an entry
// would stand beside a mark that has not seen it.
func TestAConfirmTakesNoBlockadeOfATargetThatItHasNotLocked_I4_I7(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	attempt, uid := newAttempt(), uuid.New()
	establish := func(store *shadow.Store, name, path string) {
		_, err := store.Targets.Establish(t.Context(), b.ID(bEast), attempt, []peer.EstablishReference{{
			HolderUID: uid, HolderKind: "Holder", HolderName: "holders/h", Path: path, TargetKind: "Target",
			TargetName: name, Behaviour: schema.Unset,
		}})
		require.NoError(t, err)
	}
	establish(b.Stores[b.ID(aWest)], "targets/t", "unset")
	g := newGate("INSERT INTO dbcontroller.holder_entry")
	process := gatedProcess(t, b, aWest, g, b.Stores[b.ID(aWest)].Model())
	g.arm(0)
	confirmed := make(chan error, 1)
	go func() {
		_, err := process.Targets.Confirm(context.Background(), b.ID(bEast),
			peer.Confirm{Epoch: b.Stores[b.ID(bEast)].Gate.PresentEpoch(), Attempts: []peer.AttemptID{attempt}})
		confirmed <- err
	}()
	<-g.reached
	establish(b.Stores[b.ID(aWest)], "targets/t2", "cascade")
	close(g.open)
	require.NoError(t, <-confirmed)
	require.Equal(t, 1, b.Count(aWest, "holder_entry"))
	require.Equal(t, 1, b.Count(aWest, "tentative"), "of targets/t2")
}

// A release arrives while an establish of the same attempt is under way: it waits for it, and removes its
// blockade. Else the blockade of a closed attempt would stand until it expires, and block.
func TestAReleaseWaitsForAnEstablishOfItsAttempt_I5_I7(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	uid := b.MustPut(target, nil).UID
	attempt, holderUID := newAttempt(), uuid.New()
	g := newGate("commit")
	g.whole = true
	process := gatedProcess(t, b, aWest, g, b.Stores[b.ID(aWest)].Model())
	g.arm(0)
	established := make(chan error, 1)
	go func() {
		_, err := process.Targets.Establish(context.Background(), b.ID(bEast), attempt, []peer.EstablishReference{{
			HolderUID: holderUID, HolderKind: "Holder", HolderName: "holders/h", Path: "block", TargetKind: "Target",
			TargetName: "targets/t", Behaviour: schema.Block,
		}})
		established <- err
	}()
	select {
	case <-g.reached:
	case err := <-established:
		require.FailNow(t, "no establish", "%v", err)
	}
	key := peer.BlockadeKey{Attempt: attempt, HolderUID: holderUID, Path: "block", TargetUID: uid}
	require.NoError(t, beside(t, b.Pools[b.ID(aWest)], func() error {
		return b.Stores[b.ID(aWest)].Targets.Release(context.Background(), b.ID(bEast),
			b.Stores[b.ID(bEast)].Gate.PresentEpoch(), []peer.BlockadeKey{key}, nil)
	}, func() { close(g.open) }))
	require.NoError(t, <-established)
	require.Zero(t, b.Count(aWest, "blockade"))
	require.True(t, b.MustDelete(target).Removed)
}
