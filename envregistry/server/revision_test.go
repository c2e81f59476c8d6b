package server_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// Each method by which an operator changes the environment leaves a record: actor, proof, time and
// difference. The policy has the list of such methods, so that a new one needs a line here.
func TestEachChangeIsOnRecord(t *testing.T) {
	t.Parallel()
	olga := identity.Identity{Role: identity.RoleOperator, Name: "olga"}
	dsn := database(t)
	c := serve(t, dsn, olga)
	began := time.Now().Add(-time.Minute)
	apply(t, c, example)
	call := map[string]func() error{
		registryv1.RegistryService_Apply_FullMethodName: func() error {
			apply(t, c,
				"rights: {default: deny, grants: [{identity: user/ann, verbs: [read, delete], kind: iam.example.com/Project, name: projects/acme}]}")
			return nil
		},
		registryv1.RegistryService_SetDeploymentVersion_FullMethodName: func() error {
			_, err := c.SetDeploymentVersion(t.Context(), &registryv1.SetDeploymentVersionRequest{
				Service: west.Service,
				Region:  west.Region, Version: "v2",
			})
			return err
		},
		registryv1.RegistryService_AcceptDatabase_FullMethodName: func() error {
			_, err := c.AcceptDatabase(t.Context(), &registryv1.AcceptDatabaseRequest{
				Service: west.Service,
				Region:  west.Region, Database: "b5a4fd9a-2e0c-4a58-9a3e-6a35b5f0a001",
			})
			return err
		},
		registryv1.RegistryService_DecommissionDeployment_FullMethodName: func() error {
			_, err := c.DecommissionDeployment(t.Context(),
				&registryv1.DecommissionDeploymentRequest{Service: west.Service, Region: west.Region, Reason: "sold"})
			return err
		},
		registryv1.RegistryService_Remove_FullMethodName: func() error {
			_, err := c.Remove(t.Context(), &registryv1.RemoveRequest{Deployments: []string{"iam.example.com/eastus2"}})
			return err
		},
	}
	want := map[string]string{
		"Apply":                  "rights: created\n  everybody loses refer where no grant allows it: the default is deny\n  user/ann gains read, delete on iam.example.com/Project at and below projects/acme",
		"SetDeploymentVersion":   "deployment iam.example.com/us-west2: changed\n  version: v1 → v2",
		"AcceptDatabase":         "deployment iam.example.com/us-west2: changed\n  database: none → b5a4fd9a-2e0c-4a58-9a3e-6a35b5f0a001",
		"DecommissionDeployment": "deployment iam.example.com/us-west2: decommissioned",
		"Remove":                 "deployment iam.example.com/eastus2: removed",
	}
	for method, roles := range server.Policy {
		if len(roles) == 1 && roles[0] == identity.RoleOperator && !strings.Contains(method, "/List") {
			require.Contains(t, call, method, "how does it leave a record?")
		}
	}
	for _, method := range []string{
		"Apply", "SetDeploymentVersion", "AcceptDatabase", "DecommissionDeployment",
		"Remove",
	} {
		require.NoError(t, call["/dbcontroller.registry.v1.RegistryService/"+method](), method)
		found, err := c.ListRevisions(t.Context(), &registryv1.ListRevisionsRequest{PageSize: 1})
		require.NoError(t, err)
		require.Len(t, found.GetRevisions(), 1)
		require.NotEmpty(t, found.GetNextPageToken())
		newest := found.GetRevisions()[0]
		require.Equal(t, []string{want[method]}, newest.GetChanges())
		require.Equal(t, method, newest.GetMethod())
		require.Equal(t, "operator/olga", newest.GetActor())
		require.NotEmpty(t, newest.GetRequestId())
		require.True(t, newest.GetTime().AsTime().After(began))
		if method == "DecommissionDeployment" {
			require.Equal(t, "sold", newest.GetReason())
		}
		env, err := c.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
		require.NoError(t, err)
		require.Equal(t, env.GetEnvironment().GetRevision(), newest.GetRevision())
	}

	var all []*registryv1.Revision
	for token := ""; ; {
		page, err := c.ListRevisions(t.Context(), &registryv1.ListRevisionsRequest{PageSize: 2, PageToken: token})
		require.NoError(t, err)
		all = append(all, page.GetRevisions()...)
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	require.Len(t, all, 6)
	require.Contains(t, all[5].GetChanges(), "service iam.example.com@v1: created")

	services, _, _ := strings.Cut(example, "regions:")
	apply(t, c, services) // nothing changes
	_, err := c.ListRevisions(t.Context(), &registryv1.ListRevisionsRequest{PageToken: "x"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	same, err := c.ListRevisions(t.Context(), &registryv1.ListRevisionsRequest{})
	require.NoError(t, err)
	require.Len(t, same.GetRevisions(), 6, "what changes nothing leaves no record")
}

// A dry run returns the changes, and the rights that each identity and group would gain or lose, and changes
// nothing.
func TestADryRunOfApplyChangesNothing(t *testing.T) {
	t.Parallel()
	c := serve(t, database(t), identity.Identity{Role: identity.RoleOperator, Name: "o"})
	apply(t, c, example)
	apply(t, c,
		"rights: {default: deny, grants: [{identity: user/ann, verbs: [read, delete], name: projects/acme}, {group: sre, verbs: [read]}]}")
	before, err := c.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	answer, err := dryRun(t, c, `
service: iam.example.com
version: v2
kinds: [{kind: Project, patterns: ["projects/{project}"], hide_while_deleting: true}]
---
deployments: [{deployment: iam.example.com/eastus2, version: v1, disabled: true}]
rights: {default: deny, grants: [{identity: user/ann, verbs: [read], name: projects/*}, {group: sre, verbs: [read, operate]}]}
`)
	require.NoError(t, err)
	require.Equal(t, []string{
		"service iam.example.com@v2: changed\n  kinds[Project].hide_while_deleting: true (added)",
		"deployment iam.example.com/eastus2: changed\n  disabled: false → true",
		"rights: changed\n  user/ann gains read on everything with names projects/*\n  group sre gains operate on everything\n  user/ann loses delete on everything at and below projects/acme",
	}, answer.GetChanges())
	_, err = dryRun(t, c, "deployments: [{deployment: iam.example.com/eastus2, version: v9}]")
	require.Equal(t, codes.InvalidArgument, status.Code(err), "as the change itself")
	after, err := c.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	require.Equal(t, before.GetEnvironment().String(), after.GetEnvironment().String())
}

func dryRun(t *testing.T, c registryv1.RegistryServiceClient, yaml string) (*registryv1.ApplyResponse, error) {
	t.Helper()
	file, err := schema.ParseFile("f", strings.NewReader(yaml))
	require.NoError(t, err)
	env := wire.EnvironmentProto(&schema.Environment{
		Regions: file.Regions, Services: file.Services,
		Deployments: file.Deployments, Rights: file.Rights,
	})
	return c.Apply(context.Background(), &registryv1.ApplyRequest{
		Services:    env.GetServices(),
		Deployments: env.GetDeployments(), Rights: env.GetRights(), ValidateOnly: true,
	})
}
