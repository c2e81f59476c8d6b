package service

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/costs"
)

// everyMethod yields the methods of all services of a deployment, from their .proto files.
func everyMethod(yield func(name string, m protoreflect.MethodDescriptor) bool) {
	for _, file := range []protoreflect.FileDescriptor{
		resourcev1.File_dbcontroller_resource_v1_resource_proto, adminv1.File_dbcontroller_admin_v1_admin_proto,
		schemav1.File_dbcontroller_schema_v1_schema_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				if !yield("/"+string(service.FullName())+"/"+string(m.Name()), m) {
					return
				}
			}
		}
	}
}

// has reports whether a message has, at any depth, a message that satisfies a condition.
func has(m protoreflect.MessageDescriptor, is func(protoreflect.MessageDescriptor) bool,
	seen map[protoreflect.FullName]bool,
) bool {
	if seen[m.FullName()] {
		return false
	}
	seen[m.FullName()] = true
	for i := range m.Fields().Len() {
		if below := m.Fields().Get(i).Message(); below != nil && (is(below) || has(below, is, seen)) {
			return true
		}
	}
	return is(m)
}

// Every method, and so every new one, is bounded where its messages demand it: answers with stored bodies,
// answers with lists for people, and calls in the name of another identity.
func TestEveryMethodHasItsBounds_I20(t *testing.T) {
	t.Parallel()
	written := []string{ // their answers repeat the request's entries
		resourcev1.ResourceService_CreateResource_FullMethodName, resourcev1.ResourceService_PutResource_FullMethodName,
	}
	oneByOne := []string{ // lists of one delete or one process, with bounds of their own
		resourcev1.ResourceService_BatchWriteResources_FullMethodName,
		resourcev1.ResourceService_DeleteResource_FullMethodName,
		resourcev1.ResourceService_BatchDeleteResources_FullMethodName,
	}
	f := newTestForwarder(t, sibling)
	n := 0
	for name, m := range everyMethod {
		n++
		body := has(m.Output(), func(d protoreflect.MessageDescriptor) bool {
			return d.FullName() == "google.protobuf.Struct"
		}, map[protoreflect.FullName]bool{})
		if body && !m.IsStreamingServer() && !slices.Contains(written, name) {
			require.Positive(t, bodies[name], "%s answers with stored bodies: give it a weight in memory.go", name)
		}
		lists := false
		for i := range m.Output().Fields().Len() {
			lists = lists || m.Output().Fields().Get(i).IsList() && m.Output().Fields().Get(i).Message() != nil
		}
		people := slices.Contains(policy[name], identity.RoleUser)
		if whole := m.Output().FullName() == "dbcontroller.resource.v1.Resource"; lists && people && !whole &&
			!m.IsStreamingServer() && !slices.Contains(oneByOne, name) {
			require.True(t, costs.Are(name),
				"%s answers people with a list: it is a costly read of package costs, or bounded otherwise", name)
		}
		require.False(t, m.IsStreamingClient(), "%s: requests that have no end have no bound", name)

		ctx, _ := received(as(t, identity.Deployment(sibling)), onBehalfOf, ann.Path())
		_, err := f.actFor(ctx, name)
		if !slices.Contains(forwarded, name) {
			require.Equal(t, codes.PermissionDenied, status.Code(err), name)
			continue
		}
		require.NoError(t, err, name)
		require.True(t, people, "%s is forwarded, and not for people", name)
		for _, who := range []identity.Identity{operator, identity.Deployment(other), {
			Role: identity.RoleApplication,
			Name: "x",
		}} {
			ctx, _ := received(as(t, identity.Deployment(sibling)), onBehalfOf, who.Path())
			_, err := f.actFor(ctx, name)
			require.Equal(t, codes.PermissionDenied, status.Code(err), "%s for %s", name, who)
		}
	}
	require.Greater(t, n, 35)
	for _, names := range [][]string{forwarded, written, oneByOne} {
		for _, name := range names {
			require.NotEmpty(t, policy[name], name)
		}
	}
}

// The same for the registry: a reader of the environment may read the whole, which has no pages.
func TestEveryMethodOfTheRegistryHasItsBounds_I20(t *testing.T) {
	t.Parallel()
	methods, n := registryv1.File_dbcontroller_registry_v1_registry_proto.Services().Get(0).Methods(), 0
	for i := range methods.Len() {
		m := methods.Get(i)
		name := "/dbcontroller.registry.v1.RegistryService/" + string(m.Name())
		require.False(t, m.IsStreamingClient(), "%s: requests that have no end have no bound", name)
		whole := has(m.Output(), func(d protoreflect.MessageDescriptor) bool {
			return d.FullName() == "dbcontroller.registry.v1.Environment"
		}, map[protoreflect.FullName]bool{})
		if whole && !m.IsStreamingServer() {
			n++
			require.True(t, costs.Are(name), "%s answers with an environment: it is a costly read of package costs",
				name)
		}
		require.NotContains(t, forwarded, name, "the registry believes nobody about others")
	}
	require.Equal(t, 1, n)
}
