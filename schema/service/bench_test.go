package service

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// BenchmarkList reads the same list of 100 resources over each kind of channel.
func BenchmarkList(b *testing.B) {
	listed := &fixed{answer: &resourcev1.ListResourcesResponse{}}
	for range 100 {
		content, err := structpb.NewStruct(map[string]any{"text": strings.Repeat("x", 200), "n": 1})
		require.NoError(b, err)
		listed.answer.Resources = append(listed.answer.Resources, &resourcev1.Resource{
			Name: "targets/t",
			Kind: "Target", Body: content,
		})
	}
	listener, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	require.NoError(b, err)
	server := grpc.NewServer()
	resourcev1.RegisterResourceServiceServer(server, listed)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	loopback, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	defer func() { _ = loopback.Close() }()
	shared := newChannel(zap.NewNop(), identity.Deployment(self), nil, nil)
	shared.Share = true
	copied := newChannel(zap.NewNop(), identity.Deployment(self), nil, nil)
	resourcev1.RegisterResourceServiceServer(shared, listed)
	resourcev1.RegisterResourceServiceServer(copied, listed)
	for _, way := range []struct {
		name string
		conn grpc.ClientConnInterface
	}{{"shared", shared}, {"copied", copied}, {"loopback", loopback}} {
		client := resourcev1.NewResourceServiceClient(way.conn)
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.ListResources(b.Context(), &resourcev1.ListResourcesRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// fixed returns its answer without a database, so that only the channel is measured.
type fixed struct {
	resourcev1.UnimplementedResourceServiceServer
	answer *resourcev1.ListResourcesResponse
}

func (f *fixed) ListResources(context.Context,
	*resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	return f.answer, nil
}
