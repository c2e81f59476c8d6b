package access_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/access"
)

func tokenIn(m proto.Message, field protoreflect.Name) string {
	return m.ProtoReflect().Get(m.ProtoReflect().Descriptor().Fields().ByName(field)).String()
}

func withToken(m proto.Message, field protoreflect.Name, token string) proto.Message {
	m.ProtoReflect().Set(m.ProtoReflect().Descriptor().Fields().ByName(field), protoreflect.ValueOfString(token))
	return m
}

// A page token has the place of the last row, which may be of a resource that the caller may not read: its
// text is hidden, in the answers of all methods, and a text that was not handed out is refused.
func TestAPageTokenTellsNothing_I20(t *testing.T) {
	t.Parallel()
	keys := [][]byte{[]byte("one"), []byte("zero")}
	a, _ := newAccess(t, declared, func(c *access.Config) {
		c.TokenKeys = func(context.Context) ([][]byte, error) { return keys, nil }
	})
	another, _ := newAccess(t, declared, func(c *access.Config) { // another process of the deployment
		c.TokenKeys = func(context.Context) ([][]byte, error) { return keys, nil }
	})
	ann, root := as(t, identity.RoleUser, "ann"), as(t, identity.RoleOperator, "root")
	const place = "things/secret"
	sealed := map[string]string{}
	for _, file := range []protoreflect.FileDescriptor{
		resourcev1.File_dbcontroller_resource_v1_resource_proto,
		adminv1.File_dbcontroller_admin_v1_admin_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				d := methods.Get(j)
				if d.Output().Fields().ByName("next_page_token") == nil {
					continue
				}
				method := fmt.Sprintf("/%s/%s", d.Parent().FullName(), d.Name())
				who := root
				if access.Covers(method) {
					who = ann
				}
				request := func(token string) proto.Message {
					in, err := protoregistry.GlobalTypes.FindMessageByName(d.Input().FullName())
					require.NoError(t, err)
					m := in.New().Interface()
					for _, field := range []protoreflect.Name{"name", "target"} {
						if m.ProtoReflect().Descriptor().Fields().ByName(field) != nil {
							withToken(m, field, "//a.example.com/us-west2/things/ann-1")
						}
					}
					return withToken(m, "page_token", token)
				}
				answer := func(_ context.Context, _ any) (any, error) {
					out, err := protoregistry.GlobalTypes.FindMessageByName(d.Output().FullName())
					require.NoError(t, err)
					return withToken(out.New().Interface(), "next_page_token", place), nil
				}
				out, err := call(a, who, method, request(""), answer)
				require.NoError(t, err, method)
				token := tokenIn(out.(proto.Message), "next_page_token")
				raw, err := base64.RawURLEncoding.DecodeString(token)
				require.NoError(t, err, method)
				require.NotContains(t, string(raw), "secret", method)
				for _, process := range []*access.Access{a, another} {
					req := request(token)
					_, err = call(process, who, method, req, func(_ context.Context, req any) (any, error) {
						require.Equal(t, place, tokenIn(req.(proto.Message), "page_token"), method)
						return nil, nil
					})
					require.NoError(t, err, method)
					require.Equal(t, token, tokenIn(req, "page_token"), "%s: the request of the caller", method)
				}
				for what, token := range map[string]string{
					"plain":   base64.RawURLEncoding.EncodeToString([]byte(place)),
					"altered": "AAAA" + token[4:], "no token": "?", "short": "AAAA",
				} {
					_, err = call(a, who, method, request(token), fine)
					require.Equal(t, codes.InvalidArgument, status.Code(err), "%s %s: %v", method, what, err)
				}
				sealed[method] = token
			}
		}
	}
	list, referrers := resourcev1.ResourceService_ListResources_FullMethodName,
		resourcev1.ResourceService_ListReferrers_FullMethodName
	_, err := call(a, ann, list, &resourcev1.ListResourcesRequest{PageToken: sealed[referrers]}, fine)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "of another method: %v", err)

	// The token of a list of refusals is of the references that the caller writes.
	validate := resourcev1.ResourceService_MutateAndValidateResource_FullMethodName
	_, err = call(a, ann, validate, &resourcev1.MutateAndValidateResourceRequest{
		Write:     put("things/ann-1"),
		PageToken: place,
	},
		func(_ context.Context, req any) (any, error) {
			require.Equal(t, place, tokenIn(req.(proto.Message), "page_token"))
			return nil, nil
		})
	require.NoError(t, err)

	// A rotation of the keys: the key before it still opens tokens, and after the second one no longer.
	fresh := func() *access.Access {
		f, _ := newAccess(t, declared, func(c *access.Config) {
			c.TokenKeys = func(context.Context) ([][]byte, error) { return keys, nil }
		})
		return f
	}
	keys = [][]byte{[]byte("two"), []byte("one")}
	_, err = call(fresh(), ann, list, &resourcev1.ListResourcesRequest{PageToken: sealed[list]}, fine)
	require.NoError(t, err)
	out, err := call(fresh(), ann, list, &resourcev1.ListResourcesRequest{}, func(context.Context, any) (any, error) {
		return &resourcev1.ListResourcesResponse{NextPageToken: place}, nil
	})
	require.NoError(t, err)
	_, err = call(a, ann, list,
		&resourcev1.ListResourcesRequest{PageToken: out.(*resourcev1.ListResourcesResponse).GetNextPageToken()}, fine)
	require.NoError(t, err, "a process reads the keys again for a token that it cannot open")
	keys = [][]byte{[]byte("three"), []byte("two")}
	_, err = call(fresh(), ann, list, &resourcev1.ListResourcesRequest{PageToken: sealed[list]}, fine)
	require.Equal(t, codes.InvalidArgument, status.Code(err), err)

	// Deployments page through each other's lists, and have no rights that limit them.
	peer := identity.NewContext(t.Context(), identity.Deployment(self))
	out, err = call(a, peer, referrers, &resourcev1.ListReferrersRequest{}, func(context.Context, any) (any, error) {
		return &resourcev1.ListReferrersResponse{NextPageToken: place}, nil
	})
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(out.(*resourcev1.ListReferrersResponse).GetNextPageToken(), place))
}
