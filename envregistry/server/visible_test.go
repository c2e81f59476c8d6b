package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// Grants name tenants and their projects: a person sees the own ones, by any method that has rights in its
// answer.
func TestPeopleSeeTheirOwnGrants(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	operator := serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "olga"})
	grants := []*registryv1.Grant{
		{Identity: "user/ann", Verbs: []string{"read"}, Name: "projects/ann"},
		{Identity: "user/bob", Verbs: []string{"read"}, Name: "projects/bob"},
		{Group: "sre", Verbs: []string{"operate"}},
		{Identity: "*", Verbs: []string{"read"}, Name: "projects/public"},
	}
	_, err := operator.Apply(t.Context(),
		&registryv1.ApplyRequest{Rights: &registryv1.Rights{Deny: true, Grants: grants}})
	require.NoError(t, err)
	for who, want := range map[identity.Identity][]string{
		{Role: identity.RoleUser, Name: "ann"}: {
			"projects/ann",
			"projects/public",
		},
		{Role: identity.RoleUser, Name: "eve"}: {"projects/public"},
		{Role: identity.RoleOperator, Name: "olga"}: {
			"projects/ann",
			"projects/bob", "", "projects/public",
		},
		identity.Deployment(schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}): {
			"projects/ann",
			"projects/bob", "", "projects/public",
		},
	} {
		c := serve(t, dsn, who)
		names := func(r *registryv1.Rights) (out []string) {
			require.True(t, r.GetDeny())
			for _, g := range r.GetGrants() {
				out = append(out, g.GetName())
			}
			return out
		}
		got, err := c.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
		require.NoError(t, err)
		require.Equal(t, want, names(got.GetEnvironment().GetRights()), "get, %s", who)
		stream, err := c.WatchEnvironment(t.Context(), &registryv1.WatchEnvironmentRequest{})
		require.NoError(t, err)
		for seen := false; !seen; {
			msg, err := stream.Recv()
			require.NoError(t, err)
			if item, is := msg.GetUpsert().GetItem().(*registryv1.WatchEnvironmentResponse_Change_Rights); is {
				require.Equal(t, want, names(item.Rights), "watch, %s", who)
				seen = true
			}
		}
	}
}
