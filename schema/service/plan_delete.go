package service

import (
	"context"
	"fmt"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
)

// PlanDeletion of the ResourceService is the plan for people, see SchemaService for the one between deployments.
func (r *resources) PlanDeletion(ctx context.Context, req *resourcev1.PlanDeletionRequest) (*resourcev1.PlanDeletionResponse, error) {
	out, err := r.planDeletion(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) planDeletion(ctx context.Context, req *resourcev1.PlanDeletionRequest) (*resourcev1.PlanDeletionResponse, error) {
	if n := len(req.GetMore()); n >= MaxBatch {
		return nil, outcome.Invalid("more", fmt.Errorf("%d in one plan with name, fewer than %d are allowed", n, MaxBatch))
	}
	names := make([]string, 0, 1+len(req.GetMore()))
	for _, name := range append([]string{req.GetName()}, req.GetMore()...) {
		name, err := ownName(r.self, name)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	ctx, cancel := beforeDeadline(ctx)
	defer cancel()
	plan, err := r.deleter.PlanDelete(ctx, names...)
	if err != nil {
		return nil, err
	}
	out := &resourcev1.PlanDeletionResponse{Accepted: plan.Refusal == nil && plan.Complete(), Truncated: plan.Truncated, Uncounted: plan.Uncounted}
	out.UnaskedDeployments, out.Unasked = unaskedProto(plan.Unasked)
	if plan.Refusal != nil {
		out.Refusal = plan.Refusal.Error()
	}
	for _, g := range plan.Groups {
		out.Groups = append(out.Groups, &resourcev1.PlanDeletionResponse_Group{
			Parent: int32(g.Parent), Deployment: g.Deployment.String(), Kind: g.Kind, Path: g.Path, Behaviour: schemav1.Behaviour(g.Behaviour),
			Count: int64(g.Count), Samples: g.Samples, Unset: g.Unset, AtLeast: g.AtLeast, Finalizers: g.Finalizers,
		})
	}
	blockers := readableBlockers(ctx, plan.Blockers)
	out.HiddenBlockers = int64(len(plan.Blockers) - len(blockers))
	if err := pageBlockers(out, blockers, int(req.GetPageSize()), req.GetPageToken()); err != nil {
		return nil, err
	}
	out.TotalBlockers += out.GetHiddenBlockers()
	return out, nil
}

// readableBlockers returns the blockers whose holders the caller may read: before they are paged, because a page token has a name.
func readableBlockers(ctx context.Context, all []shadow.PlannedBlocker) (out []shadow.PlannedBlocker) {
	names := make([]schema.FullName, len(all))
	for i, b := range all {
		names[i] = b.Holder.Name
	}
	for i, ok := range access.Readable(ctx, names) {
		if ok {
			out = append(out, all[i])
		}
	}
	return out
}

// pageBlockers adds one page of the blockers, which are in the order of their pages.
func pageBlockers(out *resourcev1.PlanDeletionResponse, all []shadow.PlannedBlocker, size int, token string) error {
	follows, err := peer.Follows(token)
	if err != nil {
		return err
	}
	out.TotalBlockers = int64(len(all))
	if size <= 0 || size > maxPageSize {
		size = maxPageSize
	}
	var last peer.Refusal
	for _, b := range all {
		at := peer.Refusal{Holder: b.Holder.Name.String(), Path: b.Holder.Path, Target: b.Holder.Target}
		if !follows(at) {
			continue
		}
		if len(out.Blockers) == size {
			out.NextPageToken = peer.TokenAfter(last)
			return nil
		}
		last = at
		out.Blockers = append(out.Blockers, &resourcev1.PlanDeletionResponse_Blocker{
			Holder: at.Holder, Path: at.Path, Target: at.Target.String(), Undecided: b.Undecided, Unknown: b.Unknown, Unanswered: b.Unanswered, Refuses: b.Refuses,
		})
	}
	return nil
}

var whyProto = map[peer.Why]resourcev1.UnaskedDeployment_Reason{
	peer.Unreachable:  resourcev1.UnaskedDeployment_REASON_UNREACHABLE,
	peer.TimedOut:     resourcev1.UnaskedDeployment_REASON_TIMED_OUT,
	peer.LimitReached: resourcev1.UnaskedDeployment_REASON_LIMIT_REACHED,
}

// unaskedProto returns the names of deployments that were not asked, and the same with reasons.
func unaskedProto(in []peer.Unasked) (names []string, out []*resourcev1.UnaskedDeployment) {
	for _, u := range in {
		names = append(names, u.Deployment.String())
		out = append(out, &resourcev1.UnaskedDeployment{Deployment: u.Deployment.String(), Reason: whyProto[u.Why], Message: u.Error()})
	}
	return names, out
}
