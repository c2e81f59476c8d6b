package service

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
)

// ListRemovals is for auditors.
func (a *admin) ListRemovals(ctx context.Context, req *adminv1.ListRemovalsRequest) (*adminv1.ListRemovalsResponse, error) {
	out, err := a.listRemovals(ctx, req)
	return out, outcome.Status(a.log, err)
}

func (a *admin) listRemovals(ctx context.Context, req *adminv1.ListRemovalsRequest) (*adminv1.ListRemovalsResponse, error) {
	uid, err := optionalUUID("uid", req.GetUid())
	if err != nil {
		return nil, err
	}
	deletion, err := optionalUUID("deletion", req.GetDeletion())
	if err != nil {
		return nil, err
	}
	q := shadow.RemovalQuery{UID: uid, Deletion: deletion}
	if deletion == uuid.Nil {
		if q.Name, err = ownName(a.self, req.GetName()); err != nil {
			return nil, err
		}
		if err := schema.CheckName(q.Name); err != nil {
			return nil, outcome.Invalid("name", err)
		}
	} else if req.GetName() != "" || req.GetUid() != "" {
		return nil, outcome.Invalid("deletion", errors.New("want a deletion, or a name"))
	}
	found, next, err := a.inspector.Removals(ctx, q, req.GetPageToken(), pageSize(req.GetPageSize()))
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListRemovalsResponse{NextPageToken: next}
	for _, r := range found {
		out.Removals = append(out.Removals, removalProto(a.self, r))
	}
	return out, nil
}

func removalProto(self schema.DeploymentID, r shadow.Removal) *adminv1.Removal {
	p := &adminv1.Removal{
		Name: schema.FullName{Deployment: self, Name: r.Name}.String(), Kind: r.Kind, Uid: r.UID.String(),
		How: r.How.String(), DecideTime: timestamppb.New(r.DecidedAt), Gone: r.Gone, ViaUid: optionalText(r.ViaUID),
	}
	if r.Via.Name != "" {
		p.Via = r.Via.String()
	}
	if c := r.Cause; c != nil {
		p.Root, p.Actor, p.RequestTime = c.Root, c.Actor, timestamppb.New(c.At)
		p.Deletion = optionalText(c.ID)
		p.RootUid, p.RequestId = optionalText(c.RootUID), optionalText(c.RequestID)
		// An operator's decision about the deployment of the target, which is the root then, was recorded here.
		if r.Via.Name != "" && r.Via.Deployment != self && c.Root != "//"+r.Via.Deployment.String() {
			p.ToldBy = r.Via.Deployment.String()
		}
	}
	return p
}
