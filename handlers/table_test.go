package handlers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
)

type handler func(seqs []int64) (waiting []int64, err error)

func (h handler) Handle(_ context.Context, _ schema.DeploymentID, seqs []int64) ([]int64, error) {
	return h(seqs)
}

func nothing([]int64) ([]int64, error) { return nil, nil }

// actions have a handler each; some can be replaced.
func actions() handlers.Actions {
	h := handler(nothing)
	return handlers.Actions{
		Confirm: h, Release: h, ReleaseOwner: h, CheckOwners: h, UpgradeOwners: h, Derive: h, CleanUpDecommissioned: h,
		AnnounceEpoch: h, ConfirmAgain: h, VerifyBlockades: h, LookAtRight: h, EndRights: h, LookAtEntry: h,
		Finalise: h, DropOwners: h,
	}
}

func table(t *testing.T, a handlers.Actions) *handlers.Table {
	t.Helper()
	table, err := handlers.NewTable(a)
	require.NoError(t, err)
	return table
}

func TestEveryActionHasATaskAndAHandler(t *testing.T) {
	t.Parallel()
	whole := table(t, actions())
	for action := schema.Confirm; action.String() != "unknown"; action++ {
		require.NotEmpty(t, whole.Task(action), action)
	}
	_, err := handlers.NewTable(handlers.Actions{})
	for action := schema.Confirm; action.String() != "unknown"; action++ {
		require.ErrorContains(t, err, "no handler for "+action.String())
	}
}

// The names are labels of metrics, and belong to the groups of a node's work.
func TestTasksAreNamedAfterTheirGroup(t *testing.T) {
	t.Parallel()
	whole := table(t, actions())
	require.Equal(t, "owned_pending_confirm", whole.Task(schema.Confirm))
	require.Equal(t, "owned_pending", whole.Task(schema.Release))
	require.Equal(t, "owned_pending", whole.Task(schema.ReleaseOwner))
	require.Equal(t, "owned_pending_owners", whole.Task(schema.CheckOwners),
		"owners that may still come keep no message waiting")
	require.Equal(t, "owned_deleting", whole.Task(schema.Finalise))
	require.Equal(t, "owned_deleting_owners", whole.Task(schema.DropOwners))
	require.Equal(t, whole.Task(schema.ConfirmAgain), whole.Task(schema.VerifyBlockades))
}

// Only confirms have a pace: no call waits for them.
func TestOnlyConfirmsHaveAPace(t *testing.T) {
	t.Parallel()
	whole := table(t, actions())
	for action := schema.Confirm; action.String() != "unknown"; action++ {
		pace := whole.Pace(whole.Task(action))
		require.Equal(t, action == schema.Confirm, pace > 0, action)
		require.LessOrEqual(t, pace, 100*time.Millisecond, "a right is granted with a confirm")
	}
}

func TestABatchIsHandledActionByAction(t *testing.T) {
	t.Parallel()
	var did steps
	a := actions()
	a.Confirm = handler(func(seqs []int64) ([]int64, error) { did.add("confirm", seqs); return nil, nil })
	a.Release = handler(func(seqs []int64) ([]int64, error) { did.add("release", seqs); return []int64{2}, nil })
	waiting, err := table(t, a).Handle(t.Context(), there, []schema.Work{
		{Seq: 2, Action: schema.Release},
		{Seq: 1, Action: schema.Confirm},
		{Seq: 3, Action: schema.Confirm},
		{Seq: 4, Action: schema.Release},
	})
	require.NoError(t, err)
	require.Equal(t, []int64{2}, waiting)
	require.Equal(t, steps{"confirm [1 3]", "release [2 4]"}, did)
}

func TestAnActionThatFailsKeepsNoOtherBack_I20(t *testing.T) {
	t.Parallel()
	var did steps
	a := actions()
	a.ConfirmAgain = handler(func([]int64) ([]int64, error) { return nil, errUnreachable })
	a.VerifyBlockades = handler(func(seqs []int64) ([]int64, error) { did.add("verify", seqs); return nil, nil })
	_, err := table(t, a).Handle(t.Context(), there, []schema.Work{
		{Seq: 1, Action: schema.ConfirmAgain},
		{Seq: 2, Action: schema.VerifyBlockades},
	})
	require.ErrorIs(t, err, errUnreachable)
	require.Equal(t, steps{"verify [2]"}, did)
}

func TestPiecesThatFailByThemselvesAreCollected_I20(t *testing.T) {
	t.Parallel()
	poison := func(seqs []int64) ([]int64, error) {
		return nil, &schema.PartError{Failed: seqs[:1], Cause: errPoison}
	}
	a := actions()
	a.Confirm, a.Release = handler(poison), handler(poison)
	a.ReleaseOwner = handler(func(seqs []int64) ([]int64, error) { return seqs, nil })
	work := []schema.Work{
		{Seq: 1, Action: schema.Confirm},
		{Seq: 2, Action: schema.Confirm},
		{Seq: 3, Action: schema.Release},
		{Seq: 4, Action: schema.ReleaseOwner},
	}
	waiting, err := table(t, a).Handle(t.Context(), there, work)
	var part *schema.PartError
	require.ErrorAs(t, err, &part)
	require.Equal(t, []int64{1, 3}, part.Failed)
	require.ErrorIs(t, err, errPoison)
	require.Equal(t, []int64{4}, waiting)
}

// Pieces of an action that failed as a whole do not count as failed by themselves: the whole batch is handled
// again.
func TestAFailureOfAWholeActionIsNoneOfItsPieces(t *testing.T) {
	t.Parallel()
	a := actions()
	a.Confirm = handler(func(seqs []int64) ([]int64, error) {
		return nil, &schema.PartError{Failed: seqs, Cause: errPoison}
	})
	a.Release = handler(func([]int64) ([]int64, error) { return nil, errDatabase })
	a.ReleaseOwner = handler(func(seqs []int64) ([]int64, error) { return seqs, nil })
	work := []schema.Work{
		{Seq: 1, Action: schema.Confirm},
		{Seq: 2, Action: schema.Release},
		{Seq: 3, Action: schema.ReleaseOwner},
	}
	waiting, err := table(t, a).Handle(t.Context(), there, work)
	require.ErrorIs(t, err, errDatabase)
	require.ErrorIs(t, err, errPoison)
	require.NotErrorAs(t, err, new(*schema.PartError))
	require.Empty(t, waiting)
}

func TestWorkOfAnUnknownActionIsLeftToANewerVersion(t *testing.T) {
	t.Parallel()
	const unknown schema.Action = 99
	whole := table(t, actions())
	require.Empty(t, whole.Task(unknown))
	waiting, err := whole.Handle(t.Context(), there, []schema.Work{{Seq: 1, Action: unknown}})
	require.NoError(t, err)
	require.Empty(t, waiting)
}

var errPoison = errors.New("poison")
