package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// maxAhead is how far the clock of another deployment may be ahead: an epoch dated later could hardly be outdone.
const maxAhead = 2 * time.Hour

func epochOf(raw []byte) (uuid.UUID, error) {
	epoch, err := wire.UID(raw)
	if err == nil && epoch.Version() != 7 {
		err = errors.New("want a UUIDv7")
	}
	if ahead := time.Until(time.Unix(epoch.Time().UnixTime())); err == nil && ahead > maxAhead {
		err = fmt.Errorf("it is %s ahead of the clock here", ahead.Round(time.Second))
	}
	if err != nil {
		return epoch, invalid("epoch", err)
	}
	return epoch, nil
}

func (s *schemas) AnnounceEpoch(ctx context.Context, req *schemav1.AnnounceEpochRequest) (*schemav1.AnnounceEpochResponse, error) {
	from, err := caller(ctx)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	epoch, err := epochOf(req.GetEpoch())
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	known, err := s.store.Told(ctx, from, epoch)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	return &schemav1.AnnounceEpochResponse{Epoch: known[:]}, nil
}

func (s *schemas) ConfirmEpoch(ctx context.Context, req *schemav1.ConfirmEpochRequest) (*schemav1.ConfirmEpochResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	epoch, err := wire.OptionalUID(req.GetEpoch())
	if err != nil {
		return nil, toStatus(s.log, invalid("epoch", err))
	}
	own, err := epochOf(req.GetOwnEpoch())
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	return &schemav1.ConfirmEpochResponse{}, toStatus(s.log, s.store.Confirmed(ctx, by, epoch, own))
}

var knownProto = map[shadow.Known]schemav1.CheckReferencesResponse_Verdict{
	shadow.KnownHeld:     schemav1.CheckReferencesResponse_VERDICT_KNOWN,
	shadow.KnownMissing:  schemav1.CheckReferencesResponse_VERDICT_UNKNOWN,
	shadow.KnownDeleting: schemav1.CheckReferencesResponse_VERDICT_DELETING,
	shadow.KnownAbsent:   schemav1.CheckReferencesResponse_VERDICT_ABSENT,
}

func (s *schemas) CheckReferences(ctx context.Context, req *schemav1.CheckReferencesRequest) (*schemav1.CheckReferencesResponse, error) {
	holder, err := caller(ctx)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	if err := bounded("references", len(req.GetReferences())); err != nil {
		return nil, toStatus(s.log, err)
	}
	refs := make([]shadow.CheckedReference, len(req.GetReferences()))
	for i, r := range req.GetReferences() {
		if refs[i].Key, err = blockadeKey(r.GetKey()); err == nil {
			refs[i].Behaviour, err = wire.Behaviour(r.GetBehaviour())
		}
		if err != nil {
			return nil, toStatus(s.log, invalid("references", err))
		}
	}
	known, err := s.store.CheckReferences(ctx, holder, refs)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	out := &schemav1.CheckReferencesResponse{Verdicts: make([]schemav1.CheckReferencesResponse_Verdict, len(known))}
	for i, k := range known {
		out.Verdicts[i] = knownProto[k]
	}
	return out, nil
}
