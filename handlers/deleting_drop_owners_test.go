package handlers_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// dropping is the store with deleted owners 1, 2, 3 of pieces of work of the same numbers, and their ownees'
// deployment.
type dropping struct {
	steps
	owners []uuid.UUID
	read   error
	told   error
	answer func(call int) (failed []uuid.UUID, more bool, err error)
	calls  int
}

func newDropping() *dropping {
	return &dropping{
		owners: []uuid.UUID{uuid.New(), uuid.New(), uuid.New()},
		answer: func(int) ([]uuid.UUID, bool, error) {
			return nil, false, nil
		},
	}
}

func (d *dropping) Disowned(_ context.Context, _ schema.DeploymentID, seqs []int64) (*peer.Disowned, error) {
	out := &peer.Disowned{Epoch: epoch, Seqs: seqs, Of: make([]int64, len(seqs))}
	for i, uid := range d.owners {
		out.Owners, out.IDs, out.Of[i] = append(out.Owners, schema.Deletion{UID: uid}), append(out.IDs, int64(i+1)),
			int64(i+1)
	}
	return out, d.read
}

func (d *dropping) MarkOwneesNotified(_ context.Context, told *peer.Disowned) error {
	d.add("told", told.Seqs, len(told.Owners))
	return d.told
}

func (d *dropping) DropOwners(_ context.Context, _ schema.DeploymentID, of uuid.UUID, deleted []schema.Deletion,
	releases []peer.OwnerRelease,
) ([]uuid.UUID, bool, error) {
	d.add("drop", len(deleted), len(releases), of == epoch)
	d.calls++
	return d.answer(d.calls)
}

func (d *dropping) handle(t *testing.T) error {
	t.Helper()
	waiting, err := (&handlers.DropOwners{Store: d, Peers: d}).Handle(t.Context(), there, []int64{1, 2, 3})
	require.Empty(t, waiting)
	return err
}

func TestAnOwnerStaysUntilItsOwneesDeploymentHasDroppedIt_I17(t *testing.T) {
	t.Parallel()
	d := newDropping()
	require.NoError(t, d.handle(t))
	require.Equal(t, steps{"drop 3 0 true", "told [1 2 3] 3"}, d.steps)
}

func TestManyOwneesTakeSeveralCalls_I21(t *testing.T) {
	t.Parallel()
	d := newDropping()
	d.answer = func(call int) ([]uuid.UUID, bool, error) { return nil, call < 3, nil }
	require.NoError(t, d.handle(t))
	require.Equal(t, steps{"drop 3 0 true", "drop 3 0 true", "drop 3 0 true", "told [1 2 3] 3"}, d.steps)
}

func TestAnOwnerWhoseOwneeCannotBeHandledFailsByItself_I20(t *testing.T) {
	t.Parallel()
	d := newDropping()
	d.answer = func(int) ([]uuid.UUID, bool, error) { return d.owners[1:2], false, nil }
	var part *schema.PartError
	require.ErrorAs(t, d.handle(t), &part)
	require.Equal(t, []int64{2}, part.Failed)
	require.ErrorContains(t, part, "ownees of 1 owners could not be handled there")
	require.Equal(t, steps{"drop 3 0 true", "told [1 3] 2"}, d.steps, "the other owners may go")
}

func TestOwnersStayWhileTheirOwneesDeploymentIsUnreachable_I15_I17(t *testing.T) {
	t.Parallel()
	d := newDropping()
	d.answer = func(int) ([]uuid.UUID, bool, error) { return nil, false, errUnreachable }
	err := d.handle(t)
	require.ErrorIs(t, err, errUnreachable)
	require.ErrorContains(t, err, "drop owners at a.example.com/us-west2")
	require.NotErrorAs(t, err, new(*schema.PartError))
	require.Equal(t, steps{"drop 3 0 true"}, d.steps)
}

// The call of a process whose database was restored since is refused there, and its owners stay.
func TestStaleOwnersStay_I17(t *testing.T) {
	t.Parallel()
	d := newDropping()
	d.answer = func(int) ([]uuid.UUID, bool, error) { return nil, false, peer.ErrStaleEpoch }
	require.ErrorIs(t, d.handle(t), peer.ErrStaleEpoch)
	require.Equal(t, steps{"drop 3 0 true"}, d.steps)
}

func TestOwnersThatAreGoneAlreadyAreDroppedNowhere(t *testing.T) {
	t.Parallel()
	d := newDropping()
	d.owners = nil
	require.NoError(t, d.handle(t))
	require.Equal(t, steps{"told [1 2 3] 0"}, d.steps)
}

func TestOwnersThatCannotBeReadAreDroppedNowhere(t *testing.T) {
	t.Parallel()
	d := newDropping()
	d.read = errDatabase
	require.ErrorIs(t, d.handle(t), errDatabase)
	require.Empty(t, d.steps)
}

func TestOwnersWhoseWorkCannotBeRemovedAreDroppedAgain(t *testing.T) {
	t.Parallel()
	d := newDropping()
	d.told = errDatabase
	d.answer = func(int) ([]uuid.UUID, bool, error) { return d.owners[:1], false, nil }
	err := d.handle(t)
	require.ErrorIs(t, err, errDatabase)
	require.NotErrorAs(t, err, new(*schema.PartError), "nothing of the batch is done")
}
