package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/internal/budget"
	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

// small is a resource with very many small values.
func small(values int) *resourcev1.Resource {
	list := &structpb.ListValue{Values: make([]*structpb.Value, values)}
	one := structpb.NewBoolValue(true)
	for i := range list.Values {
		list.Values[i] = one
	}
	return &resourcev1.Resource{
		Name: "targets/t1",
		Body: &structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewListValue(list)}},
	}
}

// encoded sends one resource, in bytes that all answers share.
type encoded struct {
	resourcev1.UnimplementedResourceServiceServer
}

func (encoded) GetResource(context.Context, *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	return &resourcev1.Resource{}, nil
}

// PutResource ends with its caller.
func (encoded) PutResource(ctx context.Context, _ *resourcev1.PutResourceRequest) (*resourcev1.Resource, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (encoded) WatchResources(_ *resourcev1.WatchResourcesRequest,
	stream grpc.ServerStreamingServer[resourcev1.WatchResourcesResponse],
) error {
	for stream.Send(&resourcev1.WatchResourcesResponse{}) == nil {
	}
	return stream.Context().Err()
}

// sharing is the codec of the test's server, which is in the process that is measured: it takes no memory for
// an answer.
type sharing struct {
	encoding.CodecV2
	resource, event mem.SliceBuffer
}

// Marshal implements encoding.CodecV2.
func (s sharing) Marshal(v any) (mem.BufferSlice, error) {
	if _, ok := v.(*resourcev1.Resource); ok {
		return mem.BufferSlice{s.resource}, nil
	}
	return mem.BufferSlice{s.event}, nil
}

// serveEncoded returns the address of a gateway before a server of one resource.
func serveEncoded(t *testing.T, resource *resourcev1.Resource) string {
	t.Helper()
	codec := sharing{CodecV2: encoding.GetCodecV2("proto")}
	var err error
	codec.resource, err = proto.Marshal(resource)
	require.NoError(t, err)
	codec.event, err = proto.Marshal(&resourcev1.WatchResourcesResponse{
		Event: &resourcev1.WatchResourcesResponse_Upsert{Upsert: resource},
	})
	require.NoError(t, err)
	s := grpc.NewServer(grpc.ForceServerCodecV2(codec))
	resourcev1.RegisterResourceServiceServer(s, encoded{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	// The windows of serve: gRPC's own choice of windows grows to many megabytes of unread answers.
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)),
		grpc.WithStaticStreamWindowSize(identity.WindowBytes), grpc.WithStaticConnWindowSize(16*identity.WindowBytes))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	server := httptest.NewUnstartedServer(handler(t, conn))
	server.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			assert.NoError(t, c.(*net.TCPConn).SetWriteBuffer(64<<10)) // few unread bytes fit
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

func request(t *testing.T, ctx context.Context, method, url, body string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer ann")
	return http.DefaultClient.Do(r)
}

// settledHeap returns the memory in use once allocations have ended: objects that are allocated during a
// collection survive it, garbage or not.
func settledHeap(t *testing.T) int64 {
	t.Helper()
	var before, after runtime.MemStats
	require.Eventually(t, func() bool {
		before = after
		runtime.GC()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc-before.TotalAlloc < 256<<10
	}, wait.Limit, 300*time.Millisecond)
	return int64(after.HeapAlloc) //nolint:gosec // of one process
}

// One caller with calls, watches and requests of very many small values, which it does not read and which do
// not end, takes a bounded part of the memory. It runs alone: it measures the process.
func TestOneCallerOverHTTPTakesLittleMemory_I20_I21(t *testing.T) {
	const maxGrown = 48_000_000
	url := serveEncoded(t, small(250_000))
	costly := `{"body": {"x": [` + strings.Repeat("1,", maxValues*9/10) + `1]}}`
	get, watch := url+strings.Replace(resourcePath(t), "acme", "t1", 1), url+"/v1/resources:watch"
	for what, call := range map[string]func(ctx context.Context) (*http.Response, error){
		"unread answers": func(ctx context.Context) (*http.Response, error) {
			return request(t, ctx, http.MethodGet, get, "")
		},
		"unread watches": func(ctx context.Context) (*http.Response, error) {
			return request(t, ctx, http.MethodGet, watch, "")
		},
		"requests": func(ctx context.Context) (*http.Response, error) {
			return request(t, ctx, http.MethodPut, get, costly)
		},
	} {
		before := settledHeap(t)
		ctx, cancel := context.WithCancel(t.Context())
		var g sync.WaitGroup
		for range 30 {
			g.Go(func() {
				if res, err := call(ctx); err == nil {
					<-ctx.Done()
					_ = res.Body.Close()
				}
			})
		}
		grown := settledHeap(t) - before
		cancel()
		g.Wait()
		t.Logf("%-15s %.1f MB", what, float64(grown)/1e6)
		require.Less(t, grown, int64(maxGrown), what)
	}
}

// Answers are decoded when their caller has the memory for them: as many at a time as its share has room for.
func TestAnswersAreDecodedInTheMemoryOfTheirCaller_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := handler(t, &server{}).Bounded(&server{}, "ann").(*bounded)
		raw := encode(t, small(50_000))
		size, err := identity.DecodedBytes((&resourcev1.Resource{}).ProtoReflect().Descriptor(), raw)
		require.NoError(t, err)
		room := int(budget.Share[budget.Working] / (size + answerCopies*int64(len(raw))))
		calls, decoded := 2*room+1, 0
		ends := make(chan context.CancelFunc, calls)
		for range calls {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				if b.decoding(ctx).Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, &resourcev1.Resource{}) == nil {
					ends <- cancel
				}
			}()
		}
		for _, want := range []int{room, room, 1} {
			synctest.Wait()
			require.Len(t, ends, want, "after %d", decoded)
			for range want {
				(<-ends)()
				decoded++
			}
		}
		require.Equal(t, calls, decoded)
	})
}

// An answer that is read is whole, however large it is up to the bound; a larger one is refused with a
// reason.
func TestLargeAnswersOverHTTPAreWholeOrRefused(t *testing.T) {
	t.Parallel()
	url := serveEncoded(t, small(200_000))
	for range 5 { // the memory of each is free again
		res, err := request(t, t.Context(), http.MethodGet, url+resourcePath(t), "")
		require.NoError(t, err)
		raw, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode, "%.200s", raw)
		require.Equal(t, 200_000, strings.Count(string(raw), "true"))
	}
	url = serveEncoded(t, small(600_000))
	for _, path := range []string{resourcePath(t), "/v1/resources:watch"} {
		res, err := request(t, t.Context(), http.MethodGet, url+path, "")
		require.NoError(t, err)
		raw, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
		require.Contains(t, string(raw), "ask for fewer resources, or for some fields")
	}
}

// A request that the server would refuse for its values is refused before it is decoded.
func TestARequestOfVeryManyValuesIsNotDecoded(t *testing.T) {
	t.Parallel()
	s := &server{}
	h := handler(t, s)
	put := func(body string) (int, string) {
		r := httptest.NewRequest(http.MethodPut, resourcePath(t), strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer ann")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	code, _ := put(`{"body": {"x": [` + strings.Repeat("1,", 80_000) + `1]}}`)
	require.Equal(t, http.StatusOK, code)
	require.Len(t, s.calls, 1)
	code, text := put(`{"body": {"x": [` + strings.Repeat("1,", 90_000) + `1]}}`)
	require.Equal(t, http.StatusBadRequest, code)
	require.Contains(t, text, "88000 are allowed")
	code, text = put(`{"body": {"x": "` + strings.Repeat("1,", 1<<19) + `"}}`)
	require.Equal(t, http.StatusBadRequest, code)
	require.Contains(t, text, "too large")
	require.Len(t, s.calls, 1)
	decoded, err := identity.DecodedBytes((&resourcev1.Resource{}).ProtoReflect().Descriptor(),
		encode(t, small(maxValues)))
	require.NoError(t, err)
	require.Greater(t, decoded, int64(8<<20), "the gRPC server refuses as many values")
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	require.NoError(t, err)
	return raw
}

// The memory of an answer is free when the call has ended, also when the caller did not wait for it.
func TestTheMemoryOfAnAnswerEndsWithItsCall(t *testing.T) {
	t.Parallel()
	h := handler(t, &server{})
	b := h.Bounded(&server{}, "ann").(*bounded)
	ctx, cancel := context.WithCancel(t.Context())
	d := b.decoding(ctx)
	require.NoError(t, d.wait(&resourcev1.Resource{}, encode(t, small(100_000))))
	waiting, leave := context.WithCancel(t.Context())
	other := b.decoding(waiting)
	refused := make(chan error, 1)
	go func() { refused <- other.wait(&resourcev1.Resource{}, encode(t, small(100_000))) }()
	leave()
	require.ErrorContains(t, <-refused, budget.ErrExhausted.Error())
	cancel()
	next := b.decoding(t.Context())
	require.NoError(t, next.wait(&resourcev1.Resource{}, encode(t, small(100_000))))
}
