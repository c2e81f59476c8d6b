package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// operated is a deployment that returns the answers of a test, and keeps the requests.
type operated struct {
	adminv1.UnimplementedAdminServiceServer
	status *adminv1.StatusResponse
	stuck  *adminv1.ListStuckResponse
	asked  []string
	refuse error

	waitsFor []string
}

func (o *operated) Status(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	return o.status, o.refuse
}

func (o *operated) ListStuck(_ context.Context, req *adminv1.ListStuckRequest) (*adminv1.ListStuckResponse, error) {
	o.asked = append(o.asked, "longer "+req.GetLonger().AsDuration().String())
	return o.stuck, o.refuse
}

func (o *operated) Pause(_ context.Context, req *adminv1.PauseRequest) (*adminv1.PauseResponse, error) {
	o.asked = append(o.asked, "pause "+req.GetHandler()+req.GetOf()+": "+req.GetReason())
	return &adminv1.PauseResponse{}, o.refuse
}

func (o *operated) Resume(_ context.Context, req *adminv1.ResumeRequest) (*adminv1.ResumeResponse, error) {
	o.asked = append(o.asked, "resume "+req.GetHandler()+req.GetOf()+": "+req.GetReason())
	return &adminv1.ResumeResponse{}, o.refuse
}

func (o *operated) Retry(_ context.Context, req *adminv1.RetryRequest) (*adminv1.RetryResponse, error) {
	o.asked = append(o.asked, "retry "+req.GetName()+": "+req.GetReason())
	return &adminv1.RetryResponse{WaitsFor: o.waitsFor}, o.refuse
}

func (o *operated) ListReleasable(_ context.Context,
	req *adminv1.ListReleasableRequest,
) (*adminv1.ListReleasableResponse, error) {
	o.asked = append(o.asked, "releasable "+req.GetName())
	return &adminv1.ListReleasableResponse{Releasable: []*adminv1.Releasable{
		{
			Key: "OWNEE_ENTRY|u|devices.example.com/eastus2", What: "OWNEE_ENTRY", Other: "devices.example.com/eastus2",
			Breaks: "its ownees stay",
		},
		{
			Key: "HOLDER_ENTRY|u|devices.example.com/eastus2|0", What: "HOLDER_ENTRY",
			Other: "devices.example.com/eastus2", Refused: "it keeps nothing now",
		},
	}}, o.refuse
}

func (o *operated) ForceRelease(_ context.Context,
	req *adminv1.ForceReleaseRequest,
) (*adminv1.ForceReleaseResponse, error) {
	o.asked = append(o.asked, "release "+strings.Join(req.GetKeys(), ",")+": "+req.GetReason())
	return &adminv1.ForceReleaseResponse{Released: req.GetKeys()}, o.refuse
}

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-d)) }

// busy is the status of a deployment in which everything happens at once.
func busy() *adminv1.StatusResponse {
	return &adminv1.StatusResponse{
		Deployment: "iam.example.com/us-west2", Version: "v2", Generation: 3,
		Processes: []*adminv1.StatusResponse_Process{
			{
				Name: "a", Shards: []uint32{1, 2}, JoinTime: ago(time.Hour),
				ExpireTime: timestamppb.New(time.Now().Add(time.Hour)),
			},
			{Name: "b", JoinTime: ago(2 * time.Hour), ExpireTime: ago(time.Minute)},
		},
		Watches: []*adminv1.StatusResponse_Watch{
			{Name: "deletions", Deployment: "devices.example.com/eastus2", Primed: true, HeardTime: ago(0)},
			{Name: "shadows-1", Deployment: "iam.example.com/us-west2", Primed: false, Lost: 2},
			{Name: "shadows-2", Deployment: "iam.example.com/us-west2", Primed: true, HeardTime: ago(time.Minute)},
		},
		Decommissioned: []*adminv1.Decommissioned{
			{
				Deployment: "old.example.com/mars", SaidBy: "operator/eveline", SaidTime: ago(time.Hour), Reason: "closed",
				Working: true,
			},
		},
		Words: []*adminv1.Word{{
			What: "WAIVED", Deployment: "lost.example.com/mars", SaidBy: "operator/eveline",
			SaidTime: ago(time.Hour), Reason: "down",
		}},
		Failures: []*adminv1.Failure{{
			Handler: "database", Deployment: "devices.example.com/eastus2",
			Error: "another database", Time: ago(time.Second),
		}},
		Paused: []string{"iam.example.com/us-west2", "devices.example.com/eastus2"},
		Pauses: []*adminv1.Pause{
			{Of: "iam.example.com/us-west2"},
			{Of: "devices.example.com/eastus2", Handler: "OWNED_PENDING"},
			{Of: "iam.example.com/us-west2", Handler: "OWNED_DELETING"},
		},
		Epoch: &adminv1.StatusResponse_Epoch{
			Id: "e", Ordinal: 2, Since: ago(time.Hour),
			Unconfirmed: []string{"x.example.com/r"}, AwaitingRegistry: true,
		},
		Delegations: []*adminv1.StatusResponse_Delegations{{
			Deployment: "iam.example.com/eu", ActingHeld: 1,
			BlockHeld: 2,
		}},
		Kept: []*adminv1.StatusResponse_Kept{{Kind: "Old", Resources: 4, Sample: "olds/o"}},
		Deletions: []*adminv1.Deletion{{
			Root: "//iam.example.com/us-west2/projects/p", Found: 9, Removed: 4,
			StartTime: ago(time.Minute),
		}},
		Derivations: []*adminv1.StatusResponse_Derivation{{Kind: "Key", Done: 3, Total: 7, SetAside: 1}},
		Outstanding: []*adminv1.StatusResponse_Outstanding{{
			Group:      "confirm",
			Deployment: "devices.example.com/eastus2", Count: 12, OldestTime: ago(time.Minute),
		}},
		DanglingReferences: 5,
	}
}

// Each fact of a status that needs attention has a line, and facts that stop deletions are written in
// capitals.
func TestTheStatusNamesEachFact(t *testing.T) {
	t.Parallel()
	o := &operated{status: busy()}
	at := []string{"--context", stub.New(t, stub.Services{Admin: o}).Context}
	got := command(t, append(at, "status", "iam.example.com/us-west2")...)
	require.Zero(t, got.code, got.errOut)
	for _, line := range []string{
		`^iam.example.com/us-west2 runs v2, switched 2 times$`, `^process a has 2 of \d+ shards, since 1h\d+m\d+s$`,
		`^THE LEASE OF PROCESS b EXPIRED \d+m\d+s ago: nobody works on its 0 shards of 64$`,
		`^the watch shadows-1 of iam.example.com/us-west2 has no snapshot yet, lost 2 times$`,
		`^the watch shadows-2 of .* has been silent for `,
		`^follows deletions of devices.example.com/eastus2$`,
		`^old.example.com/mars is decommissioned, by operator/eveline on .*: closed; work on its references and resources is outstanding$`,
		`^WAIVED of lost.example.com/mars, by operator/eveline on .*: down$`,
		`^MESSAGES OF devices.example.com/eastus2 ARE IGNORED: another database$`,
		`^NOTHING IS DELETED: an operator has paused deletions \(db-controller resume\)$`,
		`^deletions of devices.example.com/eastus2 are paused here \(db-controller resume --of\)$`,
		`^owned-pending for devices.example.com/eastus2 is paused \(db-controller resume --handler\)$`,
		`^owned-deleting is paused \(db-controller resume --handler\)$`,
		`^the database was failed over or restored 1 time, last noticed 1h\d+m\d+s ago$`,
		`^NOTHING IS DELETED until the registry returns`,
		`^DELETIONS WAIT until these deployments have confirmed their references: x.example.com/r \(for one that stays down`,
		`^5 references without a target`,
		`^delegations: without asking, may refer to 1 resource of iam.example.com/eu by acting references, and block 2$`, `^kept: 4 resources of kind Old, such as olds/o,`,
		`^deletion of //iam.example.com/us-west2/projects/p, for .*: here 4 of 9 resources removed$`,
		`^deriving references of Key again: 3 of 7 done, 1 set aside$`,
		`^confirm +devices.example.com/eastus2 +12 +1m`,
	} {
		require.Regexp(t, `(?m)`+line, got.out)
	}
	require.NotContains(t, got.out, "the watch deletions", "a watch that is heard has no line")
	require.NotContains(t, got.out, "Nothing is outstanding.")
	require.NotContains(t, got.out, "last failure", "what is said above is not repeated")
}

func TestADeploymentAtRestHasAShortStatus(t *testing.T) {
	t.Parallel()
	at := []string{
		"--context",
		stub.New(t, stub.Services{
			Admin: &operated{status: &adminv1.StatusResponse{
				Deployment: "iam.example.com/us-west2", Version: "v1",
				Generation: 1,
			}},
		}).Context,
	}
	got := command(t, append(at, "status", "iam.example.com/us-west2")...)
	require.Equal(t, ran{0, "iam.example.com/us-west2 runs v1\nNothing is outstanding.\n", ""}, got)
}

// One line for each deployment: the sum of its work, the oldest piece, and the notes.
func TestTheStatusOfAllSumsUp(t *testing.T) {
	t.Parallel()
	s := busy()
	s.Outstanding = append(s.Outstanding, &adminv1.StatusResponse_Outstanding{
		Group: "release", Count: 30,
		OldestTime: ago(3 * time.Hour),
	})
	at := []string{"--context", stub.New(t, stub.Services{Admin: &operated{status: s}, Described: "eastus2"}).Context}
	got := command(t, append(at, "status", "--all")...)
	require.Zero(t, got.code, "a deployment that was not started yet is no failure: %s", got.errOut)
	require.Regexp(t, `(?m)^iam.example.com/eastus2 .* has never run$`, got.out)
	require.Regexp(t, `(?m)^iam.example.com/us-west2 +v2 +2 +42 +3h`, got.out)
	require.Contains(t, got.out, "NOTHING IS DELETED: an operator has paused deletions (db-controller resume); ")
	require.Contains(t, got.out, "database for devices.example.com/eastus2 fails: another database")
}

// A deployment that does not answer is a row, and the command fails: unknown is not "nothing".
func TestADeploymentThatDoesNotAnswerIsNoEmptyRow(t *testing.T) {
	t.Parallel()
	o := &operated{refuse: status.Error(codes.PermissionDenied, "not an operator")}
	at := []string{"--context", stub.New(t, stub.Services{Admin: o}).Context}
	for _, args := range [][]string{{"status", "--all"}, {"stuck"}} {
		got := command(t, slices.Concat(at, args)...)
		require.Equal(t, cli.Unavailable, got.code)
		require.Regexp(t, `(?m)^iam.example.com/us-west2 .*not an operator \(PermissionDenied\)`, got.out)
		require.Equal(t, "error: 1 of 1 deployment did not answer\n", got.errOut)
		got = command(t, slices.Concat(at, args, []string{"-o", "json"})...)
		require.Equal(t, cli.Unavailable, got.code)
		require.Contains(t, got.out, `"error": "not an operator (PermissionDenied)"`)
	}
	got := command(t, append(at, "status", "iam.example.com/us-west2")...)
	require.Equal(t, ran{cli.Refused, "", "error: not an operator (PermissionDenied)\n"}, got)
}

func TestADeploymentWithoutAnAddressIsNotUnknown(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{Described: "eastus2"}).Context}
	got := command(t, append(at, "status", "iam.example.com/eastus2")...)
	require.Equal(t, cli.Refused, got.code)
	require.Equal(t,
		"error: deployment iam.example.com/eastus2 has no address: none of its processes has registered; start them with db-controller serve\n", got.errOut)
	require.Contains(t, command(t, append(at, "status", "iam.example.com/mars")...).errOut,
		"iam.example.com/mars is not registered; known deployments: ")
}

func TestStuckShowsResourcesAndWorkWithTheirReasons(t *testing.T) {
	t.Parallel()
	o := &operated{stuck: &adminv1.ListStuckResponse{
		Resources: []*adminv1.ListStuckResponse_Resource{{
			Name:  "//iam.example.com/us-west2/projects/p",
			Since: ago(2 * time.Hour), Reasons: []string{"BLOCKED by d1", "WAITING for x"},
		}},
		Work: []*adminv1.ListStuckResponse_Work{{
			Group: "release", Deployment: "devices.example.com/eastus2",
			Count: 2, Since: ago(time.Hour), LastError: "refused",
		}},
	}}
	at := []string{"--context", stub.New(t, stub.Services{Admin: o, Described: "eastus2"}).Context}
	got := command(t, append(at, "stuck", "iam.example.com/us-west2", "--longer", "10m")...)
	require.Zero(t, got.code, got.errOut)
	require.Regexp(t,
		`(?m)^iam.example.com/us-west2 +DELETING +//iam.example.com/us-west2/projects/p +2h\S* +BLOCKED by d1; WAITING for x$`, got.out)
	require.Regexp(t,
		`(?m)^iam.example.com/us-west2 +release +2 pieces for devices.example.com/eastus2 +1h\S* +refused$`, got.out)
	require.Equal(t, []string{"longer 10m0s"}, o.asked)

	// Deletions upon which another deployment has not acted: the reason is there.
	o.stuck = &adminv1.ListStuckResponse{Work: []*adminv1.ListStuckResponse_Work{{
		Group:      "acknowledge",
		Deployment: "iam.example.com/us-west2", Count: 1, Since: ago(time.Hour), Reason: "it has not acted",
	}}}
	o.status = &adminv1.StatusResponse{Failures: []*adminv1.Failure{{
		Handler:    "subscribed_deleting",
		Deployment: "iam.example.com/us-west2", Error: "projects/p: a key refuses it", NextTime: ago(-time.Hour),
	}}}
	got = command(t, append(at, "stuck", "iam.example.com/us-west2", "--longer", "1m")...)
	require.Regexp(t,
		`(?m) +acknowledge +1 piece for iam.example.com/us-west2 +1h\S* +there subscribed-deleting fails: projects/p: a key refuses it; again in (1h0m0s|59m\d+s)$`, got.out)
	require.Contains(t, command(t, append(at, "stuck", "iam.example.com/us-west2", "-o", "json")...).out,
		"a key refuses it")
	o.status.Failures[0].Handler = "subscribed_deleting_again" // the task that tries failed work again
	require.Regexp(t, `there subscribed-deleting fails: projects/p: a key refuses it; again in (1h0m0s|59m\d+s)\n`,
		command(t, append(at, "stuck", "iam.example.com/us-west2", "--longer", "1m")...).out)
	o.status.Failures[0].Deployment = "elsewhere.example.com/r"
	got = command(t, append(at, "stuck", "iam.example.com/us-west2", "--longer", "1m")...)
	require.NotContains(t, got.out, "a key refuses it")
	o.asked = nil

	o.stuck = &adminv1.ListStuckResponse{}
	got = command(t, append(at, "stuck", "iam.example.com/us-west2")...)
	require.Equal(t, ran{0, "Nothing waits for longer than 1m0s (--longer).\n", ""}, got)
	require.Equal(t, "longer 1m0s", o.asked[0])

	// Of a service: all its deployments. One that has never run has nothing that could wait.
	got = command(t, append(at, "stuck", "iam.example.com")...)
	require.Equal(t, ran{0, "Nothing waits for longer than 1m0s (--longer).\n", ""}, got)
	require.Len(t, o.asked, 2)
	got = command(t, append(at, "stuck", "elsewhere")...)
	require.Equal(t,
		ran{
			cli.Refused, "",
			"error: elsewhere is no service and no deployment of the environment: known deployments are iam.example.com/us-west2, iam.example.com/eastus2\n",
		}, got)
	require.Equal(t, ran{cli.WrongUsage, "", "error: --longer 0s: want more than 0s\n"},
		command(t, append(at, "stuck", "--longer", "0s")...))
}

func TestDeletionsArePausedWithAReason(t *testing.T) {
	t.Parallel()
	o := &operated{}
	at := []string{"--context", stub.New(t, stub.Services{Admin: o, Described: "eastus2"}).Context}
	const here, there = "iam.example.com/us-west2", "iam.example.com/eastus2"
	paused := &adminv1.StatusResponse{Pauses: []*adminv1.Pause{
		{Of: here, Reason: "ticket 1", Actor: "operator/ann", Time: timestamppb.New(time.Unix(0, 0))},
		{Of: there},
		{Of: here, Handler: "OWNED_PENDING"},
		{Of: there, Handler: "OWNED_DELETING"},
	}}
	for _, c := range []struct {
		args []string
		out  string
	}{
		{[]string{"pause", here, "--reason", "ticket 1"}, here + " deletes nothing until resume\n"},
		{[]string{"pause", here, "--of", there, "--reason", "ticket 2"}, here + " does nothing for deletions of " +
			there + " until resume\n"},
		{
			[]string{"pause", here, "--handler", "owned-pending", "--reason", "ticket 3"},
			here + ": owned-pending is paused until resume\n",
		},
		{
			[]string{"pause", here, "--handler", "SUBSCRIBED_DELETING", "--of", there, "--reason", "ticket 4"},
			here + ": subscribed-deleting is paused for " + there + " until resume\n",
		},
		{
			[]string{"resume", here, "--handler", "owned-pending", "--reason", "done"},
			here + ": owned-pending works again\n",
		},
		{
			[]string{"resume", here, "--handler", "owned-deleting", "--of", there, "--reason", "done"},
			here + ": owned-deleting works for " + there + " again\n",
		},
		{[]string{"resume", here, "--reason", "done"}, here + " deletes again\n"},
		{[]string{"resume", here, "--of", there, "--reason", "done", "-o", "json"}, "{\n  \"deployment\": \"" + here +
			"\",\n  \"of\": \"" + there + "\"\n}\n"},
	} {
		if o.status = nil; c.args[0] == "resume" {
			o.status = paused
		}
		require.Equal(t, ran{0, c.out, ""}, command(t, slices.Concat(at, c.args)...), "%q", c.args)
	}
	require.Equal(t, []string{
		"pause : ticket 1", "pause " + there + ": ticket 2", "pause OWNED_PENDING: ticket 3",
		"pause SUBSCRIBED_DELETING" + there + ": ticket 4",
		"resume OWNED_PENDING: done", "resume OWNED_DELETING" + there + ": done", "resume : done",
		"resume " + there + ": done",
	}, o.asked)
	for _, c := range []struct {
		status *adminv1.StatusResponse
		args   []string
		says   string
	}{
		{
			paused,
			[]string{"pause", here, "--reason", "r"},
			"nothing has changed: it was paused before, by operator/ann on 1970-01-01T00:00:00Z: ticket 1",
		},
		{
			paused,
			[]string{"resume", here, "--handler", "owned-deleting", "--reason", "r"},
			"nothing has changed: there was no such pause: status shows the others",
		},
		{nil, []string{"resume", here, "--reason", "r"}, "nothing has changed: nothing was paused"},
	} {
		o.status = c.status
		out := command(t, slices.Concat(at, c.args)...).out
		require.Contains(t, out, here+": "+c.says)
		require.NotContains(t, out, "again", "it was not paused")
	}
	for _, name := range []string{"pause", "retry"} { // a misspelt deployment
		got := command(t, slices.Concat(at, []string{name, here, "--of", "iam.example.com/eastus", "--reason", "r"})...)
		require.Equal(t,
			ran{cli.Refused, "", "error: deployment iam.example.com/eastus is not registered; known deployments: " +
				here + ", " + there + "\n"}, got)
	}
	o.asked = nil

	for _, name := range []string{"pause", "resume"} {
		require.Contains(t, command(t, slices.Concat(at, []string{name, here})...).errOut, "--reason is missing")
		require.Contains(t,
			command(t, slices.Concat(at, []string{name, here, "--of", "devices", "--reason", "r"})...).errOut, "--of: ")
		require.Contains(t,
			command(t, slices.Concat(at, []string{name, here, "--handler", "x", "--reason", "r"})...).errOut,
			"want one of owned-pending, owned-deleting, subscribed-deleting")
	}
	require.Empty(t, o.asked, "nothing is called without a reason")
	o.refuse = status.Error(codes.NotFound, "not paused")
	require.Equal(t, ran{cli.Refused, "", "error: not paused (NotFound)\n"},
		command(t, slices.Concat(at, []string{"resume", here, "--reason", "r"})...))
}

// unbundled returns the files of a bundle.
func unbundled(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	zipped, err := gzip.NewReader(f)
	require.NoError(t, err)
	files := map[string]string{}
	for in := tar.NewReader(zipped); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		raw, err := io.ReadAll(in)
		require.NoError(t, err)
		files[header.Name] = string(raw)
	}
}

// A bundle is sent to others: it names no resource and no person, unless it is told to, and replaces no file.
func TestASupportBundleHidesNames(t *testing.T) {
	t.Parallel()
	s := busy()
	s.Deletions[0].Root = "//iam.example.com/us-west2/projects/secret"
	o := &operated{
		status: s,
		stuck: &adminv1.ListStuckResponse{Resources: []*adminv1.ListStuckResponse_Resource{
			{Name: "//iam.example.com/us-west2/projects/secret", Since: ago(time.Hour)},
		}},
	}
	at := []string{"--context", stub.New(t, stub.Services{Admin: o, Described: "eastus2"}).Context}
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	got := command(t, append(at, "support-bundle", "--file", file)...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, file+" contains the versions")
	files := unbundled(t, file)
	require.Len(t, files, 4)
	all := strings.Join([]string{
		files["program.json"], files["deployments.json"], files["status.json"],
		files["stuck.json"],
	}, "")
	for _, secret := range []string{"secret", "eveline"} {
		require.NotContains(t, all, secret)
	}
	require.Contains(t, files["status.json"], "iam.example.com/us-west2/projects/x")
	require.Contains(t, files["deployments.json"], "iam.example.com/eastus2")
	require.Contains(t, files["status.json"], `"neverRan": true`)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	got = command(t, append(at, "support-bundle", "--file", file)...)
	require.Equal(t, cli.Failed, got.code)
	require.Contains(t, got.errOut, "file exists")
	named := filepath.Join(t.TempDir(), "named.tar.gz")
	require.Zero(t, command(t, append(at, "support-bundle", "--file", named, "--names")...).code)
	require.Contains(t, unbundled(t, named)["stuck.json"], "projects/secret")
}

// versions is a registry that switches versions.
type versions struct {
	registryv1.UnimplementedRegistryServiceServer
	set []*registryv1.SetDeploymentVersionRequest
}

func (v *versions) SetDeploymentVersion(_ context.Context,
	req *registryv1.SetDeploymentVersionRequest,
) (*registryv1.Deployment, error) {
	v.set = append(v.set, req)
	return &registryv1.Deployment{Service: req.GetService(), Region: req.GetRegion(), Version: req.GetVersion()}, nil
}

// stored has resources of kind Old, or does not answer.
type stored struct {
	resourcev1.UnimplementedResourceServiceServer
	names  []string
	refuse error
	asked  []string
}

func (s *stored) ListResources(_ context.Context,
	req *resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	s.asked = append(s.asked, req.GetKind()+" "+req.GetFilter())
	out := &resourcev1.ListResourcesResponse{}
	for _, name := range s.names {
		out.Resources = append(out.Resources, &resourcev1.Resource{Name: name, Kind: "Project"})
	}
	return out, s.refuse
}

func described(t *testing.T, version string, patterns ...string) *schema.Descriptor {
	t.Helper()
	f, err := schema.ParseFile("f", strings.NewReader("service: iam.example.com\nversion: "+version+
		"\nkinds: [{ kind: Project, patterns: ["+strings.Join(patterns, ", ")+"] }]\n"))
	require.NoError(t, err)
	return f.Services[0]
}

// A version that lacks a pattern is switched to only when the deployment stores no such resource: it is asked
// first.
func TestAVersionThatLacksAPatternIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stored stored
		says   string // the error; empty: it is switched
		code   int
	}{
		{stored{}, "", 0},
		{stored{names: []string{"projects/a"}}, "", 0},
		{stored{names: []string{"old/a"}}, "has no kind or pattern for //iam.example.com/us-west2/old/a", cli.Refused},
		{
			stored{refuse: status.Error(codes.PermissionDenied, "no right to list")},
			"does not answer whether it stores such resources: no right to list", cli.Refused,
		},
		{
			stored{refuse: status.Error(codes.Unavailable, "its database is away")},
			"does not answer whether it stores such resources: its database is away", cli.Unavailable,
		},
	} {
		registry, resources := &versions{}, c.stored
		at := []string{"--context", stub.New(t, stub.Services{
			Registry: registry, Resources: &resources,
			Descriptors: []*schema.Descriptor{
				described(t, "v1", `"projects/{p}"`, `"old/{o}"`),
				described(t, "v2", `"projects/{p}"`),
			},
		}).Context}
		got := command(t, append(at, "set-version", "iam.example.com/us-west2", "v2")...)
		require.Equal(t, []string{`Project name = "old/*"`}, resources.asked)
		if c.says != "" {
			require.Equal(t, c.code, got.code)
			require.Contains(t, got.errOut, c.says)
			require.Empty(t, registry.set)
			continue
		}
		require.Equal(t,
			ran{
				0,
				"iam.example.com/us-west2 switches to v2; see its progress with: db-controller status iam.example.com/us-west2\n", "",
			}, got)
		require.Equal(t, "v2", registry.set[0].GetVersion())
		require.Len(t, registry.set[0].GetPatternsUnused(), 1)
		require.Equal(t, "old/{o}", registry.set[0].GetPatternsUnused()[0].GetPattern())
		got = command(t, append(at, "set-version", "iam.example.com/us-west2", "v1")...)
		require.Equal(t, ran{0, "nothing has changed: iam.example.com/us-west2 was switched to v1 before\n", ""}, got)
	}
}

// refusing refuses a decommissioning.
type refusing struct{ operated }

func (r *refusing) Decommission(_ context.Context,
	req *adminv1.DecommissionRequest,
) (*adminv1.DecommissionResponse, error) {
	r.asked = append(r.asked, req.GetDeployment()+" "+req.GetBlocking()+": "+req.GetReason())
	return &adminv1.DecommissionResponse{}, r.refuse
}

// A deployment that could not be told still waits for the lost one: the command says so and can be repeated.
func TestADecommissioningThatDidNotReachAllIsRepeated(t *testing.T) {
	t.Parallel()
	r := &refusing{operated{refuse: status.Error(codes.Unavailable, "database unavailable")}}
	args := []string{"--context", stub.New(t, stub.Services{Admin: r, Registry: listing{}}).Context}
	args = append(args, "decommission", "old.example.com/mars", "--reason", "closed", "--yes", "--unlisted",
		"--blocking", "cascade_delete")
	got := command(t, args...)
	require.Equal(t, cli.Unavailable, got.code)
	require.Regexp(t, `iam.example.com/us-west2 +FAILED: database unavailable \(Unavailable\)`, got.out)
	require.Contains(t, got.errOut,
		"iam.example.com/us-west2 did not answer, and still waits for old.example.com/mars: run the same command again later")
	r.refuse = nil
	got = command(t, append(args, "-o", "json")...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, `"told": true`)
	require.Equal(t, "old.example.com/mars CASCADE_DELETE: closed", r.asked[len(r.asked)-1])
	require.Contains(t, command(t, append(args, "--blocking", "block")...).errOut,
		"--blocking BLOCK: want UNSET or CASCADE_DELETE")
}

// Both verbs take the full name of a resource, and call its deployment with the relative one.
func TestRetryAndForceReleaseTakeFullNames(t *testing.T) {
	t.Parallel()
	o := &operated{}
	at := []string{"--context", stub.New(t, stub.Services{Admin: o}).Context}
	of := func(args ...string) ran { return command(t, slices.Concat(at, args)...) }
	require.Equal(t, ran{0, "iam.example.com/us-west2 tries its work of " + acmeName + " now\n", ""},
		of("retry", acmeName, "--reason", "r"))
	require.Equal(t, ran{cli.WrongUsage, "", "error: --of is for a deployment, not for a resource\n"},
		of("retry", acmeName, "--of", "devices.example.com/eastus2", "--reason", "r"))
	require.Equal(t, cli.WrongUsage, of("retry", "projects/acme", "--reason", "r").code)
	o.waitsFor = []string{"iam.example.com/us-west2", "old.example.com/mars"}
	got := of("retry", acmeName, "--reason", "r")
	require.Equal(t, cli.Refused, got.code)
	require.Contains(t, got.out, "iam.example.com/us-west2 tries its work of "+acmeName+
		" now\nold.example.com/mars could not be asked: ")
	require.Equal(t, "error: 1 of 1 deployment that the resource waits for could not be asked\n", got.errOut)
	o.waitsFor = nil

	const key = "OWNEE_ENTRY|u|devices.example.com/eastus2"
	require.Equal(t, ran{
		0, "ownee entry of devices.example.com/eastus2\n  key:     '" + key +
			"'\n  release: its ownees stay\n" +
			"holder entry of devices.example.com/eastus2\n  cannot be released: it keeps nothing now\n",
		"",
	}, of("force-release", acmeName))
	require.Equal(t, cli.WrongUsage, of("force-release", "projects/acme").code)
	require.Equal(t, ran{cli.WrongUsage, "", "error: --key eastus2 is no key: force-release " + acmeName +
		" without --key lists them\n"},
		of("force-release", acmeName, "--key", "eastus2", "--reason", "r", "--yes"))
	got = of("force-release", acmeName, "--key", key, "--reason", "r")
	require.Equal(t, cli.WrongUsage, got.code)
	require.Contains(t, got.errOut, key+": its ownees stay\nthis cannot be undone: add --yes to continue")
	require.Equal(t, ran{0, key + ": its ownees stay\nreleased " + key + "\n", ""},
		of("force-release", acmeName, "--key", key, "--reason", "r", "--yes"))
	require.Equal(t, []string{
		"retry projects/acme: r", "retry projects/acme: r", "releasable projects/acme", "releasable projects/acme",
		"releasable projects/acme", "releasable projects/acme", "release " + key + ": r",
	}, o.asked)
}
