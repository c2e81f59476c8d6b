package access_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
)

const limitedOperators = `
  operators:
    - { identity: operator/ada, verbs: [read, write, delete, refer, operate, grant] }
    - { identity: operator/olga, verbs: [read] }
    - { identity: operator/omar, verbs: [read, operate], deployments: ["b.example.com/*"] }
`

// An operator who may only read may call each reading method, and no other; an operator of another service
// may call none. The methods come from the services, so that the test covers a new one.
func TestOperatorsHaveTheirLimitsForEachMethod(t *testing.T) {
	t.Parallel()
	a, _ := newAccess(t, declared+limitedOperators)
	allowed := func(who, method string, req any) bool {
		called := false
		_, err := call(a, as(t, identity.RoleOperator, who), method, req, func(context.Context, any) (any, error) {
			called = true
			return nil, nil
		})
		require.Equal(t, called, err == nil, "%s %s: %v", who, method, err)
		if err != nil {
			require.Equal(t, codes.PermissionDenied, status.Code(err), "%s %s: %v", who, method, err)
		}
		return called
	}
	reads := []string{
		"GetResource", "ListResources", "BatchGetResources", "ListReferrers", "WatchResources", "Status", "Explain",
		"ListDeletions", "ListStuck", "ListReleasable", "ListRemovals", "ListResourceShadows",
		"ListBlockades", "AcquireDelegations", // whose handler asks for refer
	}
	n := 0
	for _, file := range []protoreflect.FileDescriptor{
		resourcev1.File_dbcontroller_resource_v1_resource_proto,
		adminv1.File_dbcontroller_admin_v1_admin_proto, schemav1.File_dbcontroller_schema_v1_schema_proto,
	} {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				m := file.Services().Get(i).Methods().Get(j)
				name := string(m.Name())
				if m.IsStreamingServer() || strings.HasPrefix(string(m.FullName()), "dbcontroller.schema.") &&
					!slices.Contains(reads, name) {
					continue // streams are below; the other methods of SchemaService are of deployments
				}
				n++
				method := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
				req := requestOf(t, m, "things/x")
				require.True(t, allowed("ada", method, req), method)
				require.Equal(t, slices.Contains(reads, name), allowed("olga", method, req), method)
				// which tell nothing of hidden resources
				if name != "Status" && !strings.HasPrefix(name, "ListStuck") &&
					!strings.HasPrefix(name, "ListDeletions") && name != "ListResources" &&
					name != "AcquireDelegations" {
					require.False(t, allowed("omar", method, req), method)
					require.False(t, allowed("nobody", method, req), method)
				}
			}
		}
	}
	require.Greater(t, n, 30)
	verify := func(who string, req *adminv1.VerifyRequest) error {
		return streamed(a, as(t, identity.RoleOperator, who), adminv1.AdminService_Verify_FullMethodName, req)
	}
	require.NoError(t, verify("olga", &adminv1.VerifyRequest{}))
	require.Equal(t, codes.PermissionDenied, status.Code(verify("olga", &adminv1.VerifyRequest{Repair: true})))
	require.NoError(t, verify("ada", &adminv1.VerifyRequest{Repair: true}))
	require.Equal(t, codes.PermissionDenied, status.Code(verify("omar", &adminv1.VerifyRequest{})))
}

// requestOf is the request of a method with names of one resource.
func requestOf(t *testing.T, m protoreflect.MethodDescriptor, name string) any {
	t.Helper()
	in, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	require.NoError(t, err)
	req := in.New().Interface()
	switch req := req.(type) {
	case *resourcev1.CreateResourceRequest:
		req.Resource = &resourcev1.Resource{Name: name}
	case *resourcev1.UpdateResourceRequest:
		req.Resource = &resourcev1.Resource{Name: name}
	case *resourcev1.PutResourceRequest:
		req.Resource = &resourcev1.Resource{Name: name}
	case *resourcev1.BatchWriteResourcesRequest:
		req.Writes = []*resourcev1.BatchWriteResourcesRequest_Write{put(name)}
	case *resourcev1.MutateAndValidateResourceRequest:
		req.Write = put(name)
	case *resourcev1.BatchDeleteResourcesRequest:
		req.Requests = []*resourcev1.DeleteResourceRequest{{Name: name}}
	case *resourcev1.BatchGetResourcesRequest:
		req.Names = []string{name}
	case *resourcev1.ListReferrersRequest:
		req.Target = name
	default:
		if f := req.ProtoReflect().Descriptor().Fields().ByName("name"); f != nil &&
			f.Kind() == protoreflect.StringKind {
			req.ProtoReflect().Set(f, protoreflect.ValueOfString(name))
		}
	}
	return req
}

// The limits hold where a request is forwarded, by name or by region, and for references to other
// deployments.
func TestOperatorsHaveTheirLimitsElsewhere(t *testing.T) {
	t.Parallel()
	a, _ := newAccess(t, strings.Replace(declared, "default: deny", "default: allow", 1)+limitedOperators)
	mars := schema.DeploymentID{Service: "a.example.com", Region: "mars"}
	for method, req := range map[string]any{
		resourcev1.ResourceService_GetResource_FullMethodName: &resourcev1.GetResourceRequest{
			Name: "//a.example.com/mars/things/x",
		},
		resourcev1.ResourceService_ListResources_FullMethodName: &resourcev1.ListResourcesRequest{Region: "mars"},
		resourcev1.ResourceService_ListReferrers_FullMethodName: &resourcev1.ListReferrersRequest{
			Region: "mars",
			Target: "//" + self.String() + "/things/x",
		},
		resourcev1.ResourceService_WatchResources_FullMethodName: &resourcev1.WatchResourcesRequest{Region: "mars"},
		resourcev1.ResourceService_AcquireDelegations_FullMethodName: &resourcev1.AcquireDelegationsRequest{
			Region: "mars",
		},
		resourcev1.ResourceService_DeleteResource_FullMethodName: &resourcev1.DeleteResourceRequest{
			Name: "//a.example.com/mars/things/x",
		},
	} {
		forwards := func(name string) error {
			ctx := as(t, identity.RoleOperator, name)
			who, err := identity.CallerFromContext(ctx)
			require.NoError(t, err)
			return a.Forward(ctx, who, method, req, mars)
		}
		require.NoError(t, forwards("ada"), method)
		require.Error(t, forwards("omar"), "%s: of another service", method)
		require.Error(t, forwards("nobody"), method)
		reads := strings.Contains(method, "/Get") || strings.Contains(method, "/List") ||
			strings.Contains(method, "/Watch")
		require.Equal(t, reads, forwards("olga") == nil, method)
	}
	_, err := call(a, as(t, identity.RoleOperator, "olga"),
		resourcev1.ResourceService_AcquireDelegations_FullMethodName, &resourcev1.AcquireDelegationsRequest{},
		func(ctx context.Context, _ any) (any, error) {
			may, err := peer.PersonFrom(ctx).Refer(ctx, []schema.FullName{
				{Deployment: other, Name: "things/x"},
				{Deployment: self, Name: "things/x"},
			})
			require.NoError(t, err)
			require.Equal(t, []bool{false, false}, may, "who may only read takes no right to refer")
			return nil, nil
		})
	require.NoError(t, err)
}

// receiving is a stream with one request.
type receiving struct {
	stream
	req proto.Message
}

func (r receiving) RecvMsg(m any) error {
	proto.Merge(m.(proto.Message), r.req)
	return nil
}

// streamed opens a stream with a request, which its handler receives.
func streamed(a *access.Access, ctx context.Context, method string, req proto.Message) error {
	return a.Stream(nil, receiving{stream{ctx: ctx}, req}, &grpc.StreamServerInfo{FullMethod: method},
		func(_ any, s grpc.ServerStream) error {
			return s.RecvMsg(req.ProtoReflect().New().Interface())
		})
}
