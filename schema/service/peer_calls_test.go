package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/schema/wire"
	"github.com/db-controller/db-controller/test/wait"
)

// connected returns Peers that call a SchemaService over a store, as the deployment other. Both are self, so
// that the calls need no socket.
func connected(store *schemaStore) *peers.Peers {
	p := peers.New(self, nil)
	channel := newChannel(zap.NewNop(), identity.Deployment(other), nil, nil)
	schemav1.RegisterSchemaServiceServer(channel, newSchemaService(store))
	p.SetSelf(channel, channel)
	return p
}

// The store of the called deployment receives the values that the caller sent, and the caller receives its
// results.
func TestEstablishedReferencesSurviveTheWire(t *testing.T) {
	t.Parallel()
	attempt, epoch := newAttempt(t), uid(9)
	refs := []peer.EstablishReference{
		{
			HolderKind: "Device", HolderName: "devices/d", HolderUID: uid(1), Path: "a.*", TargetKind: "Account",
			TargetName: "accounts/a", TargetUID: uid(2), Behaviour: schema.Block,
		},
		{
			HolderKind: "Device", HolderName: "devices/d", HolderUID: uid(1), Path: schema.ParentPath, TargetKind: "Set",
			TargetName: "sets/s", Behaviour: schema.CascadeDelete,
		},
	}
	p := connected(&schemaStore{
		establish: func(holder schema.DeploymentID, a peer.AttemptID,
			got []peer.EstablishReference,
		) (*peer.Established, error) {
			require.Equal(t, other, holder)
			require.Equal(t, attempt, a)
			require.Equal(t, refs, got)
			return &peer.Established{UIDs: []uuid.UUID{uid(2), uid(3)}, Epoch: epoch}, nil
		},
		wouldEstablish: func(_ schema.DeploymentID, with peer.AttemptID,
			got []peer.EstablishReference,
		) (*peer.Established, error) {
			require.Equal(t, refs, got)
			require.Equal(t, attempt, with)
			return &peer.Established{UIDs: []uuid.UUID{uid(4)}, Version: "v1", Epoch: epoch}, nil
		},
	})
	done, err := p.Establish(t.Context(), self, attempt, refs)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{uid(2), uid(3)}, done.UIDs)
	require.Equal(t, epoch, done.Epoch)
	would, err := p.WouldEstablish(t.Context(), self, attempt, refs)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{uid(4)}, would.UIDs)
	require.Equal(t, epoch, would.Epoch)
}

func TestRefusedReferencesSurviveTheWire(t *testing.T) {
	t.Parallel()
	refusal := peer.Refusal{Holder: "devices/d", Path: "a", Target: schema.FullName{
		Deployment: self,
		Name:       "accounts/a",
	}, Reason: peer.TargetMissing}
	p := connected(
		&schemaStore{establish: func(schema.DeploymentID, peer.AttemptID,
			[]peer.EstablishReference,
		) (*peer.Established, error) {
			return nil, &peer.RefusedError{Refusals: []peer.Refusal{refusal}}
		}})
	_, err := p.Establish(t.Context(), self, newAttempt(t), []peer.EstablishReference{{
		HolderKind: "Device", HolderName: "devices/d", HolderUID: uid(1), Path: "a", TargetName: "accounts/a",
		Behaviour: schema.Block,
	}})
	var refused *peer.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, []peer.Refusal{refusal}, refused.Refusals)
	_, err = p.WouldEstablish(t.Context(), self, newAttempt(t), nil)
	require.ErrorContains(t, err, "references: ")
}

func TestConfirmationsAndReleasesSurviveTheWire(t *testing.T) {
	t.Parallel()
	attempts := []peer.AttemptID{uid(1), uid(2)}
	keys := []peer.BlockadeKey{
		{Attempt: uid(3), HolderUID: uid(4), Path: "a.b", TargetUID: uid(5)},
		{Attempt: uid(6), HolderUID: uid(7), Path: schema.ParentPath, TargetUID: uid(8)},
	}
	failing := error(nil)
	store := &schemaStore{
		confirm: func(holder schema.DeploymentID, epoch uuid.UUID, got []peer.AttemptID) ([]peer.AttemptID, error) {
			require.Equal(t, other, holder)
			require.Equal(t, uid(9), epoch)
			require.Equal(t, attempts, got)
			return attempts[1:], failing
		},
		release: func(holder schema.DeploymentID, epoch uuid.UUID, gotKeys []peer.BlockadeKey,
			got []peer.AttemptID,
		) error {
			require.Equal(t, other, holder)
			require.Equal(t, uid(9), epoch)
			require.Equal(t, keys, gotKeys)
			require.Equal(t, attempts, got)
			return failing
		},
	}
	p := connected(store)
	confirmed, err := p.Confirm(t.Context(), self, peer.Confirm{
		Epoch: uid(9), Attempts: attempts,
		References: []int32{1, 2},
	})
	require.NoError(t, err)
	require.Equal(t, attempts[1:], confirmed.Unknown)
	require.Equal(t, []int32{1, 2}, store.references)
	require.NoError(t, p.Release(t.Context(), self, uid(9), keys, attempts))
	failing = peer.ErrAborted
	_, err = p.Confirm(t.Context(), self, peer.Confirm{Epoch: uid(9), Attempts: attempts})
	require.Equal(t, codes.Aborted, status.Code(err))
	require.Equal(t, codes.Aborted, status.Code(p.Release(t.Context(), self, uid(9), keys, attempts)))
	_, err = p.Confirm(t.Context(), self, peer.Confirm{Attempts: attempts, References: []int32{1}})
	require.ErrorContains(t, err, "references: 1 numbers for 2 attempts")
}

func TestVerdictsSurviveTheWire(t *testing.T) {
	t.Parallel()
	questions := []peer.Question{
		{Key: peer.BlockadeKey{Attempt: uid(1), HolderUID: uid(2), Path: "a", TargetUID: uid(3)}, Expired: true},
		{Key: peer.BlockadeKey{Attempt: uid(4), HolderUID: uid(2), Path: "a", TargetUID: uid(3)}},
		{Key: peer.BlockadeKey{Attempt: uid(5), HolderUID: uid(2), Path: "a", TargetUID: uid(3)}},
	}
	verdicts := []peer.Verdict{peer.Held, peer.GoneVerdict, peer.Undecided}
	failing := error(nil)
	p := connected(&schemaStore{answer: func(target schema.DeploymentID, got []peer.Question) (*peer.Answers, error) {
		require.Equal(t, other, target)
		require.Equal(t, questions, got)
		return &peer.Answers{Verdicts: verdicts, Epoch: uid(9)}, failing
	}})
	got, err := p.Resolve(t.Context(), self, questions)
	require.NoError(t, err)
	require.Equal(t, &peer.Answers{Verdicts: verdicts, Epoch: uid(9)}, got)
	failing = peer.ErrAborted
	_, err = p.Resolve(t.Context(), self, questions)
	require.ErrorContains(t, err, peer.ErrAborted.Error())
	require.Equal(t, peer.Undecided, wire.Verdict(99), "a verdict of a newer version decides nothing")
	require.Equal(t, peer.Undecided, wire.Verdict(schemav1.ResolveBlockadesResponse_VERDICT_UNSPECIFIED))
}

func TestComparedReferencesSurviveTheWire(t *testing.T) {
	t.Parallel()
	key := peer.BlockadeKey{Attempt: uid(1), HolderUID: uid(2), Path: "a", TargetUID: uid(3)}
	refs := []peer.CheckedReference{
		{Key: key, Behaviour: schema.Block},
		{Key: key, Behaviour: schema.Unset},
		{Key: key, Behaviour: schema.CascadeDelete},
		{Key: key, Behaviour: schema.AsyncUnset},
	}
	known := []peer.Known{peer.KnownHeld, peer.KnownMissing, peer.KnownDeleting, peer.KnownAbsent}
	failing := error(nil)
	p := connected(
		&schemaStore{checkReferences: func(holder schema.DeploymentID,
			got []peer.CheckedReference,
		) ([]peer.Known, error) {
			require.Equal(t, other, holder)
			require.Equal(t, refs, got)
			return known, failing
		}})
	got, err := p.CheckReferences(t.Context(), self, refs)
	require.NoError(t, err)
	require.Equal(t, known, got)
	failing = context.DeadlineExceeded
	_, err = p.CheckReferences(t.Context(), self, refs)
	require.ErrorIs(t, err, context.DeadlineExceeded, "a time-out is recognised")
}

func TestEpochsSurviveTheWire(t *testing.T) {
	t.Parallel()
	mine, greater := newAttempt(t), newAttempt(t)
	failing := error(nil)
	p := connected(&schemaStore{
		epoch: uid(5), says: mine,
		told: func(from schema.DeploymentID, epoch uuid.UUID) (uuid.UUID, error) {
			require.Equal(t, other, from)
			require.Equal(t, mine, epoch)
			return greater, failing
		},
		confirmed: func(by schema.DeploymentID, epoch, selfEpoch uuid.UUID) error {
			require.Equal(t, other, by)
			require.Equal(t, uid(1), epoch)
			require.Equal(t, mine, selfEpoch)
			return failing
		},
	})
	known, refersTo, err := p.AnnounceEpoch(t.Context(), self, mine)
	require.NoError(t, err)
	require.Equal(t, greater, known)
	require.False(t, refersTo.Known, "of an epoch that is over")
	require.NoError(t, p.ConfirmEpoch(t.Context(), self, uid(1), mine))
	epoch, refersTo, err := p.Epoch(t.Context(), self)
	require.NoError(t, err)
	require.Equal(t, peer.TargetKinds{Known: true, Names: []string{"Target"}}, refersTo)
	require.Equal(t, uid(5), epoch)
	failing = peer.ErrAborted
	_, _, err = p.AnnounceEpoch(t.Context(), self, mine)
	require.Error(t, err)
	require.Error(t, p.ConfirmEpoch(t.Context(), self, uid(1), mine))
}

// An acknowledgement is repeated until nothing is left, or until it fails.
func TestAnAcknowledgementIsRepeatedWhileThereIsMore(t *testing.T) {
	t.Parallel()
	calls, failAt := 0, 0
	p := connected(&schemaStore{acknowledge: func(holder schema.DeploymentID, epoch uuid.UUID, token string,
		except []uuid.UUID, limit time.Duration,
	) (bool, error) {
		require.Equal(t, other, holder)
		require.Equal(t, uid(9), epoch)
		require.Equal(t, "position", token)
		require.Equal(t, []uuid.UUID{uid(1)}, except)
		require.Equal(t, acknowledgeTime, limit)
		if calls++; calls == failAt {
			return false, peer.ErrAborted
		}
		return calls < 5, nil
	}})
	require.NoError(t, p.Acknowledge(t.Context(), self, uid(9), "position", []uuid.UUID{uid(1)}))
	require.Equal(t, 5, calls)
	calls, failAt = 0, 3
	require.Equal(t, codes.Aborted, status.Code(p.Acknowledge(t.Context(), self, uid(9), "position",
		[]uuid.UUID{uid(1)})))
	require.Equal(t, 3, calls)
}

func TestOwnersSurviveTheWire(t *testing.T) {
	t.Parallel()
	questions := []peer.OwnerQuestion{
		{Kind: "Owner", Name: "os/a", UID: uid(1), RequiredBy: uid(2)},
		{Kind: "Owner", Name: "os/b"},
		{Kind: "Owner", Name: "os/c", UID: uid(3)},
		{Kind: "Owner", Name: "os/d", UID: uid(4)},
	}
	cause := &schema.Cause{
		ID: uid(8), Root: "//a.example.com/us-west2/os/c", RootUID: uid(3), Actor: "user/ann",
		RequestID: uid(7), At: time.Unix(1_700_000_000, 0).UTC(),
	}
	answers := &peer.OwnerAnswers{Version: "v2", Generation: 4, Answers: []peer.OwnerAnswer{
		{Verdict: peer.OwnerExists, UID: uid(1), Kind: "Owner", Noted: true},
		{Verdict: peer.OwnerNotReferring},
		{Verdict: peer.OwnerAbsent, Cause: cause},
		{Verdict: peer.OwnerCannotOwn},
	}}
	check := func(ownee schema.DeploymentID, got []peer.OwnerQuestion) (*peer.OwnerAnswers, error) {
		require.Equal(t, other, ownee)
		require.Equal(t, questions, got)
		return answers, nil
	}
	p := connected(&schemaStore{checkOwners: check})
	got, err := p.CheckOwners(t.Context(), self, questions)
	require.NoError(t, err)
	require.Equal(t, answers, got)
	p = connected(&schemaStore{wouldCheck: check})
	got, err = p.WouldCheckOwners(t.Context(), self, questions)
	require.NoError(t, err)
	require.Equal(t, answers, got)
}

// More questions than one call may have are asked in several, whose answers have to be of one version.
func TestManyOwnersAreAskedForInParts(t *testing.T) {
	t.Parallel()
	questions := make([]peer.OwnerQuestion, 2*wire.MaxMessages+1)
	for i := range questions {
		questions[i] = peer.OwnerQuestion{Kind: "Owner", Name: fmt.Sprintf("os/o%d", i)}
	}
	// ask asks until there is an answer: on a busy machine thousands of questions may take longer than a call
	// to another deployment has. Each call has a server of its own.
	ask := func(answer func(part int, got []peer.OwnerQuestion) *peer.OwnerAnswers) (got *peer.OwnerAnswers,
		sizes []int, err error,
	) {
		t.Helper()
		require.Eventually(t, func() bool {
			parts := make(chan int, 10)
			p := connected(
				&schemaStore{checkOwners: func(_ schema.DeploymentID,
					got []peer.OwnerQuestion,
				) (*peer.OwnerAnswers, error) {
					parts <- len(got)
					return answer(len(parts), got), nil
				}})
			got, err = p.CheckOwners(t.Context(), self, questions)
			for sizes = nil; len(parts) > 0; {
				sizes = append(sizes, <-parts)
			}
			return status.Code(err) != codes.DeadlineExceeded
		}, wait.Limit, wait.Poll)
		return got, sizes, err
	}
	got, sizes, err := ask(func(_ int, got []peer.OwnerQuestion) *peer.OwnerAnswers {
		out := &peer.OwnerAnswers{Version: "v1", Generation: 1}
		for _, q := range got {
			out.Answers = append(out.Answers, peer.OwnerAnswer{Verdict: peer.OwnerNotReferring, Kind: "K" + q.Name[4:]})
		}
		return out
	})
	require.NoError(t, err)
	require.Equal(t, []int{wire.MaxMessages, wire.MaxMessages, 1}, sizes)
	require.Len(t, got.Answers, len(questions))
	for i := range got.Answers {
		require.Equal(t, fmt.Sprintf("K%d", i), got.Answers[i].Kind, "in the order of the questions")
	}
	_, _, err = ask(func(part int, got []peer.OwnerQuestion) *peer.OwnerAnswers {
		return &peer.OwnerAnswers{Generation: int64(part), Answers: make([]peer.OwnerAnswer, len(got))}
	})
	require.ErrorContains(t, err, "switched its version between two parts of a request: try again")
}

func TestDroppedOwnersSurviveTheWire(t *testing.T) {
	t.Parallel()
	cause := &schema.Cause{
		ID: uid(8), Root: "//a.example.com/us-west2/os/c", Actor: "user/ann",
		At: time.Unix(1_700_000_000, 0).UTC(),
	}
	deleted := []schema.Deletion{{UID: uid(1), Cause: cause}, {UID: uid(2)}, {UID: uid(3), Cause: cause}}
	releases := []peer.OwnerRelease{{Owner: uid(4), Ownee: uid(5)}, {Owner: uid(4), Ownee: uid(6)}}
	failing := error(nil)
	p := connected(&schemaStore{
		dropOwners: func(from schema.DeploymentID, epoch uuid.UUID, owners []schema.Deletion,
			got []peer.OwnerRelease,
		) ([]uuid.UUID, bool, error) {
			require.Equal(t, other, from)
			require.Equal(t, uid(9), epoch)
			require.Equal(t, deleted, owners)
			require.Equal(t, releases, got)
			return []uuid.UUID{uid(2)}, true, failing
		},
		runs: peer.OwnerAnswers{Version: "v3", Generation: 5},
		upgradeOwners: func(from schema.DeploymentID, version string, generation int64,
			renamed map[string]string,
		) (int64, error) {
			require.Equal(t, other, from)
			require.Equal(t, "v3", version)
			require.Equal(t, int64(5), generation)
			require.Equal(t, map[string]string{"Old": "New", "Older": "New"}, renamed)
			return 17, failing
		},
	})
	failed, more, err := p.DropOwners(t.Context(), self, uid(9), deleted, releases)
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, []uuid.UUID{uid(2)}, failed)
	upgrade := &peer.Upgrade{Version: "v3", Generation: 5, Renamed: map[string]string{"Old": "New", "Older": "New"}}
	remaining, err := p.UpgradeOwners(t.Context(), self, upgrade)
	require.NoError(t, err)
	require.Equal(t, int64(17), remaining)
	failing = peer.ErrAborted
	_, _, err = p.DropOwners(t.Context(), self, uid(9), deleted, releases)
	require.Error(t, err)
	_, err = p.UpgradeOwners(t.Context(), self, upgrade)
	require.Error(t, err)
}

func TestPlansSurviveTheWire(t *testing.T) {
	t.Parallel()
	question := peer.PlanQuestion{Targets: []peer.PlanTarget{
		{Deployment: self, UID: uid(1)},
		{Deployment: other, UID: uid(2)},
	}, Limit: 50, Detailed: true}
	via := func(n byte, path string, b schema.Behaviour) peer.Via {
		return peer.Via{Target: peer.PlanTarget{Deployment: other, UID: uid(n)}, Path: path, Behaviour: b}
	}
	plan := &peer.Plan{
		Members: []peer.PlanMember{
			{UID: uid(3), Kind: "Device", Name: "devices/d", Vias: []peer.Via{
				via(1, "a", schema.CascadeDelete),
				via(2, "@owner", 0),
			}, BlockDeletion: true, Entries: []schema.DeploymentID{
				other,
			}, Ownees: []schema.DeploymentID{sibling, other}},
			{UID: uid(4), Kind: "Device", Name: "devices/e", Vias: []peer.Via{via(3, "@parent", schema.CascadeDelete)}},
		},
		Unsets: []peer.PlanUnset{{UID: uid(5), Kind: "Set", Name: "sets/s", Via: via(1, "b.*", schema.AsyncUnset)}},
		Blockers: []peer.PlanBlocker{
			{Holder: peer.Holder{
				Name: schema.FullName{Deployment: other, Name: "hs/h"}, Path: "p",
				Target: schema.FullName{Deployment: self, Name: "devices/d"},
			}, UID: uid(6), TargetUID: uid(
				3), Undecided: true},
			{Holder: peer.Holder{
				Name: schema.FullName{Deployment: sibling, Name: "hs/i"}, Path: "p",
				Target: schema.FullName{Deployment: self, Name: "devices/e"},
			}, UID: uid(7), TargetUID: uid(
				4), Unreachable: true},
		},
		Truncated: true,
	}
	failing := error(nil)
	p := connected(&schemaStore{plan: func(q peer.PlanQuestion) (*peer.Plan, error) {
		require.Equal(t, question, q)
		return plan, failing
	}})
	got, err := p.Plan(t.Context(), self, question)
	require.NoError(t, err)
	require.Equal(t, plan, got)
	failing = peer.ErrAborted
	_, err = p.Plan(t.Context(), self, question)
	require.ErrorContains(t, err, peer.ErrAborted.Error())

	// Leaves of a compact plan have uids and reasons alone. A detailed plan has no leaves, also for a
	// question that is compact as well.
	failing, question.Detailed, question.Compact = nil, false, true
	plan = &peer.Plan{Members: []peer.PlanMember{
		{
			UID: uid(3), Kind: "Device", Name: "devices/d", Vias: []peer.Via{via(1, "a", schema.CascadeDelete)},
			Entries: []schema.DeploymentID{other},
		},
		{UID: uid(4), Vias: []peer.Via{via(1, "a", schema.CascadeDelete)}},
		{UID: uid(5), Vias: []peer.Via{via(1, "a", schema.CascadeDelete), via(2, "a", schema.CascadeDelete)}},
		{UID: uid(6), Vias: []peer.Via{via(2, "a", schema.CascadeDelete)}},
	}}
	got, err = p.Plan(t.Context(), self, question)
	require.NoError(t, err)
	require.Equal(t, plan, got)
	question.CountLeaves, plan = true, &peer.Plan{Leaves: 7, Truncated: true}
	got, err = p.Plan(t.Context(), self, question)
	require.NoError(t, err)
	require.Equal(t, plan, got)
	for _, wrong := range []int{-1, question.Limit + 1} {
		plan = &peer.Plan{Leaves: wrong}
		_, err = p.Plan(t.Context(), self, question)
		require.ErrorContains(t, err, "members, of at most 50")
	}
	detailed := newSchemaService(&schemaStore{plan: func(q peer.PlanQuestion) (*peer.Plan, error) {
		require.False(t, q.Compact)
		require.False(t, q.CountLeaves)
		return &peer.Plan{}, nil
	}})
	_, err = detailed.PlanDeletion(asDeployment(t, other), &schemav1.PlanDeletionRequest{
		Detailed: true, Compact: true,
		CountLeaves: true,
	})
	require.NoError(t, err)

	for asked, limit := range map[int32]int{0: defaultPlanLimit, -1: defaultPlanLimit, 7: 7, 1 << 30: peer.PlanLimit} {
		s := newSchemaService(&schemaStore{plan: func(q peer.PlanQuestion) (*peer.Plan, error) {
			require.Equal(t, limit, q.Limit)
			return &peer.Plan{}, nil
		}})
		_, err := s.PlanDeletion(asDeployment(t, other), &schemav1.PlanDeletionRequest{Limit: asked})
		require.NoError(t, err)
	}
}

func TestTracesSurviveTheWire(t *testing.T) {
	t.Parallel()
	uids := make([]uuid.UUID, 2*wire.MaxMessages+1)
	for i := range uids {
		uids[i] = uuid.New()
	}
	trace := peer.Trace{
		Cascades: []peer.PlanTarget{{Deployment: other, UID: uid(1)}, {Deployment: self, UID: uid(2)}},
		Owners:   []peer.PlanTarget{{Deployment: sibling, UID: uid(3)}},
	}
	var sizes []int
	failing := error(nil)
	p := connected(&schemaStore{trace: func(got []uuid.UUID) (map[uuid.UUID]peer.Trace, error) {
		sizes = append(sizes, len(got))
		return map[uuid.UUID]peer.Trace{got[0]: trace}, failing
	}})
	got, err := p.Trace(t.Context(), self, uids)
	require.NoError(t, err)
	require.Equal(t, []int{wire.MaxMessages, wire.MaxMessages, 1}, sizes, "in as many calls as their bound requires")
	require.Equal(t, map[uuid.UUID]peer.Trace{
		uids[0]: trace, uids[wire.MaxMessages]: trace,
		uids[2*wire.MaxMessages]: trace,
	}, got)
	got, err = p.Trace(t.Context(), self, nil)
	require.NoError(t, err)
	require.Empty(t, got)
	failing = peer.ErrAborted
	_, err = p.Trace(t.Context(), self, uids[:1])
	require.Error(t, err)
}

// A watch delivers the events of the other side, and ends with its error or with the reader's.
func TestWatchesOfPeersDeliverEvents(t *testing.T) {
	t.Parallel()
	end, stop := peer.ErrReset, errors.New("the reader stops")
	work := schema.Event[schema.Work]{Items: []schema.Work{{
		Seq: 1, Action: schema.Confirm, Deployment: other,
		CreatedAt: time.Unix(5, 0).UTC(),
	}, {
		Seq: 2, Action: schema.Release, Deployment: other,
		CreatedAt: time.Unix(6, 0).UTC(),
	}}}
	deletions := schema.Event[schema.Deletion]{Items: []schema.Deletion{{
		Seq: 1, Kind: "Device", Name: "devices/d",
		UID: uid(1),
	}}}
	store := &schemaStore{
		watchWork: func(shards []int16, _ string, deliver func(schema.Event[schema.Work]) error) error {
			require.Equal(t, []int16{3, 4}, shards)
			// fails when the reader has stopped
			return cmp.Or(deliver(schema.Event[schema.Work]{EndOfSnapshot: true, Token: "a"}), deliver(work), end)
		},
		watchDeletions: func(holder schema.DeploymentID, _ string,
			deliver func(schema.Event[schema.Deletion]) error,
		) error {
			require.Equal(t, self, holder)
			return cmp.Or(deliver(schema.Event[schema.Deletion]{Token: "a"}), deliver(deletions), end)
		},
	}
	p := peers.New(self, nil)
	channel := newChannel(zap.NewNop(), identity.Deployment(self), nil, nil)
	schemav1.RegisterSchemaServiceServer(channel, newSchemaService(store))
	p.SetSelf(channel, channel)

	var gotWork []schema.Event[schema.Work]
	err := p.WatchShadows(t.Context(), []uint32{3, 4}, func(e schema.Event[schema.Work]) error {
		gotWork = append(gotWork, e)
		return nil
	})
	require.Equal(t, "RESET", reasonOf(t, err))
	require.Equal(t, []schema.Event[schema.Work]{{EndOfSnapshot: true, Token: "a"}, work}, gotWork)
	require.ErrorIs(t, p.WatchShadows(t.Context(), []uint32{3, 4}, func(schema.Event[schema.Work]) error {
		return stop
	}), stop)

	var gotDeletions []schema.Event[schema.Deletion]
	err = p.WatchDeletions(t.Context(), self, func(e schema.Event[schema.Deletion]) error {
		gotDeletions = append(gotDeletions, e)
		return nil
	})
	require.Equal(t, "RESET", reasonOf(t, err))
	require.Equal(t, []schema.Event[schema.Deletion]{{Token: "a"}, deletions}, gotDeletions)
	require.ErrorIs(t, p.WatchDeletions(t.Context(), self, func(schema.Event[schema.Deletion]) error {
		return stop
	}), stop)
	require.ErrorContains(t, p.WatchDeletions(t.Context(), other, func(schema.Event[schema.Deletion]) error {
		return nil
	}), "deployment b.example.com/us-west2 is not known to the registry")
}

// Every call fails in the same way without a connection, and an establish certainly did not arrive.
func TestCallsToAnUnknownDeploymentFail(t *testing.T) {
	t.Parallel()
	p, ctx := peers.New(self, nil), t.Context()
	for name, call := range map[string]func() error{
		"Establish":        func() error { _, err := p.Establish(ctx, other, uid(1), nil); return err },
		"WouldEstablish":   func() error { _, err := p.WouldEstablish(ctx, other, uid(1), nil); return err },
		"CheckReferences":  func() error { _, err := p.CheckReferences(ctx, other, nil); return err },
		"AnnounceEpoch":    func() error { _, _, err := p.AnnounceEpoch(ctx, other, uid(1)); return err },
		"Epoch":            func() error { _, _, err := p.Epoch(ctx, other); return err },
		"ConfirmEpoch":     func() error { return p.ConfirmEpoch(ctx, other, uid(1), uid(1)) },
		"Resolve":          func() error { _, err := p.Resolve(ctx, other, nil); return err },
		"Recall":           func() error { _, err := p.Recall(ctx, other, nil); return err },
		"Confirm":          func() error { _, err := p.Confirm(ctx, other, peer.Confirm{Epoch: uid(1)}); return err },
		"Release":          func() error { return p.Release(ctx, other, uid(1), nil, nil) },
		"Acknowledge":      func() error { return p.Acknowledge(ctx, other, uid(1), "", nil) },
		"CheckOwners":      func() error { _, err := p.CheckOwners(ctx, other, nil); return err },
		"WouldCheckOwners": func() error { _, err := p.WouldCheckOwners(ctx, other, nil); return err },
		"DropOwners":       func() error { _, _, err := p.DropOwners(ctx, other, uid(1), nil, nil); return err },
		"UpgradeOwners":    func() error { _, err := p.UpgradeOwners(ctx, other, &peer.Upgrade{}); return err },
		"Plan":             func() error { _, err := p.Plan(ctx, other, peer.PlanQuestion{}); return err },
		"Trace":            func() error { _, err := p.Trace(ctx, other, []uuid.UUID{uid(1)}); return err },
	} {
		err := call()
		require.ErrorContains(t, err, "deployment b.example.com/us-west2 is not known to the registry", name)
		require.Equal(t, name == "Establish" || name == "WouldEstablish", errors.Is(err, peer.ErrNotSent), name)
	}
}
