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

// entries are holder entries that are looked at.
type entries struct {
	own, there uuid.UUID
	unused     map[int64]bool // by number of the look
	answer     func(asked []peer.Recall) (*peer.Recalled, error)
}

func (e *entries) EntriesToLookAt(_ context.Context, _ schema.DeploymentID, seqs []int64) (peer.EntryLooks, error) {
	looks := peer.EntryLooks{Own: e.own}
	for _, seq := range seqs {
		if seq < 1000 { // the others are done by another process
			looks.Entries = append(looks.Entries, peer.EntryLook{
				Seq: seq, Target: uuid.UUID{byte(seq)},
				Look: 10_000 + seq,
			})
		}
	}
	return looks, nil
}

func (e *entries) EntriesLookedAt(_ context.Context, _ schema.DeploymentID, looks peer.EntryLooks, there uuid.UUID,
	unused []bool,
) error {
	e.there = there
	for i, l := range looks.Entries {
		e.unused[l.Look] = unused[i]
	}
	return nil
}

func (e *entries) Recall(_ context.Context, _ schema.DeploymentID, asked []peer.Recall) (*peer.Recalled, error) {
	return e.answer(asked)
}

// Each entry has its own answer, in the epoch of the answers; without an answer to each question nothing is
// done.
func TestEntriesAreLookedAtOneByOne_I4(t *testing.T) {
	t.Parallel()
	epoch := uuid.New()
	e := &entries{own: uuid.New(), unused: map[int64]bool{}, answer: func(asked []peer.Recall) (*peer.Recalled, error) {
		require.LessOrEqual(t, len(asked), 10)
		out := &peer.Recalled{Epoch: epoch}
		for _, a := range asked {
			require.Equal(t, peer.IfUnused(a.Key.TargetUID), a)
			out.Answers = append(out.Answers, peer.RecallAnswer{Closed: a.Key.TargetUID[0] != 7})
		}
		return out, nil
	}}
	var seqs []int64
	for seq := range int64(25) {
		seqs = append(seqs, seq)
	}
	h := &handlers.LookAtEntry{Store: e, Peers: e}
	waiting, err := h.Handle(t.Context(), there, append(seqs, 1000))
	require.NoError(t, err)
	require.Empty(t, waiting)
	require.Len(t, e.unused, 25)
	require.Equal(t, epoch, e.there)
	for look, unused := range e.unused {
		require.Equal(t, look != 10_007, unused)
	}
	clear(e.unused)
	for _, answer := range []func([]peer.Recall) (*peer.Recalled, error){
		func([]peer.Recall) (*peer.Recalled, error) { return nil, errors.New("no route") },
		func([]peer.Recall) (*peer.Recalled, error) {
			return &peer.Recalled{Answers: []peer.RecallAnswer{{Closed: true}}}, nil
		},
	} {
		e.answer = answer
		_, err = h.Handle(t.Context(), there, seqs)
		require.Error(t, err)
		require.Empty(t, e.unused)
	}
}
