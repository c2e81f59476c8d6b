package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

const dropping = `
service: iam.example.com
version: v1
kinds: [{kind: Project, patterns: ["projects/{project}"]}, {kind: Key, patterns: ["keys/{key}", "projects/{project}/keys/{key}"]}]
---
service: iam.example.com
version: v2
kinds: [{kind: Folder, previous_name: Project, patterns: ["projects/{project}"]}, {kind: Key, patterns: ["keys/{k}"]}]
---
service: iam.example.com
version: v3
patterns_dropped: keep
kinds: [{kind: Folder, previous_name: Project, patterns: ["projects/{project}"]}]
---
regions: [us-west2, eastus2]
deployments:
  - {deployment: iam.example.com/us-west2, version: v1}
  - {deployment: iam.example.com/eastus2, version: v1}
`

// dropper is a registry with an operator, and two deployments of which the western one has registered.
type dropper struct {
	t        *testing.T
	operator registryv1.RegistryServiceClient
	own      registryv1.RegistryServiceClient
}

func newDropper(t *testing.T) *dropper {
	t.Helper()
	dsn := database(t)
	d := &dropper{
		t: t, operator: serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"}),
		own: serve(t, dsn, identity.Deployment(west)),
	}
	apply(t, d.operator, dropping)
	d.register()
	return d
}

func (d *dropper) register() {
	d.t.Helper()
	_, err := d.own.RegisterDeployment(d.t.Context(), &registryv1.RegisterDeploymentRequest{
		Service: west.Service,
		Region:  west.Region, Address: "west:1", Generation: next(d.t, d.own, west),
	})
	require.NoError(d.t, err)
}

func (d *dropper) setVersion(region, version string, unused ...*registryv1.UnusedPattern) error {
	_, err := d.operator.SetDeploymentVersion(d.t.Context(), &registryv1.SetDeploymentVersionRequest{
		Service: west.Service, Region: region, Version: version, PatternsUnused: unused,
	})
	return err
}

func (d *dropper) apply(version string, unused ...*registryv1.UnusedPattern) error {
	_, err := d.operator.Apply(d.t.Context(), &registryv1.ApplyRequest{
		Deployments:    []*registryv1.Deployment{{Service: west.Service, Region: west.Region, Version: version}},
		PatternsUnused: unused,
	})
	return err
}

func (d *dropper) version() string {
	env, err := d.operator.GetEnvironment(d.t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(d.t, err)
	of, _ := wire.Environment(env.GetEnvironment()).Deployment(west)
	return of.Version
}

func unused(region, kind, pattern string) *registryv1.UnusedPattern {
	return &registryv1.UnusedPattern{Service: west.Service, Region: region, Kind: kind, Pattern: pattern}
}

// Both calls refuse a version that drops a pattern of a deployment that has run, unless the version keeps
// such resources, or the caller names the pattern of that deployment as unused.
func TestAVersionThatDropsAPatternNeedsAConfirmation(t *testing.T) {
	t.Parallel()
	d := newDropper(t)
	for name, set := range map[string]func(version string, unused ...*registryv1.UnusedPattern) error{
		"set version": func(version string, unused ...*registryv1.UnusedPattern) error {
			return d.setVersion(west.Region, version, unused...)
		},
		"apply": d.apply,
	} {
		for _, given := range [][]*registryv1.UnusedPattern{
			nil,
			{unused("eastus2", "Key", "projects/{project}/keys/{key}")},
			{unused(west.Region, "Folder", "projects/{project}/keys/{key}")},
			{unused(west.Region, "Key", "keys/{key}")},
		} {
			err := set("v2", given...)
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%s %v: %v", name, given, err)
			require.ErrorContains(t, err,
				"iam.example.com@v2 has no pattern projects/{project}/keys/{key} of kind Key, and iam.example.com/us-west2 may store such resources")
			require.ErrorContains(t, err, "patterns_dropped: keep")
			require.NotContains(t, err.Error(), "Project", "it was renamed, and keeps its pattern")
			require.Equal(t, "v1", d.version())
		}
		require.NoError(t, set("v2", unused(west.Region, "Key", "projects/{project}/keys/{key}")), name)
		require.Equal(t, "v2", d.version())
		require.NoError(t, set("v1"), "%s: it drops nothing", name)
	}
	require.NoError(t, d.setVersion("eastus2", "v2"), "it never ran, and stores nothing")
	require.NoError(t, d.setVersion(west.Region, "v3"), "it keeps them")
}

// A deployment that is removed from the registry and applied again still has its database: also if its
// version was removed or described anew meanwhile, and until it has registered.
func TestADeploymentThatIsAppliedAgainDropsNoPatternUnnoticed(t *testing.T) {
	t.Parallel()
	d := newDropper(t)
	remove := func(services ...string) {
		t.Helper()
		_, err := d.operator.Remove(t.Context(),
			&registryv1.RemoveRequest{
				Deployments: []string{west.String(), "iam.example.com/eastus2"},
				Services:    services,
			})
		require.NoError(t, err)
	}
	key := unused(west.Region, "Key", "projects/{project}/keys/{key}")
	refused := func(err error) {
		t.Helper()
		require.ErrorContains(t, err, "has no pattern projects/{project}/keys/{key} of kind Key")
		require.ErrorContains(t, err, "it ran iam.example.com@v1 when it was removed")
	}
	remove("iam.example.com@v1")
	refused(d.apply("v2"))
	require.NoError(t, d.apply("v3"))
	remove() // before it has run: v1 is still the version that it ran
	refused(d.apply("v2"))

	// The same name, another content.
	const anew = "service: iam.example.com\nversion: v1\nkinds: [{kind: Project, patterns: [\"projects/{project}\"]}]\n"
	apply(t, d.operator, anew)
	require.ErrorContains(t, d.apply("v1"), "has no pattern keys/{key} of kind Key")

	_, err := d.operator.Remove(t.Context(), &registryv1.RemoveRequest{Services: []string{"iam.example.com@v1"}})
	require.NoError(t, err)
	apply(t, d.operator, dropping)
	refused(d.setVersion(west.Region, "v2"))
	require.NoError(t, d.setVersion(west.Region, "v2", key))
	apply(t, d.operator, "regions: [asia-east1]")
	d.register() // no longer compared with v1
	require.NoError(t, d.setVersion(west.Region, "v1"))
	require.Error(t, d.setVersion(west.Region, "v2"))
	env, err := d.operator.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	of, _ := wire.Environment(env.GetEnvironment()).Deployment(schema.DeploymentID{
		Service: west.Service,
		Region:  west.Region,
	})
	require.Equal(t, "west:1", of.Address)
}
