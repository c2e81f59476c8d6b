package shadow_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// The registry has lost a holder's deployment, and the restored database still has a blockade or a holder
// entry of it. It may have lost others, so that the deployment is waited for.
func TestWhoIsKnownByWhatIsLeftIsWaitedFor_I2_I3_I15(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body   body
		settle bool
		left   [2]int // blockades and entries
	}{
		"a tentative blockade": {body{"block": target}, false, [2]int{1, 0}},
		"an entry":             {body{"cascade": target}, true, [2]int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, nil)
			b.MustPut(target, nil)
			b.MustPut(target2, nil)
			b.MustPut(holder, c.body)
			if c.settle {
				b.Settle()
			}
			require.Equal(t, c.left, [2]int{b.Count(aWest, "blockade"), b.Count(aWest, "holder_entry")})
			restore := b.Backup(aWest)
			b.MustPut(holder2, body{"block": target2}) // lost by the restore
			b.Settle()
			restore()
			store := b.Stores[b.ID(aWest)]
			_, err := store.Gate.NoticeEpoch(t.Context())
			require.NoError(t, err)
			require.NoError(t, store.Gate.Recover(t.Context(), without(b, bEast)))
			require.Contains(t, unconfirmed(t, b, aWest), b.ID(bEast))
			_, err = b.Delete(target2)
			require.ErrorAs(t, err, new(*peer.UnavailableError))
			b.Settle()
			require.Empty(t, unconfirmed(t, b, aWest))
			_, err = b.Delete(target2)
			require.ErrorAs(t, err, new(*peer.BlockedError))
			b.Expire(aWest)
			b.Settle()
			b.Audit()
		})
	}
}

// A comparison in an earlier epoch, of the target's or of the holder's database, confirms nothing.
func TestAComparisonInAnEarlierEpochConfirmsNothing_I2_I3(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	store, by := b.Stores[b.ID(aWest)], b.ID(bEast)
	selfEpoch := b.Stores[by].Gate.PresentEpoch()
	b.Renew(aWest)
	earlier := store.Gate.PresentEpoch()
	b.Renew(aWest)
	require.NoError(t, store.Gate.MarkReferencesConfirmed(t.Context(), by, earlier, selfEpoch))
	require.Contains(t, unconfirmed(t, b, aWest), by, "the target's database began another epoch since")
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	var told [2]uuid.UUID
	for i := range told {
		told[i] = uuid.Must(uuid.NewV7())
		_, err := store.Gate.RecordPeerEpoch(t.Context(), by, told[i], peer.TargetKinds{})
		require.NoError(t, err)
	}
	require.NoError(t, store.Gate.MarkReferencesConfirmed(t.Context(), by, store.Gate.PresentEpoch(), told[0]))
	require.Equal(t, []schema.DeploymentID{by}, unconfirmed(t, b, aWest),
		"the holder's database began another epoch since")
	_, err := b.Delete(target2)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	_, err = b.Do(b.ID(aWest), schema.VerifyBlockades) // it tells again of deletions
	require.NoError(t, err)
	require.NoError(t, store.Gate.MarkReferencesConfirmed(t.Context(), by, store.Gate.PresentEpoch(), told[1]))
	require.Empty(t, unconfirmed(t, b, aWest))
}

// A deployment confirms nothing before it was told again of the deletions that are under way, after a
// failover here or there.
func TestNobodyConfirmsBeforeItWasTold_I1(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	store, by := b.Stores[b.ID(aWest)], b.ID(bEast)
	there := b.Stores[by].Gate.PresentEpoch()
	confirm := func() error {
		return store.Gate.MarkReferencesConfirmed(t.Context(), by, store.Gate.PresentEpoch(), there)
	}
	for name, failsOver := range map[string]func(){
		"here": func() { b.Renew(aWest) },
		"there": func() {
			var err error
			there, err = store.Gate.RecordPeerEpoch(t.Context(), by, uuid.Must(uuid.NewV7()), peer.TargetKinds{})
			require.NoError(t, err)
		},
	} {
		failsOver()
		require.ErrorAs(t, confirm(), new(*peer.UnavailableError), name)
		exec(t, b, aWest, `UPDATE dbcontroller.work SET cursor = 'tell 7' WHERE cursor = ''`)
		require.ErrorAs(t, confirm(), new(*peer.UnavailableError), "%s, in the middle", name)
		require.Contains(t, unconfirmed(t, b, aWest), by, name)
		_, err := b.Do(b.ID(aWest), schema.VerifyBlockades)
		require.NoError(t, err)
		require.NoError(t, confirm())
		require.NotContains(t, unconfirmed(t, b, aWest), by, name)
	}
}

// A process writes once an epoch that a target's deployment is referred to, and its deletions are to be
// watched. When an older copy takes the place of the database, with a row of that deployment but without this
// flag, the process writes the flag again.
func TestWhoIsPointedToIsNotedAgainInANewEpoch_I13(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	store := b.Stores[b.ID(bEast)]
	_, err := store.Gate.RecordPeerEpoch(t.Context(), b.ID(aWest), b.Stores[b.ID(aWest)].Gate.PresentEpoch(),
		peer.TargetKinds{})
	require.NoError(t, err)
	takeOver := b.Copy(bEast)
	b.MustPut(holder, body{"unset": target})
	takeOver()
	b.Recover(bEast)
	b.MustPut(holder, body{"unset": target})
	pointedTo, err := store.Attempts.ReferencedDeployments(t.Context())
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{b.ID(aWest)}, pointedTo, "otherwise its deletions would not be watched")
	b.Settle()
	b.MustDelete(target)
	b.Settle()
	b.Gone(target)
	b.Audit()
}
