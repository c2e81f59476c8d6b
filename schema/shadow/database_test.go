package shadow_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// settleThrough settles the box with all blockades expired: all that time and messages bring about.
func settleThrough(b *harness.Box) {
	for range 2 {
		for id := range b.Stores {
			b.Expire(id.String())
		}
		b.Settle()
	}
}

// A holder's deployment runs over an empty database for a moment: its lack of a reference proves nothing.
func TestAnEmptyDatabaseDoesNotAnswerForItsHolders_I2_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"block": target})
	b.MustPut(holder2, body{"cascade": target2})
	b.Settle()
	back := b.Replace(bEast)
	_, err := b.Delete(target)
	require.Error(t, err)
	b.MustDelete(target2) // waits for the holder's removal
	settleThrough(b)
	_, err = b.Stores[b.ID(aWest)].Verify.Verify(t.Context(), shadow.Verification{Repair: true, Settle: 1})
	require.NoError(t, err)
	require.NotNil(t, b.Get(target2), "its deletion was not acted upon")
	back()
	settleThrough(b)
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Gone(target2, holder2)
	b.Audit()
}

// Neither a tentative blockade of a committed writer nor an unconfirmed one is removed.
func TestAnEmptyDatabaseAbortsNoAttempt_I2_I5(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target}) // its confirm is not delivered yet
	back := b.Replace(bEast)
	_, err := b.Delete(target)
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unavailable.Deployments)
	require.ErrorContains(t, err, "--former-database")
	settleThrough(b)
	back()
	require.Equal(t, 1, b.Count(aWest, "blockade"))
	settleThrough(b)
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// The same for the deployment of targets and owners.
func TestAnEmptyDatabaseDoesNotAnswerForItsTargets_I1_I13_I15_I16(t *testing.T) {
	t.Parallel()
	b := newBox(t, graceless)
	const owns, going = "//" + aWest + "/targets/owns", "//" + bEast + "/holders/going"
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(owns, nil)
	b.MustPut(holder, body{"block": target})
	b.MustPut(holder2, body{"block": target2})
	mustOwn(t, b, ownee, nil, owner(t, owns, "Target"))
	b.Settle()
	recheck := func() {
		_, err := b.Pools[b.ID(aEast)].Exec(t.Context(), `INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
			SELECT 4, s.shard, o.deployment_id, s.id FROM dbcontroller.owner_reference o JOIN dbcontroller.shadow s ON s.id = o.ownee_id`)
		require.NoError(t, err)
	}
	b.MustPut(holder2, nil) // its release is not delivered yet
	back := b.Replace(aWest)
	recheck()
	_, err := b.Put(going, body{"block": target})
	var refused *peer.RefusedError
	require.ErrorAs(t, err, &refused)
	require.True(t, refused.Only(peer.TargetUnreadable), "%v", err)
	b.MustPut(going, nil)
	settleThrough(b)
	_, err = b.Stores[b.ID(bEast)].Verify.Verify(t.Context(), shadow.Verification{Repair: true, Settle: 1})
	require.NoError(t, err)
	require.Zero(t, b.Count(bEast, "dangling"))
	require.NotNil(t, b.Get(ownee))
	back()
	settleThrough(b)
	require.NotNil(t, b.Get(ownee))
	b.MustDelete(target2) // the release was delivered
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// The notice of a deleted owner is not delivered to an empty database.
func TestAnEmptyDatabaseIsNotToldOfOwners_I17(t *testing.T) {
	t.Parallel()
	b := newBox(t, graceless)
	b.MustPut(holder, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.Settle()
	back := b.Replace(aEast)
	b.MustDelete(holder)
	b.Settle()
	back()
	b.Settle()
	b.Gone(ownee, holder)
	b.Audit()
}

// After a failover elsewhere, an empty database confirms no comparison.
func TestAnEmptyDatabaseConfirmsNothing_I2(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder2, body{"unset": target})
	b.Settle()
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	back := b.Replace(bEast)
	restore()
	b.Recover(aWest)
	b.Settle()
	require.Contains(t, unconfirmed(t, b, aWest), b.ID(bEast))
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	back()
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// A deployment may begin with a new database when nothing is at stake; otherwise an operator has to accept
// it.
func TestADatabaseThatWasReplacedForGood_I13(t *testing.T) {
	t.Parallel()
	b := newBox(t, graceless)
	b.MustPut(target, nil)
	b.Settle()
	b.Replace(bEast)
	b.MustPut(holder, body{"block": target})
	b.MustPut("//"+aWest+"/targets/owned", nil)
	b.Settle()
	b.Replace(bEast)
	b.MustPut(holder2, nil)
	_, err := b.Put(holder2, body{"block": target})
	require.Error(t, err)
	b.Settle()
	_, err = b.Delete(target)
	require.Error(t, err)
	word := shadow.AcceptedDatabase{
		Deployment: b.ID(bEast), Database: b.Stores[b.ID(bEast)].Gate.Database(),
		Epoch: b.Stores[b.ID(bEast)].Gate.PresentEpoch(), Reason: "lost with its disk", By: "operator/eve",
	}
	for _, d := range []string{aWest, aEast, bWest} {
		require.NoError(t, b.Stores[b.ID(d)].Gate.AcceptDatabase(t.Context(), word))
	}
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	b.MustPut(holder2, body{"block": target})
	b.MustPut(holder2, nil)
	b.Settle()
	b.MustDelete(target) // the blocking reference is lost
	words, err := b.Stores[b.ID(aWest)].Operate.OperatorDecisions(t.Context())
	require.NoError(t, err)
	require.Len(t, words, 1)
	require.Equal(t, "operator/eve", words[0].By)
	b.Audit()
}

// A running process does not serve another database than it started with.
func TestAnotherDatabaseUnderAProcessIsNoticed_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	_, err := b.Pools[b.ID(bEast)].Exec(t.Context(),
		`UPDATE dbcontroller.meta SET database_id = gen_random_uuid(), server = 'another', timeline = 'another'`)
	require.NoError(t, err)
	_, err = b.Stores[b.ID(bEast)].Gate.NoticeEpoch(t.Context())
	require.ErrorContains(t, err, "another database")
	_, err = b.Stores[b.ID(bEast)].Attempts.Answer(context.Background(), b.ID(aWest), nil)
	require.Error(t, err)
}

// The target's database is restored to before it met the holder's, and the holder's process runs over an
// empty one just then: the registry remembers the database that the holder's deployment registered with.
func TestARestoredDatabaseMeetsNoEmptyOneFirst_I2_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore()
	require.Zero(t, countRows(t, b.Pools[b.ID(aWest)],
		`SELECT count(*) FROM dbcontroller.deployment WHERE service = 'b.example.com' AND database_id IS NOT NULL`))
	back := b.Replace(bEast)
	awaiting, err := b.Stores[b.ID(aWest)].Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.True(t, awaiting)
	err = b.Stores[b.ID(aWest)].Gate.CheckDatabase(t.Context(), b.ID(bEast), b.Stores[b.ID(bEast)].Gate.Database())
	require.ErrorIs(t, err, peer.ErrRecovering, "the registry has not been asked")
	b.Recover(aWest)
	b.Settle()
	require.Contains(t, unconfirmed(t, b, aWest), b.ID(bEast))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	registered, _ := b.Environment().Deployment(b.ID(bEast))
	exec(t, b, aWest, `UPDATE dbcontroller.meta SET awaiting = true`) // restored again
	err = b.Stores[b.ID(aWest)].Gate.CheckDatabase(t.Context(), b.ID(bEast), registered.Database)
	require.ErrorIs(t, err, peer.ErrRecovering, "what the registry said counts for an earlier epoch")
	exec(t, b, aWest, `UPDATE dbcontroller.meta SET awaiting = false`)
	back()
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}
