package service

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

// defaultPlanLimit is the number of members of a plan when the request has none.
const defaultPlanLimit = 1000

// planner follows references of resources here, for deletions that reach several deployments: Plan from
// targets to their holders, Trace from holders to their targets. Both change nothing.
type planner interface {
	Plan(ctx context.Context, q peer.PlanQuestion) (*peer.Plan, error)
	Trace(ctx context.Context, uids []uuid.UUID) (map[uuid.UUID]peer.Trace, error)
}

func (s *schemas) PlanDeletion(ctx context.Context,
	req *schemav1.PlanDeletionRequest,
) (*schemav1.PlanDeletionResponse, error) {
	out, err := s.planDeletion(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) planDeletion(ctx context.Context,
	req *schemav1.PlanDeletionRequest,
) (*schemav1.PlanDeletionResponse, error) {
	if err := bounded("targets", len(req.GetTargets())); err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	if limit <= 0 {
		limit = defaultPlanLimit
	}
	q := peer.PlanQuestion{
		Targets: make([]peer.PlanTarget, len(req.GetTargets())), Limit: min(limit, peer.PlanLimit),
		Detailed: req.GetDetailed(), Compact: req.GetCompact() && !req.GetDetailed(),
		CountLeaves: req.GetCountLeaves() && !req.GetDetailed(),
	}
	for i, t := range req.GetTargets() {
		var err error
		if q.Targets[i], err = wire.PlanTarget(t.GetDeployment(), t.GetUid()); err != nil {
			return nil, outcome.Invalid(fmt.Sprintf("targets[%d]", i), err)
		}
	}
	if f := req.GetFreeze(); f != nil {
		coordinator, err := caller(ctx)
		if err != nil {
			return nil, err
		}
		if q.Freeze, err = wire.Freeze(coordinator, f); err != nil {
			return nil, outcome.Invalid("freeze", err)
		}
	}
	plan, err := s.plans.Plan(ctx, q)
	if err != nil {
		return nil, err
	}
	return wire.PlanProto(plan), nil
}

func (s *schemas) TraceCascades(ctx context.Context,
	req *schemav1.TraceCascadesRequest,
) (*schemav1.TraceCascadesResponse, error) {
	out, err := s.traceCascades(ctx, req)
	return out, outcome.Status(s.log, err)
}

func (s *schemas) traceCascades(ctx context.Context,
	req *schemav1.TraceCascadesRequest,
) (*schemav1.TraceCascadesResponse, error) {
	if err := bounded("uids", len(req.GetUids())); err != nil {
		return nil, err
	}
	uids, err := wire.UIDs(req.GetUids())
	if err != nil {
		return nil, outcome.Invalid("uids", err)
	}
	traces, err := s.plans.Trace(ctx, uids)
	if err != nil {
		return nil, err
	}
	out := &schemav1.TraceCascadesResponse{}
	for uid, trace := range traces {
		out.Traces = append(out.Traces, &schemav1.TraceCascadesResponse_Trace{
			Uid:     uid[:],
			Targets: targetsProto(trace.Cascades), Owners: targetsProto(trace.Owners),
		})
	}
	return out, nil
}

func targetsProto(in []peer.PlanTarget) []*schemav1.PlanDeletionResponse_Target {
	var out []*schemav1.PlanDeletionResponse_Target
	for _, t := range in {
		out = append(out, wire.PlanTargetProto(t))
	}
	return out
}
