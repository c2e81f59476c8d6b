package shadow_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// accept calls AcceptDatabase at one deployment, for the present database of another one.
func accept(t *testing.T, b *harness.Box, at, of string) {
	t.Helper()
	replaced := b.Stores[b.ID(of)]
	require.NoError(t, b.Stores[b.ID(at)].Gate.AcceptDatabase(t.Context(), shadow.AcceptedDatabase{
		Deployment: b.ID(of), Database: replaced.Gate.Database(), Epoch: replaced.Gate.PresentEpoch(),
		Reason: "lost with its disk", By: "operator/eve",
	}))
}

// The target's database is restored to a backup older than AcceptDatabase, and the registry has lost the
// holder's deployment. An operator accepts the database again: nothing is deleted until the accepted database
// has compared in the new epoch; its comparison after the first AcceptDatabase does not count.
func TestAnAcceptedDatabaseIsWaitedFor_I2_I3(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"block": target2})
	b.MustPut(holder, nil) // no reference remains; the target's deployment still has a row of the holder's deployment
	b.Settle()
	restore := b.Backup(aWest)
	b.Replace(bEast)
	accept(t, b, aWest, bEast)
	b.Settle()
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
	accept(t, b, aWest, bEast)
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	b.SetDown(bEast, false)
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// A process over the replaced database may still run, and a second process of the target's deployment may
// have read the databases before AcceptDatabase: acknowledgements, confirms and releases of the replaced
// database have an epoch that has ended.
func TestTheReplacedDatabaseAcknowledgesNothing_I1_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder2, body{"unset": target})
	b.Settle()
	former := b.Stores[b.ID(bEast)].Gate.PresentEpoch()
	store := b.Stores[b.ID(aWest)]
	_, err := store.Gate.RecordPeerEpoch(t.Context(), b.ID(bEast), former, peer.TargetKinds{})
	require.NoError(t, err)
	b.Settle()
	b.Replace(bEast)
	accept(t, b, aWest, bEast)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	_, position := b.Seen(b.ID(bEast), b.ID(aWest))
	require.ErrorIs(t, store.Targets.Acknowledge(t.Context(), b.ID(bEast), former, position, nil), peer.ErrStaleEpoch)
	_, err = store.Targets.Confirm(t.Context(), b.ID(bEast), peer.Confirm{Epoch: former})
	require.ErrorIs(t, err, peer.ErrStaleEpoch)
	b.Settle()
	b.Gone(target, holder)
	b.Audit()
}

// A deployment begins with a new database (nothing was at stake, or an operator accepted it) whose first
// epoch is smaller than the epoch of the former database, because the former clock was ahead. The epochs of
// the former database are forgotten.
func TestEpochsOfAReplacedDatabaseAreForgotten_I13(t *testing.T) {
	t.Parallel()
	for _, atStake := range []bool{false, true} {
		t.Run(fmt.Sprintf("at stake: %t", atStake), func(t *testing.T) {
			t.Parallel()
			b := newPair(t, nil)
			b.MustPut(target, nil)
			later, err := uuid.Parse("0fffffff-ffff-7000-8000-000000000000")
			require.NoError(t, err)
			store := b.Stores[b.ID(aWest)]
			require.NoError(t, store.Gate.CheckDatabase(t.Context(), b.ID(bEast),
				b.Stores[b.ID(bEast)].Gate.Database()))
			if atStake {
				b.MustPut(holder2, body{"block": target})
				b.Settle()
			}
			_, err = store.Gate.RecordPeerEpoch(t.Context(), b.ID(bEast), later, peer.TargetKinds{})
			require.NoError(t, err)
			b.Replace(bEast)
			if atStake {
				accept(t, b, aWest, bEast)
			}
			b.MustPut(holder, body{"block": target})
			b.Settle()
			require.Empty(t, unconfirmed(t, b, aWest))
			require.Equal(t, 1, b.Count(aWest, "blockade"))
			require.Zero(t, b.Count(aWest, "tentative"))
			b.Audit()
		})
	}
}

// decidesNothing makes the calls that use stored numbers of deployments, kinds and fields, at a process of
// aWest that has not noticed an epoch.
func decidesNothing(t *testing.T, b *harness.Box, slow *shadow.Store) {
	t.Helper()
	from, ref := b.ID(bEast), reference("block", schema.Block, uuid.New())
	for name, call := range map[string]func() error{
		"CheckReferences": func() error {
			_, err := slow.Attempts.CheckReferences(t.Context(), from,
				[]peer.CheckedReference{{Key: peer.BlockadeKey{
					Attempt: newAttempt(), HolderUID: ref.HolderUID,
					Path: "block", TargetUID: uuid.New(),
				}}})
			return err
		},
		"CheckOwners": func() error {
			_, err := slow.Owners.CheckOwners(t.Context(), from,
				[]peer.OwnerQuestion{{Kind: "Target", Name: "targets/t"}})
			return err
		},
		"Establish": func() error {
			_, err := slow.Targets.Establish(t.Context(), from, newAttempt(), []peer.EstablishReference{ref})
			return err
		},
		"SaveIn": func() error {
			return within(t.Context(), slow, b.Pools[b.ID(aWest)], peer.Write{Name: "targets/new"})
		},
	} {
		require.Error(t, call(), name)
	}
}

// An older copy takes the place of a deployment's database while two processes run. One has noticed; the
// other still has the deployment numbers of the lost history, and the copy has given one of these numbers to
// another deployment.
func TestANumberOfBeforeConfirmsForNobodyElse_I2_I3(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	takeOver := b.Copy(aWest) // the copy has no row of the holder's deployment
	slow := b.Stores[b.ID(aWest)]
	b.MustPut(holder, body{"block": target})
	b.Settle()
	number := func(of string) (id int32) {
		require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(),
			`SELECT id FROM dbcontroller.deployment WHERE service || '/' || region = $1`, of).Scan(&id))
		return id
	}
	was := number(bEast)
	takeOver()
	require.NoError(t, slow.Gate.CheckDatabase(t.Context(), b.ID(bWest), b.Stores[b.ID(bWest)].Gate.Database()))
	require.Equal(t, was, number(bWest), "the schedule")
	quick := b.SecondProcess(aWest, shadow.Config{})
	_, err := quick.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.NoError(t, quick.Gate.Recover(t.Context(), b.Environment()))
	b.Stores[b.ID(aWest)] = quick
	// which tells again of deletions: a confirmation is refused before it
	_, err = b.Do(b.ID(aWest), schema.VerifyBlockades)
	require.NoError(t, err)
	require.Error(t, slow.Gate.MarkReferencesConfirmed(t.Context(), b.ID(bEast), quick.Gate.PresentEpoch(),
		b.Stores[b.ID(bEast)].Gate.PresentEpoch()))
	require.Contains(t, unconfirmed(t, b, aWest), b.ID(bWest))
	decidesNothing(t, b, slow)
	_, err = quick.Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/t"})
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// Every path that could announce an epoch to a decommissioned deployment, or wait for it, leaves it out: the
// registry names it, it calls by itself, or the epoch is advanced.
func TestADecommissionedDeploymentIsNotToldOfEpochs_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"unset": target})
	b.Settle()
	decommission(t, b, aWest, bEast, schema.Unset)
	b.Settle()
	restore := b.Backup(aWest)
	untold := func() {
		t.Helper()
		var flags, work int
		require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(), `
			SELECT count(*) FILTER (WHERE d.unconfirmed OR d.uncompared), count(w.seq)
			FROM dbcontroller.deployment d LEFT JOIN dbcontroller.work w ON w.deployment_id = d.id
			WHERE d.service || '/' || d.region = $1`, bEast).Scan(&flags, &work))
		require.Zero(t, flags)
		require.Zero(t, work)
	}
	restore()
	store := b.Stores[b.ID(aWest)]
	_, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.NoError(t, store.Gate.Recover(t.Context(), without(b, bEast)))
	untold()
	require.NoError(t, store.Gate.CheckDatabase(t.Context(), b.ID(bEast), b.Stores[b.ID(bEast)].Gate.Database()))
	untold()
	require.NoError(t, store.Gate.Recover(t.Context(), b.Environment()))
	untold()
	require.NoError(t, store.Gate.OutdoEpoch(t.Context(), b.ID(bWest), uuid.Must(uuid.NewV7())))
	untold()
	b.Recover(aWest)
	untold()
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	// A flag that is set by itself changes nothing either.
	_, err = b.Pools[b.ID(aWest)].Exec(t.Context(),
		`UPDATE dbcontroller.deployment SET unconfirmed = true WHERE service || '/' || region = $1`, bEast)
	require.NoError(t, err)
	require.Empty(t, unconfirmed(t, b, aWest))
	b.MustDelete(target)
}

// A process writes once an epoch that a deployment has ownees of its resources. When an older copy takes the
// place of the database, with a row of that deployment but without this flag, the process writes the flag
// again. An empty database that is started in that deployment's name is then refused the notices of deleted
// owners.
func TestOwneesAreNotedAgainInANewEpoch_I17(t *testing.T) {
	t.Parallel()
	b := newBox(t, graceless)
	b.MustPut(holder, nil)
	store := b.Stores[b.ID(bEast)]
	_, err := store.Gate.RecordPeerEpoch(t.Context(), b.ID(aEast), b.Stores[b.ID(aEast)].Gate.PresentEpoch(),
		peer.TargetKinds{})
	require.NoError(t, err)
	takeOver := b.Copy(bEast)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.Settle()
	takeOver()
	b.Recover(bEast)
	b.Settle()
	back := b.Replace(aEast)
	require.ErrorAs(t, store.Gate.CheckDatabase(t.Context(), b.ID(aEast), b.Stores[b.ID(aEast)].Gate.Database()),
		new(*peer.DatabaseError))
	b.MustDelete(holder)
	b.Settle()
	back()
	b.Settle()
	b.Gone(holder, ownee)
	b.Audit()
}
