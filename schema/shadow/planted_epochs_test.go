package shadow_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// An operator accepts a database at one process. Another process, which had compared the replaced one, compares again within its next
// look at the epoch.
func TestAnAcceptedDatabaseIsComparedByAllProcesses_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"unset": target})
	b.Settle()
	second := b.SecondProcess(aWest, shadow.Config{})
	former := b.Stores[b.ID(bEast)].Database()
	require.NoError(t, second.CheckDatabase(t.Context(), b.ID(bEast), former))
	b.Replace(bEast)
	accept(t, b, aWest, bEast)
	_, err := second.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.ErrorAs(t, second.CheckDatabase(t.Context(), b.ID(bEast), former), new(*peer.DatabaseError))
	require.NoError(t, second.CheckDatabase(t.Context(), b.ID(bEast), b.Stores[b.ID(bEast)].Database()))
}

// Several processes notice a failover at once: one of them begins the epoch, and all are in it.
func TestOneProcessBeginsAnEpoch_I8(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	pool := b.Pools[b.ID(aWest)]
	stores := []*shadow.Store{b.Stores[b.ID(aWest)], b.SecondProcess(aWest, shadow.Config{}), b.SecondProcess(aWest, shadow.Config{})}
	_, err := pool.Exec(t.Context(), `UPDATE dbcontroller.meta SET server = 'another'`)
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM dbcontroller.meta FOR UPDATE`)
	require.NoError(t, err)
	var g errgroup.Group
	for _, s := range stores {
		g.Go(func() error { _, err := s.NoticeEpoch(t.Context()); return err })
	}
	stopped(t, b, aWest, len(stores)) // all have seen that the epoch has ended
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, g.Wait())
	var epochs int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.epoch`).Scan(&epochs))
	require.Equal(t, 2, epochs)
	present := map[uuid.UUID]bool{}
	for _, s := range stores {
		present[s.PresentEpoch()] = true
	}
	require.Len(t, present, 1)
}

// Before anything depended on it, the target's deployment has met an empty database, which was started by mistake, and then the right
// one. It is restored to the time between: the empty one, started again, is not believed in that recovery.
func TestADatabaseThatWasMetBeforeAnotherOneIsNotBelieved_I2_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	back := b.Replace(bEast)
	empty := b.Stores[b.ID(bEast)].Database()
	require.NoError(t, b.Stores[b.ID(aWest)].CheckDatabase(t.Context(), b.ID(bEast), empty))
	restore := b.Backup(aWest)
	back()
	right := b.Stores[b.ID(bEast)].Database()
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore()
	b.SetDown(bEast, true)
	b.Recover(aWest)
	b.Settle()
	store := b.Stores[b.ID(aWest)]
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	var other *peer.DatabaseError
	require.ErrorAs(t, store.CheckDatabase(t.Context(), b.ID(bEast), empty), &other)
	require.Equal(t, right, other.Known)
	b.SetDown(bEast, false)
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// An announcement that arrives again, or an earlier one, confirms nothing: the announcer is waited for until it has compared.
func TestARepeatedAnnouncementConfirmsNothing_I2_I3(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	earlier, epoch := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	for _, announced := range []uuid.UUID{epoch, epoch, earlier} {
		known, err := b.Stores[b.ID(aWest)].RecordPeerEpoch(t.Context(), b.ID(bEast), announced)
		require.NoError(t, err)
		require.Equal(t, epoch, known)
		require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	}
}
