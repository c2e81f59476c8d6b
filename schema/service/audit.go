package service

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

func pageSize(asked int32) int {
	if asked <= 0 {
		return defaultPageSize
	}
	return min(int(asked), maxPageSize)
}

// ListResourceShadows is for operators, and for the deployment's own audits.
func (s *schemas) ListResourceShadows(ctx context.Context, req *schemav1.ListResourceShadowsRequest) (*schemav1.ListResourceShadowsResponse, error) {
	if err := s.ownOrOperator(ctx); err != nil {
		return nil, toStatus(s.log, err)
	}
	if req.GetKind() != "" {
		if err := schema.CheckKind(req.GetKind()); err != nil {
			return nil, toStatus(s.log, invalid("kind", err))
		}
	}
	found, next, err := s.store.ListShadows(ctx, req.GetKind(), req.GetPageToken(), pageSize(req.GetPageSize()))
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	states := map[shadow.State]string{shadow.Active: "ACTIVE", shadow.Deleting: "DELETING"}
	out := &schemav1.ListResourceShadowsResponse{NextPageToken: next}
	for _, v := range found {
		p := &schemav1.ResourceShadow{
			Resource: resourceRef(v.Kind, v.Name, v.UID), State: states[v.State], Revision: int64(v.Revision),
			HolderDeployments: deploymentNames(v.Holders), OwneeDeployments: deploymentNames(v.Ownees),
		}
		for _, r := range v.References {
			ref := &schemav1.ResourceShadow_Reference{Path: r.Path, Target: r.Target.String(), TargetUid: r.TargetUID[:], Behaviour: schemav1.Behaviour(r.Behaviour)}
			if r.Target.Deployment != s.store.Deployment() {
				ref.Attempt = r.Attempt[:]
			}
			p.References = append(p.References, ref)
		}
		out.Shadows = append(out.Shadows, p)
	}
	return out, nil
}

// ownOrOperator refuses other deployments: what a deployment's resources refer to is not their affair.
func (s *schemas) ownOrOperator(ctx context.Context) error {
	if id, err := identity.FromContext(ctx); err == nil && id.Role == identity.RoleOperator {
		return nil
	}
	return s.own(ctx)
}

// ListBlockades gives another deployment the blockades that its own resources have here, and operators all.
func (s *schemas) ListBlockades(ctx context.Context, req *schemav1.ListBlockadesRequest) (*schemav1.ListBlockadesResponse, error) {
	var of schema.DeploymentID
	if s.ownOrOperator(ctx) != nil {
		var err error
		if of, err = caller(ctx); err != nil {
			return nil, toStatus(s.log, err)
		}
	}
	found, next, err := s.store.ListBlockades(ctx, of, req.GetPageToken(), pageSize(req.GetPageSize()))
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	out := &schemav1.ListBlockadesResponse{NextPageToken: next}
	for _, v := range found {
		p := &schemav1.Blockade{Target: resourceRef(v.Kind, v.Name, v.Key.TargetUID), Key: keyProto(v.Key), Holder: v.Holder.String(), Behaviour: schemav1.Behaviour(v.Behaviour)}
		if !v.ExpiresAt.IsZero() {
			p.ExpireTime = timestamppb.New(v.ExpiresAt)
		}
		out.Blockades = append(out.Blockades, p)
	}
	return out, nil
}
