package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// decided keeps the decisions of operators.
type decided struct {
	adminv1.UnimplementedAdminServiceServer
	registryv1.UnimplementedRegistryServiceServer
	waived   []string
	accepted []string
	refuse   error
}

func (d *decided) WaiveComparison(_ context.Context,
	req *adminv1.WaiveComparisonRequest,
) (*adminv1.WaiveComparisonResponse, error) {
	d.waived = append(d.waived, req.GetDeployment()+": "+req.GetReason())
	return &adminv1.WaiveComparisonResponse{}, d.refuse
}

func (*decided) Status(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	return &adminv1.StatusResponse{
		Deployment: "iam.example.com/us-west2", Database: "db-2",
		Epoch: &adminv1.StatusResponse_Epoch{Id: "e-2", Unconfirmed: []string{"devices.example.com/eastus2"}},
	}, nil
}

func (d *decided) AcceptDatabase(_ context.Context,
	req *registryv1.AcceptDatabaseRequest,
) (*registryv1.Deployment, error) {
	d.accepted = append(d.accepted, req.GetService()+"/"+req.GetRegion()+" "+req.GetDatabase())
	return &registryv1.Deployment{}, d.refuse
}

func (*decided) Explain(_ context.Context, req *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	if req.GetName() != "projects/acme" {
		return &adminv1.ExplainResponse{Name: req.GetName(), Kind: "Project", State: "ACTIVE", Uid: "u2"}, nil
	}
	return &adminv1.ExplainResponse{
		Name: "//iam.example.com/us-west2/projects/acme", Kind: "Project",
		State: "DELETING", Pending: true, Uid: "u1", Reasons: []*adminv1.ExplainResponse_Reason{
			{
				Type: "BLOCKED", Message: "devices/d1 blocks it", Since: timestamppb.Now(),
				LastError: "connection refused",
			},
		},
	}, nil
}

// adminOf is the part of decided that a deployment serves: two services have a method of the same name.
type adminOf struct {
	adminv1.UnimplementedAdminServiceServer
	*decisionsOf
}

type decisionsOf struct{ of *decided }

func (a adminOf) WaiveComparison(ctx context.Context,
	req *adminv1.WaiveComparisonRequest,
) (*adminv1.WaiveComparisonResponse, error) {
	return a.of.WaiveComparison(ctx, req)
}

func (a adminOf) Status(ctx context.Context, req *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	return a.of.Status(ctx, req)
}

func (a adminOf) Explain(ctx context.Context, req *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	return a.of.Explain(ctx, req)
}

func deciding(t *testing.T, d *decided) []string {
	t.Helper()
	return []string{"--context", stub.New(t, stub.Services{
		Admin:    adminOf{decisionsOf: &decisionsOf{d}},
		Registry: d,
	}).Context}
}

// A decision that cannot be undone needs a reason and a confirmation, before anything is called.
func TestDecisionsNeedAReasonAndAConfirmation(t *testing.T) {
	t.Parallel()
	d := &decided{}
	at := deciding(t, d)
	waive := []string{"force-release", "iam.example.com/us-west2", "--comparison-of", "devices.example.com/eastus2"}
	accept := []string{"decommission", "iam.example.com/us-west2", "--former-database"}
	for _, decision := range [][]string{waive, accept} {
		for _, given := range [][]string{nil, {"--yes"}, {"--reason", "lost"}} {
			got := command(t, append(append(append([]string{}, at...), decision...), given...)...)
			require.Equal(t, cli.WrongUsage, got.code, "%q %q: %s", decision, given, got.errOut)
		}
	}
	require.Equal(t, cli.WrongUsage, command(t, append(at, "force-release", "iam.example.com/us-west2",
		"--comparison-of", "devices", "--reason", "x", "--yes")...).code)
	require.Empty(t, d.waived)
	require.Empty(t, d.accepted)
}

func TestAWaivedComparisonIsStoredWithItsReason(t *testing.T) {
	t.Parallel()
	d := &decided{}
	args := append(deciding(t, d), "force-release", "iam.example.com/us-west2", "--comparison-of",
		"devices.example.com/eastus2", "--reason", "down for days", "--yes")
	got := command(t, args...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, "iam.example.com/us-west2 no longer waits for devices.example.com/eastus2\n", got.out)
	wrong := append(deciding(t, d), "force-release", "iam.example.com/us-west2", "--comparison-of",
		"devices.example.com/eastus22", "--reason", "down for days", "--yes")
	got = command(t, wrong...)
	require.Equal(t,
		ran{
			cli.Refused, "",
			"error: devices.example.com/eastus22 is not registered, and iam.example.com/us-west2 does not wait for it; it waits for: devices.example.com/eastus2\n",
		}, got)
	require.Equal(t, []string{"devices.example.com/eastus2: down for days"}, d.waived)
	d.refuse = status.Error(codes.FailedPrecondition, "it waits for nothing")
	got = command(t, args...)
	require.Equal(t, cli.Refused, got.code)
	require.Contains(t, got.errOut, "it waits for nothing (FailedPrecondition)")
}

// The registry learns the accepted database last; when it does not, the command says to run it again.
func TestAnAcceptedDatabaseIsThatOfTheDeployment(t *testing.T) {
	t.Parallel()
	d := &decided{}
	args := append(deciding(t, d), "decommission", "iam.example.com/us-west2", "--former-database", "--reason",
		"disk lost", "--yes")
	got := command(t, args...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "iam.example.com/us-west2 uses the database db-2\n")
	require.Equal(t, []string{"iam.example.com/us-west2 db-2"}, d.accepted)
	d.refuse = status.Error(codes.PermissionDenied, "not an operator")
	got = command(t, args...)
	require.Equal(t, cli.Unavailable, got.code)
	require.Contains(t, got.errOut,
		"the registry still names the former database of iam.example.com/us-west2: run the same command again later")
}

func TestExplainPrintsEachReasonWithItsError(t *testing.T) {
	t.Parallel()
	at := deciding(t, &decided{})
	got := command(t, append(at, "explain", "//iam.example.com/us-west2/projects/acme")...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "//iam.example.com/us-west2/projects/acme  Project  DELETING, PENDING  uid u1\n")
	require.Contains(t, got.out, "  BLOCKED    devices/d1 blocks it, since 0s\n")
	require.Contains(t, got.out, "last error: connection refused\n")
	got = command(t, append(at, "explain", "//iam.example.com/us-west2/projects/other")...)
	require.Contains(t, got.out,
		"  It waits for nothing.\n  What its delete would do, and what refuses it: plan projects/other\n")
}
