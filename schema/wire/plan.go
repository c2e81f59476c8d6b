package wire

import (
	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// PlanProto returns the message of a plan.
func PlanProto(plan *peer.Plan) *schemav1.PlanDeletionResponse {
	out := &schemav1.PlanDeletionResponse{
		Truncated: plan.Truncated, Uncounted: plan.Uncounted,
		MoreUnsets: plan.MoreUnsets, Holders: int64(plan.Holders), LeafCount: int64(plan.Leaves),
	}
	if plan.Epoch != uuid.Nil {
		out.Epoch = plan.Epoch[:]
	}
	out.NotAtomic = plan.NotAtomic
	for _, c := range plan.Counts {
		out.Counts = append(out.Counts, &schemav1.PlanDeletionResponse_Count{
			Path:      c.Path,
			Behaviour: schemav1.Behaviour(c.Behaviour), Count: int64(c.Count),
		})
	}
	leaves := map[peer.Via]*schemav1.PlanDeletionResponse_Leaves{}
	for _, m := range plan.Members {
		if !m.Leaf() {
			out.Members = append(out.Members, memberProto(m))
			continue
		}
		for _, via := range m.Vias {
			if leaves[via] == nil {
				leaves[via] = &schemav1.PlanDeletionResponse_Leaves{Via: viaProto(via)}
				out.Leaves = append(out.Leaves, leaves[via])
			}
			leaves[via].Uids = append(leaves[via].Uids, m.UID[:]...)
		}
	}
	for _, u := range plan.Unsets {
		out.Unsets = append(out.Unsets, &schemav1.PlanDeletionResponse_Unset{
			Holder: ResourceRef(u.Kind, u.Name, u.UID),
			Via:    viaProto(u.Via),
		})
	}
	for _, b := range plan.Blockers {
		out.Blockers = append(out.Blockers, &schemav1.PlanDeletionResponse_Blocker{
			Holder: ResourceRef("", b.Holder.Name.Name, b.UID), Deployment: b.Holder.Name.Deployment.String(),
			Path:   b.Holder.Path,
			Target: ResourceRef("", b.Holder.Target.Name, b.TargetUID), Undecided: b.Undecided,
			Unreachable: b.Unreachable,
		})
	}
	return out
}

func memberProto(m peer.PlanMember) *schemav1.PlanDeletionResponse_Member {
	out := &schemav1.PlanDeletionResponse_Member{
		Resource: ResourceRef(m.Kind, m.Name, m.UID), Deployments: DeploymentNames(m.Entries),
		OwneeDeployments: DeploymentNames(m.Ownees),
		BlockDeletion:    m.BlockDeletion, Finalizers: m.Finalizers,
	}
	for i, via := range m.Vias {
		if i == 0 {
			out.Via = viaProto(via)
		} else {
			out.MoreVias = append(out.MoreVias, viaProto(via))
		}
	}
	return out
}

// DeploymentNames returns the names of deployments.
func DeploymentNames(ids []schema.DeploymentID) []string {
	var out []string
	for _, d := range ids {
		out = append(out, d.String())
	}
	return out
}

func viaProto(v peer.Via) *schemav1.PlanDeletionResponse_Via {
	return &schemav1.PlanDeletionResponse_Via{
		Target: PlanTargetProto(v.Target), Path: v.Path,
		Behaviour: schemav1.Behaviour(v.Behaviour),
	}
}
