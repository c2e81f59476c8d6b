package service

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// An epoch that a certificate announces, and that its deployment does not confirm at its registered address,
// is not recorded: deletions would wait for it. The deployment itself announces it again, and is believed.
func TestAnEpochCountsWhenItsDeploymentSaysIt_I13_I15(t *testing.T) {
	t.Parallel()
	known, announced := newAttempt(t), newAttempt(t) // of a version 7, one after the other
	var recorded []uuid.UUID
	s := newSchemaService(&schemaStore{
		peerEpoch: known,
		told: func(_ schema.DeploymentID, epoch uuid.UUID) (uuid.UUID, error) {
			recorded = append(recorded, epoch)
			return epoch, nil
		},
	})
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
}

// One question about a deployment at a time: endless made-up announcements do not make this deployment ask
// without end, and keep the true one from nothing: it shares the question. A caller that leaves ends no
// question of others.
func TestAFloodOfMadeUpEpochsKeepsNoTrueOneAway_I13_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		known := peer.EpochAfter(time.Now())
		said := peer.EpochAfter(time.Now(), &known)
		madeUp := peer.EpochAfter(time.Now(), &said)
		s := newSchemaService(&schemaStore{
			peerEpoch: known,
			told: func(_ schema.DeploymentID, epoch uuid.UUID) (uuid.UUID, error) {
				return epoch, nil
			},
		})
		asked, end := 0, make(chan struct{})
		s.epochOf = func(ctx context.Context, _ schema.DeploymentID) (uuid.UUID, peer.TargetKinds, error) {
			asked++
			<-end
			return said, peer.TargetKinds{}, ctx.Err()
		}
		leaves, leave := context.WithCancel(asDeployment(t, other))
		answers := make(chan codes.Code, 3)
		for _, one := range []struct {
			ctx   context.Context
			epoch uuid.UUID
		}{{leaves, madeUp}, {asDeployment(t, other), madeUp}, {asDeployment(t, other), said}} {
			go func() {
				_, err := s.AnnounceEpoch(one.ctx, &schemav1.AnnounceEpochRequest{Epoch: one.epoch[:]})
				answers <- status.Code(err)
			}()
			synctest.Wait()
		}
		leave()
		require.Equal(t, codes.Unavailable, <-answers, "the first one, which left")
		close(end)
		require.ElementsMatch(t, []codes.Code{codes.Unavailable, codes.OK}, []codes.Code{<-answers, <-answers})
		require.Equal(t, 1, asked)
	})
}

// An upgrade that a certificate sends, and that its deployment does not confirm at its registered address,
// changes nothing: owner references with a made-up generation would take no later version.
func TestAnUpgradeCountsWhenItsDeploymentSaysIt_I26(t *testing.T) {
	t.Parallel()
	var upgraded []int64
	s := newSchemaService(
		&schemaStore{upgradeOwners: func(_ schema.DeploymentID, _ string, generation int64,
			_ map[string]string,
		) (int64, error) {
			upgraded = append(upgraded, generation)
			return 0, nil
		}})
	said, away := int64(7), error(nil)
	s.versionOf = func(_ context.Context, of schema.DeploymentID) (string, int64, error) {
		require.Equal(t, other, of)
		return "v2", said, away
	}
	upgrade := func(version string, generation int64) error {
		_, err := s.UpgradeOwnerReferences(asDeployment(t, other),
			&schemav1.UpgradeOwnerReferencesRequest{Version: version, Generation: generation})
		return err
	}
	for _, err := range []error{upgrade("v2", math.MaxInt64), upgrade("v2", 6), upgrade("v1", 7)} {
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, "it says at its registered address that it runs v2, of generation 7")
	}
	away = errors.New("nobody answers")
	require.Equal(t, codes.Unavailable, status.Code(upgrade("v2", 7)))
	require.Empty(t, upgraded)
	away = nil
	require.NoError(t, upgrade("v2", 7))
	require.Equal(t, []int64{7}, upgraded)
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
