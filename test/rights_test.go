package test

import (
	"crypto/x509"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/wire"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// Projects in two regions, and devices of another service that refer to them.
const projectsAndDevices = `
service: iam.example.com
version: v1
kinds: [{ kind: Project, patterns: ["projects/{project}"] }]
---
service: devices.example.com
version: v1
imports: [iam.example.com@v1]
kinds:
  - kind: Device
    patterns: ["devices/{device}"]
    references:
      - { path: project, targets: [iam.example.com/Project], behaviour: CASCADE_DELETE }
---
regions: [us-west2, eastus2]
deployments:
  - { deployment: iam.example.com/us-west2, version: v1 }
  - { deployment: iam.example.com/eastus2, version: v1 }
  - { deployment: devices.example.com/eastus2, version: v1 }
`

const (
	iamWest     = "//iam.example.com/us-west2/"
	devicesEast = "//devices.example.com/eastus2/"
)

// Team a has its projects and its devices, and may refer to a shared project.
const rightsOfTeamA = `
rights:
  default: deny
  grants:
    - { group: team-a, verbs: [read, delete, refer], kind: iam.example.com/Project, name: projects/a-* }
    - { group: team-a, verbs: [refer], kind: iam.example.com/Project, name: projects/shared }
    - { group: team-a, verbs: [read, write], kind: devices.example.com/Device, name: devices/a-* }
    - { group: team-a, verbs: [delete], kind: devices.example.com/Device, name: devices/a-ann }
    - { group: team-a, verbs: [delete], kind: devices.example.com/Device, name: devices/a-cat }
`

// declare applies rights.
func (f *fixture) declare(text string) {
	f.t.Helper()
	file, err := schema.ParseFile("rights.yaml", strings.NewReader(text))
	require.NoError(f.t, err)
	_, err = f.Client.Registry().Apply(f.t.Context(), &registryv1.ApplyRequest{Rights: wire.RightsProto(file.Rights)})
	require.NoError(f.t, err)
}

// withToken connects to a deployment with a token and no certificate.
func (f *fixture) withToken(token identity.TokenFile, deployment string) resourcev1.ResourceServiceClient {
	f.t.Helper()
	id, err := schema.ParseDeploymentID(deployment)
	require.NoError(f.t, err)
	authorities, err := identity.LoadAuthorities(identity.InDir(f.ClientCerts()))
	require.NoError(f.t, err)
	conn, err := grpc.NewClient(f.Deployments[id].Address, append(authorities.DialOptions(identity.Deployment(id)),
		grpc.WithPerRPCCredentials(token))...)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })
	return resourcev1.NewResourceServiceClient(conn)
}

func device(t *testing.T, name, project string) *resourcev1.PutResourceRequest {
	t.Helper()
	return &resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{
		Name: "devices/" + name,
		Body: body(t, fields{"project": iamWest + "projects/" + project}),
	}}
}

// codeOf repeats a call that a busy machine did not answer, and returns the code of its answer.
func codeOf(t *testing.T, call func() error) codes.Code {
	t.Helper()
	return status.Code(patiently(t.Context(), call))
}

// People have the rights of their groups at two deployments and between them: their references are checked at
// the target for them, whether they come with a token or with a certificate, and an allowed delete takes
// along resources that they may not see.
func TestRightsHoldBetweenDeployments(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts four processes")
	}
	issuer := harness.NewIssuer(t)
	f := &fixture{t: t, Processes: harness.NewProcessesWith(t, projectsAndDevices,
		playground.Config{Args: []string{"--tokens", issuer.Tokens("db")}})}
	require.NoError(t, f.Registry.Stop())
	f.Registry.Add("--tokens")
	f.Registry.Add(issuer.Tokens("db"))
	require.NoError(t, f.Registry.Start())
	require.NoError(t, f.Registry.WaitReady(t.Context()))
	for _, name := range []string{"a-1", "a-2", "shared", "secret"} {
		f.mustPut(iamWest+"projects/"+name, nil)
	}
	f.mustPut(devicesEast+"devices/a-old", fields{"project": iamWest + "projects/a-1"})
	f.mustPut(devicesEast+"devices/hidden", fields{"project": iamWest + "projects/a-1"})
	f.settled()
	f.declare(rightsOfTeamA)

	ann, bob := issuer.File("ann", "db", time.Hour, "team-a"), issuer.File("bob", "db", time.Hour)
	cat, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "cat"}, func(c *x509.Certificate) {
		c.Subject.OrganizationalUnit = []string{"team-a"}
	})
	require.NoError(t, err)
	annAt, catAt := f.withToken(ann, "devices.example.com/eastus2"),
		resourcev1.NewResourceServiceClient(f.as(cat, "devices.example.com/eastus2"))
	bobAt := f.withToken(bob, "devices.example.com/eastus2")
	f.eventually("the rights arrive", func() bool {
		_, err := bobAt.GetResource(t.Context(), &resourcev1.GetResourceRequest{Name: "devices/a-old"})
		return status.Code(err) == codes.PermissionDenied
	})

	// Refer: at the target, for the person, by a token and by the groups of a certificate.
	for name, at := range map[string]resourcev1.ResourceServiceClient{"a-ann": annAt, "a-cat": catAt} {
		put := func(project string) codes.Code {
			return codeOf(t, func() error {
				_, err := at.PutResource(t.Context(), device(t, name, project))
				return err
			})
		}
		f.eventually("the target's deployment has the rights", func() bool {
			if put("secret") == codes.PermissionDenied {
				return true
			}
			// The reference was written before the rights arrived, and is not checked again until it is
			// another one.
			put("shared")
			return false
		})
		require.Equal(t, codes.PermissionDenied, put("secret"), name)
		require.Equal(t, codes.PermissionDenied, put("missing"), "%s: whether it exists or not", name)
		require.Equal(t, codes.OK, put("shared"), name)
		require.Equal(t, codes.OK, put("a-1"), name)
	}
	require.Equal(t, codes.PermissionDenied, codeOf(t, func() error {
		_, err := bobAt.PutResource(t.Context(), device(t, "a-bob", "shared"))
		return err
	}))

	// An owner elsewhere: by the same grants, at the deployment that is written to, whether it exists or not.
	for owner, code := range map[string]codes.Code{
		"secret": codes.PermissionDenied, "missing": codes.PermissionDenied,
		"shared": codes.OK,
	} {
		put := device(t, "a-owned", "shared")
		put.Resource.OwnerReferences = []*resourcev1.OwnerReference{ownedBy("Project", iamWest+"projects/"+owner)}
		require.Equal(t, code, codeOf(t, func() error {
			_, err := annAt.PutResource(t.Context(), put)
			return err
		}), "the owner %s", owner)
	}

	// The command line with --token-file: lists have the resources that ann may read, and so has a plan,
	// which counts the rest.
	as := []string{"--context", f.Context, "--token-file", string(ann)}
	out, err := run(t, append([]string{"list", "devices.example.com/eastus2"}, as...)...)
	require.NoError(t, err, out)
	require.Contains(t, out, "devices/a-old")
	require.NotContains(t, out, "hidden")
	out, err = run(t, append([]string{"plan", iamWest + "projects/a-1"}, as...)...)
	require.NoError(t, err, out)
	require.Contains(t, out, "devices/a-old")
	require.NotContains(t, out, "hidden")
	require.Contains(t, out, "1 more")

	// A delete needs its right on the root alone, and cascades over the services.
	f.settled()
	out, err = run(t, append([]string{"delete", iamWest + "projects/shared"}, as...)...)
	require.Error(t, err)
	require.Contains(t, out, "no right to delete")
	require.Equal(t, codes.PermissionDenied, codeOf(t, func() error {
		_, err := annAt.DeleteResource(t.Context(), &resourcev1.DeleteResourceRequest{Name: "devices/a-old"})
		return err
	}))
	_, err = run(t, append([]string{"delete", iamWest + "projects/a-1"}, as...)...)
	require.NoError(t, err)
	f.gone(iamWest+"projects/a-1", devicesEast+"devices/a-old", devicesEast+"devices/hidden",
		devicesEast+"devices/a-ann", devicesEast+"devices/a-cat")
	out, err = run(t, "removals", devicesEast+"devices/hidden", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "user/ann (token of https://idp.example.org)")

	// A request that another region forwards has the person's rights, and is audited as that region's word.
	door := resourcev1.NewResourceServiceClient(f.as(cat, "iam.example.com/eastus2"))
	require.Equal(t, codes.PermissionDenied, codeOf(t, func() error {
		_, err := door.DeleteResource(t.Context(), &resourcev1.DeleteResourceRequest{Name: iamWest + "projects/secret"})
		return err
	}))
	require.Equal(t, codes.OK, codeOf(t, func() error {
		_, err := door.DeleteResource(t.Context(), &resourcev1.DeleteResourceRequest{Name: iamWest + "projects/a-2"})
		return err
	}))
	out, err = run(t, "removals", iamWest+"projects/a-2", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "user/cat by way of eastus2")
	log, err := os.ReadFile(f.Deployments[f.id(iamWest+"x/y")].Log())
	require.NoError(t, err)
	audited := ""
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "audit") && strings.Contains(line, "projects/a-2") {
			audited = line
		}
	}
	require.Contains(t, audited, "the word of iam.example.com/eastus2")

	// The issuer signs with another key.
	issuer.Rotate()
	rotated := f.withToken(issuer.File("ann", "db", time.Hour, "team-a"), "devices.example.com/eastus2")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := rotated.ListResources(t.Context(), &resourcev1.ListResourcesRequest{})
		require.NoError(c, err)
	}, wait.Limit, time.Second)
}
