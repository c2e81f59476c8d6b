package service

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

// feedStore delivers the deletions here that another deployment has to act upon, and the outstanding work of
// this deployment.
type feedStore interface {
	CheckKept(ctx context.Context, holder schema.DeploymentID, token string) error
	WatchDeletions(ctx context.Context, holder schema.DeploymentID, token string,
		deliver func(schema.Event[schema.Deletion]) error) error
	WatchWork(ctx context.Context, shards []int16, token string, deliver func(schema.Event[schema.Work]) error) error
}

func (s *schemas) WatchImportedServiceDeletions(req *schemav1.WatchImportedServiceDeletionsRequest,
	stream grpc.ServerStreamingServer[schemav1.WatchImportedServiceDeletionsResponse],
) error {
	holder, err := caller(stream.Context())
	if err == nil {
		err = s.feeds.CheckKept(stream.Context(), holder, req.GetKeptToken())
	}
	if err != nil {
		return outcome.Status(s.log, err)
	}
	return outcome.Status(s.log, s.feeds.WatchDeletions(stream.Context(), holder, req.GetResumeToken(),
		func(e schema.Event[schema.Deletion]) error {
			return sendDeletions(e, stream.Send)
		}))
}

// sendDeletions sends the messages of one event: its items, then its position.
func sendDeletions(e schema.Event[schema.Deletion],
	send func(*schemav1.WatchImportedServiceDeletionsResponse) error,
) error {
	if len(e.Items) > 0 {
		err := send(&schemav1.WatchImportedServiceDeletionsResponse{
			Event: &schemav1.WatchImportedServiceDeletionsResponse_Upsert{Upsert: deletionsProto(e.Items)},
		})
		if err != nil || e.Token == "" {
			return err
		}
	}
	if e.EndOfSnapshot {
		return send(
			&schemav1.WatchImportedServiceDeletionsResponse{Event: &schemav1.WatchImportedServiceDeletionsResponse_EndOfSnapshot{
				EndOfSnapshot: &schemav1.EndOfSnapshot{ResumeToken: e.Token},
			}})
	}
	return send(
		&schemav1.WatchImportedServiceDeletionsResponse{Event: &schemav1.WatchImportedServiceDeletionsResponse_Bookmark{
			Bookmark: &schemav1.Bookmark{ResumeToken: e.Token},
		}})
}

func deletionsProto(items []schema.Deletion) *schemav1.WatchImportedServiceDeletionsResponse_Deletions {
	out := &schemav1.WatchImportedServiceDeletionsResponse_Deletions{Resources: make([]*schemav1.ResourceRef,
		len(items)), Notices: make([]int64, len(items))}
	out.Causes, out.CauseOf = wire.CausesProto(items)
	for i := range items {
		out.Resources[i], out.Notices[i] = wire.ResourceRef(items[i].Kind, items[i].Name, items[i].UID), items[i].Seq
	}
	return out
}

// acknowledgeTime is the time after which one call that acknowledges returns with more set.
const acknowledgeTime = 2 * time.Second

func (s *schemas) AcknowledgeDeletions(ctx context.Context,
	req *schemav1.AcknowledgeDeletionsRequest,
) (*schemav1.AcknowledgeDeletionsResponse, error) {
	more, err := s.acknowledge(ctx, req)
	if err != nil {
		return nil, outcome.Status(s.log, err)
	}
	return &schemav1.AcknowledgeDeletionsResponse{More: more}, nil
}

func (s *schemas) acknowledge(ctx context.Context, req *schemav1.AcknowledgeDeletionsRequest) (more bool, err error) {
	holder, err := caller(ctx)
	if err != nil {
		return false, err
	}
	except, err := wire.UIDs(req.GetExceptUids())
	if err != nil {
		return false, outcome.Invalid("except_uids", err)
	}
	epoch, err := messageEpoch(req.GetEpoch())
	if err != nil {
		return false, err
	}
	limit := acknowledgeTime
	if !req.GetInParts() { // an earlier version, which does not call again
		limit = math.MaxInt64
	}
	return s.blockades.AcknowledgeFor(ctx, holder, epoch, req.GetPosition(), except, limit)
}
