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
	"github.com/db-controller/db-controller/schema/peer"
)

// checkOwnersStore has one question a piece of work.
type checkOwnersStore struct {
	read   func(seqs []int64) error
	settle func(seqs []int64, answers *peer.OwnerAnswers) (waiting []int64, err error)
	// done: these pieces have no question any more.
	done []int64
}

func (s *checkOwnersStore) OwnersToCheck(_ context.Context, _ schema.DeploymentID,
	seqs []int64,
) (*peer.OwnersToCheck, error) {
	if s.read != nil {
		if err := s.read(seqs); err != nil {
			return nil, err
		}
	}
	c := &peer.OwnersToCheck{Settle: func(_ context.Context, answers *peer.OwnerAnswers) ([]int64, error) {
		return s.settle(seqs, answers)
	}}
	for _, seq := range seqs {
		if !slices.Contains(s.done, seq) {
			c.Questions = append(c.Questions, peer.OwnerQuestion{Name: "owners/o"})
		}
	}
	return c, nil
}

type checkOwnersPeers func(questions []peer.OwnerQuestion) (*peer.OwnerAnswers, error)

func (p checkOwnersPeers) CheckOwners(_ context.Context, _ schema.DeploymentID,
	questions []peer.OwnerQuestion,
) (*peer.OwnerAnswers, error) {
	return p(questions)
}

// answering answers every question with a verdict.
func answering(v peer.OwnerVerdict) checkOwnersPeers {
	return func(questions []peer.OwnerQuestion) (*peer.OwnerAnswers, error) {
		a := &peer.OwnerAnswers{}
		for range questions {
			a.Answers = append(a.Answers, peer.OwnerAnswer{Verdict: v, UID: uuid.New()})
		}
		return a, nil
	}
}

func TestAnOwnerIsAskedAboutByNameAndThenByItsUID_I16(t *testing.T) {
	t.Parallel()
	var settled [][]int64
	store := &checkOwnersStore{settle: func(seqs []int64, _ *peer.OwnerAnswers) ([]int64, error) {
		settled = append(settled, seqs)
		if len(settled) == 1 {
			return []int64{2}, nil // its uid has just become known
		}
		return nil, nil
	}}
	waiting, err := (&handlers.CheckOwners{Store: store, Peers: answering(peer.OwnerExists)}).Handle(t.Context(), there,
		[]int64{1, 2, 3})
	require.NoError(t, err)
	require.Empty(t, waiting)
	require.Equal(t, [][]int64{{1, 2, 3}, {2}}, settled)
}

func TestAnOwnerThatMayStillComeWaitsAfterTwoQuestions(t *testing.T) {
	t.Parallel()
	asked := 0
	store := &checkOwnersStore{settle: func(seqs []int64, _ *peer.OwnerAnswers) ([]int64, error) { return seqs, nil }}
	waiting, err := (&handlers.CheckOwners{
		Store: store,
		Peers: checkOwnersPeers(func(q []peer.OwnerQuestion) (*peer.OwnerAnswers, error) {
			asked++
			return answering(peer.OwnerAbsent)(q)
		}),
	}).Handle(t.Context(), there, []int64{1, 2})
	require.NoError(t, err)
	require.Equal(t, []int64{1, 2}, waiting)
	require.Equal(t, 2, asked)
}

// I15: an unreachable deployment has not said that an owner is absent.
func TestNothingIsSettledWhileTheOwnersDeploymentIsUnreachable_I15(t *testing.T) {
	t.Parallel()
	asked := 0
	store := &checkOwnersStore{settle: func([]int64, *peer.OwnerAnswers) ([]int64, error) {
		panic("settled without an answer")
	}}
	_, err := (&handlers.CheckOwners{
		Store: store,
		Peers: checkOwnersPeers(func([]peer.OwnerQuestion) (*peer.OwnerAnswers, error) {
			asked++
			return nil, errUnreachable
		}),
	}).Handle(t.Context(), there, upTo(100))
	require.ErrorIs(t, err, errUnreachable)
	require.ErrorContains(t, err, "check owners at a.example.com/us-west2")
	require.NotErrorAs(t, err, new(*schema.PartError))
	require.Equal(t, 1, asked, "it is not asked again for each half of the batch")
}

func TestOwnersThatCannotBeReadFailTheWholeBatch(t *testing.T) {
	t.Parallel()
	reads := 0
	store := &checkOwnersStore{read: func([]int64) error { reads++; return errDatabase }}
	_, err := (&handlers.CheckOwners{Store: store, Peers: answering(peer.OwnerExists)}).
		Handle(t.Context(), there, upTo(100))
	require.ErrorIs(t, err, errDatabase)
	require.NotErrorAs(t, err, new(*schema.PartError))
	require.Equal(t, 1, reads)
}

func TestWorkWithoutAQuestionIsSettledWithoutACall(t *testing.T) {
	t.Parallel()
	settled := 0
	store := &checkOwnersStore{done: []int64{1}, settle: func(_ []int64, a *peer.OwnerAnswers) ([]int64, error) {
		settled++
		require.Empty(t, a.Answers)
		return nil, nil
	}}
	waiting, err := (&handlers.CheckOwners{
		Store: store,
		Peers: checkOwnersPeers(func([]peer.OwnerQuestion) (*peer.OwnerAnswers, error) {
			panic("there is no question")
		}),
	}).Handle(t.Context(), there, []int64{1})
	require.NoError(t, err)
	require.Empty(t, waiting)
	require.Equal(t, 1, settled)
}

func TestAnOwneeThatCannotBeSettledFailsByItself_I20(t *testing.T) {
	t.Parallel()
	for _, poison := range []int64{0, 4, 9} {
		store := &checkOwnersStore{settle: func(seqs []int64, _ *peer.OwnerAnswers) (waiting []int64, err error) {
			if slices.Contains(seqs, poison) {
				return nil, errors.New("poison")
			}
			return slices.DeleteFunc(slices.Clone(seqs), func(seq int64) bool { return seq != 7 }), nil
		}}
		waiting, err := (&handlers.CheckOwners{Store: store, Peers: answering(peer.OwnerExists)}).
			Handle(t.Context(), there, upTo(10))
		var part *schema.PartError
		require.ErrorAs(t, err, &part)
		require.Equal(t, []int64{poison}, part.Failed)
		require.Equal(t, []int64{7}, waiting, "the owner of another ownee is waited for")
	}
}
