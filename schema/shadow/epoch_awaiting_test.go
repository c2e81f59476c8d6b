package shadow_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// Two deployments fail over at once, and the recovery of the holder's waits for the registry. A comparison
// that it begins meanwhile is older than its announcement, so that a release of the lost epoch can still undo
// the compared references: the comparison confirms nothing.
func TestAComparisonBeforeARecoveryConfirmsNothing_I3(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	h := b.MustPut(holder, body{"block": target})
	b.Settle()
	key := keyOf(t, b, h, b.Get(target).UID)
	here, there := b.Stores[b.ID(bEast)], b.Stores[b.ID(aWest)]
	lost := here.Gate.PresentEpoch()
	require.NoError(t, here.Gate.Recover(t.Context(), b.Environment())) // as a process does with its first environment
	exec(t, b, bEast, `UPDATE dbcontroller.meta SET server = 'another'`)
	awaiting, err := here.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.True(t, awaiting)
	b.Renew(aWest)
	announced(t, b, aWest)
	meanwhile := sync.OnceFunc(func() {
		require.NoError(t, there.Targets.Release(t.Context(), b.ID(bEast), lost, []peer.BlockadeKey{key}, nil))
		require.NoError(t, here.Gate.Recover(t.Context(), b.Environment()))
		announced(t, b, bEast)
		_, err := b.Do(b.ID(aWest), schema.VerifyBlockades) // it tells again of deletions
		require.NoError(t, err)
	})
	b.AfterCheckReferences = func([]peer.Known) { meanwhile() }
	_, _ = b.Do(b.ID(bEast), schema.ConfirmAgain)
	meanwhile()
	b.AfterCheckReferences = nil
	require.Zero(t, b.Count(aWest, "blockade"))
	require.Contains(t, unconfirmed(t, b, aWest), b.ID(bEast))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// A backup has work of an earlier recovery. It announces nothing before the recovery of the new epoch has
// begun, which makes that work anew: a deployment that is told compares once, and is waited for from the
// beginning of the recovery on.
func TestAnEpochIsAnnouncedWhenItsRecoveryHasBegun_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	b.Renew(aWest)
	restore := b.Backup(aWest)
	b.Settle()
	restore()
	store := b.Stores[b.ID(aWest)]
	awaiting, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.True(t, awaiting)
	_, _ = b.Do(b.ID(aWest), schema.AnnounceEpoch)
	_, _ = b.Do(b.ID(aWest), schema.VerifyBlockades)
	_, _ = b.Do(b.ID(bEast), schema.ConfirmAgain)
	require.NoError(t, store.Gate.Recover(t.Context(), b.Environment()))
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// A process that has not noticed the present epoch announces the one before, and is answered with the present
// one: nothing is lost, and no further epoch begins.
func TestThePresentEpochIsNotOutdone(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	second := b.SecondProcess(bEast, shadow.Config{})
	b.Renew(bEast)
	present := b.Stores[b.ID(bEast)].Gate.PresentEpoch()
	known, err := b.Stores[b.ID(aWest)].Gate.RecordPeerEpoch(t.Context(), b.ID(bEast), present, peer.TargetKinds{})
	require.NoError(t, err)
	require.NoError(t, second.Gate.OutdoEpoch(t.Context(), b.ID(aWest), known))
	awaiting, err := second.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.False(t, awaiting)
	require.Equal(t, present, second.Gate.PresentEpoch())
	require.NoError(t, second.Gate.OutdoEpoch(t.Context(), b.ID(aWest), uuid.Must(uuid.NewV7())),
		"the deployment has not been believed yet")
}

// A process that has not noticed the present epoch takes the work to compare in it. It could confirm the
// epoch before alone, and no process would compare again: the work stays.
func TestAProcessThatHasNotNoticedComparesNothing_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	second := b.SecondProcess(bEast, shadow.Config{})
	b.Renew(bEast)
	announced(t, b, bEast)
	_, err := b.Do(b.ID(aWest), schema.VerifyBlockades) // it tells again of deletions
	require.NoError(t, err)
	work := recovering(b, bEast, aWest, schema.ConfirmAgain)
	require.Len(t, work, 1)
	_, err = b.Handlers(b.ID(bEast), second).Handle(t.Context(), b.ID(aWest), work)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}
