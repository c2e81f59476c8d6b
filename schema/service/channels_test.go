package service

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

var self = schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}

// fake returns its own messages, which a test can compare with the received ones.
type fake struct {
	resourcev1.UnimplementedResourceServiceServer
	stored *resourcev1.Resource
	ctx    context.Context
}

func (f *fake) GetResource(ctx context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	f.ctx = ctx
	if req.GetName() == "panic" {
		panic("a service's mistake")
	}
	if err := grpc.SetHeader(ctx, metadata.Pairs("answered", "yes")); err != nil {
		return nil, err
	}
	return f.stored, nil
}

func (f *fake) WatchResources(req *resourcev1.WatchResourcesRequest,
	stream grpc.ServerStreamingServer[resourcev1.WatchResourcesResponse],
) error {
	if req.GetKind() == "panic" {
		panic("a service's mistake")
	}
	return stream.Send(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{
		Upsert: f.stored,
	}})
}

func newFake(t testing.TB) *fake {
	t.Helper()
	content, err := structpb.NewStruct(map[string]any{"deep": map[string]any{"er": "text"}, "list": []any{"a", "b"}})
	require.NoError(t, err)
	return &fake{stored: &resourcev1.Resource{
		Name: "targets/t", Labels: map[string]string{"k": "v"}, Body: content,
		OwnerReferences: []*resourcev1.OwnerReference{{Name: "o"}},
	}}
}

func fakeChannel(f *fake, share bool) grpc.ClientConnInterface {
	channel := newChannel(zap.NewNop(), identity.Deployment(self), nil, nil)
	channel.Share = share
	resourcev1.RegisterResourceServiceServer(channel, f)
	return channel
}

// spoil changes all fields of a resource.
func spoil(r *resourcev1.Resource) {
	r.Name, r.Labels["k"], r.OwnerReferences[0].Name = "spoilt", "spoilt", "spoilt"
	r.Body.Fields["deep"].GetStructValue().Fields["er"] = structpb.NewStringValue("spoilt")
	r.Body.Fields["list"].GetListValue().Values[0] = structpb.NewNullValue()
	r.Body.Fields["more"] = structpb.NewBoolValue(true)
}

func TestSharedChannelsShareAndCopiedOnesCopy(t *testing.T) {
	f := newFake(t)
	before := proto.Clone(f.stored)
	for _, share := range []bool{true, false} {
		client := resourcev1.NewResourceServiceClient(fakeChannel(f, share))
		got, err := client.GetResource(t.Context(), &resourcev1.GetResourceRequest{})
		require.NoError(t, err)
		require.Equal(t, share, got.GetBody() == f.stored.GetBody(), "the message itself, or a copy")
		stream, err := client.WatchResources(t.Context(), &resourcev1.WatchResourcesRequest{})
		require.NoError(t, err)
		event, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, share, event.GetUpsert() == f.stored)
		require.True(t, proto.Equal(before, got))
		require.True(t, proto.Equal(before, event.GetUpsert()))
		if !share {
			spoil(got)
			spoil(event.GetUpsert())
			require.True(t, proto.Equal(before, f.stored), "handlers may change the messages that they receive")
		}
	}
}

func TestChannelsPassMetadataDeadlinesAndOptionsAsConnectionsDo(t *testing.T) {
	f := newFake(t)
	for _, share := range []bool{true, false} {
		client := resourcev1.NewResourceServiceClient(fakeChannel(f, share))
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "said", "this"), time.Minute)
		var header metadata.MD
		_, err := client.GetResource(ctx, &resourcev1.GetResourceRequest{}, grpc.Header(&header))
		cancel()
		require.NoError(t, err)
		require.Equal(t, []string{"yes"}, header.Get("answered"), "call options")
		md, _ := metadata.FromIncomingContext(f.ctx)
		require.Equal(t, []string{"this"}, md.Get("said"), "metadata")
		deadline, ok := f.ctx.Deadline()
		require.True(t, ok)
		require.Less(t, time.Until(deadline), time.Minute)
		who, err := identity.FromContext(f.ctx)
		require.NoError(t, err)
		require.Equal(t, identity.Deployment(self), who)

		_, err = client.GetResource(t.Context(), &resourcev1.GetResourceRequest{Name: "panic"})
		require.Equal(t, codes.Internal, status.Code(err), "%v", err)
		require.NotContains(t, err.Error(), "mistake", "the log has it")
		stream, err := client.WatchResources(t.Context(), &resourcev1.WatchResourcesRequest{Kind: "panic"})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Error(t, err, "and the process does not end")
	}
}
