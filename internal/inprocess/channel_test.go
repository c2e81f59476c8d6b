package inprocess_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/inprocess"
)

// health answers as a test says, and keeps the context and the request of the last call.
type health struct {
	healthv1.UnimplementedHealthServer
	check func(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error)
	watch func(req *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error
}

func (h *health) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	return h.check(ctx, req)
}

func (h *health) Watch(req *healthv1.HealthCheckRequest,
	stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse],
) error {
	return h.watch(req, stream)
}

func client(channel *inprocess.Channel, h *health) healthv1.HealthClient {
	healthv1.RegisterHealthServer(channel, h)
	return healthv1.NewHealthClient(channel)
}

type key struct{}

// A call has the deadline and the metadata of its caller, and none of its values; headers and trailers come
// back, with an error as well.
func TestACallIsAsOverAConnection(t *testing.T) {
	t.Parallel()
	h := &health{check: func(ctx context.Context,
		_ *healthv1.HealthCheckRequest,
	) (*healthv1.HealthCheckResponse, error) {
		_, bounded := ctx.Deadline()
		require.True(t, bounded)
		require.Nil(t, ctx.Value(key{}))
		_, outgoing := metadata.FromOutgoingContext(ctx)
		require.False(t, outgoing)
		said := metadata.ValueFromIncomingContext(ctx, "said")
		require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("header", said[0])))
		require.NoError(t, grpc.SetTrailer(ctx, metadata.Pairs("trailer", said[0])))
		return nil, errors.New("no status")
	}}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.WithValue(t.Context(), key{}, 1),
		"said", "this"), time.Minute)
	defer cancel()
	var header, trailer metadata.MD
	var server peer.Peer
	_, err := client(&inprocess.Channel{}, h).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.Header(&header),
		grpc.Trailer(&trailer), grpc.Peer(&server))
	require.Equal(t, codes.Unknown, status.Code(err))
	require.Equal(t, []string{"this"}, header.Get("header"))
	require.Equal(t, []string{"this"}, trailer.Get("trailer"))
	require.Equal(t, "inprocess", server.Addr.String())
}

// A caller that leaves does not wait for the handler, and the handler's context ends.
func TestACallerLeavesBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	ended, may := make(chan error, 1), make(chan struct{})
	h := &health{check: func(ctx context.Context,
		_ *healthv1.HealthCheckRequest,
	) (*healthv1.HealthCheckResponse, error) {
		<-ctx.Done()
		ended <- ctx.Err()
		<-may
		return &healthv1.HealthCheckResponse{}, nil
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := client(&inprocess.Channel{}, h).Check(ctx, &healthv1.HealthCheckRequest{})
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	require.ErrorIs(t, <-ended, context.DeadlineExceeded)
	close(may)
}

// A stream delivers all messages and then the handler's error; a caller that leaves ends the handler.
func TestAStreamDeliversEverythingBeforeItsEnd(t *testing.T) {
	t.Parallel()
	left := make(chan error, 1)
	h := &health{watch: func(req *healthv1.HealthCheckRequest,
		stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse],
	) error {
		for range 100 {
			if err := stream.Send(
				&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}); err != nil {
				left <- err
				return err
			}
		}
		stream.SetTrailer(metadata.Pairs("at", "end"))
		if req.GetService() == "fails" {
			return status.Error(codes.NotFound, "no such service")
		}
		return nil
	}}
	c := client(&inprocess.Channel{}, h)
	for service, code := range map[string]codes.Code{"": codes.OK, "fails": codes.NotFound} {
		stream, err := c.Watch(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		require.NoError(t, err)
		n := 0
		for ; err == nil; n++ {
			_, err = stream.Recv()
		}
		require.Equal(t, 101, n)
		if code == codes.OK {
			require.Equal(t, io.EOF, err)
		} else {
			require.Equal(t, code, status.Code(err))
		}
		require.Equal(t, []string{"end"}, stream.Trailer().Get("at"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := c.Watch(ctx, &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-left))
	_, err = stream.Recv()
	require.Equal(t, codes.Canceled, status.Code(err))
}

// A stream that an interceptor refuses fails at the first receive, and not when it is opened.
func TestAnInterceptorRefusesAStream(t *testing.T) {
	t.Parallel()
	refused := status.Error(codes.PermissionDenied, "no")
	c := client(
		&inprocess.Channel{Stream: func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
			return refused
		}}, &health{})
	for range 50 {
		stream, err := c.Watch(t.Context(), &healthv1.HealthCheckRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, codes.PermissionDenied, status.Code(err))
	}
}

func TestWhatIsNotRegisteredIsUnimplemented(t *testing.T) {
	t.Parallel()
	c := healthv1.NewHealthClient(&inprocess.Channel{})
	_, err := c.Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	_, err = c.Watch(t.Context(), &healthv1.HealthCheckRequest{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
}

// A handler that changes its request, and a caller that changes its answer, change nothing for the other
// side, unless they share. echoes returns the messages that it receives, in an answer or in a stream, and
// keeps them.
type echoes struct {
	received []*healthv1.HealthListResponse
}

func (e *echoes) register(channel *inprocess.Channel) {
	channel.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Echo",
		Methods: []grpc.MethodDesc{{
			MethodName: "Once",
			Handler: func(_ any, _ context.Context, decode func(any) error,
				_ grpc.UnaryServerInterceptor,
			) (any, error) {
				in := &healthv1.HealthListResponse{}
				e.received = append(e.received, in)
				return in, decode(in)
			},
		}},
		Streams: []grpc.StreamDesc{{
			StreamName: "Each", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				in := &healthv1.HealthListResponse{}
				if err := stream.RecvMsg(in); err != nil {
					return err
				}
				e.received = append(e.received, in)
				return stream.SendMsg(in)
			},
		}},
	}, nil)
}

// A part of a message is the same one on both sides of a channel that shares, and another one otherwise: of
// requests and of answers, in calls and in streams.
func TestMessagesAreCopiedUnlessShared(t *testing.T) {
	t.Parallel()
	for _, share := range []bool{false, true} {
		server, channel := &echoes{}, &inprocess.Channel{Share: share}
		server.register(channel)
		check := func(call func(sent, answer *healthv1.HealthListResponse)) {
			t.Helper()
			sent, answer := &healthv1.HealthListResponse{Statuses: map[string]*healthv1.HealthCheckResponse{
				"a": {Status: 1},
			}}, &healthv1.HealthListResponse{}
			call(sent, answer)
			received := server.received[len(server.received)-1]
			require.True(t, proto.Equal(sent, received))
			require.True(t, proto.Equal(sent, answer))
			part := func(m *healthv1.HealthListResponse) *healthv1.HealthCheckResponse { return m.GetStatuses()["a"] }
			require.Equal(t, share, part(sent) == part(received), "the request")
			require.Equal(t, share, part(received) == part(answer), "the answer")
		}
		check(func(sent, answer *healthv1.HealthListResponse) {
			require.NoError(t, channel.Invoke(t.Context(), "/test.Echo/Once", sent, answer))
		})
		check(func(sent, answer *healthv1.HealthListResponse) {
			stream, err := channel.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
				"/test.Echo/Each")
			require.NoError(t, err)
			require.NoError(t, stream.SendMsg(sent))
			require.NoError(t, stream.RecvMsg(answer))
			require.ErrorIs(t, stream.RecvMsg(&healthv1.HealthListResponse{}), io.EOF)
		})
	}
}
