package peers

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

// Plan implements peer.Planner.
func (p *Peers) Plan(ctx context.Context, at schema.DeploymentID, q peer.PlanQuestion) (*peer.Plan, error) {
	client, err := p.Client(at)
	if err != nil {
		return nil, err
	}
	req := &schemav1.PlanDeletionRequest{
		Limit: int32(q.Limit), Detailed: q.Detailed, Compact: q.Compact,
		CountLeaves: q.CountLeaves,
	}
	for _, t := range q.Targets {
		req.Targets = append(req.Targets, &schemav1.PlanDeletionRequest_Target{
			Deployment: t.Deployment.String(),
			Uid:        t.UID[:],
		})
	}
	if q.Freeze != nil {
		req.Freeze = wire.FreezeProto(q.Freeze)
	}
	ctx, cancel := context.WithTimeout(ctx, longPeerTimeout)
	defer cancel()
	answer, err := client.PlanDeletion(ctx, req)
	if err != nil {
		return nil, outcome.TextOf(err)
	}
	plan, err := readPlan(at, answer)
	if err == nil && q.Freeze != nil && plan.Epoch == uuid.Nil {
		return nil, fmt.Errorf("its plan has no epoch: it froze nothing")
	}
	if err == nil && (plan.Leaves < 0 || plan.Leaves > q.Limit) {
		return nil, fmt.Errorf("its plan has %d members, of at most %d", plan.Leaves, q.Limit)
	}
	return plan, err
}

func readPlan(at schema.DeploymentID, answer *schemav1.PlanDeletionResponse) (_ *peer.Plan, err error) {
	plan := &peer.Plan{
		NotAtomic: answer.GetNotAtomic(), Truncated: answer.GetTruncated(),
		Uncounted: answer.GetUncounted(), MoreUnsets: answer.GetMoreUnsets(), Holders: int(answer.GetHolders()),
		Leaves: int(answer.GetLeafCount()),
	}
	for _, c := range answer.GetCounts() {
		plan.Counts = append(plan.Counts, peer.PlanCount{
			Path:      c.GetPath(),
			Behaviour: schema.Behaviour(c.GetBehaviour()), Count: int(c.GetCount()),
		})
	}
	if raw := answer.GetEpoch(); len(raw) > 0 {
		if plan.Epoch, err = wire.UID(raw); err != nil {
			return nil, err
		}
	}
	if plan.Members, err = readAll(answer.GetMembers(), readMember); err != nil {
		return nil, err
	}
	if err = readLeaves(plan, answer.GetLeaves()); err != nil {
		return nil, err
	}
	if plan.Unsets, err = readAll(answer.GetUnsets(), readUnset); err != nil {
		return nil, err
	}
	plan.Blockers, err = readAll(answer.GetBlockers(),
		func(b *schemav1.PlanDeletionResponse_Blocker) (peer.PlanBlocker, error) {
			return readBlocker(at, b)
		})
	if err != nil {
		return nil, err
	}
	return plan, nil
}

// readLeaves adds leaves to the members of a plan. One with several reasons is in several groups.
func readLeaves(plan *peer.Plan, groups []*schemav1.PlanDeletionResponse_Leaves) error {
	at := map[uuid.UUID]int{}
	for _, g := range groups {
		via, err := readVia(g.GetVia())
		if err != nil {
			return err
		}
		for raw := g.GetUids(); len(raw) > 0; raw = raw[min(len(raw), len(uuid.UUID{})):] {
			uid, err := wire.UID(raw[:min(len(raw), len(uuid.UUID{}))])
			if err != nil {
				return err
			}
			i, known := at[uid]
			if !known {
				i = len(plan.Members)
				at[uid] = i
				plan.Members = append(plan.Members, peer.PlanMember{UID: uid})
			}
			plan.Members[i].Vias = append(plan.Members[i].Vias, via)
		}
	}
	return nil
}

// readAll reads the elements of a list; it returns nil for an empty one.
func readAll[P, T any](in []P, read func(P) (T, error)) ([]T, error) {
	var out []T
	for _, p := range in {
		t, err := read(p)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func readMember(m *schemav1.PlanDeletionResponse_Member) (out peer.PlanMember, err error) {
	out = peer.PlanMember{
		Kind: m.GetResource().GetKind(), Name: m.GetResource().GetName(),
		BlockDeletion: m.GetBlockDeletion(), Finalizers: m.GetFinalizers(),
	}
	if out.UID, err = wire.UID(m.GetResource().GetUid()); err != nil {
		return out, err
	}
	if out.Entries, err = readAll(m.GetDeployments(), schema.ParseDeploymentID); err != nil {
		return out, err
	}
	if out.Ownees, err = readAll(m.GetOwneeDeployments(), schema.ParseDeploymentID); err != nil {
		return out, err
	}
	out.Vias, err = readAll(append([]*schemav1.PlanDeletionResponse_Via{m.GetVia()}, m.GetMoreVias()...), readVia)
	return out, err
}

func readVia(p *schemav1.PlanDeletionResponse_Via) (v peer.Via, err error) {
	v.Path, v.Behaviour = p.GetPath(), schema.Behaviour(p.GetBehaviour())
	v.Target, err = wire.PlanTarget(p.GetTarget().GetDeployment(), p.GetTarget().GetUid())
	return v, err
}

func readUnset(u *schemav1.PlanDeletionResponse_Unset) (out peer.PlanUnset, err error) {
	out = peer.PlanUnset{Kind: u.GetHolder().GetKind(), Name: u.GetHolder().GetName()}
	if out.UID, err = wire.UID(u.GetHolder().GetUid()); err != nil {
		return out, err
	}
	out.Via, err = readVia(u.GetVia())
	return out, err
}

func readBlocker(at schema.DeploymentID, b *schemav1.PlanDeletionResponse_Blocker) (out peer.PlanBlocker, err error) {
	out = peer.PlanBlocker{
		Holder: peer.Holder{
			Name: schema.FullName{Name: b.GetHolder().GetName()}, Path: b.GetPath(),
			Target: schema.FullName{Deployment: at, Name: b.GetTarget().GetName()},
		},
		Undecided: b.GetUndecided(), Unreachable: b.GetUnreachable(),
	}
	if out.Holder.Name.Deployment, err = schema.ParseDeploymentID(b.GetDeployment()); err != nil {
		return out, err
	}
	if out.UID, err = wire.UID(b.GetHolder().GetUid()); err != nil {
		return out, err
	}
	out.TargetUID, err = wire.OptionalUID(b.GetTarget().GetUid())
	return out, err
}

// Trace implements peer.Planner. It asks in as many calls as the bound of one call requires.
func (p *Peers) Trace(ctx context.Context, at schema.DeploymentID, uids []uuid.UUID) (map[uuid.UUID]peer.Trace, error) {
	client, err := p.Client(at)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	out := map[uuid.UUID]peer.Trace{}
	for part := range slices.Chunk(uids, wire.MaxMessages) {
		answer, err := client.TraceCascades(ctx, &schemav1.TraceCascadesRequest{Uids: wire.Bytes(part)})
		if err != nil {
			return nil, outcome.TextOf(err)
		}
		for _, t := range answer.GetTraces() {
			uid, err := wire.UID(t.GetUid())
			if err != nil {
				return nil, err
			}
			if out[uid], err = readTrace(t); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func readTrace(t *schemav1.TraceCascadesResponse_Trace) (out peer.Trace, err error) {
	if out.Cascades, err = readTargets(t.GetTargets()); err != nil {
		return out, err
	}
	out.Owners, err = readTargets(t.GetOwners())
	return out, err
}

func readTargets(in []*schemav1.PlanDeletionResponse_Target) ([]peer.PlanTarget, error) {
	return readAll(in, func(p *schemav1.PlanDeletionResponse_Target) (peer.PlanTarget, error) {
		return wire.PlanTarget(p.GetDeployment(), p.GetUid())
	})
}
