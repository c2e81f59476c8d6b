package identity

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/budget"
)

const (
	// receiveTimeout is the longest time from the first byte of a call to the last byte of its request, and
	// for a place in the memory of its caller.
	receiveTimeout = 30 * time.Second
	// sendTimeout is how long an answer may wait for its reader. Then the connection is closed.
	sendTimeout = time.Minute
	// WindowBytes is the number of bytes of a call that a client may send before its request is read.
	WindowBytes = 64 << 10
	// callBytes is the memory of a stream without messages, and of the page of events that it shares with
	// others.
	callBytes = 32 << 10
)

// call is a call at a server, from its first byte until its answer is sent.
type call struct {
	limiter *Limiter
	counted []Identity
	account *budget.Account
	conn    *counted // nil without a limit of connections
	late    *time.Timer

	mu         sync.Mutex
	references int                   // guarded by mu: the stream, its handler, and messages that are not sent
	begun      bool                  // guarded by mu: the handler counts
	unsent     map[*budget.Hold]bool // guarded by mu; nil when the connection is closed
	stalled    *time.Timer           // guarded by mu; runs when nothing but messages is left
	receiving  *budget.Hold          // guarded by mu; until the request has arrived
	working    *budget.Hold          // guarded by mu; while the handler runs
	converting *budget.Call
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// open begins a call that is counted. Its context ends when the request takes too long to arrive.
func (l *Limiter) open(ctx context.Context, counted []Identity) context.Context {
	keys := make([]any, len(counted))
	for i, who := range counted {
		keys[len(counted)-1-i] = who // the person, then the deployment that forwards
	}
	c := &call{
		limiter: l, counted: counted, account: l.memory.Open(keys...), references: 1, conn: connOf(ctx),
		unsent: map[*budget.Hold]bool{},
	}
	ctx, cancel := context.WithCancel(ctx)
	ctx, c.converting = budget.NewContext(ctx, c.account)
	c.late = time.AfterFunc(receiveTimeout, cancel)
	if c.conn != nil {
		l.mu.Lock()
		c.conn.calls[c] = true
		l.mu.Unlock()
	}
	context.AfterFunc(ctx, func() {
		c.late.Stop()
		c.leave() // the stream has ended, however it did
	})
	return context.WithValue(ctx, callKey{}, c)
}

// Received reports whether a call has come over a connection: its answer will be encoded.
func Received(ctx context.Context) bool { return callOf(ctx) != nil }

// leave ends the stream, the handler, or the sending of a message; the last of them ends the call.
func (c *call) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left()
}

// left is called with mu.
func (c *call) left() {
	c.references--
	switch {
	case c.references == 0:
		c.close()
	case c.references == len(c.unsent) && c.stalled == nil && c.conn != nil:
		c.stalled = time.AfterFunc(sendTimeout, func() { _ = c.conn.Close() })
	}
}

// close is called with mu.
func (c *call) close() {
	if c.stalled != nil {
		c.stalled.Stop()
	}
	c.converting.End()
	c.receiving.Release()
	c.working.Release()
	c.receiving, c.working = nil, nil
	c.account.Close()
	for _, who := range c.counted {
		c.limiter.change(who, 0, -1)
	}
	if c.conn != nil {
		c.limiter.mu.Lock()
		delete(c.conn.calls, c)
		c.limiter.mu.Unlock()
	}
}

// begin waits until the request may arrive: bytes beyond the window of the stream take memory from here on.
func (c *call) begin(ctx context.Context) {
	c.mu.Lock()
	ended := c.references == 0
	if c.begun = !ended; c.begun {
		c.references++
	}
	c.mu.Unlock()
	if ended {
		return
	}
	hold, err := c.account.Acquire(ctx, budget.Receiving, int64(MaxRequestBytes))
	if err != nil {
		return // ctx has ended, and so does the call
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receiving = hold
}

// end is called after the handler, if begin was called before.
func (c *call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun {
		c.handled()
		c.left()
	}
}

// received is called when a request has arrived, with its end, and is decoded.
func (c *call) received() {
	c.late.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receiving.Release()
	c.receiving = nil
}

// work waits for the memory of a call in progress.
func (c *call) work(ctx context.Context, pool budget.Pool, bytes int64) error {
	ctx, cancel := context.WithTimeout(ctx, receiveTimeout)
	defer cancel()
	hold, err := c.account.Acquire(ctx, pool, bytes)
	if err != nil {
		c.limiter.refused("memory", c.counted[0])
		return status.Errorf(codes.ResourceExhausted, "%s: %v", c.counted[len(c.counted)-1], err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		hold.Release()
		return status.FromContextError(context.Canceled).Err()
	}
	c.working = hold
	return nil
}

// handled is called with mu when a handler has returned.
func (c *call) handled() {
	c.converting.End()
	c.working.Release()
	c.working = nil
}

// sends keeps the memory of a message until it is sent.
func (c *call) sends(h *budget.Hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unsent == nil || !c.begun {
		h.Release()
		return
	}
	c.references++
	c.unsent[h] = true
}

func (c *call) sent(h *budget.Hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unsent[h] {
		delete(c.unsent, h)
		h.Release()
		c.left()
	}
}

// drop forgets the messages of a closed connection: gRPC does not report their end.
func (c *call) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	unsent := c.unsent
	c.unsent = nil
	for h := range unsent {
		h.Release()
		c.left()
	}
}

// Memory is a stats.Handler, which follows the requests: grpc.StatsHandler.
type Memory struct{}

// TagRPC is stats.Handler.
func (Memory) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn is stats.Handler.
func (Memory) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn is stats.Handler.
func (Memory) HandleConn(context.Context, stats.ConnStats) {}

// HandleRPC runs in the goroutine of the call: between its beginning and the arrival of its request it may
// wait.
func (Memory) HandleRPC(ctx context.Context, event stats.RPCStats) {
	c := callOf(ctx)
	if c == nil {
		return
	}
	switch event.(type) {
	case *stats.Begin:
		c.begin(ctx)
	case *stats.End:
		c.end()
	}
}

// Unary counts answers until they are sent: the outermost interceptor.
func (Memory) Unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	out, err := handler(ctx, req)
	if c := callOf(ctx); c != nil && err == nil {
		return &outgoing{message: out, call: c}, nil
	}
	return out, err
}

// Stream is Unary for watches. Each of their messages waits until there is memory for it.
func (Memory) Stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c := callOf(ss.Context())
	if c == nil {
		return handler(srv, ss)
	}
	return handler(srv, &sending{ServerStream: ss, call: c})
}

type sending struct {
	grpc.ServerStream
	call *call
	held bool // the stream has its memory
}

// RecvMsg decodes a request when the memory of the stream is free. The next ones of a stream of requests take
// its place.
func (s *sending) RecvMsg(m any) error {
	in := &incoming{call: s.call, pool: budget.Streaming, held: s.held}
	defer func() { in.raw.Free() }()
	if err := s.ServerStream.RecvMsg(in); err != nil {
		s.call.received()
		return err
	}
	s.held = true
	return in.decode(s.Context(), m, maxStreamBytes, func(request int64) int64 {
		return callBytes + requestCopies*request
	})
}

// requestCopies is how often the request of a stream is in memory: decoded, and as converted by its handler.
const requestCopies = 2

// maxStreamBytes bounds the memory of a decoded request of a stream, which is there as long as the stream.
const maxStreamBytes = 1 << 20

func (s *sending) SendMsg(m any) error {
	size := leastPooled
	switch m := m.(type) {
	case *joined:
		n, err := m.size()
		if err != nil {
			return err
		}
		size = max(size, n)
	case proto.Message:
		size = max(size, proto.Size(m))
	}
	hold, err := s.call.account.Acquire(s.Context(), budget.Sending, int64(size))
	if err != nil {
		return status.FromContextError(s.Context().Err()).Err()
	}
	return s.ServerStream.SendMsg(&outgoing{m, s.call, hold})
}

// outgoing is a message that counts until it is sent.
type outgoing struct {
	message any
	call    *call
	hold    *budget.Hold // of a watch; an answer has the memory of its call until it is encoded
}

// incoming is a request that is decoded when its caller has the memory for it.
type incoming struct {
	call *call
	raw  mem.BufferSlice
	pool budget.Pool
	held bool // it takes the place of an earlier request, whose memory it has
}

// Codec encodes and decodes the messages of a server: grpc.ForceServerCodecV2.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ encoding.CodecV2 }

// Undecoded returns the codec of a client that passes answers on: they have all that was received as unknown
// fields, which are sent as they are.
func Undecoded() encoding.CodecV2 { return undecoded{encoding.GetCodecV2("proto")} }

type undecoded struct{ encoding.CodecV2 }

func (c undecoded) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	m.ProtoReflect().SetUnknown(data.Materialize()) //nolint:misspell // its name
	return nil
}

// leastPooled is the least capacity of a buffer whose end mem reports.
const leastPooled = 1<<10 + 1

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if j, ok := v.(*joined); ok {
		return j.marshal(nil)
	}
	out, ok := v.(*outgoing)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	if j, ok := out.message.(*joined); ok { // of a watch, which has a hold
		parts, err := j.marshal(sentBuffer{out.call, out.hold})
		if err != nil {
			out.hold.Release()
			return nil, err
		}
		out.call.sends(out.hold)
		return parts, nil
	}
	m, ok := out.message.(proto.Message)
	if !ok {
		out.hold.Release()
		return c.CodecV2.Marshal(out.message)
	}
	raw, err := encode(m)
	if err != nil {
		out.hold.Release()
		return nil, err
	}
	if out.hold == nil {
		out.call.mu.Lock()
		out.call.handled() // the memory belongs to the answer now
		out.call.mu.Unlock()
		out.hold = out.call.account.Take(budget.Working, int64(cap(raw)))
	}
	out.call.sends(out.hold)
	return mem.BufferSlice{mem.NewBuffer(&raw, sentBuffer{out.call, out.hold})}, nil
}

// sentBuffer is called when a buffer is no longer needed: its message is sent, or never will be.
type sentBuffer struct {
	call *call
	hold *budget.Hold
}

func (s sentBuffer) Get(length int) *[]byte { return mem.DefaultBufferPool().Get(length) }

func (s sentBuffer) Put(*[]byte) { s.call.sent(s.hold) }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	data.Ref()
	in.raw.Free()
	in.raw = data
	return nil
}

// decode decodes the request of a unary call when its memory is free, and ends the receiving.
func (in *incoming) decode(ctx context.Context, v any, most int64, weigh func(request int64) int64) error {
	defer in.call.received()
	m, ok := v.(proto.Message)
	if !ok {
		return status.Errorf(codes.Internal, "%T is no message", v)
	}
	raw := in.raw.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	bytes, err := DecodedBytes(m.ProtoReflect().Descriptor(), raw.ReadOnlyData())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "the request: %v", err)
	}
	if bytes > most {
		return status.Errorf(codes.InvalidArgument,
			"the request has so many values that they take %d bytes of memory, %d are allowed: send fewer at a time",
			bytes, most)
	}
	if !in.held {
		if err := in.call.work(ctx, in.pool, weigh(bytes)); err != nil {
			return err
		}
	}
	if err := proto.Unmarshal(raw.ReadOnlyData(), m); err != nil {
		return status.Errorf(codes.InvalidArgument, "the request: %v", err)
	}
	return nil
}

// Weighed registers services whose requests are decoded when the memory for the call is free. weigh returns
// the bytes that a call of a method takes, from the bytes of its decoded request.
func Weighed(to grpc.ServiceRegistrar, weigh func(method string, request int64) int64) grpc.ServiceRegistrar {
	return weighed{to, weigh}
}

type weighed struct {
	grpc.ServiceRegistrar
	weigh func(method string, request int64) int64
}

func (w weighed) RegisterService(desc *grpc.ServiceDesc, server any) {
	out := *desc
	out.Methods = slices.Clone(desc.Methods)
	for i, m := range desc.Methods {
		method := "/" + desc.ServiceName + "/" + m.MethodName
		out.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error,
			interceptor grpc.UnaryServerInterceptor,
		) (any, error) {
			c := callOf(ctx)
			if c == nil {
				return m.Handler(srv, ctx, decode, interceptor)
			}
			return m.Handler(srv, ctx, func(v any) error {
				in := &incoming{call: c, pool: budget.Working}
				defer func() { in.raw.Free() }()
				if err := decode(in); err != nil {
					return err
				}
				return in.decode(ctx, v, maxDecodedBytes, func(request int64) int64 { return w.weigh(method, request) })
			}, interceptor)
		}
	}
	w.ServiceRegistrar.RegisterService(&out, server)
}
