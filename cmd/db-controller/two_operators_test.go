package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/approval"
	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// approving is a deployment that keeps the requests of decisions.
type approving struct {
	adminv1.UnimplementedAdminServiceServer
	got []approval.Request
}

func (a *approving) Status(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	return &adminv1.StatusResponse{
		Database: "b5a4fd9a-2e0c-4a58-9a3e-6a35b5f0a001",
		Epoch:    &adminv1.StatusResponse_Epoch{Id: "e", Unconfirmed: []string{"devices.example.com/eastus2"}},
	}, nil
}

func (a *approving) ListReleasable(_ context.Context,
	req *adminv1.ListReleasableRequest,
) (*adminv1.ListReleasableResponse, error) {
	rows := []*adminv1.Releasable{{Key: "a|1", Breaks: "one"}, {Key: "a|2", Breaks: "two"}}
	if req.GetName() == "projects/other" {
		rows = rows[:1]
	}
	return &adminv1.ListReleasableResponse{Releasable: rows}, nil
}

func (a *approving) ForceRelease(_ context.Context,
	req *adminv1.ForceReleaseRequest,
) (*adminv1.ForceReleaseResponse, error) {
	a.got = append(a.got, req)
	return &adminv1.ForceReleaseResponse{Released: req.GetKeys()}, nil
}

func (a *approving) Decommission(_ context.Context,
	req *adminv1.DecommissionRequest,
) (*adminv1.DecommissionResponse, error) {
	if !req.GetValidateOnly() {
		a.got = append(a.got, req)
	} else if req.GetApproval() != "" {
		return nil, context.Canceled
	}
	return &adminv1.DecommissionResponse{}, nil
}

func (a *approving) WaiveComparison(_ context.Context,
	req *adminv1.WaiveComparisonRequest,
) (*adminv1.WaiveComparisonResponse, error) {
	a.got = append(a.got, req)
	return &adminv1.WaiveComparisonResponse{}, nil
}

func (a *approving) AcceptDatabase(_ context.Context,
	req *adminv1.AcceptDatabaseRequest,
) (*adminv1.AcceptDatabaseResponse, error) {
	a.got = append(a.got, req)
	return &adminv1.AcceptDatabaseResponse{}, nil
}

// approvingRegistry is a registry that keeps the requests of decisions.
type approvingRegistry struct {
	registryv1.UnimplementedRegistryServiceServer
	got *[]approval.Request
}

func (a approvingRegistry) DecommissionDeployment(_ context.Context,
	req *registryv1.DecommissionDeploymentRequest,
) (*registryv1.DecommissionDeploymentResponse, error) {
	*a.got = append(*a.got, req)
	return &registryv1.DecommissionDeploymentResponse{}, nil
}

func (a approvingRegistry) AcceptDatabase(_ context.Context,
	req *registryv1.AcceptDatabaseRequest,
) (*registryv1.Deployment, error) {
	*a.got = append(*a.got, req)
	return &registryv1.Deployment{}, nil
}

// The first operator signs each decision, and nothing is sent; the second one sends what was signed, with the
// signature; an operator sends no decision of its own, and adds no flag to a signed one.
func TestADecisionIsSignedByOneOperatorAndSentByAnother(t *testing.T) {
	t.Parallel()
	const west, east = "iam.example.com/us-west2", "iam.example.com/eu-west1"
	for name, c := range map[string]struct {
		args, signed []string // of both operators; of the first one alone
		at           []string // the servers that were signed for
	}{
		"force-release": {
			[]string{"force-release", "//" + west + "/projects/acme"}, []string{
				"--key", "a|1", "--key", "a|2",
				"--reason", "ticket 4711",
			}, []string{west},
		},
		"force-release --unconfirmed-of": {
			[]string{"force-release", west, "--unconfirmed-of", east},
			[]string{"--reason", "ticket 4711"},
			[]string{west},
		},
		"decommission": {
			[]string{"decommission", east},
			[]string{"--reason", "closed", "--blocking", "CASCADE_DELETE"},
			[]string{approval.Registry, west},
		},
		"force-release --comparison-of": {
			[]string{"force-release", west, "--comparison-of", "devices.example.com/eastus2"},
			[]string{"--reason", "down"},
			[]string{west},
		},
		"decommission --former-database": {
			[]string{"decommission", west, "--former-database"},
			[]string{"--reason", "lost"},
			[]string{east, approval.Registry},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &approving{}
			i := stub.New(t, stub.Services{
				Admin: d, Registry: approvingRegistry{got: &d.got},
				Beside: map[string]resourcev1.ResourceServiceServer{
					"eu-west1": resourcev1.UnimplementedResourceServiceServer{},
				},
			})
			ada, omar, file := i.As(t, "ada"), i.As(t, "omar"), filepath.Join(t.TempDir(), "decision")
			run := func(context string, more ...string) ran {
				return command(t, append(append([]string{"--context", context}, c.args...), more...)...)
			}
			got := run(ada, append(c.signed, "--propose", file)...)
			require.Zero(t, got.code, got.errOut)
			require.Contains(t, got.out,
				"signed by operator/ada; nothing has changed. Another operator sends it until ")
			require.Contains(t, got.out, "  db-controller "+strings.Join(c.args, " ")+" --approve "+file+" --yes\n")
			require.Empty(t, d.got)
			require.Equal(t, cli.WrongUsage, run(ada, append(c.signed, "--propose", file)...).code, "the file exists")

			got = run(ada, "--approve", file, "--yes")
			require.Equal(t, cli.Refused, got.code)
			require.Contains(t, got.errOut, "operator/ada has signed it: another operator has to send it")
			got = run(omar, "--approve", file, "--yes", "--reason", "another")
			require.Equal(t, cli.WrongUsage, got.code)
			require.Contains(t, got.errOut, "leave out --reason")
			got = run(omar, "--approve", file)
			require.Equal(t, cli.WrongUsage, got.code, "a decision that cannot be undone needs --yes")
			require.Contains(t, got.errOut, "add --yes to continue")
			require.Empty(t, d.got)
			if name == "force-release" { // the operator sees before the release that the file has keys of other rows
				got = command(t, "--context", omar, "force-release", "//"+west+"/projects/other", "--approve", file)
				require.Equal(t, cli.WrongUsage, got.code)
				require.Contains(t, got.out, "1 of the 2 signed keys are of rows that //"+west+
					"/projects/other does not have now")
			}
			require.NoError(t, os.WriteFile(file+".changed", append(read(t, file)[:40], "x\n"...), 0o600))
			got = run(omar, "--approve", file+".changed", "--yes")
			require.Equal(t, cli.Refused, got.code)
			require.Contains(t, got.errOut, "line 1: it is no signature")

			got = run(omar, "--approve", file, "--yes")
			require.Zero(t, got.code, got.errOut)
			require.Contains(t, got.out, "signed by operator/ada, valid until ")
			require.NotEmpty(t, d.got)
			trusted, err := identity.Load(identity.InDir(i.Certs))
			require.NoError(t, err)
			for n, sent := range d.got {
				by, err := approval.Verify(trusted, c.at[min(n, len(c.at)-1)],
					identity.Identity{Role: identity.RoleOperator, Name: "omar"}, sent, time.Now())
				require.NoError(t, err, "%T", sent)
				require.Equal(t, "operator/ada", by.String())
				require.True(t, proto.Equal(sent, d.got[n]))
			}
		})
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	return raw
}
