// Package inprocess has gRPC channels inside a process: a connection to services without sockets and
// encoding. Deadlines, cancellation, metadata, headers, trailers and interceptors work as over a connection;
// values of the caller's context stay behind.
package inprocess

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Channel is a grpc.ServiceRegistrar, and a grpc.ClientConnInterface to the services that are registered
// before its first call. The zero Channel has no services and copies messages.
type Channel struct {
	// Share passes messages as they are: neither side changes a message that it has sent or received.
	Share bool
	// Unary and Stream surround each call; may be nil.
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor

	methods map[string]method // by full name
}

type method struct {
	server any
	unary  grpc.MethodHandler
	stream grpc.StreamDesc // without a handler: none
}

// RegisterService implements grpc.ServiceRegistrar.
func (c *Channel) RegisterService(desc *grpc.ServiceDesc, server any) {
	if c.methods == nil {
		c.methods = map[string]method{}
	}
	for _, m := range desc.Methods {
		c.methods["/"+desc.ServiceName+"/"+m.MethodName] = method{server: server, unary: m.Handler}
	}
	for _, d := range desc.Streams {
		c.methods["/"+desc.ServiceName+"/"+d.StreamName] = method{server: server, stream: d}
	}
}

func unimplemented(method string) error {
	return status.Errorf(codes.Unimplemented, "%s is not registered on this channel", method)
}

// Invoke implements grpc.ClientConnInterface.
func (c *Channel) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	m := c.methods[method]
	if m.unary == nil {
		return unimplemented(method)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call := newCall(method)
	req, done := c.pass(args), make(chan outcome, 1) // one place: the caller may have gone
	go func() {
		answer, err := m.unary(m.server, call.serverContext(ctx), func(in any) error {
			return receive(in, req)
		}, c.Unary)
		call.end()
		if err == nil {
			answer = c.pass(answer)
		}
		done <- outcome{answer, err}
	}()
	defer call.tell(opts)
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case o := <-done:
		if o.err != nil {
			return statusOf(o.err)
		}
		return receive(reply, o.answer)
	}
}

type outcome struct {
	answer any
	err    error
}

// pass returns a message for the other side.
func (c *Channel) pass(m any) any {
	if parts, ok := m.(interface{ Whole() proto.Message }); ok {
		m = parts.Whole()
	}
	if p, ok := m.(proto.Message); ok && !c.Share {
		return proto.Clone(p)
	}
	return m
}

// receive gives a message the fields of the passed message, which has no other owner, or is shared.
func receive(into, passed any) error {
	to, ok := into.(proto.Message)
	from, is := passed.(proto.Message)
	if !ok || !is || to.ProtoReflect().Descriptor() != from.ProtoReflect().Descriptor() {
		return status.Error(codes.Internal, fmt.Sprintf("a message is %T, not %T", passed, into))
	}
	proto.Reset(to)
	target := to.ProtoReflect()
	from.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		target.Set(field, value)
		return true
	})
	return nil
}

// statusOf returns the error that a caller receives over a connection.
func statusOf(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(err).Err()
}

// detached ends with the caller's context, and has none of its values.
type detached struct{ context.Context } //nolint:containedctx // it is a context

func (detached) Value(any) any { return nil }

// address is the address of both sides.
type address struct{}

func (address) Network() string { return "inprocess" }
func (address) String() string  { return "inprocess" }

// serverContext returns the context of the handler of a call.
func (c *call) serverContext(ctx context.Context) context.Context {
	var server context.Context = detached{ctx}
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		server = metadata.NewIncomingContext(server, md.Copy())
	}
	return grpc.NewContextWithServerTransportStream(peer.NewContext(server, &peer.Peer{Addr: address{}}), c)
}
