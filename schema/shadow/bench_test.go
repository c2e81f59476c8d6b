package shadow_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// BenchmarkWatch has one writer, of a thousand resources at a time, and watches in the same process. An
// operation is one transaction, with the delivery of its thousand events to every watch.
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
					_ = store.Read.WatchResources(ctx, "Target", "", "", func(e schema.Event[peer.Resource]) error {
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
				_, err := store.Write.Save(ctx, writes)
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

// The cost of counting a deletion: 1,000 resources that are marked, each with a holder elsewhere that is
// deleted along. Counts of resources that are removed at once cost no statement; counts of marked ones cost
// one in each transaction that removes them, and each process stores its counts twice a second.
func BenchmarkProgressOfACascade(b *testing.B) {
	const size = 1000
	const finalised = `
SELECT x.deletion_id, x.root, going.n, CASE WHEN x.how = 1 THEN x.at END
FROM (
    SELECT r.cause_id, count(*) AS n FROM dbcontroller.shadow s JOIN dbcontroller.removal r ON r.name = s.name AND r.uid = s.uid
    WHERE s.id = ANY ($1) GROUP BY 1
) AS going JOIN dbcontroller.cause x ON x.id = going.cause_id`
	box := newBox(b, nil)
	west, east := box.ID(aWest), box.ID(bEast)
	var shares []float64
	for b.Loop() {
		box.MustPut(target, nil)
		var members, holding []peer.Write
		for i := range size {
			members = append(members, peer.Write{Name: fmt.Sprint("targets/m", i), Body: body{"next": target}})
			holding = append(holding, peer.Write{
				Name: fmt.Sprint("holders/h", i),
				Body: body{"cascade": fmt.Sprint("//", aWest, "/targets/m", i)},
			})
		}
		_, err := box.Stores[west].Write.Save(b.Context(), members)
		require.NoError(b, err)
		_, err = box.Stores[east].Write.Save(b.Context(), holding)
		require.NoError(b, err)
		box.Settle()

		var whole, counts time.Duration
		timed := func(to *time.Duration, do func() error) {
			began := time.Now()
			require.NoError(b, do())
			*to += time.Since(began)
		}
		timed(&whole, func() error { _, err := box.Delete(target); return err })
		timed(&whole, func() error { _, err := box.Act(east, west); return err })
		var marked []int64
		require.NoError(b, box.Pools[west].QueryRow(b.Context(),
			`SELECT array_agg(id) FROM dbcontroller.shadow WHERE state = 2`).Scan(&marked))
		require.Len(b, marked, size)
		timed(&counts, func() error { _, err := box.Pools[west].Exec(b.Context(), finalised, marked); return err })
		timed(&whole, func() error { _, err := box.Do(west, schema.Finalise); return err })
		timed(&counts, func() error { return box.Stores[west].Progress.Flush(b.Context()) })
		timed(&counts, func() error { return box.Stores[east].Progress.Flush(b.Context()) })
		box.Settle()
		shares = append(shares, 100*float64(counts)/float64(whole))
	}
	slices.Sort(shares)
	b.ReportMetric(shares[len(shares)/2], "%")
}
