package peers

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// An owner that exists has a uid and a kind. An answer without them, or with a verdict of a newer version,
// decides nothing.
func TestIncompleteAnswersAboutOwnersDecideNothing_I15(t *testing.T) {
	t.Parallel()
	exists := schemav1.CheckOwnersResponse_VERDICT_EXISTS
	got, err := readOwnerAnswers(&schemav1.CheckOwnersResponse{Answers: []*schemav1.CheckOwnersResponse_Answer{
		{Verdict: exists, Kind: "Owner", Uid: bytesOf(uid(1))},
		{Verdict: exists, Kind: "Owner"},
		{Verdict: exists, Kind: "owner", Uid: bytesOf(uid(1))},
		{Verdict: 99},
		{},
	}})
	require.NoError(t, err)
	var verdicts []peer.OwnerVerdict
	for _, a := range got.Answers {
		verdicts = append(verdicts, a.Verdict)
	}
	require.Equal(t, []peer.OwnerVerdict{
		peer.OwnerExists, peer.OwnerUnknown, peer.OwnerUnknown, peer.OwnerUnknown,
		peer.OwnerUnknown,
	}, verdicts)
	_, err = readOwnerAnswers(&schemav1.CheckOwnersResponse{Answers: []*schemav1.CheckOwnersResponse_Answer{
		{Uid: []byte("bad")},
	}})
	require.ErrorContains(t, err, "a uid has 16 bytes")
}

// A plan with a part that cannot be read is no plan: a member that is overlooked would not be deleted.
func TestUnreadablePlansAreRefused(t *testing.T) {
	t.Parallel()
	type answer = schemav1.PlanDeletionResponse
	via := func() *schemav1.PlanDeletionResponse_Via {
		return &schemav1.PlanDeletionResponse_Via{Target: &schemav1.PlanDeletionResponse_Target{
			Deployment: other.String(), Uid: bytesOf(uid(1)),
		}, Path: "a", Behaviour: 3}
	}
	member := func() *schemav1.PlanDeletionResponse_Member {
		return &schemav1.PlanDeletionResponse_Member{
			Resource: wire.ResourceRef("Device", "devices/d", uid(1)),
			Via:      via(),
		}
	}
	for name, a := range map[string]*answer{
		"a member without a uid": {Members: []*schemav1.PlanDeletionResponse_Member{{Via: via()}}},
		"a member without a reason": {Members: []*schemav1.PlanDeletionResponse_Member{
			{Resource: wire.ResourceRef("", "", uid(1))},
		}},
		"a member of no deployment": {Members: []*schemav1.PlanDeletionResponse_Member{func() *schemav1.PlanDeletionResponse_Member {
			m := member()
			m.Deployments = []string{"x"}
			return m
		}()}},
		"ownees of no deployment": {Members: []*schemav1.PlanDeletionResponse_Member{func() *schemav1.PlanDeletionResponse_Member {
			m := member()
			m.OwneeDeployments = []string{"x"}
			return m
		}()}},
		"a second reason without a target": {Members: []*schemav1.PlanDeletionResponse_Member{func() *schemav1.PlanDeletionResponse_Member {
			m := member()
			m.MoreVias = append(m.MoreVias, nil)
			return m
		}()}},
		"leaves without a reason": {Leaves: []*schemav1.PlanDeletionResponse_Leaves{
			{Uids: bytesOf(uid(1))},
		}},
		"leaves with half a uid": {Leaves: []*schemav1.PlanDeletionResponse_Leaves{{
			Via:  via(),
			Uids: append(bytesOf(uid(1)), 1, 2),
		}}},
		"an unset holder without a uid": {Unsets: []*schemav1.PlanDeletionResponse_Unset{{Via: via()}}},
		"an unset holder without a reason": {Unsets: []*schemav1.PlanDeletionResponse_Unset{
			{Holder: wire.ResourceRef("", "", uid(1))},
		}},
		"a blocker of no deployment": {Blockers: []*schemav1.PlanDeletionResponse_Blocker{
			{Holder: wire.ResourceRef("", "", uid(1))},
		}},
		"a blocker without a uid": {Blockers: []*schemav1.PlanDeletionResponse_Blocker{
			{Deployment: other.String()},
		}},
		"a blocker of a target without bytes": {Blockers: []*schemav1.PlanDeletionResponse_Blocker{
			{
				Deployment: other.String(), Holder: wire.ResourceRef("", "", uid(1)),
				Target: &schemav1.ResourceRef{Uid: []byte{1}},
			},
		}},
	} {
		_, err := readPlan(self, a)
		require.Error(t, err, name)
	}
	plan, err := readPlan(self, &answer{Members: []*schemav1.PlanDeletionResponse_Member{member()}})
	require.NoError(t, err)
	require.Len(t, plan.Members[0].Vias, 1)
}

func TestUnreadableTracesAreRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []*schemav1.TraceCascadesResponse_Trace{
		{Targets: []*schemav1.PlanDeletionResponse_Target{{Deployment: "x"}}},
		{Owners: []*schemav1.PlanDeletionResponse_Target{{Deployment: other.String()}}},
	} {
		_, err := readTrace(bad)
		require.Error(t, err)
	}
}
