package inprocess

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// stream is a streaming call.
type stream struct {
	*call
	channel  *Channel
	desc     grpc.StreamDesc
	requests chan any // one place; closed when the client sends no more
	closing  sync.Once
	answers  chan any
	done     chan struct{} // closed when the handler has returned err
	err      error
}

// NewStream implements grpc.ClientConnInterface.
func (c *Channel) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	m := c.methods[method]
	if m.stream.Handler == nil {
		return nil, unimplemented(method)
	}
	ctx, cancel := context.WithCancel(ctx)
	st := &stream{
		call: newCall(method), channel: c, desc: m.stream, requests: make(chan any, 1),
		answers: make(chan any), done: make(chan struct{}),
	}
	go func() {
		defer cancel()
		st.err = st.serve(m.server, &serverStream{st, st.serverContext(ctx)})
		st.end()
		close(st.done)
	}()
	return &clientStream{st, ctx, opts}, nil
}

func (s *stream) serve(server any, stream grpc.ServerStream) error {
	if s.channel.Stream == nil {
		return s.desc.Handler(server, stream)
	}
	info := &grpc.StreamServerInfo{
		FullMethod: s.method, IsClientStream: s.desc.ClientStreams,
		IsServerStream: s.desc.ServerStreams,
	}
	return s.channel.Stream(server, stream, info, s.desc.Handler)
}

// result is the error that the client reads at the end.
func (s *stream) result() error {
	if s.err == nil {
		return io.EOF
	}
	return statusOf(s.err)
}

// clientStream is the caller's side.
type clientStream struct {
	*stream
	ctx  context.Context //nolint:containedctx // a stream is its context
	opts []grpc.CallOption
}

func (s *clientStream) Context() context.Context { return s.ctx }

func (s *clientStream) CloseSend() error {
	s.closing.Do(func() { close(s.requests) })
	return nil
}

// SendMsg returns io.EOF when the call has ended, and nil where the client sends one message, as over a
// connection: RecvMsg has the error.
func (s *clientStream) SendMsg(m any) error {
	select {
	case s.requests <- s.channel.pass(m):
		return nil
	case <-s.ctx.Done(): // the end of the handler ends the context as well
	}
	if s.desc.ClientStreams {
		return io.EOF
	}
	return nil
}

func (s *clientStream) RecvMsg(m any) error {
	select {
	case answer := <-s.answers:
		return receive(m, answer)
	case <-s.done:
		s.tell(s.opts)
		return s.result()
	case <-s.ctx.Done():
	}
	select {
	case <-s.done:
		s.tell(s.opts)
		return s.result()
	default:
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

// Header waits until the handler has sent it.
func (s *clientStream) Header() (metadata.MD, error) {
	select {
	case <-s.sent:
	case <-s.ctx.Done():
	}
	header, _ := s.metadata()
	return header, nil
}

func (s *clientStream) Trailer() metadata.MD {
	_, trailer := s.metadata()
	return trailer
}

// serverStream is the handler's side.
type serverStream struct {
	*stream
	ctx context.Context //nolint:containedctx // a stream is its context
}

func (s *serverStream) Context() context.Context { return s.ctx }

func (s *serverStream) SetTrailer(md metadata.MD) { _ = s.call.SetTrailer(md) }

func (s *serverStream) SendMsg(m any) error {
	s.end()
	select {
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	case s.answers <- s.channel.pass(m):
		return nil
	}
}

func (s *serverStream) RecvMsg(m any) error {
	select {
	case req, ok := <-s.requests:
		if !ok {
			return io.EOF
		}
		return receive(m, req)
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}
