package service

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/requestid"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// failing is a service whose calls fail with one error.
type failing struct {
	resourcev1.UnimplementedResourceServiceServer
	log *zap.Logger
	err error
	ids []uuid.UUID // of the calls
}

func (f *failing) GetResource(ctx context.Context, _ *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	f.ids = append(f.ids, requestid.ID(ctx))
	return nil, outcome.Status(f.log, f.err)
}

func (f *failing) WatchResources(_ *resourcev1.WatchResourcesRequest,
	ss grpc.ServerStreamingServer[resourcev1.WatchResourcesResponse],
) error {
	f.ids = append(f.ids, requestid.ID(ss.Context()))
	return f.err
}

func (f *failing) DeleteResource(ctx context.Context,
	_ *resourcev1.DeleteResourceRequest,
) (*resourcev1.DeleteResourceResponse, error) {
	f.ids = append(f.ids, requestid.ID(ctx))
	return nil, outcome.Status(f.log, f.err)
}

func requestInfoOf(err error) (ids []string) {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RequestInfo); ok {
			ids = append(ids, info.GetRequestId())
		}
	}
	return ids
}

func TestAFaultIsLoggedOnceWithTheRequestIDThatItsCallerIsTold(t *testing.T) {
	t.Parallel()
	core, lines := observer.New(zap.InfoLevel)
	f := &failing{log: zap.New(core), err: &pgconn.PgError{Code: "XX001", Message: "SELECT secret"}}
	channel := newChannel(zap.New(core), identity.Deployment(self), nil, nil)
	resourcev1.RegisterResourceServiceServer(channel, f)
	client := resourcev1.NewResourceServiceClient(channel)

	var header metadata.MD
	_, err := client.GetResource(t.Context(), &resourcev1.GetResourceRequest{}, grpc.Header(&header))
	id := f.ids[0].String()
	require.Equal(t, []string{id}, header.Get(requestid.Header), "the answer names the request")
	require.Equal(t, []string{id}, requestInfoOf(err))
	require.Equal(t, "INTERNAL", reasonOf(t, err))
	require.ErrorContains(t, err, "the server's log says more (request "+id+")")
	require.NotContains(t, err.Error(), "secret")
	require.Len(t, lines.All(), 1)
	line := lines.TakeAll()[0]
	require.Equal(t, id, line.ContextMap()["request_id"])
	require.Contains(t, line.ContextMap()["error"], "secret")

	f.err = errors.New("no status: a mistake of a stream")
	stream, err := client.WatchResources(t.Context(), &resourcev1.WatchResourcesRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.Internal, status.Code(err))
	require.NotContains(t, err.Error(), "mistake")
	require.Equal(t, []string{f.ids[1].String()}, requestInfoOf(err))
	require.Equal(t, f.ids[1].String(), lines.TakeAll()[0].ContextMap()["request_id"])
	require.NotEqual(t, f.ids[0], f.ids[1])
}

func TestTheRequestIDIsTheCallersWhenItHasOne(t *testing.T) {
	t.Parallel()
	f := &failing{log: zap.NewNop(), err: outcome.Invalid("name", errors.New("is wrong"))}
	channel := newChannel(zap.NewNop(), identity.Deployment(self), nil, nil)
	resourcev1.RegisterResourceServiceServer(channel, f)
	client := resourcev1.NewResourceServiceClient(channel)
	ctx := metadata.AppendToOutgoingContext(t.Context(), requestid.Header, uid(1).String())

	_, err := client.GetResource(ctx, &resourcev1.GetResourceRequest{})
	require.Equal(t, []string{uid(1).String()}, requestInfoOf(err), "refusals name it too")
	require.NotContains(t, err.Error(), uid(1).String(), "the log says no more about a refusal")
	_, err = client.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{RequestId: uid(2).String()})
	require.Equal(t, []string{uid(2).String()}, requestInfoOf(err), "the id of the write comes first")
	_, err = client.GetResource(metadata.AppendToOutgoingContext(t.Context(), requestid.Header, "a line\nof the log"),
		&resourcev1.GetResourceRequest{})
	made, perr := uuid.Parse(requestInfoOf(err)[0])
	require.NoError(t, perr)
	require.Equal(t, []uuid.UUID{uid(1), uid(2), made}, f.ids)

	var sent metadata.MD
	invoke := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		sent, _ = metadata.FromOutgoingContext(ctx)
		return nil
	}
	require.NoError(t, requestid.ToPeer(requestid.WithID(t.Context(), uid(3)), "", nil, nil, nil, invoke))
	require.Equal(t, []string{uid(3).String()}, sent.Get(requestid.Header), "other deployments are told")
	require.NoError(t, requestid.ToPeer(t.Context(), "", nil, nil, nil, invoke))
	require.Empty(t, sent.Get(requestid.Header), "work of the process has none")
}
