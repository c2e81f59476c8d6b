package costs

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// A person who has written as many bytes as --max-written allows is refused until the hour ends. Others,
// operators, reads and dry runs are not affected.
func TestTheBytesThatAPersonWritesAreBounded_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told := 0
		w := NewWritten(10<<20, func(string, identity.Identity) { told++ })
		large := &resourcev1.Resource{Name: strings.Repeat("n", 1<<20)}
		call := func(role identity.Role, name, method string, req any, answer *resourcev1.Resource) codes.Code {
			ctx := identity.NewContext(context.Background(), identity.Identity{Role: role, Name: name})
			_, err := w.Unary(ctx, req, &grpc.UnaryServerInfo{FullMethod: method},
				func(context.Context, any) (any, error) {
					if answer == nil {
						return nil, errors.New("refused")
					}
					return answer, nil
				})
			return status.Code(err)
		}
		const put, update, batch = resourcev1.ResourceService_PutResource_FullMethodName,
			resourcev1.ResourceService_UpdateResource_FullMethodName,
			resourcev1.ResourceService_BatchWriteResources_FullMethodName
		small := &resourcev1.UpdateResourceRequest{RequestId: "r"}
		for range 5 { // a small change of a large resource, and its outcome
			require.Equal(t, codes.OK, call(identity.RoleUser, "eve", update, small, large))
		}
		require.Equal(t, codes.ResourceExhausted, call(identity.RoleUser, "eve", update, small, large))
		require.Equal(t, codes.ResourceExhausted,
			call(identity.RoleUser, "eve", resourcev1.ResourceService_DeleteResource_FullMethodName, nil, large))
		require.Equal(t, 2, told)
		reads := []string{
			"GetResource", "BatchGetResources", "ListResources", "ListReferrers", "PlanDeletion",
			"MutateAndValidateResource",
		}
		// a new method writes, until it is known not to
		for _, m := range resourcev1.ResourceService_ServiceDesc.Methods {
			want := codes.ResourceExhausted
			if slices.Contains(reads, m.MethodName) {
				want = codes.OK
			}
			require.Equal(t, want, call(identity.RoleUser, "eve", "/dbcontroller.resource.v1.ResourceService/"+
				m.MethodName, nil, large), m.MethodName)
		}
		require.Equal(t, codes.OK, call(identity.RoleUser, "eve", resourcev1.ResourceService_GetResource_FullMethodName,
			nil, large))
		require.Equal(t, codes.OK, call(identity.RoleUser, "eve", batch,
			&resourcev1.BatchWriteResourcesRequest{ValidateOnly: true}, large))
		require.Equal(t, codes.OK, call(identity.RoleUser, "ann", update, small, large))
		for range 20 {
			require.Equal(t, codes.OK, call(identity.RoleOperator, "eve", put, &resourcev1.PutResourceRequest{}, large))
		}
		time.Sleep(time.Hour)
		require.Equal(t, codes.OK, call(identity.RoleUser, "eve", update, small, large))
		// Refusals, whose outcomes are stored as well.
		for range 10 << 10 {
			require.Equal(t, codes.Unknown, call(identity.RoleUser, "bob", put, &resourcev1.PutResourceRequest{}, nil))
		}
		require.Equal(t, codes.ResourceExhausted, call(identity.RoleUser, "bob", put, &resourcev1.PutResourceRequest{},
			large))
		// Each resource of a batch, which leaves a record when it is removed, and each right that is asked
		// for.
		deletes := &resourcev1.BatchDeleteResourcesRequest{Requests: make([]*resourcev1.DeleteResourceRequest, 1000)}
		rights := &resourcev1.AcquireDelegationsRequest{Rights: make([]string, 1000)}
		for method, req := range map[string]any{"BatchDeleteResources": deletes, "AcquireDelegations": rights} {
			for range 11 {
				require.Equal(t, codes.OK, call(identity.RoleUser, method, "/dbcontroller.resource.v1.ResourceService/"+
					method, req, &resourcev1.Resource{}))
			}
			require.Equal(t, codes.ResourceExhausted,
				call(identity.RoleUser, method, "/dbcontroller.resource.v1.ResourceService/"+method, req,
					&resourcev1.Resource{}), method)
		}
	})
}

// The references that other deployments establish for a person count here: a person refers no further than a
// person writes. A person of another role, and the process itself, are not limited.
func TestReferencesCountAmongTheWritesOfAPerson_I20(t *testing.T) {
	t.Parallel()
	w := NewWritten(1<<20, nil)
	by, another := identity.Identity{Role: identity.RoleDeployment, Name: "b"},
		identity.Identity{Role: identity.RoleDeployment, Name: "c"}
	for range 2 {
		require.NoError(t, w.References(by, "user/ann", 512))
	}
	require.ErrorContains(t, w.References(by, "user/ann", 1), "user/ann has written 1 MiB in an hour")
	require.NoError(t, w.References(by, "user/bob", 1))
	require.NoError(t, w.References(another, "user/ann", 1),
		"what a deployment writes in the name of a person takes nothing of others")
	require.NoError(t, w.exceeded(writer{who: identity.Identity{Role: identity.RoleUser, Name: "ann"}}))
	for _, other := range []string{"", "operator/ada", "deployment/iam.example.com/eu", "x"} {
		for range 3 {
			require.NoError(t, w.References(by, other, 1024), other)
		}
	}
	require.NoError(t, (*Written)(nil).References(by, "user/ann", 1<<20))
}
