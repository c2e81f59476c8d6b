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
)

// reference is the message by which bEast establishes a reference of its holder h at aWest.
func reference(path string, b schema.Behaviour, holderUID uuid.UUID) peer.EstablishReference {
	return peer.EstablishReference{
		HolderUID: holderUID, HolderKind: "Holder", HolderName: "holders/h", Path: path,
		TargetKind: "Target", TargetName: "targets/t", Behaviour: b,
	}
}

func newAttempt() peer.AttemptID { return uuid.Must(uuid.NewV7()) }

func TestEstablishRefusesWhatCannotBeReferredTo(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	uid := b.MustPut(target, nil).UID
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	establish := func(attempt peer.AttemptID, refs ...peer.EstablishReference) error {
		_, err := store.Targets.Establish(ctx, b.ID(bEast), attempt, refs)
		return err
	}
	good := reference("block", schema.Block, uuid.New())
	missing, replaced, kind := good, good, good
	missing.TargetName, replaced.TargetUID, kind.TargetKind = "targets/none", uuid.New(), "Robot"
	err := establish(newAttempt(), good, missing, replaced)
	r := refusals(t, err)
	require.Equal(t, []peer.Reason{peer.TargetMissing, peer.TargetReplaced}, []peer.Reason{r[0].Reason, r[1].Reason},
		"each failing target is named")
	require.Equal(t, peer.UnknownKind, refusals(t, establish(newAttempt(), kind))[0].Reason)
	old := newAttempt()
	ms := time.Now().Add(-13 * time.Hour).UnixMilli()
	for i := range 6 {
		old[i] = byte(ms >> (8 * (5 - i)))
	}
	require.Equal(t, peer.AttemptTooOld, refusals(t, establish(old, good))[0].Reason)
	require.Zero(t, b.Count(aWest, "blockade"), "all or nothing")

	good.TargetUID = uid
	attempt := newAttempt()
	require.NoError(t, establish(attempt, good))
	require.NoError(t, establish(attempt, good), "a repeated establish changes nothing")
	require.Equal(t, 1, b.Count(aWest, "blockade"))
}

func TestNothingIsEstablishedToAResourceInDeleting_I4(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	require.False(t, b.MustDelete(target).Removed)
	_, err := b.Put(holder2, body{"unset": target})
	require.Equal(t, peer.TargetDeleting, refusals(t, err)[0].Reason)
	_, err = b.Put("//"+aWest+"/targets/local", body{"peer": "targets/t"})
	require.Equal(t, peer.TargetDeleting, refusals(t, err)[0].Reason)
	_, err = b.Put(target, nil)
	require.ErrorIs(t, err, peer.ErrDeleting)
	b.Settle()
	b.Gone(target, holder)
	b.Audit()
}

// I7: the messages of one attempt, in any order and any number of times, lead to the same state after the
// blockade is resolved: held blockades stay, the others are removed.
func TestMessagesOfOneAttemptCommute_I7(t *testing.T) {
	t.Parallel()
	for _, behaviour := range []schema.Behaviour{schema.Block, schema.Unset} {
		for _, held := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s held=%v", behaviour, held), func(t *testing.T) {
				t.Parallel()
				b := newPair(t, nil)
				targetUID := b.MustPut(target, nil).UID
				ctx, store, from := context.Background(), b.Stores[b.ID(aWest)], b.ID(bEast)
				for seed := range uint64(40) {
					random := rand.New(rand.NewPCG(seed, 1))
					attempt, holderUID := newAttempt(), uuid.New()
					path := map[schema.Behaviour]string{schema.Block: "block", schema.Unset: "unset"}[behaviour]
					key := peer.BlockadeKey{Attempt: attempt, HolderUID: holderUID, Path: path, TargetUID: targetUID}
					establish := func() {
						_, err := store.Targets.Establish(ctx, from, attempt,
							[]peer.EstablishReference{reference(path, behaviour, holderUID)})
						var refused *peer.RefusedError
						if err != nil && (!errors.As(err, &refused) || !refused.Only(peer.AttemptClosed)) {
							t.Fatal(err)
						}
					}
					messages := []func(){
						establish,
						func() {
							_, err := store.Targets.Confirm(ctx, from,
								peer.Confirm{Attempts: []peer.AttemptID{attempt}})
							require.NoError(t, err)
						},
					}
					if !held {
						messages = append(messages, func() {
							require.NoError(t, store.Targets.Release(ctx, from, uuid.Nil, []peer.BlockadeKey{key}, nil))
						})
					}
					// the first establish comes first in every order: the holder commits only after its
					// answer
					establish()
					for _, i := range append(random.Perm(len(messages)), random.Perm(len(messages))...) {
						messages[i]()
					}
					verdict := peer.GoneVerdict
					if held {
						verdict = peer.Held
					}
					// The background's resolve asks only about tentative blockades that have expired.
					b.Expire(aWest)
					questions, err := store.Targets.Expired(ctx, from, 10)
					require.NoError(t, err)
					for _, q := range questions {
						require.NoError(t, store.Targets.Settle(ctx, from, []peer.Question{q},
							&peer.Answers{Verdicts: []peer.Verdict{verdict}}))
					}
					switch {
					case held && behaviour == schema.Block:
						require.Equal(t, int(seed)+1, b.Count(aWest, "blockade"))
					default:
						require.Zero(t, b.Count(aWest, "blockade"), "seed %d", seed)
					}
					require.Zero(t, b.Count(aWest, "tentative"), "seed %d", seed)
				}
			})
		}
	}
}

func TestAConfirmOfAnUnknownAttemptIsReportedAndInventsNothing(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	attempt := newAttempt()
	confirmed, err := b.Stores[b.ID(aWest)].Targets.Confirm(context.Background(), b.ID(bEast),
		peer.Confirm{Attempts: []peer.AttemptID{attempt}, Delegable: true})
	require.NoError(t, err)
	require.Equal(t, []peer.AttemptID{attempt}, confirmed.Unknown)
	require.Zero(t, b.Count(aWest, "blockade"))
	require.Zero(t, b.Count(aWest, "holder_entry"))
}

func TestAPeerTouchesOnlyItsOwnBlockades(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	targetUID := b.MustPut(target, nil).UID
	h := b.MustPut(holder, body{"block": target})
	b.Settle()
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	var attempt uuid.UUID
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(ctx, `SELECT attempt FROM dbcontroller.blockade`).Scan(&attempt))
	key := peer.BlockadeKey{Attempt: attempt, HolderUID: h.UID, Path: "block", TargetUID: targetUID}
	require.NoError(t, store.Targets.Release(ctx, b.ID(bWest), uuid.Nil, []peer.BlockadeKey{key},
		[]peer.AttemptID{attempt}))
	require.NoError(t, store.Targets.Settle(ctx, b.ID(bWest), []peer.Question{{Key: key}},
		&peer.Answers{Verdicts: []peer.Verdict{peer.GoneVerdict}}))
	require.Equal(t, 1, b.Count(aWest, "blockade"))
	b.Audit()
}

// The crash table of docs/protocol.md, row by row: the state that each crash leaves, and its repair.
func TestCrashTable(t *testing.T) {
	t.Parallel()
	errCrash := errors.New("crash")

	t.Run("before Establish: nothing", func(t *testing.T) {
		t.Parallel()
		b := newPair(t, nil)
		b.MustPut(target, nil)
		b.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error { return errCrash }
		_, err := b.Put(holder, body{"block": target})
		require.Error(t, err)
		require.Zero(t, b.Count(aWest, "blockade"))
	})

	t.Run("after Establish, before the holder's commit: gone", func(t *testing.T) {
		t.Parallel()
		// the delete ends before the blockade expires, and has room for its questions
		b := newPair(t, func(cfg *shadow.Config) {
			cfg.Times.DeleteTimeout, cfg.Times.TentativeTTL = 5*time.Second, time.Minute
		})
		b.MustPut(target, nil)
		_, err := b.Stores[b.ID(aWest)].Targets.Establish(context.Background(), b.ID(bEast), newAttempt(),
			[]peer.EstablishReference{reference("block", schema.Block, uuid.New())})
		require.NoError(t, err)
		// Not expired: the holder may still commit, so a delete is refused as undecided.
		_, err = b.Delete(target)
		var blocked *peer.BlockedError
		require.ErrorAs(t, err, &blocked)
		require.True(t, blocked.Undecided)
		b.Expire(aWest)
		require.True(t, b.MustDelete(target).Removed)
		require.Equal(t, 1, b.Count(bEast, "aborted"))
		b.Audit()
	})

	t.Run("holder paused after Establish until long after expiry: its commit fails", func(t *testing.T) {
		t.Parallel()
		b := newPair(t, nil)
		b.MustPut(target, nil)
		tries := 0
		b.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error {
			if tries++; tries > 1 {
				return errCrash // the save begins a second attempt, which this case does not examine
			}
			return nil
		}
		b.AfterEstablish = func() {
			b.Expire(aWest)
			require.NoError(t, b.Resolve(b.ID(aWest)))
		}
		_, err := b.Put(holder, body{"block": target})
		require.Error(t, err)
		b.Gone(holder)
		require.Zero(t, b.Count(aWest, "blockade"))
		b.AfterEstablish, b.OnEstablish = nil, nil
		b.Settle()
		b.Audit()
	})

	t.Run("after the commit, before Confirm: confirmed, or resolved as held", func(t *testing.T) {
		t.Parallel()
		for _, path := range []string{"block", "unset", "cascade", "dangling"} {
			b := newPair(t, nil)
			b.MustPut(target, nil)
			b.MustPut(holder, body{path: target})
			require.Equal(t, 1, b.Count(aWest, "tentative"))
			b.Expire(aWest)
			require.NoError(t, b.Resolve(b.ID(aWest)))
			require.Zero(t, b.Count(aWest, "tentative"))
			b.Audit()
			b.Settle() // the late confirm finds the blockade confirmed
			b.Audit()
		}
	})

	t.Run("holder's deployment unreachable at expiry: the blockade stays, and a delete names the deployment",
		func(t *testing.T) {
			t.Parallel()
			b := newPair(t, nil)
			b.MustPut(target, nil)
			b.MustPut(holder, body{"unset": target})
			b.SetDown(bEast, true)
			b.Expire(aWest)
			require.Error(t, b.Resolve(b.ID(aWest)))
			require.Equal(t, 1, b.Count(aWest, "tentative"), "time alone removes nothing")
			_, err := b.Delete(target)
			var unavailable *peer.UnavailableError
			require.ErrorAs(t, err, &unavailable)
			require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unavailable.Deployments)
			b.SetDown(bEast, false)
			b.MustDelete(target)
			b.Settle()
			b.Gone(target)
			b.Audit()
		})

	t.Run("between cascade and acknowledgement: repeated, without effect", func(t *testing.T) {
		t.Parallel()
		b := newPair(t, nil)
		b.MustPut(target, nil)
		b.MustPut(holder, body{"cascade": target})
		b.MustPut(holder2, body{"list": []any{target}})
		b.Settle()
		b.MustDelete(target)
		for range 2 {
			deletions, _ := b.Seen(b.ID(bEast), b.ID(aWest))
			failed, err := b.Stores[b.ID(bEast)].Act(context.Background(), b.ID(aWest), []uuid.UUID{deletions[0].UID})
			require.NoError(t, err)
			require.Empty(t, failed)
		}
		b.Gone(holder)
		require.Equal(t, int64(2), b.Get(holder2).Generation)
		require.NotNil(t, b.Get(target), "not acknowledged")
		b.Settle()
		b.Gone(target)
		b.Audit()
	})

	t.Run("in the middle of finalising: the remaining resources are removed", func(t *testing.T) {
		t.Parallel()
		b := newPair(t, nil)
		b.MustPut(target, nil)
		b.MustPut(target2, nil)
		b.MustPut(holder, body{"unset": target})
		b.MustPut(holder2, body{"unset": target2})
		b.Settle()
		b.MustDelete(target)
		b.MustDelete(target2)
		_, err := b.Act(b.ID(bEast), b.ID(aWest))
		require.NoError(t, err)
		work := b.Work(b.ID(aWest))
		require.Len(t, work, 2)
		removed, err := b.Stores[b.ID(aWest)].Cascade.Finalise(context.Background(), []int64{work[0].Seq})
		require.NoError(t, err)
		require.Equal(t, 1, removed)
		b.Settle()
		b.Gone(target, target2)
		b.Audit()
	})
}

func TestTheAnswerOfACommitIsLostAndTheWriteStandsAllTheSame_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	var attempt uuid.UUID
	ctx := context.Background()
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(ctx, `SELECT attempt FROM dbcontroller.blockade`).Scan(&attempt))
	// Expired by the target's clock, but committed: the resolver's insert of ABORTED comes second.
	uid := b.Get(holder).UID
	verdicts, err := b.Stores[b.ID(bEast)].Attempts.Answer(ctx, b.ID(aWest), []peer.Question{
		{
			Key:     peer.BlockadeKey{Attempt: attempt, HolderUID: uid, Path: "block", TargetUID: b.Get(target).UID},
			Expired: true,
		},
		{Key: peer.BlockadeKey{Attempt: attempt, HolderUID: uid, Path: "unset", TargetUID: b.Get(target).UID}},
		{Key: peer.BlockadeKey{Attempt: newAttempt(), HolderUID: uid, Path: "block", TargetUID: b.Get(target).UID}},
	})
	require.NoError(t, err)
	require.Equal(t, []peer.Verdict{peer.Held, peer.GoneVerdict, peer.Undecided}, verdicts.Verdicts)
	require.Zero(t, b.Count(bEast, "aborted"))
}

// A closed attempt is kept for a day. An attempt whose id is dated days ahead would still be young when its
// row is removed, and a late duplicate of its establish would restore the blockade.
func TestAnAttemptOfTheFutureIsRefused_I7(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	attempt := newAttempt()
	ms := time.Now().Add(48 * time.Hour).UnixMilli()
	for i := range 6 {
		attempt[i] = byte(ms >> (8 * (5 - i)))
	}
	_, err := b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), b.ID(bEast), attempt,
		[]peer.EstablishReference{reference("block", schema.Block, uuid.New())})
	require.ErrorContains(t, err, "clock is hours ahead")
}
