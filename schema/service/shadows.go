package service

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// shadowStore lists shadows and blockades by pages, and delivers outstanding work.
type shadowStore interface {
	ListShadows(ctx context.Context, kindName, token string, limit int) ([]shadow.ResourceView, string, error)
	ListBlockades(ctx context.Context, of schema.DeploymentID, token string,
		limit int) ([]shadow.BlockadeView, string, error)
}

// requireSelf refuses every caller except the deployment itself.
func (s *schemas) requireSelf(ctx context.Context) error {
	if who, err := caller(ctx); err != nil || who != s.self {
		return status.Errorf(codes.PermissionDenied, "only %s itself may read its shadows and its outstanding work",
			s.self)
	}
	return nil
}

// ownOrOperator refuses other deployments and users: the references of a deployment's resources are not for
// them.
func (s *schemas) ownOrOperator(ctx context.Context) error {
	if id, err := identity.FromContext(ctx); err == nil && id.Role == identity.RoleOperator {
		return nil
	}
	return s.requireSelf(ctx)
}

// WatchResourceShadows is for the deployment's own nodes.
func (s *schemas) WatchResourceShadows(req *schemav1.WatchResourceShadowsRequest,
	stream grpc.ServerStreamingServer[schemav1.WatchResourceShadowsResponse],
) error {
	if err := s.requireSelf(stream.Context()); err != nil {
		return outcome.Status(s.log, err)
	}
	shards, err := shardList(req.GetShards())
	if err != nil {
		return outcome.Status(s.log, err)
	}
	return outcome.Status(s.log, s.feeds.WatchWork(stream.Context(), shards, req.GetResumeToken(),
		func(e schema.Event[schema.Work]) error {
			return sendWork(e, stream.Send)
		}))
}

// sendWork sends the messages of one event: its items, then its position.
func sendWork(e schema.Event[schema.Work], send func(*schemav1.WatchResourceShadowsResponse) error) error {
	if len(e.Items) > 0 {
		err := send(&schemav1.WatchResourceShadowsResponse{Event: &schemav1.WatchResourceShadowsResponse_Upsert{
			Upsert: workProto(e.Items),
		}})
		if err != nil || e.Token == "" {
			return err
		}
	}
	if e.EndOfSnapshot {
		return send(&schemav1.WatchResourceShadowsResponse{Event: &schemav1.WatchResourceShadowsResponse_EndOfSnapshot{
			EndOfSnapshot: &schemav1.EndOfSnapshot{ResumeToken: e.Token},
		}})
	}
	return send(&schemav1.WatchResourceShadowsResponse{Event: &schemav1.WatchResourceShadowsResponse_Bookmark{
		Bookmark: &schemav1.Bookmark{ResumeToken: e.Token},
	}})
}

func workProto(items []schema.Work) *schemav1.WatchResourceShadowsResponse_Work {
	out := &schemav1.WatchResourceShadowsResponse_Work{Items: make([]*schemav1.WorkItem, len(items))}
	for i, w := range items {
		out.Items[i] = &schemav1.WorkItem{
			Id: w.Seq, Action: schemav1.WorkItem_Action(w.Action),
			Deployment: w.Deployment.String(), CreateTime: timestamppb.New(w.CreatedAt),
		}
	}
	return out
}

// shardList reads the shards of a request; none means all.
func shardList(in []uint32) ([]int16, error) {
	if len(in) == 0 {
		for i := range uint32(schema.RingSize) {
			in = append(in, i)
		}
	}
	out := make([]int16, len(in))
	for i, shard := range in {
		if shard >= schema.RingSize {
			return nil, outcome.Invalid("shards", fmt.Errorf("shard %d: want a number from 0 to %d", shard,
				schema.RingSize-1))
		}
		out[i] = int16(shard)
	}
	return out, nil
}

// ListResourceShadows is for operators, and for the deployment's own audits.
func (s *schemas) ListResourceShadows(ctx context.Context,
	req *schemav1.ListResourceShadowsRequest,
) (*schemav1.ListResourceShadowsResponse, error) {
	out, err := s.listShadows(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) listShadows(ctx context.Context,
	req *schemav1.ListResourceShadowsRequest,
) (*schemav1.ListResourceShadowsResponse, error) {
	if err := s.ownOrOperator(ctx); err != nil {
		return nil, err
	}
	if req.GetKind() != "" {
		if err := schema.CheckKind(req.GetKind()); err != nil {
			return nil, outcome.Invalid("kind", err)
		}
	}
	found, next, err := s.shadows.ListShadows(ctx, req.GetKind(), req.GetPageToken(), pageSize(req.GetPageSize()))
	if err != nil {
		return nil, err
	}
	out := &schemav1.ListResourceShadowsResponse{NextPageToken: next}
	for _, v := range found {
		out.Shadows = append(out.Shadows, s.shadowProto(v))
	}
	return out, nil
}

// stateNames are the states in answers for people.
var stateNames = map[peer.State]string{peer.Active: "ACTIVE", peer.Deleting: "DELETING"}

func (s *schemas) shadowProto(v shadow.ResourceView) *schemav1.ResourceShadow {
	p := &schemav1.ResourceShadow{
		Resource: wire.ResourceRef(v.Kind, v.Name, v.UID), State: stateNames[v.State], Revision: int64(v.Revision),
		HolderDeployments: wire.DeploymentNames(v.Holders), OwneeDeployments: wire.DeploymentNames(v.Ownees),
	}
	for _, r := range v.References {
		ref := &schemav1.ResourceShadow_Reference{
			Path: r.Path, Target: r.Target.String(), TargetUid: r.TargetUID[:],
			Behaviour: schemav1.Behaviour(r.Behaviour),
		}
		if r.Target.Deployment != s.self {
			ref.Attempt = r.Attempt[:]
		}
		p.References = append(p.References, ref)
	}
	return p
}

// ListBlockades returns to another deployment the blockades of its own resources, and all blockades to
// operators.
func (s *schemas) ListBlockades(ctx context.Context,
	req *schemav1.ListBlockadesRequest,
) (*schemav1.ListBlockadesResponse, error) {
	out, err := s.listBlockades(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) listBlockades(ctx context.Context,
	req *schemav1.ListBlockadesRequest,
) (*schemav1.ListBlockadesResponse, error) {
	var holder schema.DeploymentID // zero for all
	if s.ownOrOperator(ctx) != nil {
		var err error
		if holder, err = caller(ctx); err != nil {
			return nil, err
		}
	}
	found, next, err := s.shadows.ListBlockades(ctx, holder, req.GetPageToken(), pageSize(req.GetPageSize()))
	if err != nil {
		return nil, err
	}
	out := &schemav1.ListBlockadesResponse{NextPageToken: next}
	for _, v := range found {
		out.Blockades = append(out.Blockades, blockadeProto(v))
	}
	return out, nil
}

func blockadeProto(v shadow.BlockadeView) *schemav1.Blockade {
	p := &schemav1.Blockade{
		Target: wire.ResourceRef(v.Kind, v.Name, v.Key.TargetUID),
		Key:    wire.BlockadeKeyProto(v.Key), Holder: v.Holder.String(), Behaviour: schemav1.Behaviour(v.Behaviour),
	}
	p.ExpireTime = optionalTime(v.ExpiresAt)
	return p
}
