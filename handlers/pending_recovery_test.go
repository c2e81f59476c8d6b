package handlers_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// recovery is the store and the other deployment after a failover; a nil function succeeds.
type recovery struct {
	steps
	announce  func() (known uuid.UUID, err error)
	announced func() error
	unready   error // the recovery has not begun
	compare   func(seq int64) error
	verify    func(seq int64) error
	confirm   func(told, self uuid.UUID) error
}

func (r *recovery) Announcement(context.Context, schema.DeploymentID) (peer.Announcement, error) {
	r.add("epoch")
	return peer.Announcement{Epoch: epoch}, r.unready
}

func (r *recovery) OutdoEpoch(_ context.Context, _ schema.DeploymentID, known uuid.UUID) error {
	r.add("outdo", known == laterEpoch)
	return nil
}

func (r *recovery) MarkAnnounced(_ context.Context, _ schema.DeploymentID, told peer.Announcement,
	refersTo peer.TargetKinds,
) error {
	r.add("announced", told.Epoch == epoch, refersTo.Known)
	if r.announced != nil {
		return r.announced()
	}
	return nil
}

func (r *recovery) AnnounceEpoch(_ context.Context, _ schema.DeploymentID,
	told uuid.UUID,
) (known uuid.UUID, refersTo peer.TargetKinds, err error) {
	r.add("announce", told == epoch)
	if r.announce != nil {
		known, err = r.announce()
		return known, peer.TargetKinds{}, err
	}
	return told, peer.TargetKinds{Known: true}, nil
}

func (r *recovery) ConfirmAgain(_ context.Context, _ schema.DeploymentID,
	seq int64,
) (compared peer.ComparedEpochs, err error) {
	r.add("compare", seq)
	if r.compare != nil {
		err = r.compare(seq)
	}
	return peer.ComparedEpochs{Own: epoch, There: laterEpoch}, err
}

func (r *recovery) ConfirmEpoch(_ context.Context, _ schema.DeploymentID, told, self uuid.UUID) error {
	r.add("confirm")
	if r.confirm != nil {
		return r.confirm(told, self)
	}
	return nil
}

func (r *recovery) Recovered(_ context.Context, seq int64) error {
	r.add("recovered", seq)
	return nil
}

func (r *recovery) VerifyBlockades(_ context.Context, _ schema.DeploymentID, seq int64) error {
	r.add("verify", seq)
	if r.verify != nil {
		return r.verify(seq)
	}
	return nil
}

func (r *recovery) do(t *testing.T, h handlers.Handler, seqs ...int64) error {
	t.Helper()
	waiting, err := h.Handle(t.Context(), there, seqs)
	require.Empty(t, waiting)
	return err
}

func TestAnEpochIsAnnouncedBeforeItsWorkIsReplaced(t *testing.T) {
	t.Parallel()
	r := &recovery{}
	require.NoError(t, r.do(t, &handlers.AnnounceEpoch{Store: r, Peers: r}, 1))
	require.Equal(t, steps{"epoch", "announce true", "announced true true"}, r.steps)
}

func TestAnEpochThatCannotBeAnnouncedKeepsItsWork(t *testing.T) {
	t.Parallel()
	r := &recovery{announce: func() (uuid.UUID, error) { return uuid.Nil, errUnreachable }}
	err := r.do(t, &handlers.AnnounceEpoch{Store: r, Peers: r}, 1)
	require.ErrorIs(t, err, errUnreachable)
	require.ErrorContains(t, err, "announce the epoch to a.example.com/us-west2")
	require.Equal(t, steps{"epoch", "announce true"}, r.steps)
}

// A process that has not noticed the newest epoch announces an older one: the store refuses to forget the
// work.
func TestAStaleEpochKeepsItsWork(t *testing.T) {
	t.Parallel()
	r := &recovery{announced: func() error { return &peer.UnavailableError{} }}
	require.Error(t, r.do(t, &handlers.AnnounceEpoch{Store: r, Peers: r}, 1))
}

func TestAnEpochBeforeTheOneThatIsKnownThereIsOutdone(t *testing.T) {
	t.Parallel()
	r := &recovery{announce: func() (uuid.UUID, error) { return laterEpoch, nil }}
	err := r.do(t, &handlers.AnnounceEpoch{Store: r, Peers: r}, 1)
	require.ErrorContains(t, err, "a later epoch is known there")
	require.Equal(t, steps{"epoch", "announce true", "outdo true"}, r.steps, "it is not announced: the later one is")
}

// The recovery of an epoch makes the work to announce it: work of before announces nothing.
func TestAnEpochIsNotAnnouncedBeforeItsRecovery(t *testing.T) {
	t.Parallel()
	r := &recovery{unready: &peer.UnavailableError{Err: peer.ErrRecovering}}
	require.ErrorIs(t, r.do(t, &handlers.AnnounceEpoch{Store: r, Peers: r}, 1), peer.ErrRecovering)
	require.Equal(t, steps{"epoch"}, r.steps)
}

// The comparison is confirmed for the epochs in which it began: not for the epoch of a failover in between.
func TestReferencesAreComparedBeforeTheyAreConfirmed_I1(t *testing.T) {
	t.Parallel()
	r := &recovery{confirm: func(told, self uuid.UUID) error {
		require.Equal(t, laterEpoch, told)
		require.Equal(t, epoch, self)
		return nil
	}}
	require.NoError(t, r.do(t, &handlers.ConfirmAgain{Store: r, Peers: r}, 1))
	require.Equal(t, steps{"compare 1", "confirm", "recovered 1"}, r.steps)
}

func TestAComparisonThatFailsConfirmsNothing_I1(t *testing.T) {
	t.Parallel()
	r := &recovery{compare: func(int64) error { return errUnreachable }}
	require.ErrorIs(t, r.do(t, &handlers.ConfirmAgain{Store: r, Peers: r}, 1), errUnreachable)
	require.Equal(t, steps{"compare 1"}, r.steps)
}

func TestAComparisonThatIsNotConfirmedKeepsItsWork(t *testing.T) {
	t.Parallel()
	r := &recovery{confirm: func(uuid.UUID, uuid.UUID) error { return errUnreachable }}
	err := r.do(t, &handlers.ConfirmAgain{Store: r, Peers: r}, 1)
	require.ErrorContains(t, err, "confirm references at a.example.com/us-west2")
	require.NotContains(t, r.steps, "recovered 1")
}

// A pass that has ended, or that another one has replaced, leaves nothing to do; it keeps no other piece of
// the batch back.
func TestAPassThatIsGoneIsDone_I20(t *testing.T) {
	t.Parallel()
	gone := fmt.Errorf("compare: %w", peer.ErrPassGone)
	r := &recovery{
		compare: func(seq int64) error {
			if seq == 1 {
				return gone
			}
			return nil
		},
		verify: func(int64) error { return gone },
	}
	require.NoError(t, r.do(t, &handlers.ConfirmAgain{Store: r, Peers: r}, 1, 2))
	require.Equal(t, steps{"compare 1", "compare 2", "confirm", "recovered 2"}, r.steps)
	require.NoError(t, r.do(t, &handlers.VerifyBlockades{Store: r}, 3))
}

func TestAPassThatFailsKeepsNoOtherBack_I20(t *testing.T) {
	t.Parallel()
	r := &recovery{verify: func(seq int64) error {
		if seq == 1 {
			return errUnreachable
		}
		return nil
	}}
	require.ErrorIs(t, r.do(t, &handlers.VerifyBlockades{Store: r}, 1, 2), errUnreachable)
	require.Equal(t, steps{"verify 1", "verify 2"}, r.steps)
}
