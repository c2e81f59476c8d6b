package handlers_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// given are rights that another deployment has to end.
type given struct {
	uids   map[int64]uuid.UUID
	ended  []int64
	answer func(asked []peer.Recall) ([]peer.RecallAnswer, error)
}

func (g *given) RightsToEnd(_ context.Context, seqs []int64) (map[int64]uuid.UUID, error) {
	out := map[int64]uuid.UUID{}
	for _, seq := range seqs {
		if uid, ok := g.uids[seq]; ok {
			out[seq] = uid
		}
	}
	return out, nil
}

func (g *given) RightsEnded(_ context.Context, seqs []int64) error {
	g.ended = append(g.ended, seqs...)
	return nil
}

func (g *given) Recall(_ context.Context, _ schema.DeploymentID, asked []peer.Recall) (*peer.Recalled, error) {
	answers, err := g.answer(asked)
	return &peer.Recalled{Answers: answers}, err
}

// A right that has not ended is asked about again; the others are done. Nothing is done without an answer.
func TestRightsAreEndedOneByOne_I31(t *testing.T) {
	t.Parallel()
	busy := uuid.New()
	g := &given{
		uids: map[int64]uuid.UUID{},
		answer: func(asked []peer.Recall) (answers []peer.RecallAnswer, err error) {
			require.LessOrEqual(t, len(asked), 10)
			for _, a := range asked {
				require.Equal(t, peer.Close(a.Key.TargetUID), a)
				answers = append(answers, peer.RecallAnswer{Closed: a.Key.TargetUID != busy})
			}
			return answers, nil
		},
	}
	var seqs []int64
	for seq := range int64(250) {
		g.uids[seq] = uuid.New()
		seqs = append(seqs, seq)
	}
	g.uids[7] = busy
	h := &handlers.EndRights{Store: g, Peers: g}
	waiting, err := h.Handle(t.Context(), there, append(seqs, 1000)) // done by another process
	require.NoError(t, err)
	require.Equal(t, []int64{7}, waiting)
	require.Len(t, g.ended, 249)

	g.ended = nil
	for _, answer := range []func([]peer.Recall) ([]peer.RecallAnswer, error){
		func([]peer.Recall) ([]peer.RecallAnswer, error) { return nil, errors.New("no route") },
		func([]peer.Recall) ([]peer.RecallAnswer, error) { return []peer.RecallAnswer{{Closed: true}}, nil },
	} {
		g.answer = answer
		_, err = h.Handle(t.Context(), there, seqs)
		require.Error(t, err)
		require.Empty(t, g.ended)
	}
}
