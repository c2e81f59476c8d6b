package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/test/stub"
)

const people = `
service: iam.example.com
version: v1
kinds:
  - { kind: Person, patterns: ["people/{person}"] }
  - kind: Report
    patterns: ["reports/{report}"]
    references:
      - { path: author, targets: [Person], behaviour: ALLOW_DANGLING }
  - kind: Photo
    patterns: ["photos/{photo}"]
    references:
      - { path: shows.*, targets: [iam.example.com/Person], behaviour: ALLOW_DANGLING }
      - { path: owner, targets: [Person], behaviour: UNSET }
`

const (
	ada         = "//iam.example.com/us-west2/people/ada"
	adaUID      = "01a226b2-9991-7465-a0a7-6dce752cb200"
	adaDeletion = "01a226b2-9991-7465-a0a7-6dce752cb2da"
	adaRequest  = "01a226b2-9991-7465-a0a7-6dce752cb201"
)

// library has a person, and reports and photos that name her. It records the request ids of calls.
type library struct {
	resourcev1.UnimplementedResourceServiceServer
	adminv1.UnimplementedAdminServiceServer
	told    chan string
	filters chan string
	exists  bool
}

func (*library) GetResource(_ context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	return &resourcev1.Resource{Name: req.GetName(), Kind: "Person", Uid: adaUID}, nil
}

func (*library) PlanDeletion(context.Context,
	*resourcev1.PlanDeletionRequest,
) (*resourcev1.PlanDeletionResponse, error) {
	return &resourcev1.PlanDeletionResponse{Accepted: true}, nil
}

func (*library) ListReferrers(_ context.Context,
	req *resourcev1.ListReferrersRequest,
) (*resourcev1.ListReferrersResponse, error) {
	out := &resourcev1.ListReferrersResponse{Referrers: []*resourcev1.ListReferrersResponse_Referrer{
		{
			Holder: "//iam.example.com/us-west2/photos/p", Kind: "Photo", Path: "owner",
			Behaviour: schemav1.Behaviour_BEHAVIOUR_UNSET,
		},
		{
			Holder: "//iam.example.com/us-west2/reports/r", Kind: "Report", Path: "author",
			Behaviour: schemav1.Behaviour_BEHAVIOUR_ALLOW_DANGLING,
		},
	}}
	if req.GetTargetUid() != adaUID {
		out = nil
	}
	return out, nil
}

func (l *library) ListResources(_ context.Context,
	req *resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	l.filters <- req.GetKind() + ": " + req.GetFilter()
	body, err := structpb.NewStruct(map[string]any{
		"author": ada, "shows": []any{"people/bob", "people/ada"},
		"owner": ada,
	})
	name := map[string]string{"Report": "reports/r", "Photo": "photos/p"}[req.GetKind()]
	return &resourcev1.ListResourcesResponse{Resources: []*resourcev1.Resource{{
		Name: name, Kind: req.GetKind(),
		Deployment: "iam.example.com/us-west2", Body: body,
	}}}, err
}

func (l *library) ListRemovals(ctx context.Context,
	req *adminv1.ListRemovalsRequest,
) (*adminv1.ListRemovalsResponse, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("x-request-id")) > 0 {
		l.told <- md.Get("x-request-id")[0]
	}
	out := &adminv1.ListRemovalsResponse{Removals: []*adminv1.Removal{{
		Name: ada, Kind: "Person", Uid: adaUID, How: "REQUESTED", Gone: true,
		DecideTime: &timestamppb.Timestamp{Seconds: 1e9},
		Root:       ada, RootUid: adaUID, Actor: "user/ann", RequestId: adaRequest,
		RequestTime: &timestamppb.Timestamp{Seconds: 1e9}, Deletion: adaDeletion,
	}}}
	switch {
	case req.GetName() == "people/bob":
		out.Removals[0].Name, out.Removals[0].How = "//iam.example.com/us-west2/people/bob", "CASCADED"
		return out, nil
	case req.GetSince() == "old":
		return nil, status.Error(codes.OutOfRange, "it is older than the retention of changes")
	case req.GetName() == "people/ada", req.GetDeletion() == adaDeletion, req.GetRequest() == adaRequest,
		req.GetSince() == "token":
		return out, nil
	}
	return &adminv1.ListRemovalsResponse{}, nil
}

func (*library) ListDeletions(context.Context, *adminv1.ListDeletionsRequest) (*adminv1.ListDeletionsResponse, error) {
	return &adminv1.ListDeletionsResponse{Deletions: []*adminv1.Deletion{{Id: adaDeletion, Unset: 2}}}, nil
}

func (l *library) Purge(_ context.Context, req *adminv1.PurgeRequest) (*adminv1.PurgeResponse, error) {
	if l.exists {
		return nil, status.Error(codes.AlreadyExists, req.GetName()+" exists: delete it")
	}
	return &adminv1.PurgeResponse{Changes: 3, Requests: 1}, nil
}

func libraryAt(t *testing.T) (*library, []string) {
	t.Helper()
	file, err := schema.ParseFile("people.yaml", strings.NewReader(people))
	require.NoError(t, err)
	l := &library{told: make(chan string, 10), filters: make(chan string, 100)}
	return l, []string{
		"--context",
		stub.New(t, stub.Services{Resources: l, Admin: l, Descriptors: file.Services}).Context,
	}
}

// A receipt of a root, of a request and of a deletion are the same, with the fields that keep the name. Its
// hash is told to the root's deployment, and finds each change of the file.
func TestAReceiptIsFoundByItsRootAndByItsRequest(t *testing.T) {
	t.Parallel()
	l, at := libraryAt(t)
	got := command(t, append(at, "removals", "--root", ada)...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "deletion "+adaDeletion+" of "+ada+", 2001-09-09T01:46:40Z by user/ann, request "+
		adaRequest+"\n")
	require.Contains(t, got.out,
		"keeps      //iam.example.com/us-west2/reports/r (author) keeps the name (ALLOW_DANGLING)\n")
	require.Contains(t, got.out,
		"keeps      //iam.example.com/us-west2/photos/p (shows.*) keeps the name (ALLOW_DANGLING)\n")
	require.Regexp(t, `in all: 1 resource removed, 2 references unset, 2 names kept; sha256:[0-9a-f]{64}\n$`, got.out)
	require.Equal(t, `Report: body.author = "`+ada+`" OR body.author = "people/ada"`, <-l.filters)
	require.Equal(t, "Photo: ", <-l.filters, "a filter reaches into no list: each body is read")

	of := command(t, append(at, "removals", "--deletion", adaDeletion, "-o", "json")...)
	require.Equal(t, of.out, command(t, append(at, "removals", "--root", ada, "-o", "json")...).out)
	var receipt struct {
		Root, RootUID, Actor, RequestID, Hash string
		Totals                                map[string]int
	}
	require.NoError(t, json.Unmarshal([]byte(of.out), &receipt))
	require.Equal(t, []string{ada, adaUID, "user/ann", adaRequest}, []string{
		receipt.Root, receipt.RootUID,
		receipt.Actor, receipt.RequestID,
	})
	require.Equal(t, map[string]int{"removed": 1, "deleting": 0, "unset": 2, "kept": 2}, receipt.Totals)
	told := <-l.told
	require.Equal(t, strings.TrimPrefix(receipt.Hash, "sha256:")[:32], strings.ReplaceAll(told, "-", ""))

	dir := t.TempDir()
	all := command(t, append(at, "removals", "--request", adaRequest, "-o", "json")...)
	require.Zero(t, all.code, all.errOut)
	for name, text := range map[string]string{"one": of.out, "all": all.out} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		got = command(t, append(at, "removals", "--verify", path)...)
		require.Zero(t, got.code, got.errOut)
		require.Contains(t, got.out, "is as it was printed. In an audit log: a line with the request id "+told)
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(text, "people/ada", "people/eve", 1)), 0o600))
		got = command(t, append(at, "removals", "--verify", path)...)
		require.Equal(t, cli.Failed, got.code)
		require.Contains(t, got.errOut, "is not as it was printed")
	}
	got = command(t, append(at, "removals", "--verify", filepath.Join(dir, "none"))...)
	require.Equal(t, cli.Failed, got.code)

	for says, args := range map[string][]string{
		"was removed with " + ada + ": removals --root " + ada: {"--root", "//iam.example.com/us-west2/people/bob"},
		"there is no record that a deletion began with":        {"--root", "//iam.example.com/us-west2/people/carl"},
		"there is no record of a removal by the request":       {"--request", adaUID},
	} {
		got = command(t, append(append(at, "removals"), args...)...)
		require.Equal(t, cli.Refused, got.code, says)
		require.Contains(t, got.errOut, says)
	}
}

// What was removed after a token is listed; a token that is too old says what to do.
func TestRemovalsSinceATokenAreListed(t *testing.T) {
	t.Parallel()
	_, at := libraryAt(t)
	got := command(t, append(at, "removals", "iam.example.com/us-west2", "--since", "token")...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, []string{
		"NAME", "KIND", "UID", "DECIDED", "ROOT", "BY", ada, "Person", adaUID,
		"2001-09-09T01:46:40Z", ada, "user/ann",
	}, strings.Fields(got.out))
	got = command(t, append(at, "removals", "iam.example.com/us-west2", "--since", "token", "-o", "name")...)
	require.Equal(t, ada+"\n", got.out)
	got = command(t, append(at, "removals", "iam.example.com/us-west2", "--since", "newer")...)
	require.Contains(t, got.out, "Nothing was removed in iam.example.com/us-west2 since then.")
	got = command(t, append(at, "removals", "iam.example.com/us-west2", "--since", "old")...)
	require.Equal(t, cli.Refused, got.code)
	require.Contains(t, got.errOut,
		"older than the retention of changes (OutOfRange): what was removed since is not known; compare a list")
}

// A plan names what keeps the name of the resource; a purge says how much it has taken away.
func TestAPlanNamesWhatKeepsTheName(t *testing.T) {
	t.Parallel()
	l, at := libraryAt(t)
	got := command(t, append(at, "plan", ada)...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out,
		"A delete would be accepted: 0 deleted, 0 unset.\nkeeps      //iam.example.com/us-west2/reports/r (author) keeps the name (ALLOW_DANGLING)\n")
	require.NotContains(t, got.out, "photos/p", "it acts")
	require.JSONEq(t,
		`{"accepted": true, "keepers": [{"holder": "//iam.example.com/us-west2/reports/r", "kind": "Report", "path": "author"}]}`,
		command(t, append(at, "plan", ada, "-o", "json")...).out)
	got = command(t, append(at, "purge", ada)...)
	require.Equal(t, ada+": 3 changes purged, and 1 answer of requests\n", got.out)
	require.JSONEq(t, `{"name": "`+ada+`", "changes": 3, "requests": 1}`,
		command(t, append(at, "purge", ada, "-o", "json")...).out)
	l.exists = true
	got = command(t, append(at, "purge", ada)...)
	require.Equal(t, cli.Refused, got.code)
	require.Contains(t, got.errOut, ada+" exists: delete it")
}
