package handlers_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// poisoned fails whenever some pieces of work are in a batch.
type poisoned struct {
	handlers.DeletingStore
	bad  []int64
	err  error
	done []int64
}

func (p *poisoned) Finalise(_ context.Context, seqs []int64) (int, error) {
	if slices.ContainsFunc(seqs, func(seq int64) bool { return slices.Contains(p.bad, seq) }) {
		return 0, p.err
	}
	p.done = append(p.done, seqs...)
	return len(seqs), nil
}

func finalising(n int64) (work []schema.Work) {
	for seq := range n {
		work = append(work, schema.Work{Seq: seq, Action: schema.Finalise})
	}
	return work
}

// What fails to be finalised is told by its pieces; the others of the batch are done, and are not tried again with it.
func TestWhatCannotBeFinalisedIsToldByItself_I20(t *testing.T) {
	store := &poisoned{bad: []int64{3, 700}, err: errors.New("poison")}
	err := (&handlers.OwnedDeleting{Store: store}).Handle(t.Context(), schema.DeploymentID{}, finalising(1000))
	var part *schema.PartError
	require.ErrorAs(t, err, &part)
	require.Equal(t, []int64{3, 700}, part.Failed)
	require.ErrorIs(t, err, store.err)
	require.Len(t, store.done, 998)
}

// A database that is away is no piece's fault: the whole batch is tried again.
func TestADatabaseThatIsAwayIsNoPiecesFault_I20(t *testing.T) {
	store := &poisoned{bad: []int64{3}, err: &shadow.UnavailableError{}}
	err := (&handlers.OwnedDeleting{Store: store}).Handle(t.Context(), schema.DeploymentID{}, finalising(10))
	require.Error(t, err)
	require.NotErrorAs(t, err, new(*schema.PartError))
	require.Empty(t, store.done)
}

// owners answers questions, and cannot settle what is about some pieces of work.
type owners struct {
	handlers.PendingStore
	handlers.PendingPeers
	bad, waiting []int64
	asked        []int64
}

func (o *owners) OwnersToCheck(_ context.Context, _ schema.DeploymentID, seqs []int64) (*shadow.OwnersToCheck, error) {
	o.asked = seqs
	return &shadow.OwnersToCheck{}, nil
}

func (o *owners) SettleOwners(context.Context, *shadow.OwnersToCheck, *shadow.OwnerAnswers) (left []int64, err error) {
	for _, seq := range o.asked {
		if slices.Contains(o.bad, seq) {
			return nil, errors.New("poison")
		}
		if slices.Contains(o.waiting, seq) {
			left = append(left, seq)
		}
	}
	return left, nil
}

func (o *owners) DropOwners(context.Context, schema.DeploymentID, uuid.UUID, []schema.Deletion, []shadow.LetGo) ([]uuid.UUID, bool, error) {
	panic("nobody is dropped")
}

// An ownee that cannot be settled is told by itself; one that waits is left, and the rest is done.
func TestAnOwneeThatCannotBeSettledIsToldByItself_I20(t *testing.T) {
	o := &owners{bad: []int64{4}, waiting: []int64{7}}
	var work []schema.Work
	for seq := range int64(10) {
		work = append(work, schema.Work{Seq: seq, Action: schema.CheckOwners})
	}
	left, err := (&handlers.OwnedPending{Store: o, Peers: o}).Handle(t.Context(), schema.DeploymentID{}, work)
	var part *schema.PartError
	require.ErrorAs(t, err, &part)
	require.Equal(t, []int64{4}, part.Failed)
	require.Equal(t, []int64{7}, left)
}
