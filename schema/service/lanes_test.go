package service

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// A standby answers reads of people who do not want the latest state, and nothing of the protocol's.
func TestWhichCallsAStandbyMayAnswer_I37(t *testing.T) {
	t.Parallel()
	user, deployment := identity.Identity{Role: identity.RoleUser, Name: "ada"},
		identity.Identity{Role: identity.RoleDeployment, Name: "a.example.com/eu"}
	for _, c := range []struct {
		method string
		req    any
		who    identity.Identity
		want   bool
	}{
		{resourcev1.ResourceService_GetResource_FullMethodName, &resourcev1.GetResourceRequest{}, user, true},
		{
			resourcev1.ResourceService_GetResource_FullMethodName, &resourcev1.GetResourceRequest{Latest: true},
			user, false,
		},
		{resourcev1.ResourceService_ListResources_FullMethodName, &resourcev1.ListResourcesRequest{}, user, true},
		{
			resourcev1.ResourceService_ListResources_FullMethodName, &resourcev1.ListResourcesRequest{Latest: true},
			user, false,
		},
		{
			resourcev1.ResourceService_BatchGetResources_FullMethodName, &resourcev1.BatchGetResourcesRequest{},
			user, true,
		},
		{resourcev1.ResourceService_ListReferrers_FullMethodName, &resourcev1.ListReferrersRequest{}, user, true},
		{resourcev1.ResourceService_PlanDeletion_FullMethodName, &resourcev1.PlanDeletionRequest{}, user, false},
		{resourcev1.ResourceService_PutResource_FullMethodName, &resourcev1.PutResourceRequest{}, user, false},
		{schemav1.SchemaService_PlanDeletion_FullMethodName, &schemav1.PlanDeletionRequest{}, deployment, false},
		{resourcev1.ResourceService_GetResource_FullMethodName, &resourcev1.GetResourceRequest{}, deployment, false},
	} {
		_, err := callers{}.Unary(identity.NewContext(t.Context(), c.who), c.req,
			&grpc.UnaryServerInfo{FullMethod: c.method}, func(ctx context.Context, _ any) (any, error) {
				require.Equal(t, c.want, postgres.CallerOf(ctx).Standby, "%s by %s", c.method, c.who.Role)
				return nil, nil
			})
		require.NoError(t, err)
	}
}
