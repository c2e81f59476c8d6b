package handlers_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
)

// subscribed is the store, and the deployment whose deletions are seen.
type subscribed struct {
	steps
	epoch    uuid.UUID
	failed   map[uuid.UUID]error
	act, ack error
	forget   error
	patience time.Duration
	except   []uuid.UUID
}

func (s *subscribed) PresentEpoch() uuid.UUID { return s.epoch }

func (s *subscribed) ActFor(_ context.Context, from schema.DeploymentID, deletions []schema.Deletion,
	patience time.Duration,
) (map[uuid.UUID]error, error) {
	s.add("act", from.Region, len(deletions))
	s.patience = patience
	s.epoch = laterEpoch // a failover is noticed
	return s.failed, s.act
}

func (s *subscribed) Acknowledge(_ context.Context, to schema.DeploymentID, of uuid.UUID, position string,
	except []uuid.UUID,
) error {
	s.add("acknowledge", to.Region, position, of == epoch)
	s.except = except
	return s.ack
}

func (s *subscribed) Forget(_ context.Context, from schema.DeploymentID, deletions []schema.Deletion) error {
	s.add("forget", from.Region, len(deletions))
	return s.forget
}

func (s *subscribed) handle(t *testing.T, position string, earlier ...uuid.UUID) (map[uuid.UUID]error, error) {
	t.Helper()
	s.epoch = epoch
	return (&handlers.SubscribedDeleting{Store: s, Epoch: s, Peers: s}).Handle(t.Context(), there,
		[]schema.Deletion{{UID: badUID}, {UID: goodUID}}, position, earlier, false)
}

var badUID, goodUID, earlierUID = uuid.New(), uuid.New(), uuid.New()

func TestDeletionsAreActedUponAndThenAcknowledged_I19(t *testing.T) {
	t.Parallel()
	s := &subscribed{}
	failed, err := s.handle(t, "p1")
	require.NoError(t, err)
	require.Empty(t, failed)
	require.Equal(t, steps{"act us-west2 2", "acknowledge us-west2 p1 true", "forget us-west2 2"}, s.steps,
		"with the epoch before the effects: those that a failover loses are not acknowledged")
}

func TestWithoutAPositionNothingIsAcknowledged_I19(t *testing.T) {
	t.Parallel()
	s := &subscribed{failed: map[uuid.UUID]error{badUID: errPoison}}
	failed, err := s.handle(t, "")
	require.NoError(t, err)
	require.Equal(t, s.failed, failed)
	require.Equal(t, steps{"act us-west2 2", "forget us-west2 1"}, s.steps)
}

func TestDeletionsThatFailNowOrEarlierAreExcepted_I19_I20(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{errPoison, fmt.Errorf("many holders: %w", schema.ErrUnfinished)} {
		s := &subscribed{failed: map[uuid.UUID]error{badUID: cause}}
		failed, err := s.handle(t, "p1", earlierUID)
		require.NoError(t, err)
		require.Equal(t, map[uuid.UUID]error{badUID: cause}, failed)
		require.ElementsMatch(t, []uuid.UUID{earlierUID, badUID}, s.except)
	}
}

func TestABatchThatFailsAcknowledgesNothing_I19(t *testing.T) {
	t.Parallel()
	s := &subscribed{act: errDatabase}
	_, err := s.handle(t, "p1")
	require.ErrorIs(t, err, errDatabase)
	require.ErrorContains(t, err, "act upon deletions of a.example.com/us-west2")
	require.Equal(t, steps{"act us-west2 2"}, s.steps)
}

// The whole batch is handled again then, without effect.
func TestAnAcknowledgementThatIsNotTakenFailsTheBatch(t *testing.T) {
	t.Parallel()
	s := &subscribed{ack: errUnreachable, failed: map[uuid.UUID]error{badUID: errPoison}}
	failed, err := s.handle(t, "p1")
	require.ErrorIs(t, err, errUnreachable)
	require.ErrorContains(t, err, "acknowledge deletions of a.example.com/us-west2")
	require.Nil(t, failed)
}

// So does a target that cannot be forgotten: its deployment has been told, and hears it again.
func TestATargetThatIsNotForgottenFailsTheBatch(t *testing.T) {
	t.Parallel()
	s := &subscribed{forget: errDatabase}
	failed, err := s.handle(t, "p1")
	require.ErrorIs(t, err, errDatabase)
	require.ErrorContains(t, err, "forget the deleted targets of a.example.com/us-west2")
	require.Nil(t, failed)
	require.Equal(t, steps{"act us-west2 2", "acknowledge us-west2 p1 true", "forget us-west2 2"}, s.steps)
}

func TestAPositionIsAcknowledgedWithoutNewDeletions(t *testing.T) {
	t.Parallel()
	s := &subscribed{epoch: epoch}
	_, err := (&handlers.SubscribedDeleting{Store: s, Epoch: s, Peers: s}).Handle(t.Context(), there, nil, "p2",
		nil, false)
	require.NoError(t, err)
	require.Equal(t, steps{"act us-west2 0", "acknowledge us-west2 p2 true", "forget us-west2 0"}, s.steps)
}

// New deletions wait behind one another; deletions that are handled again have a run of their own.
func TestALargeDeletionTakesLongerOnlyWhenItIsHandledAgain_I20(t *testing.T) {
	t.Parallel()
	s := &subscribed{}
	h := &handlers.SubscribedDeleting{Store: s, Epoch: s, Peers: s}
	_, err := h.Handle(t.Context(), there, nil, "", nil, false)
	require.NoError(t, err)
	first := s.patience
	_, err = h.Handle(t.Context(), there, nil, "", nil, true)
	require.NoError(t, err)
	require.Greater(t, s.patience, 10*first)
}
