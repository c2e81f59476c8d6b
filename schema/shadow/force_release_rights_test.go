package shadow_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// releaseEntry releases a holder entry, and returns its key.
func releaseEntry(t *testing.T, b *harness.Box, unanswered bool) (key string, released []string, err error) {
	t.Helper()
	west := b.Stores[b.ID(aWest)]
	key = releasable(t, west, "targets/t", "HOLDER_ENTRY").Key
	released, err = west.Operate.ForceRelease(t.Context(), []string{key}, unanswered, "ticket 1", "operator/eve")
	return key, released, err
}

// Before an entry is released its deployment ends the right that rests on it: nothing is written under the
// right afterwards, also not by an answer that grants it and comes late.
func TestAReleasedEntryEndsItsRight_I30_I31(t *testing.T) {
	t.Parallel()
	for _, switchedOff := range []bool{false, true} { // the right outlives the switch of the target's deployment
		b := delegating(t)
		west := b.Stores[b.ID(aWest)]
		uid := b.MustPut(target, nil).UID
		b.MustPut(holderNumber(0), body{"unset": target})
		b.Settle()
		require.Equal(t, 1, rights(t, b, bEast))
		if switchedOff {
			west = b.SecondProcess(aWest, shadow.Config{})
		}
		b.MustDelete(target)
		b.MustPut(holderNumber(1), body{"cascade": target}) // under the right: it has not heard of the deletion
		key := releasable(t, west, "targets/t", "HOLDER_ENTRY").Key
		released, err := west.Operate.ForceRelease(t.Context(), []string{key}, false, "ticket 1", "operator/eve")
		require.NoError(t, err)
		require.Equal(t, []string{key}, released)
		require.Zero(t, rights(t, b, bEast))
		_, err = b.Put(holderNumber(2), body{"unset": target})
		require.Error(t, err, "it asks, and is refused")
		_, err = b.Do(b.ID(aWest), schema.Finalise)
		require.NoError(t, err)
		b.Gone(target)
		require.NotEqual(t, uid, b.MustPut(target, nil).UID)
		require.NotNil(t, b.MustPut(holderNumber(2), body{"unset": target}), "the other uid of the name")
		b.Settle()
		require.Equal(t, 1, rights(t, b, bEast))
	}
}

func TestAGrantAfterAReleasedEntryIsNotTaken_I30_I31(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	ctx, store := t.Context(), b.Stores[b.ID(bEast)]
	var seqs []int64
	for _, w := range b.Work(b.ID(bEast)) {
		seqs = append(seqs, w.Seq)
	}
	m, err := store.Targets.Messages(ctx, b.ID(aWest), seqs)
	require.NoError(t, err)
	m.Confirmed, err = b.Stores[b.ID(aWest)].Targets.Confirm(ctx, b.ID(bEast),
		peer.Confirm{Epoch: m.Epoch, Attempts: m.Confirm, References: m.References, Delegable: true})
	require.NoError(t, err)
	require.Len(t, m.Confirmed.Delegated, 1)
	b.MustDelete(target)
	_, released, err := releaseEntry(t, b, false)
	require.NoError(t, err)
	require.Len(t, released, 1)
	require.NoError(t, store.Targets.Delivered(ctx, m))
	require.Zero(t, rights(t, b, bEast))
	_, err = b.Put(holderNumber(1), body{"unset": target})
	require.Error(t, err)
}

// A right that has not ended keeps the entry: beside a write that is under way, and while its deployment does
// not answer. An operator may insist.
func TestAnEntryIsNotReleasedBesideARight_I30_I31(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	west, ctx := b.Stores[b.ID(aWest)], t.Context()
	uid := b.MustPut(target, nil).UID
	b.MustPut(holderNumber(0), body{"unset": target})
	b.Settle()
	asked := 0
	b.OnResolve = func(schema.DeploymentID) error { asked++; return nil }
	early := "HOLDER_ENTRY|" + uid.String() + "|" + bEast + "|9999999"
	require.False(t, forceRelease(t, west, early))
	require.Zero(t, asked, "a right that ends before the mark can be granted again before it")
	b.MustDelete(target)
	asked = 0

	kept := func(why string) {
		t.Helper()
		_, released, err := releaseEntry(t, b, false)
		var unavailable *peer.UnavailableError
		require.ErrorAs(t, err, &unavailable)
		require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unavailable.Deployments)
		require.ErrorContains(t, err, why)
		require.Empty(t, released)
		require.Equal(t, 1, b.Count(aWest, "notice"))
		require.Equal(t, 1, b.Count(aWest, "holder_entry"))
	}
	paused, err := b.Pools[b.ID(bEast)].Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = paused.Rollback(ctx) }()
	_, err = paused.Exec(ctx, `SELECT FROM dbcontroller.foreign_target WHERE uid = $1 FOR SHARE`, uid)
	require.NoError(t, err)
	kept("it has not confirmed the end of its rights")
	require.Equal(t, 1, asked)
	require.NoError(t, paused.Rollback(ctx))
	b.OnResolve = func(schema.DeploymentID) error { return errors.New("no route") }
	kept("no route")
	require.Equal(t, 1, rights(t, b, bEast))

	_, released, err := releaseEntry(t, b, true)
	require.NoError(t, err)
	require.Len(t, released, 1)
	decisions, err := west.Operate.OperatorDecisions(ctx)
	require.NoError(t, err)
	require.Equal(t, "HOLDER_ENTRY_RELEASED_UNANSWERED", decisions[0].What)
}

// endings is the number of pieces of work that ask other deployments to end their rights.
func endings(b *harness.Box, deployment string) (n int) {
	for _, w := range b.Work(b.ID(deployment)) {
		if w.Action == schema.EndRights {
			n++
		}
	}
	return n
}

// The deployment of an entry that was released without its answer goes on writing under its right until it
// answers the question, which is repeated: also when the resource is gone.
func TestARightEndsAfterAReleaseWithoutAnAnswer_I30_I31(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	b.Settle()
	b.MustDelete(target)
	b.SetDown(bEast, true)
	_, released, err := releaseEntry(t, b, true)
	require.NoError(t, err)
	require.Len(t, released, 1)
	require.Equal(t, 1, endings(b, aWest))
	b.Settle()
	b.Gone(target)
	b.MustPut(holderNumber(1), body{"cascade": target})
	require.Equal(t, 1, endings(b, aWest), "it does not answer")

	b.SetDown(bEast, false)
	unlock := hold(t, b, bEast, `SELECT FROM dbcontroller.foreign_target FOR SHARE`)
	_, err = b.Do(b.ID(aWest), schema.EndRights)
	require.NoError(t, err)
	require.Equal(t, 1, endings(b, aWest), "a write is under way")
	unlock()
	b.Settle()
	require.Zero(t, endings(b, aWest))
	require.Zero(t, rights(t, b, bEast))
	_, err = b.Put(holderNumber(2), body{"cascade": target})
	require.Error(t, err, "it asks, and is refused")
	require.Empty(t, b.Work(b.ID(aWest)))
}

// An entry stays when the database of either side was lost between the answer and the release: the answer
// says nothing about the rights of the new epoch.
func TestAnAnswerOfALostDatabaseReleasesNoEntry_I30_I31(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{bEast, aWest} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			b := delegating(t)
			b.MustPut(target, nil)
			b.MustPut(holderNumber(0), body{"unset": target})
			b.Settle()
			b.MustDelete(target)
			g := newGate("SELECT pg_advisory_xact_lock($1)")
			west := gatedProcess(t, b, aWest, g, b.Stores[b.ID(aWest)].Model())
			open := sync.OnceFunc(func() { close(g.open) })
			t.Cleanup(open)
			key := releasable(t, west, "targets/t", "HOLDER_ENTRY").Key
			g.arm(0)
			type answer struct {
				released []string
				err      error
			}
			answered := make(chan answer, 1)
			go func() {
				released, err := west.Operate.ForceRelease(t.Context(), []string{key}, false, "ticket 1",
					"operator/eve")
				answered <- answer{released, err}
			}()
			<-g.reached // it has its answer
			b.Renew(lost)
			_, err := b.Do(b.ID(lost), schema.AnnounceEpoch)
			require.NoError(t, err)
			open()
			a := <-answered
			require.Error(t, a.err)
			require.Empty(t, a.released)
			require.Equal(t, 1, b.Count(aWest, "holder_entry"))
			b.Settle()
			b.Gone(target)
			b.Audit()
		})
	}
}

// The right to block ends as well: its deployment would never be told to return it, and the target would wait
// for ever. An operator's insistence cannot change that.
func TestAReleasedEntryEndsTheRightToBlock_I13_I31(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, services, withBlockRights, aWest, aEast, bEast)
	root := "//" + aEast + "/targets/root"
	b.MustPut(root, nil)
	b.MustPut(target, body{"next": root})
	b.Settle()
	idleRight(t, b)
	b.MustDelete(root)
	unasked(t, b, holderNumber(2), body{"block": target})
	_, err := b.Act(b.ID(aWest), b.ID(aEast))
	require.NoError(t, err)
	require.Equal(t, peer.Deleting, b.Get(target).State)

	b.SetDown(bEast, true)
	_, released, err := releaseEntry(t, b, true)
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.ErrorContains(t, err, "it has the right to block the resource")
	require.Empty(t, released)
	b.SetDown(bEast, false)
	_, released, err = releaseEntry(t, b, false)
	require.NoError(t, err)
	require.Len(t, released, 1)
	_, err = b.Put(holderNumber(3), body{"block": target})
	require.Error(t, err, "it asks, and is refused")
	b.MustPut(holderNumber(2), nil)
	b.Settle()
	b.Gone(target)
	b.Audit()
}

// An operator takes back the rights to a resource: its deployment is asked until it says that they have
// ended, and asks for each reference from then on. References written under them stay, and count.
func TestRightsAreTakenBack_I3_I30_I31(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	acquired(t, b)
	b.MustPut(holderNumber(20), body{"unset": target})
	b.Settle()
	unasked(t, b, holderNumber(21), body{"unset": target, "block": target})
	west := b.SecondProcess(aWest, shadow.Config{}) // gives no rights any more
	list := func() shadow.Releasable { return releasable(t, west, "targets/t", "RIGHTS") }
	b.SetDown(bEast, true)
	key := list().Key
	require.True(t, forceRelease(t, west, key))
	require.False(t, forceRelease(t, west, key), "it has been asked")
	require.Contains(t, list().Refused, "has not answered yet")
	require.Equal(t, 1, endings(b, aWest))
	decisions, err := west.Operate.OperatorDecisions(t.Context())
	require.NoError(t, err)
	require.Equal(t, "RIGHTS_RELEASED", decisions[0].What)
	_, err = b.Do(b.ID(aWest), schema.EndRights)
	require.Error(t, err)
	require.Equal(t, 1, rights(t, b, bEast), "it does not know")

	b.SetDown(bEast, false)
	_, err = b.Do(b.ID(aWest), schema.EndRights)
	require.NoError(t, err)
	require.Zero(t, endings(b, aWest))
	require.Zero(t, rights(t, b, bEast))
	require.Empty(t, list().Refused)
	b.MustPut(holderNumber(22), body{"unset": target, "block": target})
	require.Equal(t, map[string]bool{"unset": false, "block": false}, storedAs(t, b, "d22"))
	require.Equal(t, map[string]bool{"unset": true, "block": true}, storedAs(t, b, "d21"))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Settle()
	b.Audit()
}
