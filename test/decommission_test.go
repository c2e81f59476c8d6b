package test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// A deployment burns down. Deletions wait for it until two operators decommission it, and no longer; it never
// comes back.
func TestDecommission_I15(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "--owner-grace", "1s")
	const gone = "b.example.com/us-west2"
	f.mustPut(aWest+"targets/blocked", nil)
	f.mustPut(aWest+"targets/waits", nil)
	f.mustPut(bWest+"holders/blocks", fields{"block": aWest + "targets/blocked"})
	f.mustPut(bWest+"holders/cascades", fields{"cascade": aWest + "targets/waits"})
	f.mustPut(aEast+"targets/owned", nil, ownedBy("Holder", bWest+"holders/blocks"))
	f.pinned(aEast+"targets/owned", 1)
	f.settled()
	certs, err := f.Issue(identity.Deployment(f.id(bWest + "holders/x")))
	require.NoError(t, err)
	process := f.Deployments[f.id(bWest+"holders/x")]
	require.NoError(t, process.Kill())
	f.mustDelete(aWest + "targets/waits")
	require.ErrorContains(t, f.delete(aWest+"targets/blocked"), "blocks")
	require.Equal(t, resourcev1.Resource_STATE_DELETING, f.get(aWest+"targets/waits").GetState())

	open, err := schemav1.NewSchemaServiceClient(f.as(certs, "a.example.com/us-west2")).
		WatchImportedServiceDeletions(t.Context(), &schemav1.WatchImportedServiceDeletionsRequest{})
	require.NoError(t, err)

	refused := func(says string, args ...string) string {
		out, err := run(t, append(args, "--context", f.Context)...)
		require.Error(t, err, out)
		require.Contains(t, out, says)
		return out
	}
	refused("cannot come back afterwards: add --yes to continue", "decommission", gone, "--reason", "fire")
	refused("--reason is missing", "decommission", gone, "--yes")
	refused("deployment c.example.com/mars is not registered", "decommission", "c.example.com/mars", "--reason",
		"fire", "--yes")
	// The command names a deployment that it cannot reach; repeating it reaches that one later.
	rights, decision := filepath.Join(t.TempDir(), "rights.yaml"), filepath.Join(t.TempDir(), "decision")
	require.NoError(t, os.WriteFile(rights, []byte("rights: {two_operators: [decommission, force-release]}\n"), 0o600))
	out, err := run(t, "apply", rights, "--context", f.Context)
	require.NoError(t, err, out)
	refused("decommission needs two operators here: sign it with --propose FILE", "decommission", gone, "--reason",
		"fire, ticket 4711", "--yes")
	second, err := f.Issue(identity.Identity{Role: identity.RoleOperator, Name: "second"})
	require.NoError(t, err)
	secondContext := filepath.Join(t.TempDir(), "second.yaml")
	require.NoError(t, os.WriteFile(secondContext, fmt.Appendf(nil, "registry: %s\ncerts: %s\n", f.RegistryAddress,
		second), 0o600))
	out, err = run(t, "decommission", gone, "--reason", "fire, ticket 4711", "--propose", decision, "--context",
		secondContext)
	require.NoError(t, err, out)
	late := f.Deployments[f.id(aEast+"targets/x")]
	require.NoError(t, late.Kill())
	out = refused("a.example.com/eastus2 did not answer, and still waits for b.example.com/us-west2", "decommission",
		gone, "--approve", decision, "--yes")
	require.Contains(t, out, "b.example.com/us-west2 is decommissioned in the registry")
	f.gone(aWest + "targets/waits")
	f.mustDelete(aWest + "targets/blocked")
	require.NoError(t, late.Start())
	f.ready("a.example.com/eastus2")
	require.NotNil(t, f.get(aEast+"targets/owned"), "the deployment has not received the Decommission")
	out, err = run(t, "decommission", gone, "--approve", decision, "--yes", "--context", f.Context)
	require.NoError(t, err, out)
	f.gone(aEast + "targets/owned")
	out, err = run(t, "status", "a.example.com/eastus2", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, gone+" is decommissioned, by operator/playground (certificate, signed by operator/second)")
	require.Contains(t, out, "fire, ticket 4711")

	// Other deployments refuse it with any certificate, and so does the registry; its name is not used again.
	for err == nil { // its open streams end
		_, err = open.Recv()
	}
	require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
	_, err = resourcev1.NewResourceServiceClient(f.as(certs, "a.example.com/us-west2")).GetResource(t.Context(),
		&resourcev1.GetResourceRequest{Name: "targets/x"})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.ErrorContains(t, err, "decommissioned")
	file := filepath.Join(t.TempDir(), "again.yaml")
	require.NoError(t, os.WriteFile(file, []byte("deployments: [{deployment: "+gone+", version: v1}]\n"), 0o600))
	refused("was decommissioned by operator/", "apply", file)
	_, err = f.put(aWest+"targets/new", nil, ownedBy("Holder", bWest+"holders/blocks"))
	require.ErrorContains(t, err, "decommissioned")
	// Users may not decommission.
	_, err = adminv1.NewAdminServiceClient(f.asUser("a.example.com/us-west2")).Decommission(t.Context(),
		&adminv1.DecommissionRequest{Deployment: "a.example.com/eastus2", Reason: "x"})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
}
