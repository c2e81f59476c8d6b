package bench

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/internal/inprocess"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

const (
	listed = 100 // resources of a list
	lists  = 300 // of a run
)

// inProcess measures one list of resources over the channels inside a process, beside the same list over a connection of this machine without
// TLS. The server has the answer in memory, so that only the channel counts.
func (r *run) inProcess(ctx context.Context) error {
	answer := &answerer{list: &resourcev1.ListResourcesResponse{}}
	for i := range listed {
		body, err := structpb.NewStruct(map[string]any{"text": strings.Repeat("x", 200), "n": i})
		if err != nil {
			return err
		}
		answer.list.Resources = append(answer.list.Resources, &resourcev1.Resource{Name: fmt.Sprint("targets/", i), Kind: "Target", Body: body})
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	resourcev1.RegisterResourceServiceServer(server, answer)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	loopback, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = loopback.Close() }()
	shared, copied := &inprocess.Channel{Share: true}, &inprocess.Channel{}
	resourcev1.RegisterResourceServiceServer(shared, answer)
	resourcev1.RegisterResourceServiceServer(copied, answer)
	if err := r.lists(ctx, "in-process-copied", copied, loopback); err != nil {
		return err
	}
	return r.lists(ctx, "in-process-shared", shared, loopback)
}

// lists measures a channel beside another one: the time of a list, and the memory that it allocates.
func (r *run) lists(ctx context.Context, name string, channel, beside grpc.ClientConnInterface) error {
	var took, tookBeside, bytes, bytesBeside []float64
	for range r.Runs {
		t, b, err := listOver(ctx, channel)
		if err != nil {
			return err
		}
		took, bytes = append(took, t), append(bytes, b)
		if t, b, err = listOver(ctx, beside); err != nil {
			return err
		}
		tookBeside, bytesBeside = append(tookBeside, t), append(bytesBeside, b)
	}
	r.add(Result{Case: name, N: listed, Unit: "µs", Baseline: median(tookBeside)}.of(took))
	r.add(Result{Case: name + "-memory", N: listed, Unit: "bytes", Baseline: median(bytesBeside)}.of(bytes))
	return nil
}

// listOver returns the microseconds of a list, and the bytes that both sides allocate for it.
func listOver(ctx context.Context, channel grpc.ClientConnInterface) (took, bytes float64, err error) {
	client := resourcev1.NewResourceServiceClient(channel)
	if _, err := client.ListResources(ctx, &resourcev1.ListResourcesRequest{}); err != nil { // connects
		return 0, 0, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	for range lists {
		if _, err := client.ListResources(ctx, &resourcev1.ListResourcesRequest{}); err != nil {
			return 0, 0, err
		}
	}
	took = float64(time.Since(began).Nanoseconds()) / 1000 / lists
	runtime.ReadMemStats(&after)
	return took, float64(after.TotalAlloc-before.TotalAlloc) / lists, nil
}

// answerer returns its answer without a database.
type answerer struct {
	resourcev1.UnimplementedResourceServiceServer
	list *resourcev1.ListResourcesResponse
}

func (a *answerer) ListResources(context.Context, *resourcev1.ListResourcesRequest) (*resourcev1.ListResourcesResponse, error) {
	return a.list, nil
}
