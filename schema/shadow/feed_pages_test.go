package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// A snapshot of several pages is the state at one moment at its end, although resources before and behind the
// page are changed, removed and created while it is read: the first and the last resource by name are always
// written in one transaction, and always equal at the end. No revision is delivered twice or goes back
// (follower).
func TestASnapshotOfSeveralPagesEndsAtOneCut_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store := t.Context(), b.Stores[b.ID(aWest)]
	pair := func(n int) error {
		_, err := store.Write.Save(ctx, []peer.Write{
			{Name: "targets/a", Body: body{"n": n}},
			{Name: "targets/z", Body: body{"n": n}},
		})
		return err
	}
	require.NoError(t, pair(0))
	for i := range 3 {
		var writes []peer.Write
		for j := range 100 {
			writes = append(writes, peer.Write{Name: fmt.Sprintf("targets/t%d", i*100+j), Body: body{"n": 0}})
		}
		require.NoError(t, second(store.Write.Save(ctx, writes)))
	}
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 7))
			for n := 1; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("targets/t%d", random.IntN(330))
				var err error
				switch {
				case w == 0:
					err = pair(n)
				case random.IntN(3) == 0:
					if _, err = store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: name}); errors.Is(err,
						peer.ErrNotFound) {
						err = nil
					}
				default:
					err = second(store.Write.Save(ctx, []peer.Write{{Name: name, Body: body{"n": n}}}))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 8 {
		f, end := follow(t, store, "")
		f.until("the end of the snapshot", func() bool { return f.ended })
		f.mu.Lock()
		require.Equal(t, f.state["targets/a"], f.state["targets/z"], "the state at one moment")
		f.mu.Unlock()
		end()
	}
	f, _ := follow(t, store, "")
	close(stop)
	writers.Wait()
	want, found := map[string]string{}, 0
	for token := ""; ; {
		page, next, err := store.Read.List(ctx, shadow.ListRequest{Kind: "Target", Limit: 200, Token: token})
		require.NoError(t, err)
		for _, r := range page {
			want[r.Name], found = string(r.Body), found+1
		}
		if token = next; token == "" {
			break
		}
	}
	f.until("the final state", func() bool {
		if len(f.state) != found {
			return false
		}
		for name, text := range want {
			if f.state[name] != text {
				return false
			}
		}
		return f.ended
	})
}

func second[T any](_ T, err error) error { return err }

// Readers that do not read their streams hold no connection: neither other deployments with deletion watches
// nor users.
func TestUnreadWatchesKeepNobodyWaiting_I20(t *testing.T) {
	t.Parallel()
	b := newPair(t, fewConnections)
	store, ctx := b.Stores[b.ID(aWest)], t.Context()
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	watching, cancel := context.WithCancel(context.Background())
	unread, reading := make(chan struct{}), make(chan struct{}, 100)
	var g sync.WaitGroup
	for range 40 {
		g.Go(func() {
			_ = store.Read.WatchDeletions(watching, b.ID(bEast), "", func(schema.Event[schema.Deletion]) error {
				reading <- struct{}{}
				<-unread
				return nil
			})
		})
		g.Go(func() {
			_ = store.Read.WatchResources(watching, "", "", "", func(schema.Event[peer.Resource]) error {
				reading <- struct{}{}
				<-unread
				return nil
			})
		})
	}
	for range 80 {
		<-reading
	}
	require.NoError(t, second(store.Write.Save(ctx, []peer.Write{{Name: "targets/other", Body: body{}}})))
	cancel()
	close(unread)
	g.Wait()
}
