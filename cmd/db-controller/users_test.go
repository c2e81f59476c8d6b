package main

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

const deletionID = "7e57d004-2b97-0e7a-b45f-5387367791cd"

// deleting accepts deletes. The resource is gone after so many reads; -1: never.
type deleting struct {
	resourcev1.UnimplementedResourceServiceServer
	gone    int32
	reads   atomic.Int32
	unasked []*resourcev1.UnaskedDeployment
	block   []bool
	hangs   bool
	// called is called by each delete, and read by each read of a resource; nil: nothing is.
	called, read func()
}

func (d *deleting) DeleteResource(ctx context.Context,
	req *resourcev1.DeleteResourceRequest,
) (*resourcev1.DeleteResourceResponse, error) {
	if d.called != nil {
		d.called()
	}
	if d.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &resourcev1.DeleteResourceResponse{
		Deletion: deletionID, Unasked: d.unasked, Resource: &resourcev1.Resource{
			Name: req.GetName(), Uid: "u1",
			State: resourcev1.Resource_STATE_DELETING,
		},
	}, nil
}

func (d *deleting) GetResource(_ context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	if d.read != nil {
		d.read()
	}
	if n := d.reads.Add(1); d.gone >= 0 && n > d.gone {
		return nil, status.Error(codes.NotFound, "not found")
	}
	return &resourcev1.Resource{
		Name: req.GetName(), Deployment: "iam.example.com/us-west2", Kind: "Project", Uid: "u1",
		State: resourcev1.Resource_STATE_DELETING, CreateTime: ago(time.Hour),
		Conditions: []*resourcev1.Condition{{
			Type:    "BLOCKED",
			Message: "by //devices.example.com/eastus2/devices/d1 (account)",
		}},
	}, nil
}

func (d *deleting) SetBlockDeletion(_ context.Context,
	req *resourcev1.SetBlockDeletionRequest,
) (*resourcev1.Resource, error) {
	d.block = append(d.block, req.GetBlockDeletion())
	return &resourcev1.Resource{Name: req.GetName(), BlockDeletion: req.GetBlockDeletion()}, nil
}

// counting counts one deletion in two regions, and has records of removals.
type counting struct {
	adminv1.UnimplementedAdminServiceServer
	removals map[string]*adminv1.Removal // by name and uid
	refuse   error
}

func (c *counting) ListDeletions(_ context.Context,
	req *adminv1.ListDeletionsRequest,
) (*adminv1.ListDeletionsResponse, error) {
	if req.GetDeletion() != deletionID {
		return nil, status.Error(codes.InvalidArgument, "another deletion")
	}
	return &adminv1.ListDeletionsResponse{Deletions: []*adminv1.Deletion{
		{Id: deletionID, Found: 6, Removed: 2, Unset: 1, StartTime: ago(time.Minute)},
		{Id: deletionID, Found: 4, Removed: 1, StartTime: ago(time.Second)},
	}}, nil
}

func (c *counting) ListRemovals(_ context.Context,
	req *adminv1.ListRemovalsRequest,
) (*adminv1.ListRemovalsResponse, error) {
	r := c.removals[req.GetName()+" "+req.GetUid()]
	if r == nil {
		return &adminv1.ListRemovalsResponse{}, c.refuse
	}
	return &adminv1.ListRemovalsResponse{Removals: []*adminv1.Removal{r}}, nil
}

// A resource in DELETING is shown with the reasons, and with deployments that could not be asked.
func TestADeleteThatWaitsNamesItsReasons(t *testing.T) {
	t.Parallel()
	d := &deleting{gone: -1, unasked: []*resourcev1.UnaskedDeployment{{
		Deployment: "devices.example.com/mars",
		Message:    "connection refused",
	}}}
	at := []string{"--context", stub.New(t, stub.Services{Resources: d}).Context}
	got := command(t, append(at, "delete", acmeName)...)
	require.Zero(t, got.code, "the delete is accepted: %s", got.errOut)
	require.Equal(t, acmeName+" is being deleted\n  BLOCKED by //devices.example.com/eastus2/devices/d1 (account)\n",
		got.out)
	require.Equal(t,
		"note: devices.example.com/mars did not answer whether its resources block the cascade: connection refused\n",
		got.errOut)

	got = command(t, append(at, "delete", acmeName, "-o", "json")...)
	require.Zero(t, got.code)
	var result map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.out), &result))
	require.Equal(t, "DELETING", result["state"])
	require.Len(t, result["conditions"], 1)
	require.Len(t, result["unasked"], 1)
	require.NotContains(t, result, "counts", "nobody has waited for them")
}

// The wait ends with the removal, or with a code for "not yet" and the counts of all deployments.
func TestADeleteWaitsForTheRemoval(t *testing.T) {
	t.Parallel()
	d := &deleting{gone: 3}
	at := []string{"--context", stub.New(t, stub.Services{Resources: d, Admin: &counting{}}).Context}
	got := command(t, append(at, "delete", acmeName, "--wait", "10s", "--progress", "none")...)
	require.Zero(t, got.code, got.errOut)
	require.Regexp(t, `^//iam.example.com/us-west2/projects/acme deleted, after \d+m?s\n$`, got.out)
	require.Equal(t, int32(4), d.reads.Load())

	at = []string{"--context", stub.New(t, stub.Services{Resources: &deleting{gone: -1}, Admin: &counting{}}).Context}
	got = command(t, append(at, "delete", acmeName, "--wait", "30ms")...)
	require.Equal(t, cli.Unavailable, got.code)
	require.Contains(t, got.out, "BLOCKED by //devices.example.com")
	require.Equal(t,
		"error: "+acmeName+
			" still exists after 30ms; its deletion continues (3 of 10 resources removed, 1 reference unset in 2 deployments so far); explain "+acmeName+" shows the reasons\n", got.errOut)
	got = command(t, append(at, "delete", acmeName, "--wait", "30ms", "-o", "json")...)
	require.Equal(t, cli.Unavailable, got.code)
	require.Contains(t, got.out, `"removed": 3`)
	require.Contains(t, got.out, `"error": "`+acmeName+` still exists`)
}

// A delete without an answer may have been accepted: the message says so instead of reporting a failure.
func TestADeleteWithoutAnAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{Resources: &deleting{hangs: true}}).Context}
	got := command(t, append(at, "delete", acmeName, "--timeout", "50ms")...)
	require.Equal(t, cli.Unavailable, got.code)
	require.Equal(t, "error: no answer within 50ms (--timeout): it is unknown whether the delete of "+acmeName+
		" was accepted; explain "+acmeName+" shows it\n", got.errOut)

	ctx, cancel := context.WithCancel(t.Context())
	at = []string{"--context", stub.New(t, stub.Services{Resources: &deleting{hangs: true, called: cancel}}).Context}
	var out, errOut bytes.Buffer
	require.Equal(t, cli.Unavailable, run(ctx, append(at, "delete", acmeName), strings.NewReader(""), &out, &errOut))
	require.Contains(t, errOut.String(), "interrupted: it is unknown whether the delete of "+acmeName+" was accepted")
}

// An interrupted wait ends nothing.
func TestAnInterruptedWaitSaysThatTheDeletionContinues(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	at := []string{"--context", stub.New(t, stub.Services{Resources: &deleting{gone: -1, read: cancel}}).Context}
	var out, errOut bytes.Buffer
	require.Equal(t, cli.Unavailable, run(ctx, append(at, "delete", acmeName, "--wait", "1h"), strings.NewReader(""),
		&out, &errOut))
	require.Equal(t, "error: interrupted: the deletion of "+acmeName+" continues in the deployments; explain "+acmeName+
		" shows the reasons\n", errOut.String())
}

func TestFlagsOfADeleteAreChecked(t *testing.T) {
	t.Parallel()
	d := &deleting{}
	at := []string{"--context", stub.New(t, stub.Services{Resources: d}).Context}
	for says, args := range map[string][]string{
		"--timeout -1s: want more than 0s":          {"--timeout", "-1s"},
		"--wait -1s: want more than 0s":             {"--wait", "-1s"},
		"--progress loud: want auto, plain or none": {"--progress", "loud"},
	} {
		got := command(t, slices.Concat(at, []string{"delete", acmeName}, args)...)
		require.Equal(t, cli.WrongUsage, got.code)
		require.Contains(t, got.errOut, says)
	}
	got := command(t, append(at, "delete", "-f", "/nonexistent")...)
	require.Equal(t, cli.Failed, got.code)
	require.Contains(t, got.errOut, "/nonexistent")
}

// A dry run shows the plan, and changes nothing.
func TestADryRunIsAPlan(t *testing.T) {
	t.Parallel()
	served := &written{}
	at := []string{"--context", stub.New(t, stub.Services{Resources: served}).Context}
	plan := command(t, append(at, "plan", acmeName)...)
	require.Zero(t, plan.code, plan.errOut)
	require.Equal(t, plan, command(t, append(at, "delete", acmeName, "--dry-run")...))
	require.Equal(t, command(t, append(at, "plan", acmeName, "-o", "json")...),
		command(t, append(at, "delete", acmeName, "--dry-run", "-o", "json")...))
	require.Empty(t, served.gone)
}

func TestDeletesAreBlockedAndAllowed(t *testing.T) {
	t.Parallel()
	d := &deleting{}
	at := []string{"--context", stub.New(t, stub.Services{Resources: d}).Context}
	require.Equal(t, ran{0, acmeName + " cannot be deleted until block-deletion --off\n", ""},
		command(t, append(at, "block-deletion", acmeName)...))
	require.Equal(t, ran{0, acmeName + " can be deleted again\n", ""},
		command(t, append(at, "block-deletion", acmeName, "--off")...))
	require.Equal(t, []bool{true, false}, d.block)
}

func removal(name, uid, how string, change func(*adminv1.Removal)) *adminv1.Removal {
	r := &adminv1.Removal{
		Name: name, Uid: uid, Kind: "Key", How: how, Gone: true, DecideTime: ago(time.Hour),
		RequestTime: ago(time.Hour),
	}
	if change != nil {
		change(r)
	}
	return r
}

// The chain of a removal is followed from resource to resource; where it cannot be followed, it says why.
func TestAChainOfRemovalsEndsAtItsRoot(t *testing.T) {
	t.Parallel()
	const key, project, org = "//iam.example.com/us-west2/keys/k", "//iam.example.com/us-west2/projects/p",
		"//iam.example.com/us-west2/orgs/o"
	c := &counting{removals: map[string]*adminv1.Removal{
		"keys/k ":       removal(key, "u1", "OWNER_GONE", func(r *adminv1.Removal) { r.Via, r.ViaUid = project, "u2" }),
		"projects/p u2": removal(project, "u2", "CASCADED", func(r *adminv1.Removal) { r.Via, r.ViaUid = org, "u3" }),
		"orgs/o u3": removal(org, "u3", "REQUESTED", func(r *adminv1.Removal) {
			r.Root, r.Actor, r.RequestId = org, "user/ann", "r1"
		}),
	}}
	at := []string{"--context", stub.New(t, stub.Services{Admin: c}).Context}
	got := command(t, append(at, "removals", key)...)
	require.Zero(t, got.code, got.errOut)
	lines := strings.Split(got.out, "\n")
	require.Regexp(t, `^`+key+`  Key  uid u1, deletion decided \S+, gone$`, lines[0])
	require.Equal(t, "  lost its last owner, "+project+"  Key  uid u2", lines[1])
	require.Equal(t, "  cascaded with "+org+"  Key  uid u3", lines[2])
	require.Regexp(t, `^  root: `+org+`, deleted \S+ by user/ann, request r1$`, lines[3])

	var chains []struct{ Removals []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(command(t, append(at, "removals", key, "-o", "json")...).out), &chains))
	require.Len(t, chains[0].Removals, 3)

	delete(c.removals, "orgs/o u3")
	got = command(t, append(at, "removals", key)...)
	require.Contains(t, got.out, "  cascaded with "+org+
		", of which no record is kept\n  the record of the root is no longer kept\n")
	c.refuse = status.Error(codes.Unavailable, "database unavailable")
	got = command(t, append(at, "removals", key)...)
	require.Contains(t, got.out, "  cascaded with "+org+
		", whose deployment does not answer: database unavailable (Unavailable)\n")
}

func TestRemovalsOfOneResourceOrOfNone(t *testing.T) {
	t.Parallel()
	const key = "//iam.example.com/us-west2/keys/k"
	uid := deletionID
	c := &counting{removals: map[string]*adminv1.Removal{
		"keys/k " + uid: removal(key, uid, "REQUESTED", func(r *adminv1.Removal) { r.Root, r.Gone = key, false }),
		//nolint:gocritic // no uid
		"keys/a ": removal("//iam.example.com/us-west2/keys/a", "u9", "CASCADED", func(r *adminv1.Removal) {
			r.Root, r.Actor = "//old.example.com/mars", "operator/eve"
		}),
	}}
	at := []string{"--context", stub.New(t, stub.Services{Admin: c}).Context}
	got := command(t, append(at, "removals", key, "--uid", uid)...)
	require.Contains(t, got.out, "still DELETING\n  root: "+key+", deleted ")
	require.Contains(t, got.out, " by nobody: it did not exist any more\n")
	got = command(t, append(at, "removals", key)...)
	require.Zero(t, got.code)
	require.Contains(t, got.out, "There is no record of a removal of "+key)
	require.Contains(t, command(t, append(at, "removals", "//iam.example.com/us-west2/keys/a")...).out,
		"  root: a decision about old.example.com/mars, ")
	got = command(t, append(at, "removals", key, "--uid", "7")...)
	require.Equal(t, cli.WrongUsage, got.code)
	require.Contains(t, got.errOut, "--uid: ")
}

// watched sends a snapshot, a change and a removal, and then an error.
type watched struct {
	resourcev1.UnimplementedResourceServiceServer
	asked chan *resourcev1.WatchResourcesRequest
}

func (w *watched) WatchResources(req *resourcev1.WatchResourcesRequest,
	stream grpc.ServerStreamingServer[resourcev1.WatchResourcesResponse],
) error {
	w.asked <- req
	body, _ := structpb.NewStruct(map[string]any{"title": "Acme"})
	r := &resourcev1.Resource{
		Name: "projects/acme", Deployment: "iam.example.com/us-west2",
		State: resourcev1.Resource_STATE_ACTIVE, Body: body,
	}
	for _, msg := range []*resourcev1.WatchResourcesResponse{
		{Event: &resourcev1.WatchResourcesResponse_Upsert{Upsert: r}},
		{Event: &resourcev1.WatchResourcesResponse_EndOfSnapshot_{
			EndOfSnapshot: &resourcev1.WatchResourcesResponse_EndOfSnapshot{},
		}},
		{Event: &resourcev1.WatchResourcesResponse_Delete{Delete: r}},
		{},
	} {
		if err := stream.Send(msg); err != nil {
			return err
		}
	}
	return status.Error(codes.ResourceExhausted, "too many watches")
}

// Each event is a line for people, and a document of one line for programs, while the watch goes on.
func TestAWatchPrintsEachEvent(t *testing.T) {
	t.Parallel()
	w := &watched{asked: make(chan *resourcev1.WatchResourcesRequest, 2)}
	at := []string{"--context", stub.New(t, stub.Services{Resources: w}).Context}
	got := command(t, append(at, "watch", "iam.example.com/us-west2", "--kind", "Project", "--filter", "a = 1")...)
	require.Equal(t, cli.Unavailable, got.code)
	require.Equal(t, "error: too many watches (ResourceExhausted)\n", got.errOut)
	lines := strings.Split(got.out, "\n")
	require.Len(t, lines, 4, "an event of a newer version has no line")
	const now = `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  `
	require.Regexp(t, now+`ACTIVE    //iam.example.com/us-west2/projects/acme {"title": ?"Acme"}$`, lines[0])
	require.Regexp(t, now+`-- end of the snapshot, changes follow --$`, lines[1])
	require.Regexp(t, now+`GONE      //iam.example.com/us-west2/projects/acme$`, lines[2])
	req := <-w.asked
	require.Equal(t, []string{"Project", "a = 1"}, []string{req.GetKind(), req.GetFilter()})

	got = command(t, append(at, "watch", "iam.example.com/us-west2", "-o", "json", "--from", "t7")...)
	require.Equal(t, "t7", (<-w.asked).GetResumeToken())
	documents := strings.Split(strings.TrimSpace(got.out), "\n")
	require.Len(t, documents, 4)
	for _, document := range documents {
		require.True(t, json.Valid([]byte(document)), document)
	}
}

// Kinds are completed from the services of the named deployments.
func TestKindsAreCompleted(t *testing.T) {
	t.Parallel()
	parse := func(text string) *schema.Descriptor {
		f, err := schema.ParseFile("f", strings.NewReader(text))
		require.NoError(t, err)
		return f.Services[0]
	}
	at := []string{"--context", stub.New(t, stub.Services{Descriptors: []*schema.Descriptor{
		parse(
			`{service: iam.example.com, version: v1, kinds: [{kind: Project, patterns: ["projects/{p}"]}, {kind: Key, patterns: ["keys/{k}"]}]}`),
		parse(`{service: devices.example.com, version: v1, kinds: [{kind: Device, patterns: ["devices/{d}"]}]}`),
	}}).Context}
	complete := func(args ...string) string {
		return command(t, slices.Concat([]string{"__complete", "list"}, at, args)...).out
	}
	require.Equal(t, "Key\nProject\n:4\n", complete("iam.example.com/us-west2", "--kind", ""))
	require.Equal(t, "Device\nKey\nProject\n:4\n", complete("--kind", ""))
	require.Equal(t, ":4\n", complete("elsewhere.example.com/us-west2", "--kind", ""))
}
