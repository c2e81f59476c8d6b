package test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// numbers and records are bodies with very many small values for their size.
func numbers(n int) *structpb.Struct {
	list := &structpb.ListValue{}
	for range n {
		list.Values = append(list.Values, structpb.NewNumberValue(1))
	}
	return message("x", structpb.NewListValue(list))
}

func records(n int) *structpb.Struct {
	list := &structpb.ListValue{}
	for range n {
		list.Values = append(list.Values, structpb.NewStructValue(message("", structpb.NewNumberValue(1))))
	}
	return message("x", structpb.NewListValue(list))
}

// store stores the greatest body of a shape that is accepted, and has at most some values.
func (f *fixture) store(deployment, name string, shape func(n int) *structpb.Struct, most int) (n int) {
	f.t.Helper()
	user := resourcev1.NewResourceServiceClient(f.asUser(deployment))
	for n = most; n > 1000; n = n * 9 / 10 {
		req := &resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: name, Body: shape(n)}}
		err := patiently(f.t.Context(), func() error {
			err := second(user.PutResource(f.t.Context(), req))
			if status.Code(err) == codes.Unknown { // on a busy machine; a put can be repeated
				err = status.Error(codes.Unavailable, err.Error())
			}
			return err
		})
		if err == nil {
			return n
		}
		require.Equal(f.t, codes.InvalidArgument, status.Code(err), "%.300v", err)
	}
	f.t.Fatal("no body is accepted")
	return 0
}

// hostile skips an attack that takes a machine for itself, or whose bound is processor time.
func hostile(t *testing.T) {
	t.Helper()
	if os.Getenv("DBCONTROLLER_TEST_HOSTILE") == "" {
		t.Skip("an attack that needs a quiet machine: make hostile")
	}
}

// endlessly calls in many goroutines until the context ends.
func endlessly(ctx context.Context, callers int, call func(i int) error) (wait func()) {
	var g sync.WaitGroup
	for i := range callers {
		g.Go(func() {
			for ctx.Err() == nil {
				if call(i) != nil {
					<-time.After(10 * time.Millisecond)
				}
			}
		})
	}
	return g.Wait
}

// Bodies of very many small values, in every method that reads or writes bodies, directly and by way of
// another region: one identity takes a bounded part of the memory, in both processes.
func TestBodiesOfManyValuesTakeLittleMemory_I20_I21(t *testing.T) {
	hostile(t)
	t.Parallel()
	const deployment, elsewhere = "a.example.com/us-west2", "a.example.com/eastus2"
	f := newFixture(t, profiled...)
	certs, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "hostile"})
	require.NoError(t, err)
	var users, forwarded []resourcev1.ResourceServiceClient
	var relays []*grpc.ClientConn
	for range 5 {
		relays = append(relays, f.as(certs, elsewhere))
		users = append(users, resourcev1.NewResourceServiceClient(f.as(certs, deployment)))
		forwarded = append(forwarded, resourcev1.NewResourceServiceClient(relays[len(relays)-1]))
	}
	before := map[string]float64{deployment: f.collected(deployment), elsewhere: f.collected(elsewhere)}
	shapes := map[string]func(int) *structpb.Struct{"numbers": numbers, "records": records}
	counts := map[string]int{}
	others := map[string][]*structpb.Struct{} // to write: making them takes longer than refusing them
	for name, shape := range shapes {
		counts[name] = 140_000
		for i := range 8 {
			counts[name] = f.store(deployment, fmt.Sprintf("others/%s%d", name, i), shape, counts[name])
			others[name] = append(others[name], shape(counts[name]-i-1))
		}
	}
	t.Logf("accepted: %v", counts)
	name := func(i int) string { return fmt.Sprintf("others/%s%d", []string{"numbers", "records"}[i%2], i%8) }
	names := []string{"others/records0", "others/records1"}
	one := func(ctx context.Context, to []resourcev1.ResourceServiceClient, i int) error {
		_, err := to[i%5].GetResource(ctx, &resourcev1.GetResourceRequest{Name: aWest + name(i)})
		return err
	}
	for what, call := range map[string]func(ctx context.Context, i int) error{
		"reads":           func(ctx context.Context, i int) error { return one(ctx, users, i) },
		"forwarded reads": func(ctx context.Context, i int) error { return one(ctx, forwarded, i) },
		"masked reads": func(ctx context.Context, i int) error {
			_, err := users[i%5].GetResource(ctx, &resourcev1.GetResourceRequest{
				Name:     name(i),
				ReadMask: &fieldmaskpb.FieldMask{Paths: []string{"body.y.z"}},
			})
			return err
		},
		"lists": func(ctx context.Context, i int) error {
			_, err := users[i%5].ListResources(ctx, &resourcev1.ListResourcesRequest{Kind: "Other", PageSize: 1000})
			return err
		},
		"forwarded lists": func(ctx context.Context, i int) error {
			_, err := forwarded[i%5].ListResources(ctx, &resourcev1.ListResourcesRequest{
				Kind: "Other", PageSize: 1000,
				Region: "us-west2",
			})
			return err
		},
		"batches of reads": func(ctx context.Context, i int) error {
			_, err := users[i%5].BatchGetResources(ctx, &resourcev1.BatchGetResourcesRequest{Names: names})
			return err
		},
		"writes": func(ctx context.Context, i int) error {
			shape := []string{"numbers", "records"}[i%2]
			_, err := users[i%5].PutResource(ctx,
				&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: name(i), Body: others[shape][i%8]}})
			return err
		},
		"masked updates": func(ctx context.Context, i int) error {
			_, err := users[i%5].UpdateResource(ctx, &resourcev1.UpdateResourceRequest{
				Resource: &resourcev1.Resource{
					Name: name(i),
					Body: message("z", structpb.NewNumberValue(float64(i))),
				},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"body.z"}},
			})
			return err
		},
		"watches": func(ctx context.Context, i int) error {
			stream, err := users[i%5].WatchResources(ctx, &resourcev1.WatchResourcesRequest{
				Kind:   "Other",
				Filter: fmt.Sprintf(`name != "others/none%d"`, i),
			})
			for range 16 {
				if err == nil {
					_, err = stream.Recv()
				}
			}
			return err
		},
		"forwarded watches": func(ctx context.Context, i int) error {
			unread(ctx, t, relays[i%5], resourcev1.ResourceService_WatchResources_FullMethodName,
				&resourcev1.WatchResourcesRequest{Kind: "Other", Region: "us-west2"})
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var wait func()
		grown := map[string]float64{}
		f.others(func() {
			wait = endlessly(ctx, 60, func(i int) error { return call(ctx, i) })
			for range collections / 2 {
				for d, b := range before {
					grown[d] = max(grown[d], min(f.collected(d), f.collected(d))-b)
				}
			}
		})
		cancel()
		wait()
		t.Logf("%-20s %.1f MB; in the other region %.1f MB", what, grown[deployment]/1e6, grown[elsewhere]/1e6)
		for _, g := range grown {
			if g > maxGrown {
				t.Errorf("%s: %.1f MB", what, g/1e6)
			}
		}
	}
}

// Requests in frames of one byte: each takes many times its size until it is read, and their connections are
// closed.
func TestFramesOfOneByteTakeLittleMemory_I20_I21(t *testing.T) {
	t.Parallel()
	const deployment = "a.example.com/us-west2"
	f := newFixture(t, profiled...)
	certs, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "hostile"})
	require.NoError(t, err)
	before := f.collected(deployment)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var grown float64
	f.others(func() {
		grown = f.most(deployment, func() {
			var g sync.WaitGroup
			for range 16 {
				h := f.halves(certs, deployment)
				g.Go(func() { h.bytewise(ctx, 15, 60_000) })
			}
			g.Wait()
		}) - before
	})
	t.Logf("%.1f MB", grown/1e6)
	require.Less(t, grown, maxGrown)
}

// bytewise opens calls and sends each of them bytes in frames of their own.
func (h *halves) bytewise(ctx context.Context, calls, bytes int) {
	stop := context.AfterFunc(ctx, func() { _ = h.conn.Close() })
	defer stop()
	var b strings.Builder
	framer := http2.NewFramer(&b, nil)
	for i := range uint32(calls) {
		_ = framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID:      2*i + 1,
			BlockFragment: headersOf(resourcev1.ResourceService_PutResource_FullMethodName), EndHeaders: true,
		})
	}
	for n := range bytes {
		for i := range uint32(calls) {
			data := []byte{0}
			if n == 0 {
				data = []byte{0, 0, 63, 0, 0} // a message of 4 MB begins
			}
			_ = framer.WriteData(2*i+1, false, data)
		}
		if n%500 == 0 {
			if _, err := h.conn.Write([]byte(b.String())); err != nil {
				return
			}
			b.Reset()
		}
	}
}
