package test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// Two services in two regions with every feature of a descriptor. Tests switch b to its v2.
const everything = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
    references:
      - { path: next, targets: [Target], behaviour: CASCADE_DELETE }
      - { path: needs.*, targets: [Target, Other], behaviour: BLOCK }
      - { path: soon, targets: [Target], behaviour: ASYNC_CASCADE_DELETE }
      - { path: maybe, targets: [Target], behaviour: ASYNC_UNSET }
  - kind: Other
    patterns: ["others/{other}"]
  - kind: Hidden
    patterns: ["hidden/{hidden}"]
    hide_while_deleting: true
  - kind: Log
    patterns: ["logs/{log}"]
    constraints_disabled: true
    references: [{ path: about, targets: [Target], behaviour: BLOCK }]
---
service: a.example.com
version: v2
kinds:
  - kind: Goal
    previous_name: Target
    patterns: ["targets/{target}"]
    references:
      - { path: next, targets: [Goal], behaviour: CASCADE_DELETE }
  - kind: Other
    patterns: ["others/{other}"]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target, a.example.com/Other, a.example.com/Hidden], behaviour: BLOCK }
      - { path: unset.list.*, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: cascade, targets: [a.example.com/Target, a.example.com/Hidden], behaviour: CASCADE_DELETE }
      - { path: asyncUnset, targets: [a.example.com/Target], behaviour: ASYNC_UNSET }
      - { path: asyncCascade, targets: [a.example.com/Target], behaviour: ASYNC_CASCADE_DELETE }
      - { path: dangling, targets: [a.example.com/Target], behaviour: ALLOW_DANGLING }
  - kind: Part # lies below a target of the other service
    patterns: ["targets/{target}/parts/{part}"]
    parents: [{ kind: a.example.com/Target, behaviour: CASCADE_DELETE }]
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Keeper
    previous_name: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target, a.example.com/Other, a.example.com/Hidden], behaviour: BLOCK }
      - { path: note, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: cascade, targets: [a.example.com/Target], behaviour: CASCADE_DELETE } # whoever has not gone by then goes all the same
      - { path: dangling, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }
  - kind: Part
    patterns: ["targets/{target}/parts/{part}"]
    parents: [{ kind: a.example.com/Target, behaviour: CASCADE_DELETE }]
---
regions: [us-west2, eastus2]
deployments:
  - { deployment: a.example.com/us-west2, version: v1 }
  - { deployment: a.example.com/eastus2, version: v1 }
  - { deployment: b.example.com/us-west2, version: v1 }
  - { deployment: b.example.com/eastus2, version: v1 }
`

const (
	aWest = "//a.example.com/us-west2/"
	aEast = "//a.example.com/eastus2/"
	bWest = "//b.example.com/us-west2/"
	bEast = "//b.example.com/eastus2/"
)

// fixture runs a registry and deployments as real processes, with helpers for user actions.
type fixture struct {
	t *testing.T
	*harness.Processes
}

type fields = map[string]any

func newFixture(t *testing.T, args ...string) *fixture {
	t.Helper()
	if testing.Short() {
		t.Skip("starts five processes")
	}
	f := &fixture{t: t, Processes: harness.NewProcesses(t, everything, append([]string{"--tentative-ttl", "1s"},
		args...)...)}
	f.acquainted()
	return f
}

// acquainted waits until the deployments follow one another: a ready deployment may not have the addresses of
// deployments that registered after it.
func (f *fixture) acquainted() {
	f.t.Helper()
	require.EventuallyWithT(f.t, func(c *assert.CollectT) {
		for id := range f.Deployments {
			followed := 0
			for _, w := range f.statusFor(c, id.String()).GetWatches() {
				if w.GetName() == "deletions" && w.GetPrimed() {
					followed++
				}
			}
			interested := len(f.Deployments) // of b.example.com, which imports a.example.com
			if id.Service == "a.example.com" {
				interested /= 2
			}
			require.Equal(c, interested, followed, "%s", id)
		}
	}, wait.Limit, poll)
}

func (f *fixture) id(name string) schema.DeploymentID {
	f.t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(f.t, err)
	return full.Deployment
}

func (f *fixture) named(name string) (string, resourcev1.ResourceServiceClient) {
	f.t.Helper()
	full, resources, err := direct.Named(f.t.Context(), f.Client, name)
	require.NoError(f.t, err)
	return full.Name, resources
}

func body(t *testing.T, content fields) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(content)
	require.NoError(t, err)
	return s
}

func (f *fixture) put(name string, content fields, owners ...*resourcev1.OwnerReference) (*resourcev1.Resource, error) {
	f.t.Helper()
	relative, resources := f.named(name)
	return resources.PutResource(f.t.Context(),
		&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{
			Name: relative, Body: body(f.t, content),
			OwnerReferences: owners,
		}})
}

// mustPut is put that fails the test on an error. It repeats refusals by deployments that have just started
// and do not have the environment yet.
func (f *fixture) mustPut(name string, content fields, owners ...*resourcev1.OwnerReference) (r *resourcev1.Resource) {
	f.t.Helper()
	require.NoError(f.t, patiently(f.t.Context(), func() (err error) {
		r, err = f.put(name, content, owners...)
		return err
	}))
	return r
}

// patiently repeats calls that a busy machine did not answer in time, as a client does.
func patiently(ctx context.Context, call func() error) error {
	for began := time.Now(); ; {
		err := call()
		switch status.Code(err) {
		case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded:
			if time.Since(began) < wait.Limit {
				select {
				case <-time.After(100 * time.Millisecond):
					continue
				case <-ctx.Done():
				}
			}
		default:
		}
		return err
	}
}

func (f *fixture) delete(name string) error {
	f.t.Helper()
	relative, resources := f.named(name)
	_, err := resources.DeleteResource(f.t.Context(), &resourcev1.DeleteResourceRequest{Name: relative})
	return err
}

// mustDelete is delete that fails the test on a refusal; while the outcome is unknown it repeats the request
// with its request id, as every client should.
func (f *fixture) mustDelete(name string) {
	f.t.Helper()
	relative, resources := f.named(name)
	req := &resourcev1.DeleteResourceRequest{Name: relative, RequestId: uuid.NewString()}
	require.NoError(f.t, patiently(f.t.Context(), func() error {
		_, err := resources.DeleteResource(f.t.Context(), req)
		return err
	}))
}

func (f *fixture) get(name string) *resourcev1.Resource {
	f.t.Helper()
	relative, resources := f.named(name)
	r, err := resources.GetResource(f.t.Context(), &resourcev1.GetResourceRequest{Name: relative})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	require.NoError(f.t, err)
	return r
}

// poll is the pause between two looks at a condition: a look costs processes and PostgreSQL milliseconds that
// the others need.
const poll = 50 * time.Millisecond

// eventually waits until a condition holds.
func (f *fixture) eventually(what string, holds func() bool) {
	f.t.Helper()
	require.Eventually(f.t, holds, wait.Limit, poll, what)
}

func (f *fixture) gone(names ...string) {
	f.t.Helper()
	for _, name := range names {
		if !assert.Eventually(f.t, func() bool { return f.get(name) == nil }, wait.Limit, poll) {
			said, err := run(f.t, "explain", name, "--context", f.Context)
			status, _ := run(f.t, "status", f.id(name).String(), "--context", f.Context)
			require.FailNow(f.t, name+" does not go", "%v\n%s\n%v\n%s", f.get(name), said, err, status)
		}
	}
}

func (f *fixture) status(deployment string) *adminv1.StatusResponse {
	f.t.Helper()
	return f.statusFor(f.t, deployment)
}

// statusFor is status for a test, or for one try of it.
func (f *fixture) statusFor(t require.TestingT, deployment string) *adminv1.StatusResponse {
	id, err := schema.ParseDeploymentID(deployment)
	require.NoError(t, err)
	admin, err := f.Client.Admin(f.t.Context(), id)
	require.NoError(t, err)
	s, err := admin.Status(f.t.Context(), &adminv1.StatusRequest{})
	require.NoError(t, err)
	return s
}

// settled waits until no deployment has outstanding work, and audits all databases.
func (f *fixture) settled() {
	f.t.Helper()
	require.EventuallyWithT(f.t, func(c *assert.CollectT) {
		for id := range f.Deployments {
			require.Empty(c, f.status(id.String()).GetOutstanding(), "%s", id)
		}
	}, wait.Limit, poll)
	audit(f.t, f.Processes)
}

// analyze updates the planner's statistics of a deployment's database, as autovacuum may do at any time.
func (f *fixture) analyze(deployment string) {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.Deployments[f.id(deployment+"x/y")].DSN)
	require.NoError(f.t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(f.t.Context(),
		"ANALYZE dbcontroller.change, dbcontroller.removal, dbcontroller.shadow, dbcontroller.reference")
	require.NoError(f.t, err)
}

// switchVersion makes a deployment run another version, and waits until it does.
func (f *fixture) switchVersion(deployment, version string) {
	f.t.Helper()
	id, err := schema.ParseDeploymentID(deployment)
	require.NoError(f.t, err)
	_, err = direct.SetVersion(f.t.Context(), f.Client, id, version)
	require.NoError(f.t, err)
	f.eventually(deployment+" runs "+version, func() bool { return f.status(deployment).GetVersion() == version })
}

// as connects to a deployment with a given certificate.
func (f *fixture) as(certs, deployment string, options ...grpc.DialOption) *grpc.ClientConn {
	f.t.Helper()
	id, err := schema.ParseDeploymentID(deployment)
	require.NoError(f.t, err)
	credentials, err := identity.Load(identity.InDir(certs))
	require.NoError(f.t, err)
	conn, err := grpc.NewClient(f.Deployments[id].Address, append(credentials.DialOptions(identity.Deployment(id)),
		options...)...)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (f *fixture) asUser(deployment string) *grpc.ClientConn {
	f.t.Helper()
	certs, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "ann"})
	require.NoError(f.t, err)
	return f.as(certs, deployment)
}

func (f *fixture) ready(deployment string) {
	f.t.Helper()
	id, err := schema.ParseDeploymentID(deployment)
	require.NoError(f.t, err)
	ctx, cancel := context.WithTimeout(f.t.Context(), wait.Limit)
	defer cancel()
	require.NoError(f.t, f.Deployments[id].WaitReady(ctx))
}
