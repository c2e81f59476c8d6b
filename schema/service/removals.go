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
func (a *admin) ListRemovals(ctx context.Context,
	req *adminv1.ListRemovalsRequest,
) (*adminv1.ListRemovalsResponse, error) {
	out, err := a.listRemovals(ctx, req)
	return out, outcome.Status(a.log, err)
}

func (a *admin) listRemovals(ctx context.Context,
	req *adminv1.ListRemovalsRequest,
) (*adminv1.ListRemovalsResponse, error) {
	uid, err := optionalUUID("uid", req.GetUid())
	if err != nil {
		return nil, err
	}
	deletion, err := optionalUUID("deletion", req.GetDeletion())
	if err != nil {
		return nil, err
	}
	request, err := optionalUUID("request", req.GetRequest())
	if err != nil {
		return nil, err
	}
	q := shadow.RemovalQuery{UID: uid, Deletion: deletion, Request: request, Since: req.GetSince()}
	selected := 0
	for _, given := range []bool{
		req.GetName() != "" || uid != uuid.Nil, deletion != uuid.Nil, request != uuid.Nil,
		q.Since != "",
	} {
		if given {
			selected++
		}
	}
	if selected > 1 {
		return nil, outcome.Invalid("name", errors.New("want one of: a name, a deletion, a request, since"))
	}
	if deletion == uuid.Nil && request == uuid.Nil && q.Since == "" {
		if q.Name, err = a.nameOf(req.GetName()); err != nil {
			return nil, err
		}
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

// nameOf returns a correct relative name.
func (a *admin) nameOf(given string) (string, error) {
	name, err := ownName(a.self, given)
	if err != nil {
		return "", err
	}
	if err := schema.CheckName(name); err != nil {
		return "", outcome.Invalid("name", err)
	}
	return name, nil
}

// purger forgets the contents of removed resources.
type purger interface {
	Purge(ctx context.Context, name string) (changes, requests int64, err error)
}

// Purge is for operators.
func (a *admin) Purge(ctx context.Context, req *adminv1.PurgeRequest) (*adminv1.PurgeResponse, error) {
	name, err := a.nameOf(req.GetName())
	if err != nil {
		return nil, outcome.Status(a.log, err)
	}
	changes, requests, err := a.purger.Purge(ctx, name)
	if err != nil {
		return nil, outcome.Status(a.log, err)
	}
	return &adminv1.PurgeResponse{Changes: changes, Requests: requests}, nil
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
		// An operator's decision about the deployment of the target, which is the root then, was recorded
		// here.
		if r.Via.Name != "" && r.Via.Deployment != self && c.Root != "//"+r.Via.Deployment.String() {
			p.ToldBy = r.Via.Deployment.String()
		}
	}
	return p
}
