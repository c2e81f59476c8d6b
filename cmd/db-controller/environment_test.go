package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/wire"
	"github.com/db-controller/db-controller/test/stub"
)

const registered = `
service: iam.example.com
version: v1
kinds: [{kind: Project, patterns: ["projects/{project}"]}]
---
regions: [us-west2]
deployments: [{deployment: iam.example.com/us-west2, version: v1}]
rights:
  default: deny
  grants:
    - {identity: user/ann, verbs: [read, delete], kind: iam.example.com/Project, name: projects/acme}
    - {group: sre, verbs: [operate]}
    - {identity: "*", verbs: [read]}
`

// readable is a registry with an environment and two revisions.
type readable struct {
	registryv1.UnimplementedRegistryServiceServer
	env     *registryv1.Environment
	own     bool
	applied chan *registryv1.ApplyRequest // one place
}

func (r *readable) GetEnvironment(context.Context,
	*registryv1.GetEnvironmentRequest,
) (*registryv1.GetEnvironmentResponse, error) {
	return &registryv1.GetEnvironmentResponse{Environment: r.env, OwnGrantsOnly: r.own}, nil
}

func (r *readable) Apply(_ context.Context, req *registryv1.ApplyRequest) (*registryv1.ApplyResponse, error) {
	r.applied <- req
	return &registryv1.ApplyResponse{Changes: []string{"rights: changed\n  user/ann loses delete on everything"}}, nil
}

func (r *readable) ListRevisions(_ context.Context,
	req *registryv1.ListRevisionsRequest,
) (*registryv1.ListRevisionsResponse, error) {
	all := []*registryv1.Revision{
		{
			Revision: 2, Time: &timestamppb.Timestamp{Seconds: 1e9}, Actor: "operator/olga", Proof: "certificate",
			Method: "DecommissionDeployment", Reason: "sold", RequestId: "r2",
			Changes: []string{"deployment a.example.com/eu: decommissioned"},
		},
		{
			Revision: 1, Time: &timestamppb.Timestamp{Seconds: 1e9}, Actor: "operator/omar", Proof: "certificate",
			Method: "Apply", RequestId: "r1",
			Changes: []string{"rights: changed\n  user/ann gains read on everything"},
		},
	}
	if req.GetPageToken() == "" && req.GetPageSize() < 2 {
		return &registryv1.ListRevisionsResponse{Revisions: all[:1], NextPageToken: "1"}, nil
	}
	return &registryv1.ListRevisionsResponse{Revisions: all}, nil
}

func newReadable(t *testing.T) (*readable, []string) {
	t.Helper()
	return readableOf(t, registered)
}

func readableOf(t *testing.T, text string) (*readable, []string) {
	t.Helper()
	f, err := schema.ParseFile("f", strings.NewReader(text))
	require.NoError(t, err)
	env := wire.EnvironmentProto(&schema.Environment{
		Regions: f.Regions, Services: f.Services,
		Deployments: f.Deployments, Rights: f.Rights,
	})
	env.Deployments[0].Address, env.Deployments[0].Generation = "10.0.0.7:5432", 3
	r := &readable{env: env, applied: make(chan *registryv1.ApplyRequest, 1)}
	return r, []string{"--context", stub.New(t, stub.Services{Registry: r}).Context}
}

// An applied environment is read back, and applied again as it was. It does not have the addresses that
// processes registered.
func TestTheEnvironmentIsReadBack(t *testing.T) {
	t.Parallel()
	r, at := newReadable(t)
	got := command(t, append(at, "get", "environment", "-o", "yaml")...)
	require.Zero(t, got.code, got.errOut)
	require.NotContains(t, got.out, "10.0.0.7")
	again := command(t, append(at, "apply", write(t, got.out))...)
	require.Zero(t, again.code, again.errOut)
	req := <-r.applied
	require.Equal(t, r.env.GetServices()[0].String(), req.GetServices()[0].String())
	require.Equal(t, r.env.GetRights().String(), req.GetRights().String())
	require.Equal(t, r.env.GetDeployments()[0].GetVersion(), req.GetDeployments()[0].GetVersion())

	table := command(t, append(at, "get", "environment")...)
	for _, part := range []string{
		"iam.example.com/us-west2", "10.0.0.7:5432", "iam.example.com@v1", "Project",
		"default: deny", "user/ann", "iam.example.com/Project at and below projects/acme", "group sre",
	} {
		require.Contains(t, table.out, part)
	}
	services := command(t, append(at, "get", "services", "iam.example.com@v1", "-o", "yaml")...)
	require.Contains(t, services.out, "kind: Project")
	require.NotContains(t, services.out, "rights")
	rights := command(t, append(at, "get", "rights", "-o", "yaml")...)
	require.Contains(t, rights.out, "default: deny")
	require.NotContains(t, rights.out, "service:")
	wrong := command(t, append(at, "get", "services", "iam.example.con")...)
	require.Equal(t, cli.Refused, wrong.code)
	require.Contains(t, wrong.errOut, "not registered: iam.example.con")
	r.own = true
	require.Contains(t, command(t, append(at, "get", "rights")...).errOut,
		"the grants are your own: an operator sees all of them")
}

func TestADryRunOfApplyIsSent(t *testing.T) {
	t.Parallel()
	r, at := newReadable(t)
	got := command(t, append(at, "apply", "--dry-run", write(t, registered))...)
	require.Zero(t, got.code, got.errOut)
	require.True(t, (<-r.applied).GetValidateOnly())
	require.Equal(t, "rights: changed\n  user/ann loses delete on everything\n", got.out)
	require.Contains(t, got.errOut, "a dry run: nothing was changed")
}

func TestWhoCanNamesTheGrants(t *testing.T) {
	t.Parallel()
	_, at := newReadable(t)
	got := command(t, append(at, "who-can", "delete", acmeName)...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t,
		"WHO        BY\noperators  their certificates\nuser/ann   the grant of read, delete on iam.example.com/Project at and below projects/acme\n", got.out)
	require.Contains(t, command(t, append(at, "who-can", "read", acmeName)...).out, "everybody")
	for args, want := range map[string]string{
		"eat " + acmeName:    `verb "eat": want one of read, write, delete, refer, operate`,
		"read":               "want a verb and the full name of a resource",
		"read projects/acme": "projects/acme",
		"read //iam.example.com/eu/projects/acme": "iam.example.com/eu",
	} {
		got := command(t, append(append(at, "who-can"), strings.Fields(args)...)...)
		require.NotZero(t, got.code, args)
		require.Contains(t, got.errOut, want, args)
	}
}

func TestHistoryShowsWhoChangedWhat(t *testing.T) {
	t.Parallel()
	_, at := newReadable(t)
	got := command(t, append(at, "history")...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, `revision 2  2001-09-09T01:46:40Z  operator/olga (certificate)  DecommissionDeployment  request r2
  reason: sold
  deployment a.example.com/eu: decommissioned
revision 1  2001-09-09T01:46:40Z  operator/omar (certificate)  Apply  request r1
  rights: changed
    user/ann gains read on everything
`, got.out)
	got = command(t, append(at, "history", "--limit", "1")...)
	require.Contains(t, got.errOut, "there are earlier changes: use --limit 10")
	var documents []map[string]any
	require.NoError(t, json.Unmarshal([]byte(command(t, append(at, "history", "-o", "json")...).out), &documents))
	require.Len(t, documents, 2)
}

func TestAnAuditLogIsVerified(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	sink, err := auditlog.OpenSink(path)
	require.NoError(t, err)
	l, err := auditlog.Open(auditlog.Config{
		Source: "s", Sink: sink, Classes: auditlog.Classes, Required: true,
		Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	require.NoError(t, l.Record(t.Context(), auditlog.Event{
		Class: auditlog.Deletes, Outcome: auditlog.Allowed,
		Identity: "user/ann",
	}))
	require.NoError(t, l.Close())
	got := command(t, "audit-log", "verify", path)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "2 lines, from number 1 to 2, are as they were written.")
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(raw), "user/ann", "user/eve", 1)), 0o600))
	got = command(t, "audit-log", "verify", path)
	require.Equal(t, cli.Refused, got.code)
	require.Contains(t, got.errOut, "line 2: its hash is not that of its content: it was changed")
	require.NotZero(t, command(t, "audit-log", "verify", path+".none").code)
}

// The resources that a filter selects are planned and deleted together. Resources in DELETING are left out,
// and a selection that is too large is refused.
func TestADeleteSelectsByAFilter(t *testing.T) {
	t.Parallel()
	f := &filtering{asked: make(chan *resourcev1.ListResourcesRequest, 10), deleted: make(chan []string, 10), n: 3}
	at := []string{"--context", stub.New(t, stub.Services{Resources: f}).Context}
	const west = "iam.example.com/us-west2"
	got := command(t, append(at, "delete", west, "--kind", "Project", "--filter", `labels.env = "test"`)...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, "Project", (<-f.asked).GetKind())
	require.Equal(t, []string{"projects/p0", "projects/p1", "projects/p2"}, <-f.deleted)
	got = command(t, append(at, "delete", west, "--filter", "x", "--dry-run")...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, `x`, (<-f.asked).GetFilter())
	require.Equal(t, []string{"plan", "projects/p0", "projects/p1", "projects/p2"}, <-f.deleted)
	got = command(t, append(at, "plan", west, "--filter", "x")...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, "plan", (<-f.deleted)[0])
	f.n = 0
	got = command(t, append(at, "delete", west, "--filter", "x")...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.errOut, "no resource is selected: nothing is deleted")
	f.n = 1001
	got = command(t, append(at, "delete", west, "--filter", "x")...)
	require.Equal(t, cli.Refused, got.code)
	require.Contains(t, got.errOut, "more than 1000 resources are selected")
	require.Empty(t, f.deleted)
	got = command(t, append(at, "delete", west)...)
	require.Equal(t, cli.WrongUsage, got.code)
	got = command(t, append(at, "delete", "//"+west+"/projects/p", "--filter", "x")...)
	require.Equal(t, cli.WrongUsage, got.code, got.errOut)
}

// filtering is a service with n projects, and one in DELETING.
type filtering struct {
	resourcev1.UnimplementedResourceServiceServer
	asked   chan *resourcev1.ListResourcesRequest
	deleted chan []string
	n       int
}

func (f *filtering) ListResources(_ context.Context,
	req *resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	f.asked <- req
	out := &resourcev1.ListResourcesResponse{Resources: []*resourcev1.Resource{{
		Name:  "projects/gone",
		State: resourcev1.Resource_STATE_DELETING,
	}}}
	for i := range f.n {
		out.Resources = append(out.Resources, &resourcev1.Resource{
			Name:  fmt.Sprintf("projects/p%d", i),
			State: resourcev1.Resource_STATE_ACTIVE,
		})
	}
	return out, nil
}

func (f *filtering) BatchDeleteResources(_ context.Context,
	req *resourcev1.BatchDeleteResourcesRequest,
) (*resourcev1.BatchDeleteResourcesResponse, error) {
	var names []string
	out := &resourcev1.BatchDeleteResourcesResponse{}
	for _, r := range req.GetRequests() {
		names = append(names, r.GetName())
		out.Responses = append(out.Responses, &resourcev1.DeleteResourceResponse{Removed: true, Deletion: "d"})
	}
	f.deleted <- names
	return out, nil
}

func (f *filtering) PlanDeletion(_ context.Context,
	req *resourcev1.PlanDeletionRequest,
) (*resourcev1.PlanDeletionResponse, error) {
	f.deleted <- append([]string{"plan", req.GetName()}, req.GetMore()...)
	return &resourcev1.PlanDeletionResponse{Accepted: true}, nil
}

// A receipt lists the resources that a deletion removed in each deployment, and the number of references that
// it unset. A deployment that does not answer is named, and is an error.
func TestAReceiptHasAllThatADeletionRemoved(t *testing.T) {
	t.Parallel()
	const id, root = "01a226b2-9991-7465-a0a7-6dce752cb2da", "//iam.example.com/us-west2/projects/acme"
	at := []string{"--context", stub.New(t, stub.Services{
		Admin:     &receipts{deletion: id, root: root},
		Described: "eastus2",
	}).Context}
	got := command(t, append(at, "removals", "--root", root)...)
	require.Equal(t, cli.Unavailable, got.code)
	require.Contains(t, got.out, "deletion "+id+" of "+root+", 2001-09-09T01:46:40Z by user/ann, request r1\n")
	require.Contains(t, got.out,
		"iam.example.com/us-west2: 25 resources removed, 1 of them still DELETING, 3 references unset\n  "+root+
			"/accounts/0  Account  uid u0  2001-09-09T01:46:40Z\n")
	require.Contains(t, got.out, "  and 5 more: -o json lists all\n")
	require.Contains(t, got.errOut, "iam.example.com/eastus2")
	document := command(t, append(at, "removals", "--deletion", id, "-o", "json")...)
	var receipt struct {
		Deployments []struct{ Removals []map[string]any }
	}
	require.NoError(t, json.Unmarshal([]byte(document.out), &receipt))
	require.Len(t, receipt.Deployments, 2)
	require.Len(t, receipt.Deployments[1].Removals, 25)
	got = command(t, append(at, "removals", root, "--deletion", id)...)
	require.Equal(t, cli.WrongUsage, got.code)
}

type receipts struct {
	adminv1.UnimplementedAdminServiceServer
	deletion, root string
}

func (r *receipts) ListRemovals(_ context.Context,
	req *adminv1.ListRemovalsRequest,
) (*adminv1.ListRemovalsResponse, error) {
	out := &adminv1.ListRemovalsResponse{}
	if req.GetName() != "" {
		return &adminv1.ListRemovalsResponse{Removals: []*adminv1.Removal{{
			Name: r.root, Deletion: r.deletion,
			How: "REQUESTED",
		}}}, nil
	}
	if req.GetDeletion() != r.deletion {
		return out, nil
	}
	for i := range 25 {
		out.Removals = append(out.Removals, &adminv1.Removal{
			Name: fmt.Sprintf("%s/accounts/%d", r.root, i), Kind: "Account", Uid: fmt.Sprintf("u%d", i), Gone: i > 0,
			DecideTime: &timestamppb.Timestamp{Seconds: 1e9},
			Root:       r.root, Actor: "user/ann", RequestId: "r1", RequestTime: &timestamppb.Timestamp{Seconds: 1e9},
			Deletion: r.deletion,
		})
	}
	return out, nil
}

func (r *receipts) ListDeletions(context.Context,
	*adminv1.ListDeletionsRequest,
) (*adminv1.ListDeletionsResponse, error) {
	return &adminv1.ListDeletionsResponse{Deletions: []*adminv1.Deletion{{Id: r.deletion, Unset: 3}}}, nil
}

// TestMain keeps a playground on this machine away from the tests: its context is the default of commands.
func TestMain(m *testing.M) {
	home, err := os.MkdirTemp("", "db-controller-home-")
	if err == nil {
		err = os.Setenv("HOME", home)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(home)
	os.Exit(code)
}

const related = `
service: iam.example.com
version: v1
kinds: [{kind: Project, patterns: ["projects/{project}"]}]
---
service: dev.example.com
version: v1
imports: [iam.example.com@v1]
kinds:
  - kind: Device
    patterns: ["projects/{project}/devices/{device}"]
    references:
      - {path: project, targets: [iam.example.com/Project], behaviour: CASCADE_DELETE}
      - {path: next, targets: [Device], behaviour: UNSET}
      - {path: rack, targets: [Rack], behaviour: BLOCK}
  - kind: Rack
    patterns: ["racks/{rack}"]
    references: [{path: first, targets: [Device], behaviour: UNSET}, {path: last, targets: [Device], behaviour: UNSET}]
---
service: dev.example.com
version: v2
kinds: [{kind: Gadget, patterns: ["gadgets/{gadget}"]}]
---
regions: [eu, us]
deployments: [{deployment: iam.example.com/eu, version: v1}, {deployment: dev.example.com/us, version: v1}]
`

// Kinds and references are listed with the names that commands take, and drawn. A kind may refer to itself,
// and kinds to one another.
func TestKindsAndReferencesAreListedAndDrawn(t *testing.T) {
	t.Parallel()
	_, at := readableOf(t, related)
	call := func(args ...string) string {
		t.Helper()
		got := command(t, append(at, args...)...)
		require.Zero(t, got.code, got.errOut)
		return got.out
	}
	require.Equal(t, "REGION  DEPLOYMENTS\neu      iam.example.com/eu\nus      dev.example.com/us\n",
		call("get", "regions"))
	require.Contains(t, call("get", "deployments"), "dev.example.com/us")
	require.Contains(t, call("get", "kinds", "dev.example.com"),
		"dev.example.com/Device  v1       us       projects/{project}/devices/{device}")
	require.NotContains(t, call("get", "kinds", "dev.example.com@v1"), "Gadget")
	var references []struct {
		Holder, Field, Behaviour string
		Targets, RunsIn          []string
	}
	require.NoError(t, json.Unmarshal([]byte(call("get", "references", "-o", "json")), &references))
	require.Len(t, references, 5)
	require.Equal(t, "dev.example.com/Device", references[0].Holder)
	require.Equal(t, []string{"iam.example.com/Project"}, references[0].Targets)
	require.Equal(t, []string{"us"}, references[0].RunsIn)

	dot := call("graph")
	require.Contains(t, dot, `"dev.example.com/Device" -> "iam.example.com/Project" [label="project\nCASCADE_DELETE"`)
	require.Contains(t, dot, `"dev.example.com/Rack" -> "dev.example.com/Device" [label="first, last\nUNSET"`)
	require.NotContains(t, dot, "Gadget", "this version runs nowhere")
	require.Contains(t, call("graph", "dev.example.com@v2"), "Gadget")
	svg := call("graph", "-o", "svg")
	for _, text := range []string{">Device<", ">next UNSET<", ">first, last UNSET<", ">rack BLOCK<"} {
		require.Contains(t, svg, text)
	}
	read := xml.NewDecoder(strings.NewReader(svg))
	for err := error(nil); !errors.Is(err, io.EOF); _, err = read.Token() {
		require.NoError(t, err)
	}
}
