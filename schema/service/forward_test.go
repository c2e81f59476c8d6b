package service

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/schema/violation"
)

func newTestForwarder(t testing.TB, deployments ...schema.DeploymentID) *forwarder {
	t.Helper()
	peers := peers.New(self, plain{})
	env := &schema.Environment{}
	for _, d := range append([]schema.DeploymentID{self}, deployments...) {
		env.Deployments = append(env.Deployments, schema.Deployment{DeploymentID: d})
	}
	peers.Update(env)
	return &forwarder{self: self, peers: peers, log: zap.NewNop()}
}

func put(name string) *resourcev1.BatchWriteResourcesRequest_Write {
	return &resourcev1.BatchWriteResourcesRequest_Write{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{
		Put: &resourcev1.Resource{Name: name},
	}}
}

func TestRequestsAreForwardedByTheirNamesAndRegions(t *testing.T) {
	t.Parallel()
	f := newTestForwarder(t, sibling)
	const there, here = "//a.example.com/eastus2/devices/d", "//a.example.com/us-west2/devices/d"
	named := func(name string) []proto.Message {
		return []proto.Message{
			&resourcev1.GetResourceRequest{Name: name}, &resourcev1.DeleteResourceRequest{Name: name},
			&resourcev1.PlanDeletionRequest{Name: name},
			&resourcev1.SetBlockDeletionRequest{Name: name}, &resourcev1.RemoveFinalizerRequest{Name: name},
			&resourcev1.UpdateResourceStatusRequest{Name: name}, &adminv1.ExplainRequest{Name: name},
			&resourcev1.CreateResourceRequest{Resource: &resourcev1.Resource{Name: name}},
			&resourcev1.UpdateResourceRequest{Resource: &resourcev1.Resource{Name: name}},
			&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: name}},
			&resourcev1.BatchWriteResourcesRequest{Writes: []*resourcev1.BatchWriteResourcesRequest_Write{
				put(name),
				put(name),
			}},
			&resourcev1.BatchWriteResourcesRequest{Writes: []*resourcev1.BatchWriteResourcesRequest_Write{
				{Write: &resourcev1.BatchWriteResourcesRequest_Write_Create{Create: &resourcev1.Resource{Name: name}}},
				{Write: &resourcev1.BatchWriteResourcesRequest_Write_Update{Update: &resourcev1.UpdateResourceRequest{
					Resource: &resourcev1.Resource{Name: name},
				}}},
			}},
			&resourcev1.MutateAndValidateResourceRequest{
				Write: put(name),
				More:  []*resourcev1.BatchWriteResourcesRequest_Write{put(name)},
			},
		}
	}
	for _, req := range named(there) {
		to, err := f.forwardTarget(as(t, ann), req)
		require.NoError(t, err, "%T", req)
		require.Equal(t, sibling, to, "%T", req)
	}
	for _, name := range []string{here, "devices/d", ""} {
		for _, req := range named(name) {
			to, err := f.forwardTarget(as(t, ann), req)
			require.NoError(t, err, "%T", req)
			require.True(t, to.IsZero(), "%T %s", req, name)
		}
	}
	for region, want := range map[string]schema.DeploymentID{"": {}, self.Region: {}, sibling.Region: sibling} {
		for _, req := range []proto.Message{
			&resourcev1.ListResourcesRequest{Region: region},
			&resourcev1.WatchResourcesRequest{Region: region},
		} {
			to, err := f.forwardTarget(as(t, ann), req)
			require.NoError(t, err)
			require.Equal(t, want, to, "%T %s", req, region)
		}
	}
	// The handler itself gets the resources of a batch, one by one.
	for _, req := range []proto.Message{
		&resourcev1.BatchGetResourcesRequest{Names: []string{there, here}},
		&adminv1.StatusRequest{}, &schemav1.ConfirmBlockadesRequest{},
	} {
		to, err := f.forwardTarget(as(t, ann), req)
		require.NoError(t, err)
		require.True(t, to.IsZero(), "%T", req)
	}
}

func TestRequestsThatCannotBeForwardedAreRefused(t *testing.T) {
	t.Parallel()
	f := newTestForwarder(t, sibling, other)
	for says, req := range map[string]proto.Message{
		"name: //b.example.com/us-west2/devices/d belongs to another service: ask b.example.com/us-west2": &resourcev1.GetResourceRequest{Name: "//b.example.com/us-west2/devices/d"},
		"region: a.example.com has no deployment in region mars":                                          &resourcev1.GetResourceRequest{Name: "//a.example.com/mars/devices/d"},
		"region: a.example.com has no deployment in region pluto":                                         &resourcev1.ListResourcesRequest{Region: "pluto"},
		"region: region \"Mars!\": want":                                                                  &resourcev1.WatchResourcesRequest{Region: "Mars!"},
		"name: name \"//a\"":                                                                              &resourcev1.DeleteResourceRequest{Name: "//a"},
		"name: devices/d belongs to a.example.com/us-west2, others belong to a.example.com/eastus2: one request writes in one deployment": &resourcev1.BatchWriteResourcesRequest{
			Writes: []*resourcev1.BatchWriteResourcesRequest_Write{
				put("//a.example.com/eastus2/devices/d"),
				put("devices/d"),
			},
		},
	} {
		_, err := f.forwardTarget(as(t, ann), req)
		require.ErrorContains(t, err, says)
		require.Equal(t, codes.InvalidArgument, status.Code(outcome.Status(zap.NewNop(), err)), says)
	}
	named := func(name string) *resourcev1.DeleteResourceRequest {
		return &resourcev1.DeleteResourceRequest{Name: name}
	}
	for field, req := range map[string]proto.Message{
		"name": &resourcev1.PlanDeletionRequest{Name: "//a"},
		"more[1]": &resourcev1.PlanDeletionRequest{
			Name: "devices/c",
			More: []string{"devices/d", "//a.example.com/eastus2/devices/d"},
		},
		"requests[0].name": &resourcev1.BatchDeleteResourcesRequest{Requests: []*resourcev1.DeleteResourceRequest{
			named("//b.example.com/us-west2/devices/d"),
		}},
		"requests[1].name": &resourcev1.BatchDeleteResourcesRequest{Requests: []*resourcev1.DeleteResourceRequest{
			named("devices/c"), named("//a"),
		}},
	} {
		_, err := f.forwardTarget(as(t, ann), req)
		require.Len(t, violation.Of(err), 1, "%T", req)
		require.Equal(t, field, violation.Of(err)[0].Path, "%T", req)
		require.NotContains(t, violation.Of(err)[0].Problem, "name: ")
	}
	before := &forwarder{self: self, peers: peers.New(self, nil), log: zap.NewNop()}
	to, err := before.forwardTarget(as(t, ann), &resourcev1.GetResourceRequest{Name: "//a.example.com/mars/devices/d"})
	require.NoError(t, err, "before the first environment every region may exist")
	require.Equal(t, "mars", to.Region)
}

// A forwarded request is not forwarded again: two deployments that disagree on their names would send it for
// ever.
func TestAForwardedRequestIsNotForwardedAgain(t *testing.T) {
	t.Parallel()
	f := newTestForwarder(t, sibling)
	ctx := context.WithValue(as(t, ann), forwardedKey{}, identity.Deployment(sibling))
	_, err := f.forwardTarget(ctx, &resourcev1.GetResourceRequest{Name: "//a.example.com/eastus2/devices/d"})
	require.ErrorContains(t, err, "a request for a.example.com/eastus2 was forwarded to a.example.com/us-west2")
	to, err := f.forwardTarget(ctx, &resourcev1.GetResourceRequest{Name: "devices/d"})
	require.NoError(t, err)
	require.True(t, to.IsZero())
}

func TestWhoMayActForWhom(t *testing.T) {
	t.Parallel()
	f := newTestForwarder(t, sibling)
	for name, c := range map[string]struct {
		by     identity.Identity
		method string
		header []string
		code   codes.Code
	}{
		"a sibling, for a user": {identity.Deployment(sibling), getMethod, []string{ann.Path()}, codes.OK},
		"a sibling, for an operator": {
			identity.Deployment(sibling), getMethod,
			[]string{operator.Path()},
			codes.PermissionDenied,
		},
		"a sibling, for a deployment": {
			identity.Deployment(sibling), getMethod,
			[]string{identity.Deployment(other).Path()},
			codes.PermissionDenied,
		},
		"a sibling, in an operators' call": {
			identity.Deployment(sibling),
			resourcev1.ResourceService_SetBlockDeletion_FullMethodName,
			[]string{ann.Path()},
			codes.PermissionDenied,
		},
		"a sibling, between deployments": {
			identity.Deployment(sibling), confirmMethod,
			[]string{ann.Path()},
			codes.PermissionDenied,
		},
		"a sibling, for two users": {
			identity.Deployment(sibling), getMethod,
			[]string{ann.Path(), "/user/bob"},
			codes.PermissionDenied,
		},
		"a sibling, for nobody": {
			identity.Deployment(sibling), getMethod,
			[]string{"ann"},
			codes.PermissionDenied,
		},
		"another service's deployment": {
			identity.Deployment(other), getMethod,
			[]string{ann.Path()},
			codes.PermissionDenied,
		},
		"a user":      {ann, getMethod, []string{"/user/bob"}, codes.PermissionDenied},
		"an operator": {operator, getMethod, []string{ann.Path()}, codes.PermissionDenied},
		"nobody": {
			identity.Identity{},
			getMethod,
			[]string{ann.Path()},
			codes.PermissionDenied,
		},
		"a user, for itself, with no header": {ann, getMethod, nil, codes.OK},
	} {
		var pairs []string
		for _, h := range c.header {
			pairs = append(pairs, onBehalfOf, h)
		}
		ctx, _ := received(as(t, c.by), pairs...)
		h := &handled{}
		_, err := f.actForUnary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: c.method}, h.unary)
		require.Equal(t, c.code, status.Code(err), name)
		serr := f.actForStream(nil, &streamDouble{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: c.method}, h.stream)
		require.Equal(t, c.code, status.Code(serr), name)
		if c.code != codes.OK {
			require.Zero(t, h.calls, name)
			require.ErrorContains(t, err, "may not act on behalf of another identity")
			continue
		}
		require.Equal(t, 2, h.calls)
		who, err := identity.FromContext(h.ctx)
		require.NoError(t, err)
		require.Equal(t, ann, who, name)
		text, err := actor(h.ctx)
		require.NoError(t, err)
		require.Equal(t, map[bool]string{true: "user/ann by way of eastus2", false: "user/ann"}[len(c.header) > 0],
			text)
	}
	ctx, _ := received(t.Context(), onBehalfOf, ann.Path())
	_, err := f.actFor(ctx, getMethod)
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	_, err = actor(t.Context())
	require.Error(t, err)
}

// regional is the ResourceService of another region: it returns the identity of its caller.
type regional struct {
	resourcev1.UnimplementedResourceServiceServer
}

func (regional) GetResource(ctx context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	if strings.HasSuffix(req.GetName(), "/none") {
		return nil, outcome.Because("NOT_FOUND", errors.New("devices/none: not found"))
	}
	return &resourcev1.Resource{
		Name:   req.GetName(),
		Labels: map[string]string{"for": strings.Join(metadata.ValueFromIncomingContext(ctx, onBehalfOf), " ")},
	}, nil
}

func (regional) WatchResources(req *resourcev1.WatchResourcesRequest,
	stream grpc.ServerStreamingServer[resourcev1.WatchResourcesResponse],
) error {
	if req.GetAllowBatches() {
		batch := &resourcev1.WatchResourcesResponse{ResumeToken: "t"}
		for _, name := range []string{"devices/a", "devices/b"} {
			upsert := &resourcev1.WatchResourcesResponse_Change_Upsert{Upsert: &resourcev1.Resource{Name: name}}
			batch.Changes = append(batch.Changes, &resourcev1.WatchResourcesResponse_Change{Change: upsert})
		}
		if err := stream.Send(batch); err != nil {
			return err
		}
	}
	for _, name := range []string{"devices/a", "devices/b"} {
		if err := stream.Send(
			&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{Upsert: &resourcev1.Resource{
				Name: name, Labels: map[string]string{
					"for":  strings.Join(metadata.ValueFromIncomingContext(stream.Context(), onBehalfOf), " "),
					"kind": req.GetKind(),
				},
			}}}); err != nil {
			return err
		}
	}
	return status.Error(codes.OutOfRange, "the end")
}

// plain is the credentials of connections without certificates.
type plain struct{}

func (plain) DialOptions(identity.Identity) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
}

// listen serves services on a port of its own, and makes that the address of a deployment.
func listen(t *testing.T, p *peers.Peers, to schema.DeploymentID, register func(*grpc.Server)) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	register(server)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	p.Update(&schema.Environment{Deployments: []schema.Deployment{
		{DeploymentID: self},
		{DeploymentID: to, Address: listener.Addr().String()},
	}})
	t.Cleanup(p.Close)
}

func TestARequestIsForwardedWithTheIdentityOfItsCaller(t *testing.T) {
	t.Parallel()
	f := newTestForwarder(t, sibling)
	listen(t, f.peers, sibling, func(s *grpc.Server) { resourcev1.RegisterResourceServiceServer(s, regional{}) })
	h := &handled{}
	get := func(ctx context.Context, name string) (*resourcev1.Resource, error) {
		out, err := f.Unary(ctx, &resourcev1.GetResourceRequest{Name: name},
			&grpc.UnaryServerInfo{FullMethod: getMethod}, h.unary)
		p, _ := out.(*resourcev1.Resource)
		return p, err
	}
	got, err := get(as(t, ann), "//a.example.com/eastus2/devices/d")
	require.NoError(t, err)
	require.Equal(t, "/user/ann", got.GetLabels()["for"])
	got, err = get(as(t, operator), "//a.example.com/eastus2/devices/d")
	require.NoError(t, err)
	require.Equal(t, "/user/eve", got.GetLabels()["for"], "an operator is forwarded with the rights of a user")
	require.Zero(t, h.calls)
	_, err = get(as(t, ann), "devices/d")
	require.NoError(t, err)
	require.Equal(t, 1, h.calls, "requests for this deployment are handled here")

	_, err = get(as(t, ann), "//a.example.com/eastus2/devices/none")
	require.Equal(t, "NOT_FOUND", reasonOf(t, err), "the details of the other region's error stay")
	_, err = get(as(t, ann), "//a.example.com/mars/devices/d")
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = get(t.Context(), "//a.example.com/eastus2/devices/d")
	require.Equal(t, codes.Unauthenticated, status.Code(err))

	_, err = f.Unary(as(t, operator), &resourcev1.SetBlockDeletionRequest{Name: "//a.example.com/eastus2/devices/d"},
		&grpc.UnaryServerInfo{FullMethod: resourcev1.ResourceService_SetBlockDeletion_FullMethodName}, h.unary)
	require.ErrorContains(t, err,
		"belongs to a.example.com/eastus2: this request is for operators and is not forwarded, so ask that deployment")

	r := newResourceService(&resourceStore{get: func(name string) (*peer.Resource, error) { return stored(name), nil }})
	r.forward = f
	batch, err := r.BatchGetResources(as(t, ann), &resourcev1.BatchGetResourcesRequest{Names: []string{
		"devices/a",
		"//a.example.com/eastus2/devices/b",
	}})
	require.NoError(t, err)
	require.Equal(t, "//a.example.com/eastus2/devices/b", batch.GetResources()[1].GetName(),
		"a batch has resources of several regions")
	require.Equal(t, "a", batch.GetResources()[0].GetLabels()["team"])
}

func TestAWatchIsForwardedEventByEvent(t *testing.T) {
	t.Parallel()
	f := newTestForwarder(t, sibling)
	listen(t, f.peers, sibling, func(s *grpc.Server) { resourcev1.RegisterResourceServiceServer(s, regional{}) })
	watch := func(ctx context.Context, req *resourcev1.WatchResourcesRequest) (*streamDouble, *handled, error) {
		stream, h := &streamDouble{ctx: ctx}, &handled{}
		stream.receive = func(into any) error {
			proto.Merge(into.(proto.Message), req)
			return nil
		}
		return stream, h,
			f.Stream(nil, stream,
				&grpc.StreamServerInfo{FullMethod: resourcev1.ResourceService_WatchResources_FullMethodName},
				func(srv any, ss grpc.ServerStream) error {
					got := &resourcev1.WatchResourcesRequest{}
					require.NoError(t, ss.RecvMsg(got), "the handler receives the request once more")
					require.True(t, proto.Equal(req, got))
					return h.stream(srv, ss)
				})
	}
	stream, h, err := watch(as(t, ann), &resourcev1.WatchResourcesRequest{Region: "eastus2", Kind: "Device"})
	require.Equal(t, codes.OutOfRange, status.Code(err), "the watch ends with the error of the other region")
	require.Zero(t, h.calls)
	require.Len(t, stream.sent, 2)
	first, ok := stream.sent[0].(*resourcev1.WatchResourcesResponse)
	require.True(t, ok)
	require.Equal(t, "devices/a", first.GetUpsert().GetName())
	require.Equal(t, map[string]string{"for": "/user/ann", "kind": "Device"}, first.GetUpsert().GetLabels())

	stream, _, err = watch(as(t, ann), &resourcev1.WatchResourcesRequest{Region: "eastus2", AllowBatches: true})
	require.Equal(t, codes.OutOfRange, status.Code(err))
	require.Len(t, stream.sent, 3)
	require.Equal(t, "[+devices/a +devices/b] t", eventText(t, stream.sent[0].(*resourcev1.WatchResourcesResponse)),
		"several changes stay together")

	_, h, err = watch(as(t, ann), &resourcev1.WatchResourcesRequest{Kind: "Device"})
	require.NoError(t, err)
	require.Equal(t, 1, h.calls)
	_, h, err = watch(as(t, ann), &resourcev1.WatchResourcesRequest{Region: "mars"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.Zero(t, h.calls)
	_, _, err = watch(t.Context(), &resourcev1.WatchResourcesRequest{Region: "eastus2"})
	require.Equal(t, codes.Unauthenticated, status.Code(err))

	broken := &streamDouble{ctx: as(t, ann), receive: func(any) error { return io.ErrUnexpectedEOF }}
	err = f.Stream(nil, broken,
		&grpc.StreamServerInfo{FullMethod: resourcev1.ResourceService_WatchResources_FullMethodName}, h.stream)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t,
		f.Stream(nil, broken, &grpc.StreamServerInfo{FullMethod: adminv1.AdminService_Verify_FullMethodName}, h.stream),
		"other streams are not read")
}

func TestAWatchEndsWhenItsReaderIsGone(t *testing.T) {
	t.Parallel()
	f := newTestForwarder(t, sibling)
	listen(t, f.peers, sibling, func(s *grpc.Server) { resourcev1.RegisterResourceServiceServer(s, regional{}) })
	gone := errors.New("the reader is gone")
	stream := &streamDouble{ctx: as(t, ann), failing: gone, receive: func(into any) error {
		into.(*resourcev1.WatchResourcesRequest).Region = "eastus2"
		return nil
	}}
	err := f.Stream(nil, stream,
		&grpc.StreamServerInfo{FullMethod: resourcev1.ResourceService_WatchResources_FullMethodName},
		(&handled{}).stream)
	require.ErrorIs(t, err, gone)
}

// A region without an address cannot be asked now: the request can be repeated.
func TestARegionThatHasNotRegisteredIsUnavailable(t *testing.T) {
	t.Parallel()
	f := newTestForwarder(t, sibling)
	_, err := f.Unary(as(t, ann), &resourcev1.GetResourceRequest{Name: "//a.example.com/eastus2/devices/d"},
		&grpc.UnaryServerInfo{FullMethod: getMethod}, (&handled{}).unary)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, "UNAVAILABLE", reasonOf(t, err))
	require.ErrorContains(t, err, "deployment a.example.com/eastus2 has not registered yet")
}

func TestTheRequestOfAStreamIsReceivedOnceMore(t *testing.T) {
	t.Parallel()
	next := errors.New("the stream itself")
	r := &readAhead{ServerStream: &streamDouble{receive: func(any) error {
		return next
	}}, req: &resourcev1.WatchResourcesRequest{Kind: "Device"}}
	var got resourcev1.WatchResourcesRequest
	require.NoError(t, r.RecvMsg(&got))
	require.Equal(t, "Device", got.GetKind())
	require.ErrorIs(t, r.RecvMsg(&got), next)
}

// Each forwarded method has a response to receive into, and is in the policy of users.
func TestForwardedMethodsAreThoseOfUsers(t *testing.T) {
	t.Parallel()
	for _, method := range forwarded {
		out, err := responseOf(method)
		require.NoError(t, err, method)
		require.NotNil(t, out)
		require.Contains(t, policy[method], identity.RoleUser, method)
		require.False(t, peers.BetweenDeployments(method))
	}
	for method := range policy {
		out, err := responseOf(method)
		if !strings.HasPrefix(method, "/grpc.") {
			require.NoError(t, err, method)
			require.NotNil(t, out)
		}
	}
	for _, bad := range []string{
		"", "/", "/dbcontroller.resource.v1.ResourceService/Unknown",
		"/dbcontroller.resource.v1.Resource",
	} {
		_, err := responseOf(bad)
		require.Error(t, err, bad)
	}
	require.False(t, slices.Contains(forwarded, resourcev1.ResourceService_SetBlockDeletion_FullMethodName))
}
