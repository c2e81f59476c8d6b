package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/db-controller/db-controller/internal/identity"
)

// Mishap is a fault of a call through an RPCProxy.
type Mishap struct {
	// Cut refuses the call; streams that are open end.
	Cut bool
	// Before delays the request, After the answer.
	Before, After time.Duration
	// Lose returns UNAVAILABLE after the call was executed.
	Lose bool
	// Repeat executes the call twice, and returns the second response.
	Repeat bool
	// Replay executes the call once more after this delay, and drops the response.
	Replay time.Duration
	// Executed is called when the call was executed; its answer is sent when it returns.
	Executed func()
}

// Misfortune decides the fault of a call. It is called concurrently.
type Misfortune func(from identity.Identity, method string) Mishap

// and combines two mishaps.
func (m Mishap) and(o Mishap) Mishap {
	both := Mishap{
		Cut: m.Cut || o.Cut, Lose: m.Lose || o.Lose, Repeat: m.Repeat || o.Repeat,
		Before: max(m.Before, o.Before), After: max(m.After, o.After), Replay: max(m.Replay, o.Replay),
		Executed: m.Executed,
	}
	if both.Executed == nil {
		both.Executed = o.Executed
	} else if o.Executed != nil {
		both.Executed = func() { m.Executed(); o.Executed() }
	}
	return both
}

// RPCProxy is a proxy of the gRPC server of a deployment: it presents the deployment's certificate, and calls
// the server with the certificate of the caller. Suffer configures its effects on calls.
type RPCProxy struct {
	address string
	to      identity.Identity
	parties map[identity.Identity]*grpc.ClientConn
	server  *grpc.Server
	replays sync.WaitGroup
	// onTheWay counts unary calls that have not ended, pending replays included.
	onTheWay atomic.Int64

	mu          sync.Mutex
	misfortunes map[int]Misfortune // guarded by mu
	next        int                // guarded by mu
	changed     chan struct{}      // guarded by mu; closed when misfortunes change
}

// NewRPCProxy starts a proxy of a server until the end of the test. Certs is the folder with a folder of
// certificates for each party.
func NewRPCProxy(t testing.TB, certs, own, server string) *RPCProxy {
	t.Helper()
	p := &RPCProxy{
		parties: map[identity.Identity]*grpc.ClientConn{}, misfortunes: map[int]Misfortune{},
		changed: make(chan struct{}),
	}
	credentials, err := identity.Load(identity.InDir(own))
	require.NoError(t, err)
	p.to = credentials.Identity
	folders, err := os.ReadDir(certs)
	require.NoError(t, err)
	for _, f := range folders {
		party, err := identity.Load(identity.InDir(filepath.Join(certs, f.Name())))
		require.NoError(t, err)
		conn, err := grpc.NewClient(server,
			append(party.DialOptions(p.to), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		p.parties[party.Identity] = conn
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p.address = listener.Addr().String()
	p.server = grpc.NewServer(grpc.WaitForHandlers(true), grpc.Creds(credentials.Server(nil)),
		grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(p.forward))
	go func() { _ = p.server.Serve(listener) }()
	t.Cleanup(func() {
		p.server.Stop()
		p.replays.Wait()
	})
	return p
}

// Address is where it listens.
func (p *RPCProxy) Address() string { return p.address }

// Suffer adds a misfortune, beside earlier ones, until the returned function is called.
func (p *RPCProxy) Suffer(m Misfortune) (mend func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := p.next
	p.next++
	p.misfortunes[id] = m
	p.change()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.misfortunes, id)
		p.change()
	}
}

// Landed waits until no call is on its way: delayed and replayed calls outlast their misfortune.
func (p *RPCProxy) Landed(ctx context.Context) error {
	for {
		n := p.onTheWay.Load()
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d calls to %s are still on their way: %w", n, p.to, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (p *RPCProxy) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *RPCProxy) mishap(from identity.Identity, method string) (all Mishap, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.misfortunes {
		all = all.and(m(from, method))
	}
	return all, p.changed
}

var errCut = status.Error(codes.Unavailable, "cut off by the test")

func (p *RPCProxy) forward(_ any, in grpc.ServerStream) error {
	from, err := identity.FromContext(in.Context())
	if err != nil {
		return err
	}
	conn := p.parties[from]
	if conn == nil {
		return status.Errorf(codes.Unauthenticated, "the proxy knows no %s", from)
	}
	method, _ := grpc.MethodFromServerStream(in)
	if streams(method) {
		return p.stream(in, conn, from, method)
	}
	p.onTheWay.Add(1) // before its mishap is decided
	defer p.onTheWay.Add(-1)
	m, _ := p.mishap(from, method)
	if m.Cut {
		return errCut
	}
	request := &frame{}
	if err := in.RecvMsg(request); err != nil {
		return err
	}
	<-time.After(m.Before)
	call := func(ctx context.Context) (*frame, metadata.MD, error) {
		answer, trailer := &frame{}, metadata.MD{}
		err := conn.Invoke(outgoing(ctx, in.Context()), method, request, answer, grpc.Trailer(&trailer))
		return answer, trailer, err
	}
	if m.Repeat {
		_, _, _ = call(in.Context())
	}
	answer, trailer, err := call(in.Context())
	if m.Replay > 0 {
		p.onTheWay.Add(1)
		p.replays.Go(func() {
			defer p.onTheWay.Add(-1)
			<-time.After(m.Replay)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(in.Context()), 5*time.Second)
			defer cancel()
			_, _, _ = call(ctx)
		})
	}
	<-time.After(m.After)
	if m.Executed != nil {
		m.Executed()
	}
	in.SetTrailer(trailer)
	if m.Lose {
		return status.Error(codes.Unavailable, "the answer was lost by the test")
	}
	if err != nil {
		return err
	}
	return in.SendMsg(answer)
}

// stream forwards a call whose answer is a stream, until it ends or is cut.
func (p *RPCProxy) stream(in grpc.ServerStream, conn *grpc.ClientConn, from identity.Identity, method string) error {
	m, changed := p.mishap(from, method)
	if m.Cut {
		return errCut
	}
	request := &frame{}
	if err := in.RecvMsg(request); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(in.Context())
	defer cancel(nil)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			var m Mishap
			if m, changed = p.mishap(from, method); m.Cut {
				cancel(errCut)
			}
		}
	}()
	out, err := conn.NewStream(outgoing(ctx, in.Context()), &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := errors.Join(out.SendMsg(request), out.CloseSend()); err != nil {
		return err
	}
	for {
		answer := &frame{}
		err := out.RecvMsg(answer)
		switch {
		case errors.Is(err, io.EOF):
			in.SetTrailer(out.Trailer())
			return nil
		case errors.Is(context.Cause(ctx), errCut):
			return errCut
		case err != nil:
			in.SetTrailer(out.Trailer())
			return err
		}
		if err := in.SendMsg(answer); err != nil {
			return err
		}
	}
}

// outgoing returns a context for calls with the metadata of the forwarded call.
func outgoing(ctx, in context.Context) context.Context {
	came, _ := metadata.FromIncomingContext(in)
	md := metadata.MD{}
	for key, values := range came {
		if !strings.HasPrefix(key, ":") && !strings.HasPrefix(key, "grpc-") && key != "content-type" &&
			key != "user-agent" {
			md[key] = values
		}
	}
	return metadata.NewOutgoingContext(ctx, md)
}

func streams(method string) bool {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	m, ok := d.(protoreflect.MethodDescriptor)
	return err == nil && ok && m.IsStreamingServer()
}

// Some returns a random duration up to a limit.
func Some(r *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(limit)))
}

// frame is a message that is not decoded.
type frame struct{ data []byte }

// rawCodec passes frames through unchanged.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*frame).data)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*frame).data = data.Materialize() //nolint:misspell // its name
	return nil
}

func (rawCodec) Name() string { return "proto" }
