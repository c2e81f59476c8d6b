package client_test

import (
	"cmp"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/internal/inprocess"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// referring is a deployment whose pages have two referrers each.
type referring struct {
	resourcev1.UnimplementedResourceServiceServer
	holders []string
	others  []string // deployments
	fails   error
}

func (r *referring) ListReferrers(_ context.Context,
	req *resourcev1.ListReferrersRequest,
) (*resourcev1.ListReferrersResponse, error) {
	if r.fails != nil {
		return nil, r.fails
	}
	out := &resourcev1.ListReferrersResponse{}
	if r.others != nil && req.GetPageToken() == "" {
		out.TargetUid, out.Deployments = "uid", r.others
	}
	from := len(req.GetPageToken())
	for _, holder := range r.holders[from:min(from+2, len(r.holders))] {
		if r.others == nil && req.GetTargetUid() != "uid" {
			holder = "without a uid"
		}
		out.Referrers = append(out.Referrers, &resourcev1.ListReferrersResponse_Referrer{Holder: holder})
	}
	if from+2 < len(r.holders) {
		out.NextPageToken = strings.Repeat("x", from+2)
	}
	return out, nil
}

// The referrers of all deployments come page by page: first from the target's deployment, which knows the
// other deployments and the uid.
func TestReferrersOfAllDeploymentsAreIterated(t *testing.T) {
	t.Parallel()
	const service = "iam.example.com"
	own := &referring{holders: []string{"a", "b", "c"}, others: []string{service + "/eastus2", service + "/north"}}
	east, north := &referring{holders: []string{"d", "e", "f", "g", "h"}}, &referring{holders: []string{"i"}}
	env, conns := &schema.Environment{}, map[schema.DeploymentID]grpc.ClientConnInterface{}
	for region, server := range map[string]*referring{"us-west2": own, "eastus2": east, "north": north} {
		id := schema.DeploymentID{Service: service, Region: region}
		env.Deployments = append(env.Deployments, schema.Deployment{DeploymentID: id})
		channel := &inprocess.Channel{}
		resourcev1.RegisterResourceServiceServer(channel, server)
		conns[id] = channel
	}
	c := client.Over(env, conns)
	collect := func(most int) (found string, err error) {
		for r, err := range c.Referrers(t.Context(), acme) {
			if err != nil {
				return found, err
			}
			if found += r.GetHolder(); len(found) == most {
				break
			}
		}
		return found, nil
	}
	for most := range 10 {
		found, err := collect(most)
		require.NoError(t, err)
		require.Equal(t, "abcdefghi"[:cmp.Or(most, 9)], found)
	}
	others, err := c.ReferringDeployments(t.Context(), acme)
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{{Service: service, Region: "eastus2"}, {Service: service, Region: "north"}},
		others)

	east.fails = because(t, codes.PermissionDenied, "DENIED")
	found, err := collect(0)
	require.Equal(t, "abc", found)
	require.ErrorIs(t, err, client.ErrDenied)
	require.ErrorContains(t, err, "the referrers in iam.example.com/eastus2: ")
	own.fails = because(t, codes.NotFound, "NOT_FOUND")
	_, err = c.ReferringDeployments(t.Context(), acme)
	require.ErrorIs(t, err, client.ErrNotFound)
	_, err = c.ReferringDeployments(t.Context(), "projects/acme")
	require.Error(t, err)
}
