package service

import (
	"context"
	"fmt"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

func (s *schemas) PlanDeletion(ctx context.Context, req *schemav1.PlanDeletionRequest) (*schemav1.PlanDeletionResponse, error) {
	if err := bounded("targets", len(req.GetTargets())); err != nil {
		return nil, toStatus(s.log, err)
	}
	limit := int(req.GetLimit())
	if limit <= 0 {
		limit = 1000
	}
	targets := make([]shadow.PlanTarget, len(req.GetTargets()))
	for i, t := range req.GetTargets() {
		var err error
		if targets[i].Deployment, err = schema.ParseDeploymentID(t.GetDeployment()); err == nil {
			targets[i].UID, err = wire.UID(t.GetUid())
		}
		if err != nil {
			return nil, toStatus(s.log, invalid(fmt.Sprintf("targets[%d]", i), err))
		}
	}
	plan, err := s.store.Plan(ctx, targets, min(limit, shadow.PlanLimit))
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	out := &schemav1.PlanDeletionResponse{Truncated: plan.Truncated}
	for _, m := range plan.Members {
		member := &schemav1.PlanDeletionResponse_Member{Resource: &schemav1.ResourceRef{Name: m.Name, Uid: m.UID[:]}}
		for _, d := range m.Entries {
			member.Deployments = append(member.Deployments, d.String())
		}
		out.Members = append(out.Members, member)
	}
	for _, b := range plan.Blockers {
		out.Blockers = append(out.Blockers, &schemav1.PlanDeletionResponse_Blocker{
			Holder:     &schemav1.ResourceRef{Name: b.Holder.Name.Name, Uid: b.UID[:]},
			Deployment: b.Holder.Name.Deployment.String(), Path: b.Holder.Path,
		})
	}
	return out, nil
}

// Plan is shadow.Peers.
func (p *Peers) Plan(ctx context.Context, at schema.DeploymentID, targets []shadow.PlanTarget, limit int) (*shadow.Plan, error) {
	client, err := p.Client(at)
	if err != nil {
		return nil, err
	}
	req := &schemav1.PlanDeletionRequest{Limit: int32(limit)}
	for _, t := range targets {
		req.Targets = append(req.Targets, &schemav1.PlanDeletionRequest_Target{Deployment: t.Deployment.String(), Uid: t.UID[:]})
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	answer, err := client.PlanDeletion(ctx, req)
	if err != nil {
		return nil, err
	}
	plan := &shadow.Plan{Truncated: answer.GetTruncated()}
	for _, m := range answer.GetMembers() {
		member := shadow.PlanMember{Name: m.GetResource().GetName()}
		if member.UID, err = wire.UID(m.GetResource().GetUid()); err != nil {
			return nil, err
		}
		for _, name := range m.GetDeployments() {
			d, err := schema.ParseDeploymentID(name)
			if err != nil {
				return nil, err
			}
			member.Entries = append(member.Entries, d)
		}
		plan.Members = append(plan.Members, member)
	}
	for _, b := range answer.GetBlockers() {
		blocker := shadow.PlanBlocker{Holder: shadow.Holder{Name: schema.FullName{Name: b.GetHolder().GetName()}, Path: b.GetPath()}}
		if blocker.Holder.Name.Deployment, err = schema.ParseDeploymentID(b.GetDeployment()); err != nil {
			return nil, err
		}
		if blocker.UID, err = wire.UID(b.GetHolder().GetUid()); err != nil {
			return nil, err
		}
		plan.Blockers = append(plan.Blockers, blocker)
	}
	return plan, nil
}
