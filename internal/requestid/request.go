// Package requestid names each call of a server by a request id, which is in the answer, in the details of an
// error, in the log, in the calls to other deployments that follow from it, and in the record of removals.
package requestid

import (
	"cmp"
	"context"
	"fmt"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Header has the request id, a UUID: in a call when the caller has one, and in each answer.
const Header = "x-request-id"

type idKey struct{}

// ID returns the request id of a call; zero outside of one.
func ID(ctx context.Context) uuid.UUID {
	id, _ := ctx.Value(idKey{}).(uuid.UUID)
	return id
}

// WithID returns a context of the call with this id.
func WithID(ctx context.Context, id uuid.UUID) context.Context {
	return context.WithValue(ctx, idKey{}, id)
}

// Field returns the field of log lines with the request id; none outside of a call.
func Field(ctx context.Context) zap.Field {
	if id := ID(ctx); id != uuid.Nil {
		return zap.Stringer("request_id", id)
	}
	return zap.Skip()
}

// Unary gives each call an id, and names it in the answer and in the error. log is for errors that say
// nothing to the caller, and, for debugging, has a line for each call; it may be nil.
func Unary(log *zap.Logger) grpc.UnaryServerInterceptor {
	log = cmp.Or(log, zap.NewNop())
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx = WithID(ctx, idOf(ctx, req))
		// an error: the call has no header, or has ended
		_ = grpc.SetHeader(ctx, metadata.Pairs(Header, ID(ctx).String()))
		out, err := handler(ctx, req)
		err = Told(ctx, log, err)
		answered(ctx, log, info.FullMethod, err)
		return out, err
	}
}

// Stream is Unary for streams.
func Stream(log *zap.Logger) grpc.StreamServerInterceptor {
	log = cmp.Or(log, zap.NewNop())
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx := WithID(ss.Context(), idOf(ss.Context(), nil))
		_ = ss.SetHeader(metadata.Pairs(Header, ID(ctx).String()))
		err := Told(ctx, log, handler(srv, &stream{ss, ctx}))
		answered(ctx, log, info.FullMethod, err)
		return err
	}
}

// answered writes the line of a call for debugging.
func answered(ctx context.Context, log *zap.Logger, method string, err error) {
	if line := log.Check(zap.DebugLevel, "a call is answered"); line != nil {
		line.Write(zap.String("method", method), zap.String("from", caller(ctx)),
			zap.Stringer("code", status.Code(err)), Field(ctx))
	}
}

// caller returns the identity that the connection proves, or its address.
func caller(ctx context.Context) string {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return "the process itself"
	}
	if proven, ok := from.AuthInfo.(fmt.Stringer); ok {
		return proven.String()
	}
	return from.Addr.String()
}

type stream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream is its context
}

func (s *stream) Context() context.Context { return s.ctx }

// idOf returns the id in the message of a write, or else in the header, or else a new id. Texts that are not
// UUIDs do not count: they would be copied into logs and records.
func idOf(ctx context.Context, req any) uuid.UUID {
	given := metadata.ValueFromIncomingContext(ctx, Header)
	if r, ok := req.(interface{ GetRequestId() string }); ok && r.GetRequestId() != "" {
		given = []string{r.GetRequestId()}
	}
	if len(given) > 0 {
		if id, err := uuid.Parse(given[0]); err == nil && id != uuid.Nil {
			return id
		}
	}
	return uuid.New()
}

// ToPeer passes the id on with the calls that follow from a call.
func ToPeer(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	return invoke(outgoing(ctx), method, req, reply, cc, opts...)
}

// StreamToPeer is ToPeer for streams.
func StreamToPeer(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return open(outgoing(ctx), desc, cc, method, opts...)
}

func outgoing(ctx context.Context) context.Context {
	if id := ID(ctx); id != uuid.Nil {
		return metadata.AppendToOutgoingContext(ctx, Header, id.String())
	}
	return ctx
}
