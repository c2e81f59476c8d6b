package service

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
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
	q := shadow.PlanQuestion{Targets: make([]shadow.PlanTarget, len(req.GetTargets())), Limit: min(limit, shadow.PlanLimit), Detailed: req.GetDetailed()}
	for i, t := range req.GetTargets() {
		var err error
		if q.Targets[i].Deployment, err = schema.ParseDeploymentID(t.GetDeployment()); err == nil {
			q.Targets[i].UID, err = wire.UID(t.GetUid())
		}
		if err != nil {
			return nil, toStatus(s.log, invalid(fmt.Sprintf("targets[%d]", i), err))
		}
	}
	plan, err := s.store.Plan(ctx, q)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	return planProto(plan), nil
}

func planProto(plan *shadow.Plan) *schemav1.PlanDeletionResponse {
	out := &schemav1.PlanDeletionResponse{Truncated: plan.Truncated}
	for _, m := range plan.Members {
		member := &schemav1.PlanDeletionResponse_Member{
			Resource: resourceRef(m.Kind, m.Name, m.UID), Deployments: deploymentNames(m.Entries), OwneeDeployments: deploymentNames(m.Ownees),
			BlockDeletion: m.BlockDeletion,
		}
		for i, via := range m.Vias {
			if i == 0 {
				member.Via = viaProto(via)
			} else {
				member.MoreVias = append(member.MoreVias, viaProto(via))
			}
		}
		out.Members = append(out.Members, member)
	}
	for _, u := range plan.Unsets {
		out.Unsets = append(out.Unsets, &schemav1.PlanDeletionResponse_Unset{Holder: resourceRef(u.Kind, u.Name, u.UID), Via: viaProto(u.Via)})
	}
	for _, b := range plan.Blockers {
		out.Blockers = append(out.Blockers, &schemav1.PlanDeletionResponse_Blocker{
			Holder: resourceRef("", b.Holder.Name.Name, b.UID), Deployment: b.Holder.Name.Deployment.String(), Path: b.Holder.Path,
			Target: resourceRef("", b.Holder.Target.Name, b.TargetUID), Undecided: b.Undecided, Unreachable: b.Unreachable,
		})
	}
	return out
}

func resourceRef(kind, name string, uid uuid.UUID) *schemav1.ResourceRef {
	return &schemav1.ResourceRef{Kind: kind, Name: name, Uid: uid[:]}
}

func deploymentNames(ids []schema.DeploymentID) []string {
	var out []string
	for _, d := range ids {
		out = append(out, d.String())
	}
	return out
}

func parseDeployments(names []string) ([]schema.DeploymentID, error) {
	var out []schema.DeploymentID
	for _, name := range names {
		d, err := schema.ParseDeploymentID(name)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

func viaProto(v shadow.Via) *schemav1.PlanDeletionResponse_Via {
	return &schemav1.PlanDeletionResponse_Via{
		Target: &schemav1.PlanDeletionResponse_Target{Deployment: v.Target.Deployment.String(), Uid: v.Target.UID[:]},
		Path:   v.Path, Behaviour: schemav1.Behaviour(v.Behaviour),
	}
}

func readVia(p *schemav1.PlanDeletionResponse_Via) (v shadow.Via, err error) {
	v.Path, v.Behaviour = p.GetPath(), schema.Behaviour(p.GetBehaviour())
	if v.Target.Deployment, err = schema.ParseDeploymentID(p.GetTarget().GetDeployment()); err != nil {
		return v, err
	}
	v.Target.UID, err = wire.UID(p.GetTarget().GetUid())
	return v, err
}

// Plan is shadow.Peers.
func (p *Peers) Plan(ctx context.Context, at schema.DeploymentID, q shadow.PlanQuestion) (*shadow.Plan, error) {
	client, err := p.Client(at)
	if err != nil {
		return nil, err
	}
	req := &schemav1.PlanDeletionRequest{Limit: int32(q.Limit), Detailed: q.Detailed}
	for _, t := range q.Targets {
		req.Targets = append(req.Targets, &schemav1.PlanDeletionRequest_Target{Deployment: t.Deployment.String(), Uid: t.UID[:]})
	}
	ctx, cancel := context.WithTimeout(ctx, longPeerTimeout)
	defer cancel()
	answer, err := client.PlanDeletion(ctx, req)
	if err != nil {
		return nil, inTime(err)
	}
	return readPlan(at, answer)
}

func readPlan(at schema.DeploymentID, answer *schemav1.PlanDeletionResponse) (_ *shadow.Plan, err error) {
	plan := &shadow.Plan{Truncated: answer.GetTruncated()}
	for _, m := range answer.GetMembers() {
		member := shadow.PlanMember{Kind: m.GetResource().GetKind(), Name: m.GetResource().GetName(), BlockDeletion: m.GetBlockDeletion()}
		if member.UID, err = wire.UID(m.GetResource().GetUid()); err != nil {
			return nil, err
		}
		if member.Entries, err = parseDeployments(m.GetDeployments()); err != nil {
			return nil, err
		}
		if member.Ownees, err = parseDeployments(m.GetOwneeDeployments()); err != nil {
			return nil, err
		}
		for _, p := range append([]*schemav1.PlanDeletionResponse_Via{m.GetVia()}, m.GetMoreVias()...) {
			via, err := readVia(p)
			if err != nil {
				return nil, err
			}
			member.Vias = append(member.Vias, via)
		}
		plan.Members = append(plan.Members, member)
	}
	for _, u := range answer.GetUnsets() {
		unset := shadow.PlanUnset{Kind: u.GetHolder().GetKind(), Name: u.GetHolder().GetName()}
		if unset.UID, err = wire.UID(u.GetHolder().GetUid()); err != nil {
			return nil, err
		}
		if unset.Via, err = readVia(u.GetVia()); err != nil {
			return nil, err
		}
		plan.Unsets = append(plan.Unsets, unset)
	}
	for _, b := range answer.GetBlockers() {
		blocker := shadow.PlanBlocker{
			Holder: shadow.Holder{
				Name: schema.FullName{Name: b.GetHolder().GetName()}, Path: b.GetPath(), Target: schema.FullName{Deployment: at, Name: b.GetTarget().GetName()},
			},
			Undecided: b.GetUndecided(), Unreachable: b.GetUnreachable(),
		}
		if blocker.Holder.Name.Deployment, err = schema.ParseDeploymentID(b.GetDeployment()); err != nil {
			return nil, err
		}
		if blocker.UID, err = wire.UID(b.GetHolder().GetUid()); err != nil {
			return nil, err
		}
		if blocker.TargetUID, err = wire.OptionalUID(b.GetTarget().GetUid()); err != nil {
			return nil, err
		}
		plan.Blockers = append(plan.Blockers, blocker)
	}
	return plan, nil
}

func (s *schemas) TraceCascades(ctx context.Context, req *schemav1.TraceCascadesRequest) (*schemav1.TraceCascadesResponse, error) {
	if err := bounded("uids", len(req.GetUids())); err != nil {
		return nil, toStatus(s.log, err)
	}
	uids, err := wire.UIDs(req.GetUids())
	if err != nil {
		return nil, toStatus(s.log, invalid("uids", err))
	}
	traces, err := s.store.Trace(ctx, uids)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	out := &schemav1.TraceCascadesResponse{}
	for uid, trace := range traces {
		out.Traces = append(out.Traces, &schemav1.TraceCascadesResponse_Trace{Uid: uid[:], Targets: targetsProto(trace.Cascades), Owners: targetsProto(trace.Owners)})
	}
	return out, nil
}

// Trace is shadow.Peers.
func (p *Peers) Trace(ctx context.Context, at schema.DeploymentID, uids []uuid.UUID) (map[uuid.UUID]shadow.Trace, error) {
	client, err := p.Client(at)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	out := map[uuid.UUID]shadow.Trace{}
	for len(uids) > 0 {
		n := min(len(uids), maxMessages)
		answer, err := client.TraceCascades(ctx, &schemav1.TraceCascadesRequest{Uids: wire.Bytes(uids[:n])})
		if err != nil {
			return nil, inTime(err)
		}
		uids = uids[n:]
		for _, t := range answer.GetTraces() {
			uid, err := wire.UID(t.GetUid())
			if err != nil {
				return nil, err
			}
			var trace shadow.Trace
			if trace.Cascades, err = readTargets(t.GetTargets()); err != nil {
				return nil, err
			}
			if trace.Owners, err = readTargets(t.GetOwners()); err != nil {
				return nil, err
			}
			out[uid] = trace
		}
	}
	return out, nil
}

func targetsProto(in []shadow.PlanTarget) []*schemav1.PlanDeletionResponse_Target {
	var out []*schemav1.PlanDeletionResponse_Target
	for _, t := range in {
		out = append(out, &schemav1.PlanDeletionResponse_Target{Deployment: t.Deployment.String(), Uid: t.UID[:]})
	}
	return out
}

func readTargets(in []*schemav1.PlanDeletionResponse_Target) ([]shadow.PlanTarget, error) {
	var out []shadow.PlanTarget
	for _, p := range in {
		d, err := schema.ParseDeploymentID(p.GetDeployment())
		if err != nil {
			return nil, err
		}
		uid, err := wire.UID(p.GetUid())
		if err != nil {
			return nil, err
		}
		out = append(out, shadow.PlanTarget{Deployment: d, UID: uid})
	}
	return out, nil
}

// PlanDeletion of the ResourceService is the plan for people.
func (r *resources) PlanDeletion(ctx context.Context, req *resourcev1.PlanDeletionRequest) (*resourcev1.PlanDeletionResponse, error) {
	name, err := r.ownName(req.GetName())
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	ctx, cancel := beforeDeadline(ctx)
	defer cancel()
	plan, err := r.store.PlanDelete(ctx, name)
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	out := &resourcev1.PlanDeletionResponse{Accepted: plan.Refusal == nil, Truncated: plan.Truncated}
	out.UnaskedDeployments, out.Unasked = unaskedProto(plan.Unasked)
	if plan.Refusal != nil {
		out.Refusal = plan.Refusal.Error()
	}
	for _, g := range plan.Groups {
		out.Groups = append(out.Groups, &resourcev1.PlanDeletionResponse_Group{
			Parent: int32(g.Parent), Deployment: g.Deployment.String(), Kind: g.Kind, Path: g.Path, Behaviour: schemav1.Behaviour(g.Behaviour),
			Count: int64(g.Count), Samples: g.Samples, Unset: g.Unset,
		})
	}
	return out, toStatus(r.log, pageBlockers(out, plan.Blockers, int(req.GetPageSize()), req.GetPageToken()))
}

// pageBlockers answers one page of the blockers, which are in the order of their pages.
func pageBlockers(out *resourcev1.PlanDeletionResponse, all []shadow.PlannedBlocker, size int, token string) error {
	follows, err := shadow.Follows(token)
	if err != nil {
		return err
	}
	if size <= 0 || size > maxPageSize {
		size = maxPageSize
	}
	out.TotalBlockers = int64(len(all))
	var last shadow.Refusal
	for _, b := range all {
		at := shadow.Refusal{Holder: b.Holder.Name.String(), Path: b.Holder.Path, Target: b.Holder.Target}
		if !follows(at) {
			continue
		}
		if len(out.Blockers) == size {
			out.NextPageToken = shadow.TokenAfter(last)
			return nil
		}
		last = at
		out.Blockers = append(out.Blockers, &resourcev1.PlanDeletionResponse_Blocker{
			Holder: at.Holder, Path: at.Path, Target: at.Target.String(), Undecided: b.Undecided, Unknown: b.Unknown, Unanswered: b.Unanswered, Refuses: b.Refuses,
		})
	}
	return nil
}

var whyProto = map[shadow.Why]resourcev1.UnaskedDeployment_Reason{
	shadow.Unreachable:  resourcev1.UnaskedDeployment_REASON_UNREACHABLE,
	shadow.TimedOut:     resourcev1.UnaskedDeployment_REASON_TIMED_OUT,
	shadow.LimitReached: resourcev1.UnaskedDeployment_REASON_LIMIT_REACHED,
}

// unaskedProto gives the names of deployments that were not asked, and the same with reasons.
func unaskedProto(in []shadow.Unasked) (names []string, out []*resourcev1.UnaskedDeployment) {
	for _, u := range in {
		names = append(names, u.Deployment.String())
		out = append(out, &resourcev1.UnaskedDeployment{Deployment: u.Deployment.String(), Reason: whyProto[u.Why], Message: u.Error()})
	}
	return names, out
}
