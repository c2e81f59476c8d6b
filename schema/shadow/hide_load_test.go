package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
	"github.com/db-controller/db-controller/test/wait"
)

// A resource of a kind that hides DELETING ones ends exactly once for watchers, and its uid never appears
// again, while blockers come and go, deletes give up, and block_deletion is set and cleared.
func TestWhatIsHiddenStaysHiddenUnderLoad(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, hiding, nil, aWest, aEast, bEast)
	store := b.Stores[b.ID(aWest)]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const n = 60
	targetName := func(i int) string { return fmt.Sprintf("//%s/targets/t%d", aWest, i) }
	holderName := func(i int) string { return fmt.Sprintf("//%s/holders/h%d", bEast, i) }
	uids := make([]uuid.UUID, n)
	for i := range n {
		uids[i] = b.MustPut(targetName(i), nil).UID
	}
	r := rand.New(rand.NewPCG(0, 0))
	for i := range n {
		content := body{}
		if r.IntN(2) == 0 {
			content["cascade"] = targetName(i)
		}
		if r.IntN(3) == 0 {
			content["block"] = targetName(r.IntN(n))
		}
		b.MustPut(holderName(i), content)
		if r.IntN(3) == 0 {
			b.MustPut(targetName(i), body{"up": targetName(r.IntN(n))})
		}
	}

	w := &hiddenWatcher{gone: map[uuid.UUID]int{}, primed: make(chan struct{})}
	var readers, deleters, settler sync.WaitGroup
	readers.Go(func() { _ = store.Read.WatchResources(ctx, "Target", "", "", w.event) })
	<-w.primed
	for k := range 3 {
		readers.Go(func() {
			away := map[int]bool{}
			// the deleters go on meanwhile
			for r := rand.New(rand.NewPCG(1, uint64(k))); ctx.Err() == nil; <-time.After(time.Millisecond) {
				i := r.IntN(n)
				got, err := store.Read.Get(ctx, fmt.Sprintf("targets/t%d", i))
				switch {
				case errors.Is(err, peer.ErrNotFound):
					away[i] = true
				case err == nil && got.UID == uids[i] && away[i]:
					w.complain("read again: " + got.Name)
				}
			}
		})
	}
	for k := range 3 {
		deleters.Go(func() {
			r := rand.New(rand.NewPCG(2, uint64(k)))
			for range rounds.Of(60, 15) {
				i := r.IntN(n)
				switch r.IntN(6) {
				case 0:
					_, _ = b.Put(holderName(i), body{"block": targetName(r.IntN(n))})
				case 1:
					_, _ = b.Put(holderName(i), nil)
				case 2:
					_, _ = store.Write.SetBlockDeletion(ctx, fmt.Sprintf("targets/t%d", i), uuid.Nil, r.IntN(3) == 0)
				default:
					short, done := context.WithTimeout(ctx, 300*time.Millisecond)
					_, _ = store.Deletions.Delete(short, shadow.DeleteRequest{Name: fmt.Sprintf("targets/t%d", i)})
					done()
				}
			}
		})
	}
	stop := make(chan struct{})
	settler.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				b.Settle()
			}
		}
	})
	deleters.Wait()
	close(stop)
	settler.Wait()

	for i := range n {
		_, _ = store.Write.SetBlockDeletion(ctx, fmt.Sprintf("targets/t%d", i), uuid.Nil, false)
		_, _ = b.Put(holderName(i), nil)
	}
	b.Settle()
	want := map[uuid.UUID]int{}
	for i := range n {
		if got := b.Get(targetName(i)); got == nil || got.UID != uids[i] {
			want[uids[i]] = 1
		}
	}
	require.Eventually(t, func() bool { return len(w.seen()) >= len(want) }, wait.Limit, 10*time.Millisecond)
	cancel()
	readers.Wait()
	require.Empty(t, w.wrong)
	require.Equal(t, want, w.seen())
	require.NotEmpty(t, want)
	b.Audit()
}

// hiddenWatcher counts the ends of each incarnation.
type hiddenWatcher struct {
	primed chan struct{}
	mu     sync.Mutex
	gone   map[uuid.UUID]int // guarded by mu
	wrong  []string          // guarded by mu
}

func (w *hiddenWatcher) event(e schema.Event[peer.Resource]) error {
	for _, r := range e.Items {
		if w.seen()[r.UID] > 0 {
			w.complain(fmt.Sprintf("after its end: %s, %v", r.Name, r.State))
		}
		if r.State == peer.Gone {
			w.mu.Lock()
			w.gone[r.UID]++
			w.mu.Unlock()
		}
	}
	if e.EndOfSnapshot {
		close(w.primed)
	}
	return nil
}

func (w *hiddenWatcher) complain(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, what)
}

func (w *hiddenWatcher) seen() map[uuid.UUID]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.gone)
}
