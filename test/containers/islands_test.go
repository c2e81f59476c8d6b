package containers

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
	"github.com/db-controller/db-controller/test/wait"
)

const islands = `
service: a.example.com
version: v1
kinds:
  - kind: Node
    patterns: ["nodes/{node}"]
    references:
      - { path: block, targets: [Node], behaviour: BLOCK }
      - { path: cascade, targets: [Node], behaviour: CASCADE_DELETE }
      - { path: unset, targets: [Node], behaviour: UNSET }
---
regions: [us, eu, as]
deployments:
  - { deployment: a.example.com/us, version: v1 }
  - { deployment: a.example.com/eu, version: v1 }
  - { deployment: a.example.com/as, version: v1 }
`

// Deployments in containers, each with its database on a network of its own. One is disconnected from the
// network between them, and returns with another address: meanwhile nothing counts as absent, and afterwards
// the state is the same as without the cut.
func TestDeploymentsOnDisconnectedNetworks_I1_I3_I15(t *testing.T) {
	rounds.OnlyLong(t, "it starts eight containers")
	i := NewIslands(t, islands, "--tentative-ttl", "1s")
	ids, resources := map[string]schema.DeploymentID{}, map[string]resourcev1.ResourceServiceClient{}
	for _, region := range []string{"us", "eu", "as"} {
		ids[region] = schema.DeploymentID{Service: "a.example.com", Region: region}
		resources[region] = resourcev1.NewResourceServiceClient(i.Deployment(ids[region]))
	}
	full := func(region, name string) string { return "//a.example.com/" + region + "/nodes/" + name }
	put := func(region, name string, content map[string]any) error {
		body, err := structpb.NewStruct(content)
		require.NoError(t, err)
		_, err = resources[region].PutResource(t.Context(),
			&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: "nodes/" + name, Body: body}})
		return err
	}
	remove := func(region, name string) error {
		_, err := resources[region].DeleteResource(t.Context(),
			&resourcev1.DeleteResourceRequest{Name: "nodes/" + name})
		return err
	}
	there := func(region, name string) bool {
		_, err := resources[region].GetResource(t.Context(), &resourcev1.GetResourceRequest{Name: "nodes/" + name})
		return status.Code(err) != codes.NotFound
	}
	for _, name := range []string{"kept", "goes", "later", "free"} {
		require.NoError(t, put("us", name, nil))
	}
	require.NoError(t, put("eu", "keeper", map[string]any{"block": full("us", "kept")}))
	for n := range 50 {
		require.NoError(t, put("eu", fmt.Sprintf("follower%d", n), map[string]any{"cascade": full("us", "goes")}))
	}
	require.NoError(t, put("as", "last", map[string]any{
		"cascade": full("eu", "follower7"),
		"unset":   full("us", "goes"),
	}))

	admins := map[schema.DeploymentID]adminv1.AdminServiceClient{}
	for _, id := range ids {
		admins[id] = adminv1.NewAdminServiceClient(i.Deployment(id))
	}
	settled := func() {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			for _, admin := range admins {
				s, err := admin.Status(t.Context(), &adminv1.StatusRequest{})
				require.NoError(c, err)
				require.Empty(c, s.GetOutstanding())
			}
			require.Empty(c, harness.AuditDatabases(t, i.Pools))
		}, wait.Limit, wait.Poll)
	}
	settled() // no tentative blockades are left from before

	i.Leave(ids["eu"])
	require.Equal(t, codes.Unavailable, status.Code(put("eu", "new", map[string]any{"block": full("us", "free")})),
		"the target cannot be asked for")
	require.Equal(t, codes.Unavailable, status.Code(put("us", "new", map[string]any{"block": full("eu", "keeper")})))
	require.Equal(t, codes.FailedPrecondition, status.Code(remove("us", "kept")),
		"it is referred to, though its holder is away")
	require.NoError(t, remove("us", "goes"))
	require.NoError(t, put("eu", "local", nil), "writes without foreign references continue")
	require.NoError(t, remove("us", "free"), "nothing refers to it")
	<-time.After(3 * time.Second) // longer than the expiry of tentative blockades
	require.True(t, there("us", "goes"), "not everybody has acted")
	require.True(t, there("eu", "follower7"))

	i.Join(ids["eu"])
	require.Eventually(t, func() bool {
		return !there("us", "goes") && !there("eu", "follower0") && !there("eu", "follower49") && !there("as", "last")
	}, wait.Limit, wait.Poll, "what was deleted meanwhile goes")
	require.Eventually(t, func() bool {
		return put("eu", "new", map[string]any{"block": full("us", "later")}) == nil
	}, wait.Limit, wait.Poll)
	eventually := func(what string, code codes.Code, do func() error) { // while connections are made again
		t.Helper()
		require.Eventually(t, func() bool {
			got := status.Code(do())
			require.Contains(t, []codes.Code{code, codes.Unavailable, codes.Aborted}, got, what)
			return got == code
		}, wait.Limit, wait.Poll, what)
	}
	eventually("it is referred to", codes.FailedPrecondition, func() error { return remove("us", "later") })
	eventually("it lets go", codes.OK, func() error { return put("eu", "keeper", nil) })
	eventually("nothing refers to it", codes.OK, func() error {
		err := remove("us", "kept")
		if status.Code(err) == codes.FailedPrecondition { // until its release has arrived
			return status.Error(codes.Unavailable, err.Error())
		}
		return err
	})
	settled()
}
