package service

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// An epoch that a certificate announces, and that its deployment does not confirm at its registered address, is not recorded: deletions would wait for it. The deployment
// itself announces it again, and is believed.
func TestAnEpochCountsWhenItsDeploymentSaysIt_I13_I15(t *testing.T) {
	t.Parallel()
	known, announced := newAttempt(t), newAttempt(t) // of a version 7, one after the other
	var recorded []uuid.UUID
	s := newSchemaService(&schemaStore{peerEpoch: known, told: func(_ schema.DeploymentID, epoch uuid.UUID) (uuid.UUID, error) {
		recorded = append(recorded, epoch)
		return epoch, nil
	}})
	ctx := asDeployment(t, other)
	announce := func(epoch uuid.UUID) error {
		_, err := s.AnnounceEpoch(ctx, &schemav1.AnnounceEpochRequest{Epoch: epoch[:]})
		return err
	}
	says, away := known, error(nil)
	asked := 0
	s.epochOf = func(_ context.Context, of schema.DeploymentID) (uuid.UUID, peer.TargetKinds, error) {
		require.Equal(t, other, of)
		asked++
		return says, peer.TargetKinds{}, away
	}
	err := announce(announced)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "it says at its registered address that its epoch is "+known.String())
	away = errors.New("nobody answers")
	require.Equal(t, codes.Unavailable, status.Code(announce(announced)))
	require.Empty(t, recorded)

	says, away = announced, nil
	require.NoError(t, announce(announced))
	require.Equal(t, []uuid.UUID{announced}, recorded)
	require.Equal(t, 3, asked)
	require.NoError(t, announce(known))
	require.Equal(t, 3, asked, "an earlier one changes nothing")

	// One question about a deployment at a time: endless announcements do not make this deployment ask
	// without end.
	later := newAttempt(t)
	begun, end := make(chan struct{}), make(chan struct{})
	s.epochOf = func(context.Context, schema.DeploymentID) (uuid.UUID, peer.TargetKinds, error) {
		close(begun)
		<-end
		return later, peer.TargetKinds{}, nil
	}
	first := make(chan error, 1)
	go func() { first <- announce(later) }()
	<-begun
	require.ErrorContains(t, announce(later), "it is being asked for its epoch")
	close(end)
	require.NoError(t, <-first)
}

// The kinds are read after the epoch is recorded: then no write commits any more that relies on what an
// earlier epoch has told. Kinds that cannot be read are not known.
func TestAnAnnouncementIsAnsweredWithTheKindsReadAfterIt_I2(t *testing.T) {
	t.Parallel()
	announced := newAttempt(t)
	var steps []string
	failing := error(nil)
	s := newSchemaService(&schemaStore{
		says: announced,
		told: func(_ schema.DeploymentID, epoch uuid.UUID) (uuid.UUID, error) {
			steps = append(steps, "recorded")
			return epoch, nil
		},
		referredIn: func(of schema.DeploymentID, epoch uuid.UUID) (peer.TargetKinds, error) {
			require.Equal(t, other, of)
			require.Equal(t, announced, epoch)
			steps = append(steps, "read")
			return peer.TargetKinds{Known: true, Names: []string{"Target"}}, failing
		},
	})
	announce := func() *schemav1.AnnounceEpochResponse {
		answer, err := s.AnnounceEpoch(asDeployment(t, other), &schemav1.AnnounceEpochRequest{Epoch: announced[:]})
		require.NoError(t, err)
		return answer
	}
	require.Equal(t, []string{"Target"}, announce().GetRefersTo().GetKinds())
	require.Equal(t, []string{"recorded", "read"}, steps)
	failing = &peer.UnavailableError{Err: peer.ErrRecovering}
	require.Nil(t, announce().GetRefersTo())
}
