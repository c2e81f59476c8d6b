package peers

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// The plan of another deployment has uids and deployments, or is refused; it is the same after it was sent
// on.
func FuzzPlans(f *testing.F) {
	at := schema.DeploymentID{Service: "a.example.com", Region: "eu"}
	uid := uuid.New()
	via := &schemav1.PlanDeletionResponse_Via{Target: &schemav1.PlanDeletionResponse_Target{
		Deployment: at.String(),
		Uid:        uid[:],
	}, Path: "p", Behaviour: 3}
	for _, answer := range []*schemav1.PlanDeletionResponse{
		{},
		{Truncated: true, Counts: []*schemav1.PlanDeletionResponse_Count{{Path: "p", Behaviour: 1, Count: 7}}},
		{Members: []*schemav1.PlanDeletionResponse_Member{
			{
				Via: via, MoreVias: []*schemav1.PlanDeletionResponse_Via{via},
				Deployments: []string{"b.example.com/us"},
			},
		}},
		{Leaves: []*schemav1.PlanDeletionResponse_Leaves{
			{Via: via, Uids: append(uid[:], uid[:]...)},
			{Via: via, Uids: uid[:]},
		}},
	} {
		raw, err := proto.Marshal(answer)
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		answer := &schemav1.PlanDeletionResponse{}
		if proto.Unmarshal(raw, answer) != nil {
			return
		}
		plan, err := readPlan(at, answer)
		if err != nil {
			return
		}
		for _, m := range plan.Members {
			require.NotEqual(t, uuid.Nil, m.UID)
			for _, v := range m.Vias {
				require.NoError(t, schema.CheckService(v.Target.Deployment.Service))
			}
		}
		again, err := readPlan(at, wire.PlanProto(plan))
		require.NoError(t, err)
		require.Equal(t, plan, again)
	})
}
