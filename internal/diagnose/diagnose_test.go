package diagnose_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/internal/diagnose"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

type answering struct {
	adminv1.AdminServiceClient
	status *adminv1.StatusResponse
	err    error
}

func (a answering) Status(context.Context, *adminv1.StatusRequest,
	...grpc.CallOption,
) (*adminv1.StatusResponse, error) {
	return a.status, a.err
}

const (
	own   = "iam.example.com/us-west2"
	other = "devices.example.com/eastus2"
)

func deployments(all map[string]answering) diagnose.Deployments {
	return diagnose.Deployments{
		Admin: func(_ context.Context, id schema.DeploymentID) (adminv1.AdminServiceClient, error) {
			a, known := all[id.String()]
			if !known {
				return nil, status.Error(codes.PermissionDenied, "not shown here")
			}
			return a, nil
		},
		Plain: error.Error,
	}
}

// A caller that may not ask a deployment learns nothing of it; that is no silence.
func TestWhoMayNotAskIsToldNothing(t *testing.T) {
	t.Parallel()
	ownID, err := schema.ParseDeploymentID(own)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		answers map[string]answering
		types   []string
	}{
		"not shown": {nil, nil},
		"may not":   {map[string]answering{other: {err: status.Error(codes.PermissionDenied, "no")}}, nil},
		"dark": {
			map[string]answering{other: {err: status.Error(codes.Unavailable, "dark")}},
			[]string{"SILENT"},
		},
		"unknown": {map[string]answering{other: {err: errors.New("no address")}}, []string{"SILENT"}},
		"works":   {map[string]answering{other: {status: &adminv1.StatusResponse{}}}, nil},
		"fails": {
			map[string]answering{
				other: {status: &adminv1.StatusResponse{Failures: []*adminv1.Failure{{
					Handler:    "subscribed_deleting",
					Deployment: own,
				}}}},
			}, []string{"FAILING"},
		},
		"fails again": {
			map[string]answering{
				other: {status: &adminv1.StatusResponse{
					Failures: []*adminv1.Failure{{Handler: "subscribed_deleting_again", Deployment: own}},
				}},
			}, []string{
				"FAILING",
			},
		},
		"of another": {
			map[string]answering{
				other: {status: &adminv1.StatusResponse{Failures: []*adminv1.Failure{{
					Handler:    "subscribed_deleting",
					Deployment: other,
				}}}},
			}, nil,
		},
		"no handler": {
			map[string]answering{
				other: {status: &adminv1.StatusResponse{Failures: []*adminv1.Failure{{
					Handler:    "database",
					Deployment: own,
				}}}},
			}, nil,
		},
		"paused": {map[string]answering{other: {status: &adminv1.StatusResponse{
			Failures: []*adminv1.Failure{
				{Handler: "subscribed_deleting", Deployment: own},
				{Handler: "subscribed_deleting_again", Deployment: own},
			}, Pauses: []*adminv1.Pause{{
				Of:      other,
				Handler: "SUBSCRIBED_DELETING",
			}},
		}}}, []string{"PAUSED"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &adminv1.ExplainResponse{WaitsFor: []string{own, other}}
			deployments(c.answers).Explain(t.Context(), ownID, e)
			var types []string
			for _, r := range e.GetReasons() {
				types = append(types, r.GetType())
			}
			require.Equal(t, c.types, types)
		})
	}
}

func TestStuckDeletionsHaveWhatFailsThere(t *testing.T) {
	t.Parallel()
	next := timestamppb.New(time.Now().Add(time.Hour))
	answers := map[string]*adminv1.ListStuckResponse{own: {Work: []*adminv1.ListStuckResponse_Work{
		{Group: "acknowledge", Deployment: other},
		{Group: "acknowledge", Deployment: "dark.example.com/r"},
		{Group: "release", Deployment: other},
	}}, "silent.example.com/r": nil}
	deployments(map[string]answering{
		other: {
			status: &adminv1.StatusResponse{Failures: []*adminv1.Failure{{
				Handler:    "subscribed_deleting",
				Deployment: own, Error: "a key", NextTime: next,
			}}},
		},
		"dark.example.com/r": {err: errors.New("dark")},
	}).Stuck(t.Context(), answers)
	work := answers[own].GetWork()
	require.Equal(t, "there subscribed-deleting fails: a key", work[0].GetLastError())
	require.Equal(t, next, work[0].GetNextTime())
	require.Empty(t, work[1].GetLastError())
	require.Empty(t, work[2].GetLastError())
}
