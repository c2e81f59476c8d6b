package shadow_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// without is what a registry says that has lost deployments.
func without(b *harness.Box, lost ...string) *schema.Environment {
	env := b.Environment()
	env.Deployments = slices.DeleteFunc(env.Deployments, func(d schema.Deployment) bool { return slices.Contains(lost, d.String()) })
	return env
}

// A target's database and the registry are restored to before a holder's deployment came. When it appears in the environment
// again, or speaks for itself, it is waited for.
func TestAHolderThatTheRegistryHasLostIsWaitedFor_I2_I3_I15(t *testing.T) {
	t.Parallel()
	for name, appears := range map[string]func(*testing.T, *harness.Box){
		"in the environment": func(t *testing.T, b *harness.Box) {
			t.Helper()
			require.NoError(t, b.Stores[b.ID(aWest)].Recover(t.Context(), b.Environment()))
			require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
			_, err := b.Delete(target)
			require.ErrorAs(t, err, new(*peer.UnavailableError))
		},
		"by itself": func(t *testing.T, b *harness.Box) {
			t.Helper()
			require.NoError(t, b.Stores[b.ID(aWest)].CheckDatabase(t.Context(), b.ID(bEast), b.Stores[b.ID(bEast)].Database()))
			require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, nil)
			b.MustPut(target, nil)
			restore := b.Backup(aWest) // it has never heard of the holder's deployment
			b.MustPut(holder, body{"block": target})
			b.Settle()
			restore()
			store := b.Stores[b.ID(aWest)]
			_, err := store.NoticeEpoch(t.Context())
			require.NoError(t, err)
			b.SetDown(bEast, true)
			require.NoError(t, store.Recover(t.Context(), without(b, bEast)))
			b.Settle()
			require.Empty(t, unconfirmed(t, b, aWest))
			appears(t, b)
			b.SetDown(bEast, false)
			b.Settle()
			require.Empty(t, unconfirmed(t, b, aWest))
			_, err = b.Delete(target)
			require.ErrorAs(t, err, new(*peer.BlockedError))
			require.NoError(t, store.Recover(t.Context(), b.Environment()), "who has confirmed is not asked again")
			require.Empty(t, unconfirmed(t, b, aWest))
			b.Audit()
		})
	}
}

// In the first epoch of a database nothing can be lost: who comes is not waited for.
func TestNobodyIsWaitedForInTheFirstEpoch(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.SetDown(bEast, true)
	require.NoError(t, b.Stores[b.ID(aWest)].Recover(t.Context(), b.Environment()))
	require.Empty(t, unconfirmed(t, b, aWest))
	b.MustDelete(target)
}

// A refusal that passes, such as that of a deployment which is disabled for now, is an obstacle: the epoch is not confirmed
// before the reference is known again.
func TestARefusalThatPassesConfirmsNothing_I2_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore()
	b.Recover(aWest)
	b.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error { // as the service answers
		return &peer.UnavailableError{Deployments: []schema.DeploymentID{b.ID(bEast)}, Err: peer.ErrNotSent}
	}
	b.Settle()
	require.Zero(t, b.Count(bEast, "dangling"))
	require.Contains(t, unconfirmed(t, b, aWest), b.ID(bEast))
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	b.OnEstablish = nil
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// A deployment that announces an epoch and dies keeps only those waiting to whose resources it has ever referred; and an
// operator can let them go on.
func TestAnEpochHaltsOnlyThoseItConcerns_I13_I20(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	const elsewhere = "//" + aEast + "/targets/e"
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(elsewhere, nil)
	b.MustPut(holder, body{"block": target2})
	b.MustPut(holder, nil) // what it let go may be lost to it
	b.Settle()
	for _, d := range []string{aWest, aEast, bWest} {
		_, err := b.Stores[b.ID(d)].RecordPeerEpoch(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()))
		require.NoError(t, err)
	}
	b.SetDown(bEast, true)
	b.Settle()
	b.MustDelete(elsewhere)
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.UnavailableError), "it has referred there")
	store := b.Stores[b.ID(aWest)]
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	require.Error(t, store.WaiveComparison(t.Context(), b.ID(bEast), "", "operator/eve"))
	for range 2 {
		require.NoError(t, store.WaiveComparison(t.Context(), b.ID(bEast), "it burnt, and held nothing", "operator/eve"))
	}
	require.Empty(t, unconfirmed(t, b, aWest))
	b.MustDelete(target)
	words, err := store.OperatorDecisions(t.Context())
	require.NoError(t, err)
	require.Len(t, words, 1)
	require.Equal(t, "COMPARISON_WAIVED", words[0].What)
}

// A holder's database is restored to before it referred anywhere: it hears from its targets' deployments that their deletions
// concern it.
func TestWhoIsToldOfItsEntriesStaysInterested_I13(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, nil)
	b.Settle()
	restore := b.Backup(bEast)
	b.MustPut(holder, body{"unset": target})
	b.Settle()
	restore()
	b.Recover(bEast)
	pointedTo, err := b.Stores[b.ID(bEast)].ReferencedDeployments(t.Context())
	require.NoError(t, err)
	require.Empty(t, pointedTo)
	b.Settle()
	pointedTo, err = b.Stores[b.ID(bEast)].ReferencedDeployments(t.Context())
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{b.ID(aWest)}, pointedTo)
}

// An ownee's database is restored to before its owner, which has to refer to it, let go: the owner is asked again, after the
// restore and by verify.
func TestAnOwnerThatHasLetGoIsAskedAgainAfterARestore_I17(t *testing.T) {
	t.Parallel()
	b := newBox(t, graceless)
	requires := owner(t, holder, "Holder")
	requires.Requires = true
	b.MustPut(holder, nil)
	b.MustPut(ownee, nil)
	b.MustPut(holder, body{"unset": ownee})
	mustOwn(t, b, ownee, nil, requires)
	b.Settle()
	restore := b.Backup(aEast)
	again := b.Backup(aEast)
	b.MustPut(holder, nil)
	b.Settle()
	b.Gone(ownee)
	restore()
	require.NotNil(t, b.Get(ownee))
	b.Recover(aEast)
	b.Settle()
	b.Gone(ownee)
	again()
	// Nobody has noticed the restore: verify finds it.
	_, err := b.Pools[b.ID(aEast)].Exec(t.Context(), `UPDATE dbcontroller.meta SET awaiting = false`)
	require.NoError(t, err)
	found := verified(t, b, aEast, true)
	require.Contains(t, kindsOf(found), shadow.OwnerLetGo)
}

func kindsOf(found []shadow.Difference) (kinds []shadow.DifferenceKind) {
	for _, d := range found {
		kinds = append(kinds, d.Kind)
	}
	return kinds
}

// An ownee's database is restored to before it was told that its owner's deployment had switched the version.
func TestAnUpgradeThatWasLostIsMadeAgain_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, renames, nil, aWest, bEast)
	b.MustPut(targetName("t"), nil)
	mustOwn(t, b, holder, nil, owner(t, targetName("t"), "Target"))
	b.Settle()
	restore := b.Backup(bEast)
	b.Switch(aWest, "v2")
	b.Settle()
	require.Equal(t, "v2", b.Get(holder).Owners[0].Version)
	restore()
	require.Equal(t, "v1", b.Get(holder).Owners[0].Version)
	b.Recover(bEast)
	b.Settle()
	require.Equal(t, "v2", b.Get(holder).Owners[0].Version)
}
