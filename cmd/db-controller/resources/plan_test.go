package resources

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

func planned(plan *resourcev1.PlanDeletionResponse) string {
	var out strings.Builder
	WritePlan(&out, plan)
	return out.String()
}

// A plan is a tree of groups: each below the group whose deletion reaches it, with the path that does.
func TestAPlanIsATreeOfGroups(t *testing.T) {
	t.Parallel()
	const iam, devices = "iam.example.com/us-west2", "devices.example.com/eastus2"
	got := planned(&resourcev1.PlanDeletionResponse{
		Accepted: true, Truncated: true,
		Groups: []*resourcev1.PlanDeletionResponse_Group{
			{Parent: -1, Deployment: iam, Kind: "Project", Count: 1, Samples: []string{"//" + iam + "/projects/a"}},
			{
				Parent: 0, Deployment: iam, Kind: "Account", Path: "@parent", Count: 2,
				Samples: []string{"//" + iam + "/projects/a/accounts/1", "//" + iam + "/projects/a/accounts/2"},
			},
			{
				Parent: 1, Deployment: devices, Kind: "Device", Path: "account", Count: 5,
				Samples: []string{"//" + devices + "/devices/d"}, Unset: true, AtLeast: true,
			},
			{
				Parent: 0, Deployment: iam, Kind: "Pass", Path: "account", Count: 1,
				Samples: []string{"//" + iam + "/passes/p"}, Finalizers: []string{"badge", "door"},
			},
			{
				Parent: 0, Deployment: iam, Kind: "Key", Path: "@owner", Count: 1,
				Samples: []string{"//" + iam + "/keys/k"},
			},
		},
	})
	require.Equal(t, `//iam.example.com/us-west2/projects/a  Project
├─ 2 Account deleted in iam.example.com/us-west2 (parent): projects/a/accounts/1, projects/a/accounts/2
│  └─ ≥ 5 Device unset in devices.example.com/eastus2 (account): devices/d, and 4 more
├─ 1 Pass deleted in iam.example.com/us-west2 (account): passes/p, after the clean-up by badge and door
└─ 1 Key deleted in iam.example.com/us-west2 (owner): keys/k

A delete would be accepted: ≥ 5 deleted, ≥ 5 unset.
≥ is "at least": the plan stopped at its limit. Referrers of the visited resources are counted beyond it, resources below the others are not.
`, got)
}

// A kind with a retention hides first.
func TestAPlanNamesTheRetention(t *testing.T) {
	t.Parallel()
	got := planned(&resourcev1.PlanDeletionResponse{
		Accepted: true, Retention: durationpb.New(7 * 24 * time.Hour),
		Groups: []*resourcev1.PlanDeletionResponse_Group{
			{
				Parent: -1, Deployment: "iam.example.com/us-west2", Kind: "Project", Count: 1,
				Samples: []string{"//iam.example.com/us-west2/projects/a"},
			},
		},
	})
	require.Contains(t, got,
		"The retention of the kind is 7d: until then they are hidden, nothing is unset, and undelete brings them back.")
}

// A plan that has not asked, or not counted, says so in its first line, and does not say that a delete would
// be accepted.
func TestAnIncompletePlanSaysSoFirst(t *testing.T) {
	t.Parallel()
	silent := &resourcev1.UnaskedDeployment{
		Deployment: "a.example.com/eu", Message: "timeout",
		Reason: resourcev1.UnaskedDeployment_REASON_UNREACHABLE,
	}
	limited := &resourcev1.UnaskedDeployment{
		Deployment: "b.example.com/eu", Message: "limit",
		Reason: resourcev1.UnaskedDeployment_REASON_LIMIT_REACHED,
	}
	for want, plan := range map[string]*resourcev1.PlanDeletionResponse{
		"INCOMPLETE: 1 deployment did not answer\n": {
			Unasked: []*resourcev1.UnaskedDeployment{silent},
		},
		"INCOMPLETE: 1 deployment behind the limit of the plan was not asked\n": {
			Unasked: []*resourcev1.UnaskedDeployment{limited},
		},
		"INCOMPLETE: what is behind the limit of the plan could not be counted in time\n": {
			Uncounted: true,
			Truncated: true,
		},
		"INCOMPLETE: 1 deployment did not answer, and what is behind the limit of the plan could ": {
			Uncounted: true,
			Unasked:   []*resourcev1.UnaskedDeployment{silent},
		},
	} {
		got := planned(plan)
		require.True(t, strings.HasPrefix(got, want), got)
		require.Contains(t, got, "Nothing known refuses a delete: ≥ 0 deleted")
		require.NotContains(t, got, "would be accepted")
	}
}

// Each blocker is printed with its effect: known blockers differ from those about which a deployment did not
// answer.
func TestBlockersOfAPlanArePrintedByTheirEffect(t *testing.T) {
	t.Parallel()
	for want, b := range map[string]*resourcev1.PlanDeletionResponse_Blocker{
		"refused    h (p) blocks t\n":                               {Refuses: true},
		"refused    h (p) blocks t; its deployment does not answer": {Refuses: true, Unanswered: true},
		"waits      h (p) blocks t, which waits for it\n":           {},
		"undecided  h (p) may be about to refer to t\n":             {Undecided: true},
		"undecided  h (p) refers to t or is about to: its deployment does not": {
			Undecided:  true,
			Unanswered: true,
		},
		"unknown    h (p) blocks t, unless it is deleted as well, which is unknown": {
			Unknown: true, Undecided: true,
			Refuses: true,
		},
	} {
		b.Holder, b.Path, b.Target = "h", "p", "t"
		got := planned(&resourcev1.PlanDeletionResponse{
			Refusal:  "it is blocked",
			Blockers: []*resourcev1.PlanDeletionResponse_Blocker{b}, TotalBlockers: 3,
		})
		require.Contains(t, got, want)
		require.Contains(t, got, "and 2 more that block, or may\n")
		if b.GetUndecided() {
			require.Contains(t, got, "A delete would fail now: it is blocked\n")
		} else {
			require.Contains(t, got, "A delete would be refused: it is blocked\n")
		}
	}
}

// The last line of a plan has the full name of the resource, as commands take it.
func TestAPlanRefusesByFullName(t *testing.T) {
	t.Parallel()
	const iam = "iam.example.com/us-west2"
	group := &resourcev1.PlanDeletionResponse_Group{
		Parent: -1, Deployment: iam, Kind: "Project", Count: 1,
		Samples: []string{"//" + iam + "/projects/a"},
	}
	for refusal, want := range map[string]string{
		"projects/a cannot be deleted":  "//" + iam + "/projects/a cannot be deleted",
		"projects/ab cannot be deleted": "projects/ab cannot be deleted",
	} {
		got := planned(&resourcev1.PlanDeletionResponse{
			Refusal: refusal,
			Groups:  []*resourcev1.PlanDeletionResponse_Group{group},
		})
		require.Contains(t, got, "A delete would be refused: "+want+"\n")
	}
}

// A deployment that was not asked is named with the reason: its resources are not in the plan.
func TestAPlanNamesTheDeploymentsThatWereNotAsked(t *testing.T) {
	t.Parallel()
	got := planned(&resourcev1.PlanDeletionResponse{Refusal: "unavailable", Unasked: []*resourcev1.UnaskedDeployment{
		{Deployment: "a.example.com/eu", Message: "connection refused"},
		{
			Deployment: "b.example.com/eu", Message: "the plan reached its limit",
			Reason: resourcev1.UnaskedDeployment_REASON_LIMIT_REACHED,
		},
	}})
	require.Contains(t, got,
		"not asked  a.example.com/eu does not answer; its resources are not in this plan (connection refused)\n")
	require.Contains(t, got, "not asked  the plan reached its limit\n")
}

// A patch names the fields that it changes, so that the others stay.
func TestAPatchNamesTheFieldsThatItChanges(t *testing.T) {
	t.Parallel()
	update, _, err := patchOf([]string{"title=Acme", "quota.devices=5"}, []string{"note"},
		[]string{"team=blue", "stage="})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"body.title", "body.quota.devices", "body.note", "labels.team", "labels.stage"},
		update.GetUpdateMask().GetPaths())
	require.Equal(t, map[string]any{"title": "Acme", "quota": map[string]any{"devices": 5.0}},
		update.GetResource().GetBody().AsMap())
	require.Equal(t, map[string]string{"team": "blue"}, update.GetResource().GetLabels())
	for _, wrong := range [][3][]string{
		{{"title"}, nil, nil},
		{nil, {"note=1"}, nil},
		{nil, {""}, nil},
		{nil, nil, {"team"}},
		{},
	} {
		_, _, err := patchOf(wrong[0], wrong[1], wrong[2])
		require.Error(t, err, "%q", wrong)
	}
}
