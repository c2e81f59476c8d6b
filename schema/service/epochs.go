package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

// maxAhead is how far in the future the time of another deployment's epoch may lie. The next epoch of that deployment
// has to be greater, and has the time of its clock: an epoch from the far future could hardly be replaced.
const maxAhead = 2 * time.Hour

// epochStore keeps the epochs of other deployments' databases. RecordPeerEpoch returns the greatest epoch recorded of the
// caller.
type epochStore interface {
	RecordPeerEpoch(ctx context.Context, from schema.DeploymentID, epoch uuid.UUID) (known uuid.UUID, err error)
	MarkReferencesConfirmed(ctx context.Context, by schema.DeploymentID, epoch, selfEpoch uuid.UUID) error
}

func epochOf(raw []byte) (uuid.UUID, error) {
	epoch, err := wire.UID(raw)
	if err == nil && epoch.Version() != 7 {
		err = errors.New("want a UUIDv7")
	}
	if ahead := time.Until(time.Unix(epoch.Time().UnixTime())); err == nil && ahead > maxAhead {
		err = fmt.Errorf("its time is %s ahead of the clock of this deployment, at most %s is allowed: correct the clocks", ahead.Round(time.Second), maxAhead)
	}
	if err != nil {
		return epoch, outcome.Invalid("epoch", err)
	}
	return epoch, nil
}

func (s *schemas) AnnounceEpoch(ctx context.Context, req *schemav1.AnnounceEpochRequest) (*schemav1.AnnounceEpochResponse, error) {
	out, err := s.announceEpoch(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) announceEpoch(ctx context.Context, req *schemav1.AnnounceEpochRequest) (*schemav1.AnnounceEpochResponse, error) {
	from, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	epoch, err := epochOf(req.GetEpoch())
	if err != nil {
		return nil, err
	}
	known, err := s.epochs.RecordPeerEpoch(ctx, from, epoch)
	if err != nil {
		return nil, err
	}
	return &schemav1.AnnounceEpochResponse{Epoch: known[:]}, nil
}

func (s *schemas) ConfirmEpoch(ctx context.Context, req *schemav1.ConfirmEpochRequest) (*schemav1.ConfirmEpochResponse, error) {
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
