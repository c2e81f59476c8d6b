package handlers_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

type finaliseStore struct {
	finalise func(seqs []int64) error
}

func (s *finaliseStore) Finalise(_ context.Context, seqs []int64) (int, error) {
	return len(seqs), s.finalise(seqs)
}

func upTo(n int64) (seqs []int64) {
	for seq := range n {
		seqs = append(seqs, seq)
	}
	return seqs
}

// failsWith is a transaction that fails with each of the given pieces, and else records its pieces.
func failsWith(err error, done *[]int64, poison ...int64) func(seqs []int64) error {
	return func(seqs []int64) error {
		if slices.ContainsFunc(seqs, func(seq int64) bool { return slices.Contains(poison, seq) }) {
			return err
		}
		*done = append(*done, seqs...)
		return nil
	}
}

func TestPiecesThatCannotBeFinalisedFailByThemselves_I20(t *testing.T) {
	t.Parallel()
	var done []int64
	h := &handlers.Finalise{Store: &finaliseStore{failsWith(errPoison, &done, 3, 700)}}
	waiting, err := h.Handle(t.Context(), there, upTo(1000))
	var part *schema.PartError
	require.ErrorAs(t, err, &part)
	require.Equal(t, []int64{3, 700}, part.Failed)
	require.ErrorIs(t, err, errPoison)
	require.Len(t, done, 998, "the others are finalised")
	require.Empty(t, waiting)
}

func TestAnUnavailableDatabaseFailsTheWholeBatch_I20(t *testing.T) {
	t.Parallel()
	tries := 0
	h := &handlers.Finalise{Store: &finaliseStore{func([]int64) error { tries++; return &peer.UnavailableError{} }}}
	_, err := h.Handle(t.Context(), there, upTo(10))
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	require.NotErrorAs(t, err, new(*schema.PartError))
	require.Equal(t, 1, tries, "the pieces are not tried one by one")
}

func TestABatchWhoseTimeIsOverIsNotDivided(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	h := &handlers.Finalise{Store: &finaliseStore{func([]int64) error { tries++; cancel(); return ctx.Err() }}}
	_, err := h.Handle(ctx, there, upTo(10))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorAs(t, err, new(*schema.PartError))
	require.Equal(t, 1, tries)
}
