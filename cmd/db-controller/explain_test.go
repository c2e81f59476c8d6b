package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// waitingFor explains a deletion that waits for other deployments, of which one has pauses, and is all of
// them in the stub.
type waitingFor struct {
	adminv1.UnimplementedAdminServiceServer
	others []string
}

func (w waitingFor) Explain(context.Context, *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	return &adminv1.ExplainResponse{
		Name: acmeName, Kind: "Project", State: "DELETING", Uid: "u1", WaitsFor: w.others,
		Reasons: []*adminv1.ExplainResponse_Reason{
			{Type: "WAITING", Message: "for iam.example.com/eastus2 to cascade or unset"},
		},
	}, nil
}

func (waitingFor) Status(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	at := timestamppb.Now()
	return &adminv1.StatusResponse{Pauses: []*adminv1.Pause{
		{Of: "iam.example.com/eastus2", Actor: "operator/ann", Reason: "ticket 1", Time: at},
		{
			Of: "iam.example.com/us-west2", Handler: "SUBSCRIBED_DELETING", Actor: "operator/eve",
			Reason: "ticket 2", Time: at,
		},
		{Of: "other.example.com/r", Actor: "operator/eve", Reason: "of no concern", Time: at},
	}, Failures: []*adminv1.Failure{
		{
			Handler: "owned_deleting", Deployment: "iam.example.com/us-west2", Error: "projects/acme: a key refuses it",
			Time: at,
		},
		{
			Handler: "subscribed_deleting", Deployment: "iam.example.com/us-west2",
			Error: "an operator has paused the handler", Time: at,
		},
		{Handler: "owned_deleting", Deployment: "elsewhere.example.com/r", Error: "of no concern", Time: at},
	}}, nil
}

// The cause of a wait may be elsewhere: explain shows the pauses of the deployments that have to act, and
// which of them do not answer.
func TestAnExplanationAsksTheDeploymentsThatHaveToAct(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{
		Admin: waitingFor{others: []string{
			"iam.example.com/eastus2", "iam.example.com/us-west2",
			"gone.example.com/r",
		}},
		Beside: map[string]resourcev1.ResourceServiceServer{"eastus2": &project{}},
	}).Context}
	got := command(t, append(at, "explain", acmeName)...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "WAITING    for iam.example.com/eastus2 to cascade or unset\n")
	require.Contains(t, got.out,
		"PAUSED     operator/ann has paused deletions at iam.example.com/eastus2: ticket 1, since 0s\n")
	require.Contains(t, got.out, "PAUSED     operator/eve has paused ")
	require.Contains(t, got.out, " for iam.example.com/us-west2 at iam.example.com/eastus2: ticket 2, since 0s\n")
	require.Contains(t, got.out, "FAILING    owned-deleting for iam.example.com/us-west2 at iam.example.com/eastus2\n"+
		"             last error: projects/acme: a key refuses it\n")
	require.NotContains(t, got.out, "of no concern")
	require.NotContains(t, got.out, "an operator has paused the handler", "the pause is shown")
	require.Contains(t, got.out,
		"What happens there: status iam.example.com/eastus2, status iam.example.com/us-west2, status gone.example.com/r\n")
	require.Contains(t, got.out, "SILENT     gone.example.com/r does not answer\n             last error: ")
	got = command(t, append(at, "explain", acmeName, "-o", "json")...)
	require.Contains(t, got.out, `"waitsFor"`)
	require.Contains(t, got.out, "ticket 1")
}

// going is in DELETING, and nothing keeps it: it goes between two looks.
type going struct {
	adminv1.UnimplementedAdminServiceServer
}

func (going) Explain(context.Context, *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	return &adminv1.ExplainResponse{Name: acmeName, Kind: "Project", State: "DELETING", Uid: "u1"}, nil
}

func TestAnExplanationOfWhatGoesSaysSo(t *testing.T) {
	t.Parallel()
	got := command(t, "--context", stub.New(t, stub.Services{Admin: going{}}).Context, "explain", acmeName)
	require.Equal(t, ran{
		0, acmeName + "  Project  DELETING  uid u1\n  Nothing keeps it: it is removed in a moment.\n",
		"",
	}, got)
}
