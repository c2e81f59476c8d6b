package server_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

const importing = `
service: iam.example.com
version: v1
kinds: [{kind: Account, patterns: ["accounts/{account}"]}]
---
service: devices.example.com
version: v1
imports: [iam.example.com@v1]
kinds: [{kind: Device, patterns: ["devices/{device}"], references: [{path: account, targets: [iam.example.com/Account], behaviour: BLOCK}]}]
---
service: devices.example.com
version: v2
patterns_dropped: keep
kinds: [{kind: Sensor, patterns: ["sensors/{sensor}"]}]
---
regions: [us-west2, eastus2]
deployments:
  - {deployment: iam.example.com/us-west2, version: v1}
  - {deployment: devices.example.com/eastus2, version: v1}
`

// The last description of an import stays as long as both services have deployments that ran: resources that
// were stored under it may still refer there, and a restored database of the imported service would wait for
// no deployment.
func TestTheLastDescriptionOfAnImportStays_I2_I15(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	devices := schema.DeploymentID{Service: "devices.example.com", Region: "eastus2"}
	operator := serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"})
	apply(t, operator, importing)
	register := func(id schema.DeploymentID) {
		own := serve(t, dsn, identity.Deployment(id))
		_, err := own.RegisterDeployment(t.Context(), &registryv1.RegisterDeploymentRequest{
			Service: id.Service,
			Region:  id.Region, Address: "host:1", Generation: next(t, own, id),
		})
		require.NoError(t, err)
	}
	register(west)
	register(devices)
	apply(t, operator, strings.Replace(importing, "eastus2, version: v1}", "eastus2, version: v2}", 1))
	remove := func(req *registryv1.RemoveRequest) error {
		_, err := operator.Remove(t.Context(), req)
		return err
	}
	old := &registryv1.RemoveRequest{Services: []string{"devices.example.com@v1"}}
	err := remove(old)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err,
		"devices.example.com@v1 is described as importing iam.example.com, and no other description of devices.example.com would be")
	file, err := schema.ParseFile("services.yaml", strings.NewReader(strings.Replace(importing, `imports: [iam.example.com@v1]
kinds: [{kind: Device, patterns: ["devices/{device}"], references: [{path: account, targets: [iam.example.com/Account], behaviour: BLOCK}]}]`,
		`kinds: [{kind: Device, patterns: ["devices/{device}"]}]`, 1)))
	require.NoError(t, err)
	again := &registryv1.ApplyRequest{}
	for _, d := range file.Services {
		again.Services = append(again.Services, wire.DescriptorProto(d))
	}
	_, err = operator.Apply(t.Context(), again)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "nor is it described anew without it: %v", err)
	old.Deployments = []string{devices.String()}
	old.Services = append(old.Services, "devices.example.com@v2")
	require.NoError(t, remove(old))
}

// A deployment that was removed, and is described again, still has its resources: it is not taken for one
// that never ran.
func TestADeploymentThatIsDescribedAgainHasRun_I2_I15(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	operator := serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"})
	apply(t, operator, importing)
	described := func() schema.Deployment {
		env, err := operator.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
		require.NoError(t, err)
		d, _ := wire.Environment(env.GetEnvironment()).Deployment(west)
		return d
	}
	require.True(t, described().NeverRan())
	_, err := serve(t, dsn, identity.Deployment(west)).RegisterDeployment(t.Context(),
		&registryv1.RegisterDeploymentRequest{
			Service: west.Service, Region: west.Region, Address: "host:1",
			Database:   "0190b1a2-0000-7000-8000-000000000001",
			Generation: 1,
		})
	require.NoError(t, err)
	_, err = operator.Remove(t.Context(), &registryv1.RemoveRequest{Deployments: []string{west.String()}})
	require.NoError(t, err)
	apply(t, operator, importing)
	require.Empty(t, described().Address)
	require.False(t, described().NeverRan())
}
