package shadow_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// BenchmarkWatch has one writer, of a thousand resources at a time, and watches in the same process. An operation is one
// transaction, with the delivery of its thousand events to every watch.
func BenchmarkWatch(b *testing.B) {
	for _, watches := range []int{1, 100} {
		b.Run(fmt.Sprint(watches), func(b *testing.B) {
			store := newBox(b, nil).Stores[schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}]
			const size = 1000
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			var primed, readers sync.WaitGroup
			var arrived sync.WaitGroup // counts the watches that have delivered the last event
			total := -1                // set once all watches are primed, before the first write
			for range watches {
				primed.Add(1)
				arrived.Add(1)
				readers.Go(func() {
					got := 0
					_ = store.WatchResources(ctx, "Target", "", "", func(e schema.Event[peer.Resource]) error {
						if e.EndOfSnapshot {
							primed.Done()
						}
						if got += len(e.Items); len(e.Items) > 0 && got == total {
							arrived.Done()
						}
						return nil
					})
				})
			}
			primed.Wait()
			total = size * b.N
			b.ResetTimer()
			for i := range b.N {
				writes := make([]peer.Write, size)
				for j := range writes {
					writes[j].Name = fmt.Sprintf("targets/t%d-%d", i, j)
				}
				_, err := store.Save(ctx, writes)
				require.NoError(b, err)
			}
			arrived.Wait()
			b.ReportMetric(float64(total*watches)/b.Elapsed().Seconds(), "events/s")
			b.StopTimer()
			stop()
			readers.Wait()
		})
	}
}
