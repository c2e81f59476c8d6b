package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

// maxAhead is the time by which another deployment's epoch may lie in the future. The next epoch of that
// deployment has to be greater, and has the time of its clock: an epoch from the far future could hardly be
// replaced.
const maxAhead = 2 * time.Hour

// epochStore keeps the epochs of other deployments' databases. RecordPeerEpoch returns the greatest epoch
// recorded of the caller.
type epochStore interface {
	// ReferredKinds is the epoch of this deployment's database, with the kinds of another deployment that it
	// refers to.
	ReferredKinds(ctx context.Context, of schema.DeploymentID) (uuid.UUID, peer.TargetKinds, error)
	// ReferredKindsIn are those kinds, read after an epoch of the other deployment was recorded.
	ReferredKindsIn(ctx context.Context, of schema.DeploymentID, epoch uuid.UUID) (peer.TargetKinds, error)
	// PeerEpoch is the greatest epoch recorded of a deployment; zero: none is.
	PeerEpoch(ctx context.Context, of schema.DeploymentID) (uuid.UUID, error)
	RecordPeerEpoch(ctx context.Context, from schema.DeploymentID, epoch uuid.UUID,
		refersTo peer.TargetKinds) (known uuid.UUID, err error)
	MarkReferencesConfirmed(ctx context.Context, by schema.DeploymentID, epoch, selfEpoch uuid.UUID) error
}

// epochAsker asks a deployment, by its registered address, for the epoch of its database, and for the kinds
// here that it refers to.
type epochAsker func(ctx context.Context, of schema.DeploymentID) (uuid.UUID, peer.TargetKinds, error)

func epochOf(raw []byte) (uuid.UUID, error) {
	epoch, err := wire.UID(raw)
	if err == nil && epoch.Version() != 7 {
		err = errors.New("want a UUIDv7")
	}
	if ahead := time.Until(time.Unix(epoch.Time().UnixTime())); err == nil && ahead > maxAhead {
		err = fmt.Errorf(
			"its time is %s ahead of the clock of this deployment, at most %s is allowed: correct the clocks",
			ahead.Round(time.Second), maxAhead)
	}
	if err != nil {
		return epoch, outcome.Invalid("epoch", err)
	}
	return epoch, nil
}

func (s *schemas) AnnounceEpoch(ctx context.Context,
	req *schemav1.AnnounceEpochRequest,
) (*schemav1.AnnounceEpochResponse, error) {
	out, err := s.announceEpoch(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) announceEpoch(ctx context.Context,
	req *schemav1.AnnounceEpochRequest,
) (*schemav1.AnnounceEpochResponse, error) {
	from, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	epoch, err := epochOf(req.GetEpoch())
	if err != nil {
		return nil, err
	}
	known, err := s.epochs.PeerEpoch(ctx, from)
	if err != nil {
		return nil, err
	}
	var refersTo peer.TargetKinds
	if bytes.Compare(epoch[:], known[:]) > 0 {
		if refersTo, err = s.agrees(ctx, from, epoch); err != nil {
			return nil, err
		}
	}
	if known, err = s.epochs.RecordPeerEpoch(ctx, from, epoch, refersTo); err != nil {
		return nil, err
	}
	answer := &schemav1.AnnounceEpochResponse{Epoch: known[:]}
	if known == epoch { // otherwise any kind may be referred to
		if kinds, err := s.epochs.ReferredKindsIn(ctx, from, epoch); err == nil {
			answer.RefersTo = wire.TargetKinds(kinds)
		}
	}
	return answer, nil
}

// agrees fails unless a deployment, asked by its registered address, says that it is in an epoch. It returns
// the kinds here that it refers to. The certificate of a caller is not enough: an epoch keeps deletions
// waiting for its deployment, and a made-up epoch would keep them waiting for ever. One question about a
// deployment is asked at a time, and answers all announcements that came meanwhile: a flood of made-up ones
// keeps none away.
func (s *schemas) agrees(ctx context.Context, from schema.DeploymentID,
	epoch uuid.UUID,
) (refersTo peer.TargetKinds, err error) {
	type answer struct {
		epoch    uuid.UUID
		refersTo peer.TargetKinds
	}
	question := s.asking.DoChan(from.String(), func() (any, error) {
		said, kinds, err := s.epochOf(context.WithoutCancel(ctx), from) // which has a time limit of its own
		return answer{said, kinds}, err
	})
	var said answer
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case got := <-question:
		said, err = got.Val.(answer), got.Err
	}
	switch {
	case err != nil:
		return refersTo, &peer.UnavailableError{
			Deployments: []schema.DeploymentID{from},
			Err:         fmt.Errorf("its epoch counts when it says the same at its registered address: %w", err),
		}
	case said.epoch != epoch:
		return refersTo, &peer.UnavailableError{
			Deployments: []schema.DeploymentID{from},
			Err:         fmt.Errorf("it says at its registered address that its epoch is %s, and not %s", said.epoch, epoch),
		}
	}
	return said.refersTo, nil
}

func (s *schemas) GetEpoch(ctx context.Context, _ *schemav1.GetEpochRequest) (*schemav1.GetEpochResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, outcome.Status(s.log, err)
	}
	epoch, refersTo, err := s.epochs.ReferredKinds(ctx, by)
	if err != nil {
		return nil, outcome.Status(s.log, err)
	}
	return &schemav1.GetEpochResponse{Epoch: epoch[:], RefersTo: wire.TargetKinds(refersTo)}, nil
}

func (s *schemas) ConfirmEpoch(ctx context.Context,
	req *schemav1.ConfirmEpochRequest,
) (*schemav1.ConfirmEpochResponse, error) {
	return &schemav1.ConfirmEpochResponse{}, outcome.Status(s.log, s.confirmEpoch(ctx, req))
}

func (s *schemas) confirmEpoch(ctx context.Context, req *schemav1.ConfirmEpochRequest) error {
	by, err := caller(ctx)
	if err != nil {
		return err
	}
	epoch, err := messageEpoch(req.GetEpoch())
	if err != nil {
		return err
	}
	selfEpoch, err := epochOf(req.GetOwnEpoch())
	if err != nil {
		return err
	}
	return s.epochs.MarkReferencesConfirmed(ctx, by, epoch, selfEpoch)
}
