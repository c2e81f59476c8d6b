package test

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

// metric reads one value from a deployment's metrics; 0 when it is missing.
func (f *fixture) metric(name, metric string) float64 {
	f.t.Helper()
	res, err := http.Get(f.Deployments[f.id(name)].HTTP + "/metrics")
	require.NoError(f.t, err)
	defer func() { _ = res.Body.Close() }()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), metric+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			require.NoError(f.t, err)
			return v
		}
	}
	return 0
}

// Two hundred watches, twenty of which are never read: the others receive everything, writers continue, and
// memory is bounded.
func TestManyWatchesWithStalledReaders_I20_I21(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const watchers, stuck, resources = 200, 20, 600
	id := f.id(aWest + "targets/t")
	deaf := resourcev1.NewResourceServiceClient(f.asUser(id.String()))
	ears := resourcev1.NewResourceServiceClient(f.asUser(id.String()))
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	for range stuck {
		_, err := deaf.WatchResources(ctx, &resourcev1.WatchResourcesRequest{})
		require.NoError(t, err)
	}
	before := f.metric(aWest+"targets/t", "process_resident_memory_bytes")
	var primed, events atomic.Int64
	g, reading := errgroup.WithContext(ctx)
	for range watchers - stuck {
		g.Go(func() error {
			stream, err := ears.WatchResources(reading, &resourcev1.WatchResourcesRequest{Kind: "Other"})
			if err != nil {
				return err
			}
			seen := map[string]bool{}
			for len(seen) < resources {
				event, err := stream.Recv()
				if err != nil {
					return err
				}
				if event.GetEndOfSnapshot() != nil {
					primed.Add(1)
				}
				if up := event.GetUpsert(); up != nil {
					if seen[up.GetName()] {
						t.Errorf("%s came twice", up.GetName())
					}
					seen[up.GetName()] = true
					events.Add(1)
				}
			}
			return nil
		})
	}
	f.eventually("all are primed", func() bool { return primed.Load() == watchers-stuck })
	began := time.Now()
	require.NoError(t, dev.PutMany(ctx, f.Client, id, "others/o", resources, fields{"text": strings.Repeat("x", 500)}))
	wrote := time.Since(began)
	require.NoError(t, g.Wait())
	after := f.metric(aWest+"targets/t", "process_resident_memory_bytes")
	t.Logf("%d events to %d watchers in %s, written in %s; memory %.0f → %.0f MB", events.Load(), watchers-stuck,
		time.Since(began), wrote, before/1e6, after/1e6)
	require.Less(t, after-before, 400e6)
	require.EqualValues(t, (watchers-stuck)*resources, events.Load())
	f.mustDelete(aWest + "others/o1")
}
