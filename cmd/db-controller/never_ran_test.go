package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// decommissioning is an installation whose deployments answer to verify and decommission.
type decommissioning struct {
	adminv1.UnimplementedAdminServiceServer
}

func (decommissioning) Decommission(context.Context,
	*adminv1.DecommissionRequest,
) (*adminv1.DecommissionResponse, error) {
	return &adminv1.DecommissionResponse{}, nil
}

func (decommissioning) Verify(_ *adminv1.VerifyRequest,
	stream grpc.ServerStreamingServer[adminv1.VerifyResponse],
) error {
	return stream.Send(&adminv1.VerifyResponse{Event: &adminv1.VerifyResponse_Progress_{
		Progress: &adminv1.VerifyResponse_Progress{Done: true},
	}})
}

// listing is a registry that knows no other deployments than those that it lists.
type listing struct {
	registryv1.UnimplementedRegistryServiceServer
}

func (listing) DecommissionDeployment(_ context.Context,
	req *registryv1.DecommissionDeploymentRequest,
) (*registryv1.DecommissionDeploymentResponse, error) {
	if !req.GetUnlisted() {
		return nil, status.Error(codes.NotFound, "unknown deployment: "+req.GetService()+"/"+req.GetRegion())
	}
	return &registryv1.DecommissionDeploymentResponse{}, nil
}

// A deployment that was described and has never run makes neither command fail, and a deployment that the
// registry does not list can be decommissioned.
func TestADescribedDeploymentThatNeverRanFailsNoCommand(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{
		Admin: decommissioning{}, Registry: listing{},
		Described: "eastus2",
	}).Context}
	got := command(t, append(at, "verify")...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "iam.example.com/eastus2: has never run\n")
	got = command(t, append(at, "decommission", "evil.example.com/mars", "--reason", "stolen", "--yes")...)
	require.Equal(t, cli.Refused, got.code)
	require.Contains(t, got.errOut,
		"deployment evil.example.com/mars is not registered; known deployments: iam.example.com/us-west2, iam.example.com/eastus2; add --unlisted")
	got = command(t, append(at, "decommission", "evil.example.com/mars", "--reason", "stolen", "--yes",
		"--unlisted")...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "has never run: it has nothing to remove")
}
