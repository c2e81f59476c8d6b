package main

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// referring lists one referrer a page.
type referring struct {
	resourcev1.UnimplementedResourceServiceServer
	home      bool
	referrers []*resourcev1.ListReferrersResponse_Referrer
}

func (r *referring) ListReferrers(_ context.Context,
	req *resourcev1.ListReferrersRequest,
) (*resourcev1.ListReferrersResponse, error) {
	out := &resourcev1.ListReferrersResponse{}
	switch {
	case !r.home && req.GetTargetUid() != "u1":
		return nil, status.Error(codes.InvalidArgument, "target_uid is missing")
	case r.home && req.GetPageToken() == "":
		out.TargetUid, out.Deployments = "u1", []string{"iam.example.com/eastus2"}
	}
	at := len(req.GetPageToken())
	if at < len(r.referrers) {
		out.Referrers = r.referrers[at : at+1]
	}
	if at+1 < len(r.referrers) {
		out.NextPageToken = strings.Repeat("x", at+1)
	}
	return out, nil
}

func TestReferrersOfAllDeploymentsAreListed(t *testing.T) {
	t.Parallel()
	holder := func(name, path string, b schemav1.Behaviour) *resourcev1.ListReferrersResponse_Referrer {
		return &resourcev1.ListReferrersResponse_Referrer{
			Holder: "//iam.example.com/" + name, Kind: "Robot",
			Path: path, Behaviour: b,
		}
	}
	home := &referring{home: true, referrers: []*resourcev1.ListReferrersResponse_Referrer{
		holder("us-west2/projects/a", "spec.owner", schemav1.Behaviour_BEHAVIOUR_BLOCK),
		holder("us-west2/projects/b", "@owner", 0),
	}}
	far := &referring{referrers: []*resourcev1.ListReferrersResponse_Referrer{holder("eastus2/projects/c", "friend",
		schemav1.Behaviour_BEHAVIOUR_UNSET)}}
	at := []string{
		"--context",
		stub.New(t, stub.Services{
			Resources: home,
			Beside:    map[string]resourcev1.ResourceServiceServer{"eastus2": far},
		}).Context,
	}
	got := command(t, append(at, "referrers", acmeName)...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, []string{
		"NAME", "KIND", "FIELD", "BEHAVIOUR",
		"//iam.example.com/us-west2/projects/a", "Robot", "spec.owner", "BLOCK",
		"//iam.example.com/us-west2/projects/b", "Robot", "@owner", "owned",
		"//iam.example.com/eastus2/projects/c", "Robot", "friend", "UNSET",
	}, strings.Fields(got.out))
	got = command(t, append(at, "referrers", acmeName, "--limit", "2", "-o", "json")...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, 2, strings.Count(got.out, "holder"))
	require.Contains(t, got.errOut, "there are more: use --limit 20")
	require.Equal(t, cli.WrongUsage, command(t, append(at, "referrers", acmeName, "--limit", "0")...).code)

	alone := []string{"--context", stub.New(t, stub.Services{Resources: &referring{home: true}}).Context}
	got = command(t, append(alone, "referrers", acmeName)...)
	require.NotZero(t, got.code, "a deployment that does not answer is unknown, not empty")
	failing := map[string]resourcev1.ResourceServiceServer{"eastus2": resourcev1.UnimplementedResourceServiceServer{}}
	got = command(t, "referrers", acmeName, "--context",
		stub.New(t, stub.Services{Resources: home, Beside: failing}).Context)
	require.NotZero(t, got.code)
	require.Contains(t, got.out, "//iam.example.com/us-west2/projects/b", "what the others have answered")
	require.Contains(t, got.errOut, "iam.example.com/eastus2")
}
