package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // its codec
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/budget"
	"github.com/db-controller/db-controller/internal/identity"
)

const (
	// maxValues is the number of values of a request: the gRPC server refuses more.
	maxValues = 88_000
	// maxAnswerBytes is the memory of a decoded answer, which has the largest resource.
	maxAnswerBytes = 32 << 20
	// answerCopies is how often the text of an answer is in memory: as it was received, and as JSON in a
	// buffer that has grown.
	answerCopies = 4
)

// readBody reads the body of a request before it is decoded, which would take a hundred times the size of a
// body of small values.
func readBody(w http.ResponseWriter, r *http.Request) error {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return status.Errorf(codes.InvalidArgument, "the body of the request is too large: at most %d bytes",
			MaxBodyBytes)
	case err != nil:
		return status.Error(codes.InvalidArgument, "the body of the request did not arrive")
	}
	if n := budget.Values(raw); n > maxValues {
		return status.Errorf(codes.InvalidArgument, "the request has %d values, %d are allowed: send fewer at a time",
			n, maxValues)
	}
	r.Body = io.NopCloser(bytes.NewReader(raw))
	return nil
}

// Bounded returns a connection on which each answer is decoded when its caller has the memory for it, until
// the context of its call ends.
func (h *Handler) Bounded(conn grpc.ClientConnInterface, who string) grpc.ClientConnInterface {
	return &bounded{conn: conn, memory: h.memory, who: who}
}

type bounded struct {
	conn   grpc.ClientConnInterface
	memory *budget.Budget
	who    string
}

// Invoke implements grpc.ClientConnInterface.
func (b *bounded) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	d := b.decoding(ctx)
	err := b.conn.Invoke(ctx, method, args, reply, append(opts, grpc.ForceCodecV2(d))...)
	return d.or(err)
}

// NewStream implements grpc.ClientConnInterface.
func (b *bounded) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	d := b.decoding(ctx)
	stream, err := b.conn.NewStream(ctx, desc, method, append(opts, grpc.ForceCodecV2(d))...)
	if err != nil {
		return nil, err
	}
	return &decodingStream{stream, d}, nil
}

func (b *bounded) decoding(ctx context.Context) *decoding {
	d := &decoding{CodecV2: encoding.GetCodecV2("proto"), ctx: ctx, account: b.memory.Open(b.who)}
	context.AfterFunc(ctx, d.end)
	return d
}

type decodingStream struct {
	grpc.ClientStream
	decoding *decoding
}

// RecvMsg implements grpc.ClientStream. The message before it is written.
func (s *decodingStream) RecvMsg(m any) error {
	s.decoding.set(nil)
	return s.decoding.or(s.ClientStream.RecvMsg(m))
}

// decoding is the codec of one call.
type decoding struct {
	encoding.CodecV2
	ctx     context.Context //nolint:containedctx // of the call
	account *budget.Account

	mu    sync.Mutex
	hold  *budget.Hold // guarded by mu; of the last message
	ended bool         // guarded by mu
	err   error        // guarded by mu; why a message was not decoded
}

// Unmarshal implements encoding.CodecV2.
func (d *decoding) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return d.CodecV2.Unmarshal(data, v)
	}
	raw := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	err := d.wait(m, raw.ReadOnlyData())
	if err == nil {
		return proto.Unmarshal(raw.ReadOnlyData(), m)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	return err
}

// wait waits for the memory of a message.
func (d *decoding) wait(m proto.Message, raw []byte) error {
	size, err := identity.DecodedBytes(m.ProtoReflect().Descriptor(), raw)
	if err != nil {
		return status.Errorf(codes.Internal, "the answer: %v", err)
	}
	if size > maxAnswerBytes {
		return status.Errorf(codes.ResourceExhausted,
			"the answer has so many values that they take %d bytes of memory, %d are allowed over HTTP: ask for fewer resources, or for some fields", size, maxAnswerBytes)
	}
	ctx, cancel := context.WithTimeout(d.ctx, readTimeout)
	defer cancel()
	hold, err := d.account.Acquire(ctx, budget.Working, size+answerCopies*int64(len(raw)))
	if err != nil {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	d.set(hold)
	return nil
}

// set replaces the memory of the last message.
func (d *decoding) set(hold *budget.Hold) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		hold.Release()
		return
	}
	d.hold.Release()
	d.hold = hold
}

// end is called when the call and the use of its answers have ended.
func (d *decoding) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hold.Release()
	d.hold, d.ended = nil, true
	d.account.Close()
}

// or returns the reason why a message was not decoded, which package grpc would hide in another error.
func (d *decoding) or(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil && d.err != nil {
		return d.err
	}
	return err
}
