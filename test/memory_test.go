package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

// liveHeap returns the memory that the last garbage collection of a deployment's process has left.
func (f *fixture) liveHeap(deployment string) float64 {
	f.t.Helper()
	return f.metric("//"+deployment+"/x/y", "go_gc_heap_live_bytes")
}

// collections are as many forced garbage collections as a heap is measured after. Two busy processors may
// need a second for one.
const collections = 12

// most starts an attack, and returns the greatest live heap after it. Objects that are allocated during a
// collection count as live until the next one, and a collection takes as long as the machine is busy: of two
// successive ones the smaller is nearer to the truth.
func (f *fixture) most(deployment string, attack func()) (most float64) {
	f.t.Helper()
	attack()
	for range collections / 2 {
		most = max(most, min(f.collected(deployment), f.collected(deployment)))
	}
	return most
}

// collected returns the live heap after a garbage collection. The deployment runs with profiled.
func (f *fixture) collected(deployment string) float64 {
	f.t.Helper()
	log, err := os.ReadFile(f.Deployments[f.id("//"+deployment+"/x/y")].Log())
	require.NoError(f.t, err)
	at := profilesAt.FindSubmatch(log)
	require.NotNil(f.t, at, "the log does not tell where profiles are served")
	res, err := http.Get("http://" + string(at[1]) + "/debug/pprof/heap?gc=1")
	require.NoError(f.t, err)
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(f.t, err)
	require.NoError(f.t, res.Body.Close())
	require.Equal(f.t, http.StatusOK, res.StatusCode)
	return f.liveHeap(deployment)
}

// profiled makes processes serve profiles, each on a port of its own.
var profiled = []string{"--pprof", "127.0.0.1:0"}

var profilesAt = regexp.MustCompile(`"serving pprof".*"http":"([^"]+)"`)

// unread sends a request and reads nothing of the answer. A server that already has as many calls of the
// identity as one may have refuses it, perhaps before it is sent.
func unread(ctx context.Context, t *testing.T, conn *grpc.ClientConn, method string, req any) {
	t.Helper()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	require.NoError(t, err)
	if err := stream.SendMsg(req); !errors.Is(err, io.EOF) {
		require.NoError(t, err)
	}
	require.NoError(t, stream.CloseSend())
}

// watches begins a watch as another user, and waits for the end of its snapshot.
func (f *fixture) watches(deployment string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), wait.Limit)
	defer cancel()
	resources := resourcev1.NewResourceServiceClient(f.asUser(deployment))
	require.NoError(f.t, patiently(ctx, func() error {
		stream, err := resources.WatchResources(ctx, &resourcev1.WatchResourcesRequest{Kind: "Target"})
		for event := (*resourcev1.WatchResourcesResponse)(nil); err == nil && event.GetEndOfSnapshot() == nil; {
			event, err = stream.Recv()
		}
		return err
	}), "another user's watch does not begin")
}

// halves is a connection with requests whose end never comes. It sends as much as the server allows.
type halves struct {
	framer *http2.Framer
	conn   net.Conn

	mu      sync.Mutex
	changed *sync.Cond
	windows map[uint32]int // guarded by mu; of the connection is 0
	ended   bool           // guarded by mu
}

func (f *fixture) halves(certs, deployment string) *halves {
	f.t.Helper()
	h := &halves{conn: f.dialTLS(certs, deployment), windows: map[uint32]int{0: 65535}}
	h.changed = sync.NewCond(&h.mu)
	_, err := io.WriteString(h.conn, http2.ClientPreface)
	require.NoError(f.t, err)
	h.framer = http2.NewFramer(h.conn, h.conn)
	require.NoError(f.t, h.framer.WriteSettings())
	go h.read()
	return h
}

func (h *halves) read() {
	for {
		frame, err := h.framer.ReadFrame()
		h.mu.Lock()
		if u, ok := frame.(*http2.WindowUpdateFrame); ok {
			h.windows[u.StreamID] += int(u.Increment)
		}
		h.ended = err != nil
		h.changed.Broadcast()
		h.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// send announces a message and sends as much of it as the windows allow, until the context ends.
func (h *halves) send(ctx context.Context, t *testing.T, id uint32, bytes int) {
	const frame = 16 << 10
	stop := context.AfterFunc(ctx, func() { _ = h.conn.Close() })
	defer stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.windows[id] += 65536
	if h.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID:      id,
		BlockFragment: headersOf(resourcev1.ResourceService_PutResource_FullMethodName), EndHeaders: true,
	}) != nil {
		return
	}
	prefix := []byte{0, byte(bytes >> 24), byte(bytes >> 16), byte(bytes >> 8), byte(bytes)}
	for sent := 0; sent < bytes-frame; {
		for (h.windows[0] < frame || h.windows[id] < frame) && !h.ended {
			h.changed.Wait()
		}
		data := slices.Concat(prefix, make([]byte, frame-len(prefix)))
		prefix = nil
		if h.ended || h.framer.WriteData(id, false, data) != nil {
			return
		}
		h.windows[0] -= frame
		h.windows[id] -= frame
		sent += frame
	}
}

// maxGrown is the memory that one identity takes at most.
const maxGrown = 64e6

// Unread answers, requests whose end never comes, and unread watches of large resources, on several
// connections of one identity: the identity takes a bounded part of the memory, and others go on.
func TestOneIdentityTakesLittleMemory_I20_I21(t *testing.T) {
	t.Parallel()
	const deployment = "a.example.com/us-west2"
	f := newFixture(t, profiled...)
	certs, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "hostile"})
	require.NoError(t, err)
	var conns []*grpc.ClientConn
	for range 5 {
		conns = append(conns, f.as(certs, deployment))
	}
	f.mustPut(aWest+"others/first", nil)
	for i := range 8 {
		f.mustPut(fmt.Sprintf("%sothers/large%d", aWest, i), fields{"text": strings.Repeat("x", 900<<10)})
	}
	f.refusesCompressed(conns[0])
	before := f.collected(deployment)
	for name, attack := range map[string]func(context.Context){
		"200 unread lists": func(ctx context.Context) {
			for i := range 200 {
				unread(ctx, t, conns[i%len(conns)], resourcev1.ResourceService_ListResources_FullMethodName,
					&resourcev1.ListResourcesRequest{Kind: "Other", PageSize: 1000})
			}
		},
		"200 unread resources": func(ctx context.Context) {
			for i := range 200 {
				unread(ctx, t, conns[i%len(conns)], resourcev1.ResourceService_GetResource_FullMethodName,
					&resourcev1.GetResourceRequest{Name: "others/large1"})
			}
		},
		"150 unread watches": func(ctx context.Context) {
			for i := range 150 {
				unread(ctx, t, conns[i%len(conns)], resourcev1.ResourceService_WatchResources_FullMethodName,
					&resourcev1.WatchResourcesRequest{Kind: "Other", Filter: fmt.Sprintf(`name != "others/none%d"`, i)})
			}
		},
		"150 unread watches whose windows take one large resource": func(ctx context.Context) {
			windows := []grpc.DialOption{grpc.WithInitialWindowSize(3 << 19), grpc.WithInitialConnWindowSize(1 << 30)}
			wide := []*grpc.ClientConn{f.as(certs, deployment, windows...), f.as(certs, deployment, windows...)}
			for i := range 150 {
				unread(ctx, t, wide[i%len(wide)], resourcev1.ResourceService_WatchResources_FullMethodName,
					&resourcev1.WatchResourcesRequest{Kind: "Other", Filter: fmt.Sprintf(`name != "others/wide%d"`, i)})
			}
		},
		"150 compressed requests, beside 100 unread resources": func(ctx context.Context) {
			for i := range 100 { // the requests wait for their memory
				unread(ctx, t, conns[i%len(conns)], resourcev1.ResourceService_GetResource_FullMethodName,
					&resourcev1.GetResourceRequest{Name: "others/large1"})
			}
			compressed(ctx, conns)
		},
		"60 requests without an end": func(ctx context.Context) {
			for range 6 {
				h := f.halves(certs, deployment)
				for i := range uint32(10) {
					go h.send(ctx, t, 2*i+1, 4<<20)
				}
			}
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var grown float64
		f.others(func() {
			grown = f.most(deployment, func() { attack(ctx) }) - before
			f.watches(deployment)
		})
		cancel()
		t.Logf("%s: %.1f MB", name, grown/1e6)
		require.Less(t, grown, maxGrown, name)
		// On a busy machine calls end some time after their contexts: the next attack is measured by itself.
		require.Eventually(t, func() bool {
			return f.collected(deployment)-before < maxGrown/4
		}, wait.Limit, wait.Poll, "the memory of %s is given back", name)
	}
}
