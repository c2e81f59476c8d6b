package service

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// ListRemovals is for auditors: why something is gone.
func (a *admin) ListRemovals(ctx context.Context, req *adminv1.ListRemovalsRequest) (*adminv1.ListRemovalsResponse, error) {
	uid, err := optionalUUID("uid", req.GetUid())
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	name, err := a.resources.ownName(req.GetName())
	if err == nil {
		if e := schema.CheckName(name); e != nil {
			err = invalid("name", e)
		}
	}
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	found, err := a.store.Removals(ctx, name, uid, pageSize(req.GetPageSize()))
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	out := &adminv1.ListRemovalsResponse{}
	for _, r := range found {
		out.Removals = append(out.Removals, a.removal(r))
	}
	return out, nil
}

func (a *admin) removal(r shadow.Removal) *adminv1.Removal {
	p := &adminv1.Removal{
		Name: schema.FullName{Deployment: a.store.Deployment(), Name: r.Name}.String(), Kind: r.Kind, Uid: r.UID.String(),
		How: r.How.String(), DecideTime: timestamppb.New(r.DecidedAt), Gone: r.Gone,
	}
	if r.Via.Name != "" {
		p.Via = r.Via.String()
	}
	if r.ViaUID != uuid.Nil {
		p.ViaUid = r.ViaUID.String()
	}
	if c := r.Cause; c != nil {
		p.Root, p.Actor, p.RequestTime = c.Root, c.Actor, timestamppb.New(c.At)
		if c.RootUID != uuid.Nil {
			p.RootUid = c.RootUID.String()
		}
		if c.RequestID != uuid.Nil {
			p.RequestId = c.RequestID.String()
		}
	}
	return p
}
