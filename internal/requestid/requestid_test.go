package requestid_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/db-controller/db-controller/internal/requestid"
)

// call is the transport of one call, which keeps the headers of the answer.
type call struct {
	grpc.ServerTransportStream
	header metadata.MD
}

func (c *call) SetHeader(md metadata.MD) error {
	c.header = metadata.Join(c.header, md)
	return nil
}

// write is a request with an id of its own.
type write struct{ id string }

func (w write) GetRequestId() string { return w.id } //nolint:revive // as protoc-gen-go names it

func observed() (*zap.Logger, *observer.ObservedLogs) {
	core, logs := observer.New(zap.InfoLevel)
	return zap.New(core), logs
}

// served plays one call and returns the id that the handler has seen, the id in the answer's header, and the
// error of the call.
func served(t *testing.T, log *zap.Logger, header string, req any, result error) (seen, answered uuid.UUID, err error) {
	t.Helper()
	ctx := context.Background()
	if header != "" {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(requestid.Header, header))
	}
	c := &call{}
	_, err = requestid.Unary(log)(grpc.NewContextWithServerTransportStream(ctx, c), req,
		&grpc.UnaryServerInfo{FullMethod: "/service/Method"}, func(ctx context.Context, _ any) (any, error) {
			seen = requestid.ID(ctx)
			return nil, result
		})
	require.Len(t, c.header.Get(requestid.Header), 1)
	return seen, uuid.MustParse(c.header.Get(requestid.Header)[0]), err
}

// The id in a message wins over the id in the header; anything but a UUID is replaced, since ids are copied
// into logs and records.
func TestACallHasTheIDOfItsMessageOrItsHeader(t *testing.T) {
	t.Parallel()
	inMessage, inHeader := uuid.New(), uuid.New()
	for _, c := range []struct {
		header string
		req    any
		want   uuid.UUID // zero: a new one
	}{
		{inHeader.String(), write{inMessage.String()}, inMessage},
		{inHeader.String(), write{}, inHeader},
		{inHeader.String(), nil, inHeader},
		{"", write{inMessage.String()}, inMessage},
		{inHeader.String(), write{"x\n{\"level\":\"error\"}"}, uuid.Nil},
		{"not-a-uuid", nil, uuid.Nil},
		{uuid.Nil.String(), nil, uuid.Nil},
		{"", nil, uuid.Nil},
	} {
		seen, answered, err := served(t, zap.NewNop(), c.header, c.req, nil)
		require.NoError(t, err)
		require.Equal(t, seen, answered, "%+v", c)
		require.NotEqual(t, uuid.Nil, seen, "%+v", c)
		if c.want != uuid.Nil {
			require.Equal(t, c.want, seen, "%+v", c)
		} else {
			require.NotContains(t, []uuid.UUID{inMessage, inHeader}, seen, "%+v", c)
		}
	}
}

// infos returns the ids in the details of an error.
func infos(err error) (ids []string) {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RequestInfo); ok {
			ids = append(ids, info.GetRequestId())
		}
	}
	return ids
}

// The caller learns the id and never the cause; the log has one line with both.
func TestAnUnexpectedErrorIsLoggedAndNotReturned(t *testing.T) {
	t.Parallel()
	log, logs := observed()
	cause := errors.New(`relation "shadow" does not exist`)
	id, _, err := served(t, log, "", nil, fmt.Errorf("read: %w", cause))
	require.Equal(t, codes.Internal, status.Code(err))
	require.NotContains(t, err.Error(), "relation")
	require.Contains(t, err.Error(), "(request "+id.String()+")")
	require.Equal(t, []string{id.String()}, infos(err))
	require.Len(t, logs.All(), 1)
	line := logs.All()[0]
	require.Equal(t, zap.ErrorLevel, line.Level)
	require.Equal(t, id.String(), line.ContextMap()["request_id"])
	require.Contains(t, line.ContextMap()["error"], "relation")
}

// A fault has a log, a level and a status of its own.
func TestAFaultIsLoggedAsItSays(t *testing.T) {
	t.Parallel()
	log, logs := observed()
	other, others := observed()
	fault := &requestid.Fault{
		Log: log, Level: zap.WarnLevel, Message: "database unavailable",
		Cause: errors.New("dial tcp"), Told: status.Error(codes.Unavailable, "try again"),
	}
	id, _, err := served(t, other, "", nil, fmt.Errorf("of it: %w", fault))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Contains(t, err.Error(), "try again (request "+id.String()+")")
	require.ErrorIs(t, fault, fault.Told)
	require.Equal(t, "rpc error: code = Unavailable desc = try again", fault.Error())
	require.Empty(t, others.All(), "each error is logged once")
	require.Len(t, logs.All(), 1)
	require.Equal(t, "database unavailable", logs.All()[0].Message)
	require.Equal(t, zap.WarnLevel, logs.All()[0].Level)
}

// Refusals, and calls that their callers have ended, are no matter of the log.
func TestExpectedErrorsAreNotLogged(t *testing.T) {
	t.Parallel()
	log, logs := observed()
	for _, result := range []error{
		nil, status.Error(codes.NotFound, "projects/p: not found"), context.Canceled,
		fmt.Errorf("lock: %w", context.DeadlineExceeded),
	} {
		id, _, err := served(t, log, "", nil, result)
		if result == nil {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, []string{id.String()}, infos(err), "%v", result)
		require.NotContains(t, status.Convert(err).Message(), id.String(), "%v", result)
	}
	require.Empty(t, logs.All())
}

// A forwarded call keeps the id of the deployment that has answered, and a reason stays the first detail.
func TestTheDetailsOfAnErrorKeepTheirOrder(t *testing.T) {
	t.Parallel()
	reason := &errdetails.ErrorInfo{Reason: "BLOCKED"}
	more := &errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{
		{Subject: "devices/d"},
	}}
	st, err := status.New(codes.FailedPrecondition, "blocked").WithDetails(reason, more)
	require.NoError(t, err)
	id, _, err := served(t, zap.NewNop(), "", nil, st.Err())
	details := status.Convert(err).Details()
	require.Len(t, details, 3)
	require.Equal(t, "BLOCKED", details[0].(*errdetails.ErrorInfo).GetReason())
	require.Equal(t, id.String(), details[1].(*errdetails.RequestInfo).GetRequestId())
	require.Equal(t, "devices/d", details[2].(*errdetails.PreconditionFailure).GetViolations()[0].GetSubject())

	again, _, forwarded := served(t, zap.NewNop(), "", nil, err)
	require.NotEqual(t, id, again)
	require.Equal(t, []string{id.String()}, infos(forwarded))
}

// stream is a stream of a server without messages.
type stream struct {
	grpc.ServerStream
	call
	ctx context.Context
}

func (s *stream) Context() context.Context           { return s.ctx }
func (s *stream) SetHeader(header metadata.MD) error { return s.call.SetHeader(header) }

func TestAStreamHasAnIDToo(t *testing.T) {
	t.Parallel()
	want := uuid.New()
	s := &stream{ctx: metadata.NewIncomingContext(context.Background(), metadata.Pairs(requestid.Header,
		want.String()))}
	log, logs := observed()
	err := requestid.Stream(log)(nil, s, &grpc.StreamServerInfo{}, func(_ any, inner grpc.ServerStream) error {
		require.Equal(t, want, requestid.ID(inner.Context()))
		return errors.New("broken")
	})
	require.Equal(t, []string{want.String()}, s.header.Get(requestid.Header))
	require.Equal(t, codes.Internal, status.Code(err))
	require.Equal(t, []string{want.String()}, infos(err))
	require.Len(t, logs.All(), 1)
}

// For debugging the log has a line for each call: the method, the caller and the code.
func TestEachCallIsALineForDebugging(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.DebugLevel)
	id, _, err := served(t, zap.New(core), "", nil, status.Error(codes.NotFound, "no"))
	require.Error(t, err)
	require.Len(t, logs.All(), 1)
	require.Equal(t, map[string]any{
		"method": "/service/Method", "from": "the process itself", "code": "NotFound",
		"request_id": id.String(),
	}, logs.All()[0].ContextMap())
}

// Calls to other deployments have the id of the call that they follow from; work of the process itself has
// none.
func TestTheIDIsPassedToOtherDeployments(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		ctx := requestid.WithID(context.Background(), id)
		var want []string
		if id != uuid.Nil {
			want = []string{id.String()}
		}
		var sent []string
		require.NoError(t, requestid.ToPeer(ctx, "/m", nil, nil, nil,
			func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
				md, _ := metadata.FromOutgoingContext(ctx)
				sent = md.Get(requestid.Header)
				return nil
			}))
		require.Equal(t, want, sent)
		_, err := requestid.StreamToPeer(ctx, nil, nil, "/m",
			func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string,
				_ ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				md, _ := metadata.FromOutgoingContext(ctx)
				require.Equal(t, want, md.Get(requestid.Header))
				return nil, nil
			})
		require.NoError(t, err)
	})
	require.Equal(t, zap.Skip(), requestid.Field(context.Background()))
}

// Servers without a log answer as servers with a log.
func TestALogIsNotNeeded(t *testing.T) {
	_, err := requestid.Unary(nil)(t.Context(), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
		return nil, errors.New("a fault")
	})
	require.Error(t, err)
}
