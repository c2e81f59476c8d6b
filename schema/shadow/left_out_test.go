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

// without is the environment of a registry that has lost some deployments.
func without(b *harness.Box, lost ...string) *schema.Environment {
	env := b.Environment()
	env.Deployments = slices.DeleteFunc(env.Deployments, func(d schema.Deployment) bool {
		return slices.Contains(lost, d.String())
	})
	return env
}

// A target's database and the registry are restored to a state before a holder's deployment existed. When
// that deployment appears in the environment again, or opens its watch by itself, it is waited for.
func TestAHolderThatTheRegistryHasLostIsWaitedFor_I2_I3_I15(t *testing.T) {
	t.Parallel()
	for name, appears := range map[string]func(*testing.T, *harness.Box){
		"in the environment": func(t *testing.T, b *harness.Box) {
			t.Helper()
			require.NoError(t, b.Stores[b.ID(aWest)].Gate.Recover(t.Context(), b.Environment()))
			require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
			_, err := b.Delete(target)
			require.ErrorAs(t, err, new(*peer.UnavailableError))
		},
		"by itself": func(t *testing.T, b *harness.Box) {
			t.Helper()
			require.NoError(t, b.OpenWatch(b.ID(bEast), b.ID(aWest)))
			require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, nil)
			b.MustPut(target, nil)
			restore := b.Backup(aWest) // has no row of the holder's deployment
			b.MustPut(holder, body{"block": target})
			b.Settle()
			restore()
			store := b.Stores[b.ID(aWest)]
			_, err := store.Gate.NoticeEpoch(t.Context())
			require.NoError(t, err)
			b.SetDown(bEast, true)
			require.NoError(t, store.Gate.Recover(t.Context(), without(b, bEast)))
			b.Settle()
			require.Empty(t, unconfirmed(t, b, aWest))
			appears(t, b)
			b.SetDown(bEast, false)
			b.Settle()
			require.Empty(t, unconfirmed(t, b, aWest))
			_, err = b.Delete(target)
			require.ErrorAs(t, err, new(*peer.BlockedError))
			require.NoError(t, store.Gate.Recover(t.Context(), b.Environment()),
				"a confirmed deployment is not asked again")
			require.Empty(t, unconfirmed(t, b, aWest))
			require.Zero(t, b.Count(aWest, "work"), "nor told again")
			b.Audit()
		})
	}
}

// The first epoch of a database has lost nothing: new callers are not waited for.
func TestNobodyIsWaitedForInTheFirstEpoch(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.SetDown(bEast, true)
	require.NoError(t, b.Stores[b.ID(aWest)].Gate.Recover(t.Context(), b.Environment()))
	require.Empty(t, unconfirmed(t, b, aWest))
	b.MustDelete(target)
}

// A temporary refusal, such as by a disabled deployment, is no result of a comparison: the epoch is not
// confirmed before the reference is established again.
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
	// as the service answers for it
	b.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error {
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

// A deployment that announces an epoch and then crashes halts deletes only in the deployments to which it has
// ever referred; an operator can waive its comparison.
func TestAnEpochHaltsOnlyThoseItConcerns_I13_I20(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	const elsewhere = "//" + aEast + "/targets/e"
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(elsewhere, nil)
	b.MustPut(holder, body{"block": target2})
	b.MustPut(holder, nil) // the database may lose this removal
	b.Settle()
	for _, d := range []string{aWest, aEast, bWest} {
		_, err := b.Stores[b.ID(d)].Gate.RecordPeerEpoch(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()),
			peer.TargetKinds{})
		require.NoError(t, err)
	}
	b.SetDown(bEast, true)
	b.Settle()
	b.MustDelete(elsewhere)
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.UnavailableError), "it has referred to that deployment")
	store := b.Stores[b.ID(aWest)]
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	require.Error(t, store.Operate.WaiveComparison(t.Context(), b.ID(bEast), "", "operator/eve"))
	for range 2 {
		require.NoError(t, store.Operate.WaiveComparison(t.Context(), b.ID(bEast), "lost in a fire; it held nothing",
			"operator/eve"))
	}
	require.Empty(t, unconfirmed(t, b, aWest))
	b.MustDelete(target)
	words, err := store.Operate.OperatorDecisions(t.Context())
	require.NoError(t, err)
	require.Len(t, words, 1)
	require.Equal(t, "COMPARISON_WAIVED", words[0].What)
}

// A holder's database is restored to a state before its first reference: it learns from the targets'
// deployments which deletions to watch.
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
	require.Equal(t, []schema.DeploymentID{b.ID(bWest)}, unconfirmed(t, b, bEast),
		"nobody else may refer to its resources")
	pointedTo, err := b.Stores[b.ID(bEast)].Attempts.ReferencedDeployments(t.Context())
	require.NoError(t, err)
	require.Empty(t, pointedTo)
	b.Settle()
	pointedTo, err = b.Stores[b.ID(bEast)].Attempts.ReferencedDeployments(t.Context())
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{b.ID(aWest)}, pointedTo)
}

// An ownee's database is restored to a state before its owner, whose reference requires the owner, let go:
// the restore's comparison asks the owner's deployment again, and so does verify.
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
	// The restore was not noticed: verify finds the difference.
	exec(t, b, aEast, `UPDATE dbcontroller.meta SET awaiting = false`)
	exec(t, b, aEast, `DELETE FROM dbcontroller.epoch e USING dbcontroller.meta m WHERE e.id <> m.epoch`)
	found := verified(t, b, aEast, true)
	require.Contains(t, kindsOf(found), shadow.OwnerReleased)
}

func kindsOf(found []shadow.Difference) (kinds []shadow.DifferenceKind) {
	for _, d := range found {
		kinds = append(kinds, d.Kind)
	}
	return kinds
}

// An ownee's database loses the message that its owner's deployment had switched its version.
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
