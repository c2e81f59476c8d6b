package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
)

// A target's database that has lost a blockade and a holder entry deletes nothing until the holders'
// deployments have compared; afterwards both are there again.
func TestATargetsDatabaseThatLostItsHolders_I2_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.Settle()
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.MustPut(holder2, body{"cascade": target2})
	b.Settle()
	restore()
	_, err := b.Delete(target)
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, err, &unavailable, "the deployments that may refer are not known yet")
	b.Recover(aWest)
	b.SetDown(bEast, true)
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, &unavailable)
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unavailable.Deployments, "the others have confirmed")
	b.SetDown(bEast, false)
	b.Settle()
	_, err = b.Delete(target)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	b.MustDelete(target2)
	b.Settle()
	b.Gone(target2, holder2)
	b.Audit()
}

// A holder's database that has lost a reference leaves no blockade at the target. One that has lost the
// removal of a reference establishes it again, or, if the target is gone, reports it as dangling.
func TestAHoldersDatabaseThatLostItsReferences_I1_I8(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	const third = "//" + aWest + "/targets/third"
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(third, nil)
	b.MustPut(holder, body{"block": target2, "cascade": third})
	b.Settle()
	restore := b.Backup(bEast)
	b.MustPut(holder2, body{"block": target}) // lost
	b.MustPut(holder, body{})                 // lost: the backup refers to both
	b.Settle()
	b.MustDelete(third)
	b.Settle()
	b.Gone(third)
	restore()
	b.Recover(bEast)
	b.Settle()
	b.Audit()
	b.MustDelete(target) // nothing refers to it
	_, err := b.Delete(target2)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.Equal(t, 1, b.Count(bEast, "dangling"))
	found := verified(t, b, bEast, false)
	require.Len(t, found, 1)
	require.Equal(t, shadow.TargetGone, found[0].Kind)
	require.Contains(t, found[0].Remedy(), "needs a decision: verify --repair --dangling=act, or update "+holder)
	// The remedy is carried out.
	_, err = b.Put(holder, body{"cascade": third, "block": target2})
	require.Error(t, err, "refused as long as it names the missing target")
	b.MustPut(holder, body{"block": target2})
	b.Settle()
	require.Zero(t, b.Count(bEast, "dangling"))
	require.Empty(t, verified(t, b, bEast, false))
	b.Audit()
}

// Messages that were sent before a failover are refused after it: a release of a restored reference, an
// acknowledgement of lost effects, a verdict.
func TestMessagesOfAnOldEpochCountForNothing_I5_I8(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	h := b.MustPut(holder, body{"block": target})
	b.Settle()
	ctx := context.Background()
	var attempt uuid.UUID
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(ctx, `SELECT attempt FROM dbcontroller.blockade`).Scan(&attempt))
	key := peer.BlockadeKey{Attempt: attempt, HolderUID: h.UID, Path: "block", TargetUID: b.Get(target).UID}
	restore := b.Backup(bEast)
	old := b.Stores[b.ID(bEast)].Gate.PresentEpoch()
	b.MustPut(holder, body{}) // its release is not delivered yet
	restore()
	b.Recover(bEast)
	b.Settle()
	a := b.Stores[b.ID(aWest)]
	require.ErrorIs(t, a.Targets.Release(ctx, b.ID(bEast), old, []peer.BlockadeKey{key}, nil), peer.ErrStaleEpoch)
	_, err := a.Targets.Confirm(ctx, b.ID(bEast), peer.Confirm{Epoch: old, Attempts: []peer.AttemptID{attempt}})
	require.ErrorIs(t, err, peer.ErrStaleEpoch)
	err = a.Targets.Settle(ctx, b.ID(bEast), []peer.Question{{Key: key}},
		&peer.Answers{Verdicts: []peer.Verdict{peer.GoneVerdict}, Epoch: old})
	require.ErrorIs(t, err, peer.ErrStaleEpoch)
	_, position := b.Seen(b.ID(bEast), b.ID(aWest))
	require.ErrorIs(t, a.Targets.Acknowledge(ctx, b.ID(bEast), old, position, nil), peer.ErrStaleEpoch)
	b.Settle()
	b.Audit()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	known, err := a.Gate.RecordPeerEpoch(ctx, b.ID(bEast), old, peer.TargetKinds{})
	require.NoError(t, err)
	require.Equal(t, b.Stores[b.ID(bEast)].Gate.PresentEpoch(), known,
		"a late announcement of an earlier epoch changes nothing")
}

// An attempt does not commit if one of its databases, the holder's or the target's, was restored after the
// establish.
func TestAttemptsOfAnOldEpochCannotCommit_I5(t *testing.T) {
	t.Parallel()
	for _, restored := range []string{aWest, bEast} {
		t.Run(restored, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, nil)
			b.MustPut(target, nil)
			b.Settle()
			second := b.SecondProcess(bEast, shadow.Config{}) // it notices no epoch by itself
			once := true
			b.AfterEstablish = func() {
				if !once {
					return
				}
				once = false
				pool := b.Pools[b.ID(restored)]
				// as after a restore on another server
				_, err := pool.Exec(context.Background(), `UPDATE dbcontroller.meta SET server = 'another'`)
				require.NoError(t, err)
				if restored == aWest { // the blockade is lost
					_, err = pool.Exec(context.Background(), `DELETE FROM dbcontroller.blockade`)
					require.NoError(t, err)
				}
				b.Recover(restored)
				b.Settle()
			}
			tries := 0
			b.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error {
				tries++
				return nil
			}
			_, err := second.Write.Save(t.Context(), []peer.Write{{Name: "holders/h", Body: body{"block": target}}})
			require.NotZero(t, tries)
			if err != nil { // the second process keeps its epoch until it notices the new one
				if !errors.Is(err, context.DeadlineExceeded) { // its deadline passed while it tried again
					require.ErrorIs(t, err, peer.ErrAborted)
				}
				require.Nil(t, b.Get(holder))
			} else {
				require.Greater(t, tries, 1, "the first attempt has not committed")
			}
			b.Expire(aWest)
			b.Settle()
			b.Audit()
		})
	}
}

// Numbers that were given out by the lost commits are not given out again.
func TestNumbersAreSkippedInANewEpoch(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	restore := b.Backup(aWest)
	lost := b.MustPut(target, nil)
	restore()
	b.Recover(aWest)
	b.Settle()
	require.Greater(t, b.MustPut(target, nil).Revision, lost.Revision+1_000_000)
}

// A clock that went back between two failovers: the new epoch is still greater than the known ones.
func TestAnEpochOutdoesALaterOneThatWasLost(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	restore := b.Backup(aWest)
	restore()
	b.Recover(aWest)
	future := uuid.Must(uuid.NewV7())
	for i, ms := 5, time.Now().Add(time.Hour).UnixMilli(); i >= 0; i, ms = i-1, ms>>8 {
		future[i] = byte(ms)
	}
	_, err := b.Stores[b.ID(bEast)].Gate.RecordPeerEpoch(t.Context(), b.ID(aWest), future, peer.TargetKinds{})
	require.NoError(t, err)
	b.Settle() // it is told of the later one
	b.Recover(aWest)
	b.Settle()
	epoch, err := b.Stores[b.ID(aWest)].Operate.Epoch(t.Context())
	require.NoError(t, err)
	require.Empty(t, epoch.Unconfirmed)
	require.Greater(t, epoch.ID.String(), future.String())
	require.NoError(t, b.Stores[b.ID(aWest)].Gate.Recover(t.Context(), b.Environment()))
	require.Empty(t, unconfirmed(t, b, aWest), "nobody compares again")
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	b.Audit()
}

func verified(t *testing.T, b *harness.Box, deployment string, repair bool) (found []shadow.Difference) {
	t.Helper()
	done, err := b.Stores[b.ID(deployment)].Verify.Verify(t.Context(), shadow.Verification{
		Repair: repair, Settle: 1,
		Report: func(d shadow.Difference) error {
			found = append(found, d)
			return nil
		},
	})
	require.NoError(t, err)
	require.Empty(t, done.Unreachable)
	return found
}

// Databases are restored from older backups at random, one after the other, while users write and delete. At
// rest all invariants hold, except for dangling references, which are reported for a person to decide.
func TestRestoredBackupsComeToRest_I1_I8_I15_I17(t *testing.T) {
	t.Parallel()
	seeds := rounds.Of(6, 1)
	dangling := 0
	for seed := range uint64(seeds) {
		b := newBox(t, func(cfg *shadow.Config) { cfg.Times.OwnerGrace = 1 })
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible
		all := []string{aWest, aEast, bWest, bEast}
		targetOf := func() string {
			return fmt.Sprintf("//%s/targets/t%d", []string{aWest, aEast}[random.IntN(2)], random.IntN(4))
		}
		holderOf := func() string {
			return fmt.Sprintf("//%s/holders/h%d", []string{bWest, bEast}[random.IntN(2)], random.IntN(6))
		}
		restores := map[string]func(){}
		for range 60 {
			switch random.IntN(12) {
			case 0, 1, 2:
				_, _ = b.Put(targetOf(), nil)
			case 3, 4, 5, 6:
				content := body{}
				for _, field := range []string{"block", "unset", "cascade", "asyncCascade", "dangling"} {
					if random.IntN(3) == 0 {
						content[field] = targetOf()
					}
				}
				_, _ = b.Put(holderOf(), content)
			case 7:
				_, _ = b.PutOwned(targetOf(), nil, owner(t, holderOf(), "Holder"))
			case 8:
				_, _ = b.Delete(targetOf())
			case 9:
				_, _ = b.Delete(holderOf())
			case 10:
				b.Settle()
			case 11:
				d := all[random.IntN(len(all))]
				if restore := restores[d]; restore != nil {
					restore()
					delete(restores, d)
					b.Recover(d)
					if random.IntN(2) == 0 {
						b.Settle()
					}
				} else {
					restores[d] = b.Backup(d)
				}
			}
		}
		b.Expire(aWest)
		b.Expire(aEast)
		b.Settle()
		b.Audit()
		for _, d := range all {
			for _, f := range verified(t, b, d, false) {
				require.Equal(t, shadow.TargetGone, f.Kind, "seed %d: %+v", seed, f)
				dangling++
			}
			epoch, err := b.Stores[b.ID(d)].Operate.Epoch(t.Context())
			require.NoError(t, err)
			require.Empty(t, epoch.Unconfirmed)
		}
	}
	t.Logf("%d references were left for a person to decide", dangling)
}

// The database has lost the release of a blockade: the comparison removes the blockade again.
func TestATargetsDatabaseThatLostAReleaseIsNotBlockedForEver_I8(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore := b.Backup(aWest)
	b.MustPut(holder, body{})
	b.Settle()
	restore()
	b.Recover(aWest)
	b.Settle()
	b.Audit()
	b.MustDelete(target)
}

// A holder's database has lost the effects of a deletion that it had acknowledged: as long as the target
// exists, its deployment acts upon the deletion again.
func TestADeletionThatWasForgottenIsToldAgain_I1(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	const waiting = "//" + bWest + "/holders/waiting"
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.MustPut(waiting, body{"cascade": target})
	b.Settle()
	restore := b.Backup(bEast)
	b.SetDown(bWest, true)
	b.MustDelete(target)
	_, err := b.Act(b.ID(bEast), b.ID(aWest))
	require.NoError(t, err)
	b.Gone(holder)
	restore()
	b.Recover(bEast)
	require.NotNil(t, b.Get(holder))
	b.SetDown(bWest, false)
	// bWest, reachable again, acknowledges only after the announcement.
	told, err := b.Do(b.ID(bEast), schema.AnnounceEpoch)
	require.NoError(t, err)
	require.Equal(t, 3, told)
	b.Settle()
	b.Gone(target, holder, waiting)
	require.Zero(t, b.Count(bEast, "dangling"))
	b.Audit()
}

// An owner's database that has lost an ownee entry gets it again by the comparison, and a lost owner counts
// as absent only after all deployments that may refer to resources of its service have confirmed.
func TestOwnersOfADatabaseThatWasRestored_I15_I17(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(cfg *shadow.Config) { cfg.Times.OwnerGrace = 1 })
	const early, late = "//" + bEast + "/holders/early", "//" + bEast + "/holders/late"
	const ofEarly, ofLate = "//" + aWest + "/targets/e", "//" + aWest + "/targets/l"
	b.MustPut(early, nil)
	b.Settle()
	restore := b.Backup(bEast)
	b.MustPut(late, nil)
	mustOwn(t, b, ofEarly, nil, owner(t, early, "Holder"))
	mustOwn(t, b, ofLate, nil, owner(t, late, "Holder"))
	b.Settle()
	b.SetDown(bWest, true) // it may refer to resources of its own service
	restore()
	b.Recover(bEast)
	b.Settle()
	require.NotNil(t, b.Get(ofLate), "a lost owner is not absent")
	b.SetDown(bWest, false)
	b.Settle()
	b.Gone(ofLate)
	require.NotNil(t, b.Get(ofEarly))
	b.Audit()
	b.MustDelete(early)
	b.Settle()
	b.Gone(early, ofEarly)
}
