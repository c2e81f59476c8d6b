package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// watchWriters write at full speed while others watch.
const watchWriters = 8

// watch measures writers without watches, with one, and with a hundred: the loss of the writers, the events a
// second, and the time from the answer to a write until its event.
func (r *run) watch(ctx context.Context) error {
	rates, events := map[int][]float64{}, map[int][]float64{}
	p50, p99, cpu := map[int][]float64{}, map[int][]float64{}, map[int][]float64{}
	watchers := []int{0, 1, 100}
	for i := range r.Runs {
		for _, n := range watchers {
			w, err := r.watchRun(ctx, fmt.Sprintf("watch%d-%d", n, i), n)
			if err != nil {
				return err
			}
			rates[n] = append(rates[n], w.writes)
			if n > 0 {
				events[n] = append(events[n], w.events)
				p50[n], p99[n] = append(p50[n], median(w.latencies)), append(p99[n], percentile(w.latencies, 0.99))
			}
			r.Progress("watch, run %d, %d watchers: %.0f writes/s, %.0f events/s, %s a write", i+1, n, w.writes,
				w.events, w.cpu)
			cpu[n] = append(cpu[n], w.cpu.controllers)
		}
	}
	var burst []float64
	for i := range r.Runs {
		rate, err := r.burst(ctx, fmt.Sprintf("burst%d", i))
		if err != nil {
			return err
		}
		burst = append(burst, rate)
	}
	r.add(Result{Case: "watch-burst", N: burstSize, Unit: "events/s"}.of(burst))
	for _, n := range watchers[1:] {
		r.add(Result{Case: "watch-writes", N: n, Unit: "writes/s", Baseline: median(rates[0])}.of(rates[n]))
		r.add(Result{Case: "watch-cpu", N: n, Unit: "ms", Baseline: median(cpu[0])}.of(cpu[n]))
		r.add(Result{Case: "watch-events", N: n, Unit: "events/s"}.of(events[n]))
		r.add(Result{Case: "watch-p50", N: n, Unit: "ms"}.of(p50[n]))
		r.add(Result{Case: "watch-p99", N: n, Unit: "ms"}.of(p99[n]))
	}
	return nil
}

type watched struct {
	writes, events float64  // a second
	cpu            cpuTimes // of a write and its events
	latencies      []float64
}

func (r *run) watchRun(ctx context.Context, name string, watchers int) (out watched, err error) {
	resources, err := r.Client.Resources(ctx, targets)
	if err != nil {
		return out, err
	}
	token, err := tokenOfNow(ctx, resources, "Project")
	if err != nil {
		return out, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var (
		answered sync.Map // when a write was answered, by name
		arrived  atomic.Int64
		written  atomic.Int64
		mu       sync.Mutex
		seen     = map[string]time.Time{} // guarded by mu; by the first watcher
		readers  errgroup.Group
		ready    sync.WaitGroup
	)
	if err := r.identify(watchers); err != nil {
		return out, err
	}
	for i := range watchers {
		ready.Add(1)
		readers.Go(func() error {
			resources, done, err := r.another(watching, i)
			if err != nil {
				ready.Done()
				stop() // the others would wait for events
				return err
			}
			defer done()
			stream, err := resources.WatchResources(watching, &resourcev1.WatchResourcesRequest{
				Kind:        "Project",
				ResumeToken: token, AllowBatches: true,
			})
			ready.Done()
			for err == nil {
				var msg *resourcev1.WatchResourcesResponse
				if msg, err = stream.Recv(); err != nil {
					continue
				}
				upserts := upsertsOf(msg)
				arrived.Add(int64(len(upserts)))
				if i == 0 {
					mu.Lock()
					for _, upserted := range upserts {
						seen[upserted.GetName()] = time.Now()
					}
					mu.Unlock()
				}
			}
			if status.Code(err) == codes.Canceled {
				return nil
			}
			return err
		})
	}
	ready.Wait()
	began := time.Now()
	out.writes, out.cpu, err = r.measured(ctx, watchWriters, func(ctx context.Context, n int64) error {
		project := fmt.Sprintf("projects/%s-%d", name, n)
		_, err := resources.CreateResource(ctx,
			&resourcev1.CreateResourceRequest{Resource: &resourcev1.Resource{Name: project}})
		answered.Store(project, time.Now())
		written.Add(1)
		return err
	}, func(ctx context.Context) error {
		total := written.Load() * int64(watchers)
		for deadline := time.Now().Add(30 * time.Second); arrived.Load() < total && watching.Err() == nil &&
			time.Now().Before(deadline); {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		return nil
	})
	if err != nil {
		return out, err
	}
	out.events = float64(arrived.Load()) / time.Since(began).Seconds()
	stop()
	if err := readers.Wait(); err != nil {
		return out, err
	}
	for project, at := range seen {
		if done, ok := answered.Load(project); ok {
			out.latencies = append(out.latencies, max(0, milliseconds(at.Sub(done.(time.Time)))))
		}
	}
	if watchers > 0 && len(out.latencies) == 0 {
		return out, fmt.Errorf("no event arrived at %d watchers", watchers)
	}
	return out, nil
}

// burstSize is how many resources one writer creates, a thousand in a transaction.
const burstSize = 20_000

// burst measures one writer of large transactions and one watch: from the first call until the last event.
func (r *run) burst(ctx context.Context, name string) (float64, error) {
	resources, err := r.Client.Resources(ctx, targets)
	if err != nil {
		return 0, err
	}
	token, err := tokenOfNow(ctx, resources, "Project")
	if err != nil {
		return 0, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	stream, err := resources.WatchResources(watching, &resourcev1.WatchResourcesRequest{
		Kind:        "Project",
		ResumeToken: token, AllowBatches: true,
	})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	var writer errgroup.Group
	writer.Go(func() error {
		for n := 0; n < burstSize; {
			req := &resourcev1.BatchWriteResourcesRequest{}
			for range 1000 {
				req.Writes = append(req.Writes,
					&resourcev1.BatchWriteResourcesRequest_Write{Write: &resourcev1.BatchWriteResourcesRequest_Write_Create{
						Create: &resourcev1.Resource{Name: fmt.Sprintf("projects/%s-%d", name, n)},
					}})
				n++
			}
			if _, err := resources.BatchWriteResources(ctx, req); err != nil {
				return err
			}
		}
		return nil
	})
	for n := 0; n < burstSize; {
		msg, err := stream.Recv()
		if err != nil {
			return 0, err
		}
		n += len(upsertsOf(msg))
	}
	took := time.Since(began)
	return burstSize / took.Seconds(), writer.Wait()
}

// upsertsOf returns the upserts of a message.
func upsertsOf(msg *resourcev1.WatchResourcesResponse) (upserts []*resourcev1.Resource) {
	if one := msg.GetUpsert(); one != nil {
		return []*resourcev1.Resource{one}
	}
	for _, c := range msg.GetChanges() {
		if of := c.GetUpsert(); of != nil {
			upserts = append(upserts, of)
		}
	}
	return upserts
}

// perIdentity is the number of watchers with one identity, which has 64 connections.
const perIdentity = 32

// another returns a client with its own connections.
func (r *run) another(ctx context.Context, n int) (resources resourcev1.ResourceServiceClient, done func(), err error) {
	c, err := client.New(client.File{Registry: r.Playground.RegistryAddress, Certs: r.watchers[n/perIdentity]}, "")
	if err != nil {
		return nil, nil, err
	}
	resources, err = c.Resources(ctx, targets)
	return resources, c.Close, err
}

// identify makes the certificates of watchers.
func (r *run) identify(watchers int) error {
	for n := len(r.watchers) * perIdentity; n < watchers; n += perIdentity {
		dir, err := r.Playground.Issue(identity.Identity{Role: identity.RoleUser, Name: fmt.Sprintf("watcher-%d", n)})
		if err != nil {
			return err
		}
		r.watchers = append(r.watchers, dir)
	}
	return nil
}

// tokenOfNow returns a token at the current position, for watches without a snapshot.
func tokenOfNow(ctx context.Context, resources resourcev1.ResourceServiceClient, kind string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := resources.WatchResources(ctx, &resourcev1.WatchResourcesRequest{Kind: kind, AllowBatches: true})
	for err == nil {
		var msg *resourcev1.WatchResourcesResponse
		if msg, err = stream.Recv(); msg.GetEndOfSnapshot() != nil {
			return msg.GetEndOfSnapshot().GetResumeToken(), nil
		}
	}
	return "", err
}
