package shadow_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// An operator accepts a database at one process. Another process, which had compared the replaced one,
// compares again within its next look at the epoch.
func TestAnAcceptedDatabaseIsComparedByAllProcesses_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"unset": target})
	b.Settle()
	second := b.SecondProcess(aWest, shadow.Config{})
	former := b.Stores[b.ID(bEast)].Gate.Database()
	require.NoError(t, second.Gate.CheckDatabase(t.Context(), b.ID(bEast), former))
	b.Replace(bEast)
	accept(t, b, aWest, bEast)
	_, err := second.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.ErrorAs(t, second.Gate.CheckDatabase(t.Context(), b.ID(bEast), former), new(*peer.DatabaseError))
	require.NoError(t, second.Gate.CheckDatabase(t.Context(), b.ID(bEast), b.Stores[b.ID(bEast)].Gate.Database()))
}

// Several processes notice a failover at once: one of them begins the epoch, and all are in it.
func TestOneProcessBeginsAnEpoch_I8(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	pool := b.Pools[b.ID(aWest)]
	stores := []*shadow.Store{
		b.Stores[b.ID(aWest)], b.SecondProcess(aWest, shadow.Config{}),
		b.SecondProcess(aWest, shadow.Config{}),
	}
	_, err := pool.Exec(t.Context(), `UPDATE dbcontroller.meta SET server = 'another'`)
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM dbcontroller.meta FOR UPDATE`)
	require.NoError(t, err)
	var g errgroup.Group
	for _, s := range stores {
		g.Go(func() error { _, err := s.Gate.NoticeEpoch(t.Context()); return err })
	}
	stopped(t, b, aWest, len(stores)) // all have seen that the epoch has ended
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, g.Wait())
	var epochs int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.epoch`).Scan(&epochs))
	require.Equal(t, 2, epochs)
	present := map[uuid.UUID]bool{}
	for _, s := range stores {
		present[s.Gate.PresentEpoch()] = true
	}
	require.Len(t, present, 1)
}

// Before a row depended on it, the target's deployment has met an empty database, which was started by
// mistake, and then the right one. It is restored to the time between: the empty one, started again, is not
// believed in that recovery.
func TestADatabaseThatWasMetBeforeAnotherOneIsNotBelieved_I2_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	back := b.Replace(bEast)
	empty := b.Stores[b.ID(bEast)].Gate.Database()
	require.NoError(t, b.Stores[b.ID(aWest)].Gate.CheckDatabase(t.Context(), b.ID(bEast), empty))
	// later than the right one's
	_, err := b.Stores[b.ID(aWest)].Gate.RecordPeerEpoch(t.Context(), b.ID(bEast),
		b.Stores[b.ID(bEast)].Gate.PresentEpoch(), peer.TargetKinds{})
	require.NoError(t, err)
	restore := b.Backup(aWest)
	back()
	right := b.Stores[b.ID(bEast)].Gate.Database()
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore()
	b.SetDown(bEast, true)
	b.Recover(aWest)
	b.Settle()
	store := b.Stores[b.ID(aWest)]
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	var other *peer.DatabaseError
	require.ErrorAs(t, store.Gate.CheckDatabase(t.Context(), b.ID(bEast), empty), &other)
	require.Equal(t, right, other.Known)
	b.SetDown(bEast, false)
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// An announcement that arrives again, or an earlier one, confirms nothing: the announcer is waited for until
// it has compared.
func TestARepeatedAnnouncementConfirmsNothing_I2_I3(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	earlier, epoch := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	for _, announced := range []uuid.UUID{epoch, epoch, earlier} {
		known, err := b.Stores[b.ID(aWest)].Gate.RecordPeerEpoch(t.Context(), b.ID(bEast), announced,
			peer.TargetKinds{})
		require.NoError(t, err)
		require.Equal(t, epoch, known)
		require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	}
	// A deployment whose epoch is known, and whose database is not met yet.
	store, other := b.Stores[b.ID(aWest)], b.ID(bWest)
	_, err := store.Gate.RecordPeerEpoch(t.Context(), other, epoch, peer.TargetKinds{})
	require.NoError(t, err)
	require.NoError(t, store.Gate.CheckDatabase(t.Context(), other, b.Stores[other].Gate.Database()))
	known, err := store.Gate.RecordPeerEpoch(t.Context(), other, earlier, peer.TargetKinds{})
	require.NoError(t, err)
	require.Equal(t, epoch, known)
}

// A deployment that a restored database has forgotten is waited for, and compares: it has none of its
// references any more. When its own database is restored to the time of such a reference, it is waited for
// again.
func TestWhoWasWaitedForIsWaitedForAgain_I2_I3(t *testing.T) {
	t.Parallel()
	for name, recover := range map[string]func(*testing.T, *harness.Box){
		"listed": func(_ *testing.T, b *harness.Box) { b.Recover(aWest) },
		"opens its watch by itself": func(t *testing.T, b *harness.Box) {
			t.Helper()
			store := b.Stores[b.ID(aWest)]
			_, err := store.Gate.NoticeEpoch(t.Context())
			require.NoError(t, err)
			require.NoError(t, store.Gate.Recover(t.Context(), without(b, bEast)))
			require.NoError(t, b.OpenWatch(b.ID(bEast), b.ID(aWest)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			waitedForAgain(t, recover)
		})
	}
}

func waitedForAgain(t *testing.T, recover func(*testing.T, *harness.Box)) {
	t.Helper()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	restoreTarget := b.Backup(aWest) // has no reference of the holder's deployment
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restoreHolder := b.Backup(bEast)
	b.MustPut(holder, nil)
	b.Settle()
	restoreTarget()
	recover(t, b)
	require.Contains(t, unconfirmed(t, b, aWest), b.ID(bEast))
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	restoreHolder()
	b.Recover(bEast)
	announced(t, b, bEast)
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// The registry has lost the deployment of a target, and the holder's database the reference: the blockade is
// removed all the same.
func TestATargetsDeploymentThatTheRegistryHasLostIsToldOfAnEpoch_I8(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"unset": target2})
	b.Settle()
	restore := b.Backup(bEast)
	b.MustPut(holder2, body{"block": target})
	b.Settle()
	restore()
	store := b.Stores[b.ID(bEast)]
	_, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.NoError(t, store.Gate.Recover(t.Context(), without(b, aWest)))
	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"))
	b.Audit()
}

// A message of a deployment is under way when it announces an epoch: the epoch is recorded after the message,
// whose effect is compared.
func TestAnAnnouncementWaitsForMessagesUnderWay_I8(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	h := b.MustPut(holder, body{"block": target})
	b.Settle()
	key := keyOf(t, b, h, b.Get(target).UID)
	g := newGate("commit")
	g.whole = true
	process := gatedProcess(t, b, aWest, g, b.Stores[b.ID(aWest)].Model())
	open := sync.OnceFunc(func() { close(g.open) })
	t.Cleanup(open)
	g.arm(0)
	released, before := make(chan error, 1), b.Stores[b.ID(bEast)].Gate.PresentEpoch()
	go func() {
		released <- process.Targets.Release(context.Background(), b.ID(bEast), before, []peer.BlockadeKey{key}, nil)
	}()
	<-g.reached
	recorded := make(chan error, 1)
	go func() {
		_, err := b.Stores[b.ID(aWest)].Gate.RecordPeerEpoch(context.Background(), b.ID(bEast), uuid.Must(uuid.NewV7()),
			peer.TargetKinds{})
		recorded <- err
	}()
	stopped(t, b, aWest, 1)
	require.Empty(t, recorded)
	open()
	require.NoError(t, <-released)
	require.NoError(t, <-recorded)
}

// An older copy lacks a switch of the version, and another process switches that copy: its switch is not
// taken for the lost one.
func TestASwitchAfterALostOneIsAnotherOne_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	store, second := b.Stores[b.ID(bEast)], b.SecondProcess(bEast, shadow.Config{})
	b.Switch(bEast, "v2")
	exec(t, b, bEast, `UPDATE dbcontroller.meta SET generation = generation - 1, version = 'v1'`)
	b.Renew(bEast)
	require.NoError(t, second.Admin.Switch(t.Context(), modelOf(t, versions, "b.example.com", "v3")))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, within(ctx, store, b.Pools[b.ID(bEast)], peer.Write{Name: "holders/h"}), peer.ErrAborted,
		"validated by v2")
}

// An older copy lacks a decommissioning: the process goes by the copy at once.
func TestALostDecommissioningDoesNotCount(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	decommission(t, b, aWest, bEast, schema.Unset)
	store := b.Stores[b.ID(aWest)]
	require.True(t, store.Gate.IsDecommissioned(b.ID(bEast)))
	exec(t, b, aWest, `DELETE FROM dbcontroller.decommissioned`)
	b.Renew(aWest)
	require.False(t, store.Gate.IsDecommissioned(b.ID(bEast)))
}

// The clock of a replaced database was ahead: the epoch of the accepted one counts all the same.
func TestTheEpochOfAnAcceptedDatabaseCounts_I13(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"unset": target})
	b.Settle()
	future, err := uuid.Parse("0fffffff-ffff-7000-8000-000000000000")
	require.NoError(t, err)
	_, err = b.Stores[b.ID(aWest)].Gate.RecordPeerEpoch(t.Context(), b.ID(bEast), future, peer.TargetKinds{})
	require.NoError(t, err)
	b.Replace(bEast)
	accept(t, b, aWest, bEast)
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest), "its confirmation is of no earlier epoch")
}

// While lost references are established again, the target's database begins another epoch, or its deployment
// is decommissioned: they are not taken for established.
func TestNothingIsEstablishedAgainInAnEpochThatHasEnded_I2(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(*testing.T, *harness.Box){
		"another epoch": func(t *testing.T, b *harness.Box) {
			t.Helper()
			b.Renew(aWest)
			announced(t, b, aWest)
		},
		"decommissioned": func(t *testing.T, b *harness.Box) {
			t.Helper()
			decommission(t, b, bEast, aWest, schema.Unset)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, nil)
			b.MustPut(target, nil)
			restore := b.Backup(aWest)
			b.MustPut(holder, body{"block": target})
			b.Settle()
			restore()
			b.Recover(aWest)
			announced(t, b, aWest)
			b.AfterEstablish = func() {
				b.AfterEstablish = nil
				meanwhile(t, b)
			}
			_, err := b.Do(b.ID(aWest), schema.ConfirmAgain)
			require.NoError(t, err, "it refers to nobody")
			_, err = b.Do(b.ID(bEast), schema.ConfirmAgain)
			require.ErrorIs(t, err, peer.ErrAborted)
			require.Nil(t, b.AfterEstablish)
		})
	}
}

// A holder's database is restored to the time of a reference whose target is being deleted, or is gone: it
// dangles. It does not any more when the target's database is restored as well.
func TestADanglingReferenceWhoseTargetIsRestored_I1(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	const near = "//" + bWest + "/holders/near"
	b.MustPut(target, nil)
	b.MustPut(near, body{"cascade": target})
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restoreHolder, restoreTarget := b.Backup(bEast), b.Backup(aWest)
	b.MustPut(holder, nil)
	b.Settle()
	b.SetDown(bWest, true)
	b.MustDelete(target)
	require.Equal(t, peer.Deleting, b.Get(target).State)
	restoreHolder()
	b.Recover(bEast)
	b.Settle()
	require.Equal(t, 1, b.Count(bEast, "dangling"))
	restoreTarget()
	b.SetDown(bWest, false)
	b.Recover(aWest)
	b.Settle()
	require.Zero(t, b.Count(bEast, "dangling"))
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}
