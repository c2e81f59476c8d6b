package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

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
)

// small is a resource with very many small values.
func small(values int) *resourcev1.Resource {
	list := &structpb.ListValue{Values: make([]*structpb.Value, values)}
	one := structpb.NewBoolValue(true)
	for i := range list.Values {
		list.Values[i] = one
	}
	return &resourcev1.Resource{Name: "targets/t1", Body: &structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewListValue(list)}}}
}

// encoded sends one resource, in bytes that all answers share.
type encoded struct {
	resourcev1.UnimplementedResourceServiceServer
}

func (encoded) GetResource(context.Context, *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	return &resourcev1.Resource{}, nil
}

func (encoded) WatchResources(_ *resourcev1.WatchResourcesRequest, stream grpc.ServerStreamingServer[resourcev1.WatchResourcesResponse]) error {
	for stream.Send(&resourcev1.WatchResourcesResponse{}) == nil {
	}
	return stream.Context().Err()
}

// sharing is the codec of the test's server, which is in the process that is measured: it takes no memory for an answer.
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
	codec.event, err = proto.Marshal(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{Upsert: resource}})
	require.NoError(t, err)
	s := grpc.NewServer(grpc.ForceServerCodecV2(codec))
	resourcev1.RegisterResourceServiceServer(s, encoded{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	// The windows of serve: those that gRPC chooses by itself grow to many megabytes of answers that nobody has read.
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)),
		grpc.WithStaticStreamWindowSize(identity.WindowBytes), grpc.WithStaticConnWindowSize(16*identity.WindowBytes))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	server := httptest.NewServer(handler(t, conn))
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

// liveHeap is the memory in use after a collection.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // of one process
}

// One caller with calls, watches and requests of very many small values, which it does not read, takes a bounded part of the memory. It
// runs alone: it measures the process.
func TestOneCallerOverHTTPTakesLittleMemory_I20_I21(t *testing.T) {
	const maxGrown = 64_000_000
	url := serveEncoded(t, small(250_000))
	costly := `{"body": {"x": [` + strings.Repeat("1,", 500_000) + `1]}}`
	get, watch := url+strings.Replace(resourcePath(t), "acme", "t1", 1), url+"/v1/resources:watch"
	for what, call := range map[string]func(ctx context.Context, i int) (*http.Response, error){
		"unread answers": func(ctx context.Context, _ int) (*http.Response, error) {
			return request(t, ctx, http.MethodGet, get, "")
		},
		"unread watches": func(ctx context.Context, _ int) (*http.Response, error) {
			return request(t, ctx, http.MethodGet, watch, "")
		},
		"requests": func(ctx context.Context, _ int) (*http.Response, error) {
			res, err := request(t, ctx, http.MethodPut, get, costly)
			if err == nil && res.StatusCode != http.StatusBadRequest && res.StatusCode != http.StatusTooManyRequests {
				err = fmt.Errorf("the answer is %s", res.Status)
			}
			return res, err
		},
	} {
		before, grown := liveHeap(), int64(0)
		ctx, cancel := context.WithCancel(t.Context())
		var g sync.WaitGroup
		for i := range 30 {
			g.Go(func() {
				for ctx.Err() == nil {
					res, err := call(ctx, i)
					if err != nil {
						continue
					}
					if what != "requests" && res.StatusCode == http.StatusOK {
						<-ctx.Done()
					}
					_ = res.Body.Close()
				}
			})
		}
		for began := time.Now(); time.Since(began) < time.Second; {
			// Memory that is allocated while a collection runs survives it, garbage or not: the smallest of three counts.
			grown = max(grown, min(liveHeap(), liveHeap(), liveHeap())-before)
		}
		cancel()
		g.Wait()
		t.Logf("%-15s %.1f MB", what, float64(grown)/1e6)
		require.Less(t, grown, int64(maxGrown), what)
	}
}

// An answer that is read is whole, however large it is up to the bound; a larger one is refused with a reason.
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
	decoded, err := identity.DecodedBytes((&resourcev1.Resource{}).ProtoReflect().Descriptor(), encode(t, small(maxValues)))
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
