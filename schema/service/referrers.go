package service

import (
	"context"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
)

// referrerReader lists the referrers of a resource.
type referrerReader interface {
	Referrers(ctx context.Context, req shadow.ReferrersRequest) (*shadow.Referrers, error)
}

func (r *resources) ListReferrers(ctx context.Context,
	req *resourcev1.ListReferrersRequest,
) (*resourcev1.ListReferrersResponse, error) {
	out, err := r.referrersOf(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) referrersOf(ctx context.Context,
	req *resourcev1.ListReferrersRequest,
) (*resourcev1.ListReferrersResponse, error) {
	target, err := schema.ParseFullName(req.GetTarget())
	if err != nil {
		return nil, outcome.Invalid("target", err)
	}
	uid, err := optionalUUID("target_uid", req.GetTargetUid())
	if err != nil {
		return nil, err
	}
	page, err := r.referrers.Referrers(ctx, shadow.ReferrersRequest{
		Target: target, UID: uid, Limit: pageSize(req.GetPageSize()), Token: req.GetPageToken(),
		Within: access.Names(ctx),
	})
	if err != nil {
		return nil, err
	}
	return r.referrersProto(page), nil
}

func (r *resources) referrersProto(page *shadow.Referrers) *resourcev1.ListReferrersResponse {
	out := &resourcev1.ListReferrersResponse{NextPageToken: page.Next}
	if page.UID != uuid.Nil {
		out.TargetUid = page.UID.String()
	}
	for _, d := range page.Deployments {
		out.Deployments = append(out.Deployments, d.String())
	}
	for _, referrer := range page.List {
		out.Referrers = append(out.Referrers, &resourcev1.ListReferrersResponse_Referrer{
			Holder: schema.FullName{Deployment: r.self, Name: referrer.Name}.String(), Kind: referrer.Kind,
			Path:      referrer.Path,
			Behaviour: schemav1.Behaviour(referrer.Behaviour),
		})
	}
	return out
}
