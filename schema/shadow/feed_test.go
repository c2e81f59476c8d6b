package shadow_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/wait"
)

// follower applies the events of a watch of resources, and checks their order.
type follower struct {
	t        *testing.T
	mu       sync.Mutex
	state    map[string]string           // guarded by mu: name → body
	revision map[uuid.UUID]peer.Revision // by uid
	events   int
	ended    bool
	token    string
	changed  chan struct{} // capacity 1: signals that until should check again
}

func follow(t *testing.T, store *shadow.Store, token string) (*follower, context.CancelFunc) {
	t.Helper()
	return followUntil(t, store, token, func(error) bool { return true })
}

// followUntil resumes a watch that has ended with an error, from its last token, unless the error ends it.
func followUntil(t *testing.T, store *shadow.Store, token string,
	ends func(error) bool,
) (*follower, context.CancelFunc) {
	t.Helper()
	f := &follower{
		t: t, state: map[string]string{}, revision: map[uuid.UUID]peer.Revision{},
		changed: make(chan struct{}, 1),
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for from := token; ; {
			err := store.Read.WatchResources(ctx, "", "", from, f.take)
			f.mu.Lock()
			from = cmp.Or(f.token, from)
			f.mu.Unlock()
			switch {
			case errors.Is(err, context.Canceled):
				return
			case ends(err):
				t.Errorf("the watch ended: %v", err)
				return
			}
			<-time.After(wait.Poll)
		}
	}()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	return f, stop
}

func (f *follower) take(e schema.Event[peer.Resource]) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range e.Items {
		f.events++
		if r.Revision <= f.revision[r.UID] {
			f.t.Errorf("%s went from revision %d to %d", r.Name, f.revision[r.UID], r.Revision)
		}
		f.revision[r.UID] = r.Revision
		if r.State == peer.Gone {
			delete(f.state, r.Name)
		} else {
			f.state[r.Name] = string(r.Body)
		}
	}
	if e.EndOfSnapshot {
		if f.ended {
			f.t.Error("a second end of snapshot")
		}
		f.ended = true
	}
	if e.Token != "" {
		f.token = e.Token
	}
	select {
	case f.changed <- struct{}{}:
	default:
	}
	return nil
}

func (f *follower) until(what string, ok func() bool) {
	f.t.Helper()
	timeout := time.After(wait.Limit)
	for {
		f.mu.Lock()
		good := ok()
		f.mu.Unlock()
		if good {
			return
		}
		select {
		case <-f.changed:
		case <-timeout:
			f.t.Fatalf("waited too long for: %s", what)
		}
	}
}

func TestAWatchSendsTheStateOneEndAndThenEveryChange_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	b.MustPut(target, body{"n": 1.0})
	f, _ := follow(t, store, "")
	f.until("the end of the snapshot", func() bool { return f.ended && f.state["targets/t"] == `{"n": 1}` })
	b.MustPut(target, body{"n": 2.0})
	b.MustPut(target2, nil)
	b.MustDelete(target)
	f.until("the changes", func() bool { return f.events == 4 && len(f.state) == 1 && f.state["targets/t2"] == "{}" })
}

func TestAWatchOfNothingEndsItsSnapshot(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	f, _ := follow(t, b.Stores[b.ID(aWest)], "")
	f.until("the end of the snapshot", func() bool { return f.ended && f.events == 0 && f.token != "" })
}

// A transaction that takes its numbers early and commits late is delivered, and every other change around it,
// each exactly once.
func TestALateCommitIsNotMissed_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	f, _ := follow(t, store, "")
	f.until("the end of the snapshot", func() bool { return f.ended })
	end := opened(t, store, b.Pools[b.ID(aWest)], peer.Write{Name: "targets/late"})
	for i := range 20 {
		b.MustPut(fmt.Sprintf("//%s/targets/t%d", aWest, i), nil)
	}
	f.until("the commits meanwhile", func() bool { return len(f.state) == 20 })
	require.NoError(t, end(nil))
	f.until("the late one", func() bool { _, ok := f.state["targets/late"]; return ok && f.events == 21 })
}

func TestAWatchResumesAfterItsTokenWithoutASnapshot(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	b.MustPut(target, nil)
	f, stop := follow(t, store, "")
	f.until("the end of the snapshot", func() bool { return f.ended })
	stop()
	b.MustPut(target2, nil)
	b.MustDelete(target2)
	g, _ := follow(t, store, f.token)
	g.until("the missed changes", func() bool { return g.events == 2 && len(g.state) == 0 })
	require.False(t, g.ended)
}

// A snapshot that begins after the answer to a write has it, at any position of an idle watch beside it.
func TestASnapshotHasEveryWriteThatWasAnswered_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	idle, _ := follow(t, store, "")
	idle.until("the end of the snapshot", func() bool { return idle.ended })
	for i := range 20 {
		name := fmt.Sprintf("targets/t%d", i)
		b.MustPut("//"+aWest+"/"+name, nil)
		f, stop := follow(t, store, "")
		f.until("the end of the snapshot", func() bool {
			_, known := f.state[name]
			require.True(t, known || !f.ended, "the snapshot lacks %s", name)
			return f.ended
		})
		stop()
	}
}

func TestATokenThatCannotBeResumedIsReset_I24(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	f, stop := follow(t, store, "")
	f.until("the end of the snapshot", func() bool { return f.ended })
	stop()
	raw, err := base64.RawURLEncoding.DecodeString(f.token)
	require.NoError(t, err)
	raw[len(raw)-2]++
	watch := func(store *shadow.Store, kind, token string) error {
		return store.Read.WatchResources(ctx, kind, "", token, func(schema.Event[peer.Resource]) error {
			return errors.New("delivered")
		})
	}
	require.ErrorIs(t, watch(store, "", "nonsense"), peer.ErrReset, "malformed")
	require.ErrorIs(t, watch(store, "", base64.RawURLEncoding.EncodeToString(raw)), peer.ErrReset, "forged")
	require.ErrorIs(t, watch(store, "Target", f.token), peer.ErrReset, "of another filter")
	require.ErrorIs(t, watch(b.Stores[b.ID(aEast)], "", f.token), peer.ErrReset, "of another database")

	b.MustPut(target, nil)
	b.MustDelete(target)
	_, err = b.Pools[b.ID(aWest)].Exec(ctx, `UPDATE dbcontroller.change SET changed_at = now() - interval '25 hours'`)
	require.NoError(t, err)
	more, err := store.Admin.Tidy(ctx)
	require.NoError(t, err)
	require.False(t, more)
	require.Zero(t, b.Count(aWest, "change"))
	require.ErrorIs(t, watch(store, "", f.token), peer.ErrReset, "older than the kept changes")
}

func TestWatchesUnderRandomWritersEndUpEqual_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	var writers sync.WaitGroup
	var followers []*follower
	for w := range 4 {
		writers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 7))
			for i := range 150 {
				name := fmt.Sprintf("targets/t%d", random.IntN(12))
				if random.IntN(3) == 0 {
					_, err := store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: name})
					if err != nil && !errors.Is(err, peer.ErrNotFound) {
						t.Error(err)
					}
					continue
				}
				if _, err := store.Write.Save(ctx,
					[]peer.Write{{Name: name, Body: body{"w": float64(w), "i": float64(i)}}}); err != nil {
					t.Error(err)
				}
			}
		})
		f, _ := follow(t, store, "") // some watches begin in the middle
		followers = append(followers, f)
	}
	writers.Wait()
	want := map[string]string{}
	rows, err := b.Pools[b.ID(aWest)].Query(ctx,
		`SELECT s.name, r.body::text FROM dbcontroller.shadow s JOIN dbcontroller.resource r USING (id)`)
	require.NoError(t, err)
	var name, text string
	_, err = pgx.ForEachRow(rows, []any{&name, &text}, func() error { want[name] = text; return nil })
	require.NoError(t, err)
	for _, f := range followers {
		f.until("the final state", func() bool {
			if len(f.state) != len(want) {
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
}

// A transaction larger than a chunk: the token comes only after its last change.
func TestALargeTransactionIsNotSplitByAToken(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	var mu sync.Mutex
	sinceToken, largest, total := 0, 0, 0
	done := make(chan struct{})
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan struct{})
	go func() {
		_ = store.Read.WatchResources(watching, "", "", "", func(e schema.Event[peer.Resource]) error {
			mu.Lock()
			defer mu.Unlock()
			if e.EndOfSnapshot {
				close(ready)
			}
			sinceToken += len(e.Items)
			if total += len(e.Items); e.Token != "" {
				largest = max(largest, sinceToken)
				sinceToken = 0
				if total == 1700 {
					close(done)
					total = 0
				}
			}
			return nil
		})
	}()
	<-ready
	var writes []peer.Write
	for i := range 1700 {
		writes = append(writes, peer.Write{Name: fmt.Sprintf("targets/t%d", i)})
	}
	_, err := store.Write.Save(ctx, writes)
	require.NoError(t, err)
	select {
	case <-done:
	case <-time.After(wait.Limit):
		t.Fatal("the changes did not come")
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 1700, largest)
}

// Commits of another process wake the watches of this one; polling is off, so that only a notification can.
func TestOtherProcessesAreWokenByNotifications(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	here := b.SecondProcess(aWest, shadow.Config{Times: shadow.Times{PollInterval: time.Hour}})
	there := b.SecondProcess(aWest, shadow.Config{Times: shadow.Times{PollInterval: time.Hour}})
	var running sync.WaitGroup
	for _, store := range []*shadow.Store{here, there} {
		running.Go(func() {
			if err := store.RunNotifications(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	defer running.Wait()
	defer cancel()
	f, _ := follow(t, there, "")
	f.until("the end of the snapshot", func() bool { return f.ended })
	for i := range 30 {
		_, err := here.Write.Save(ctx, []peer.Write{{Name: fmt.Sprintf("targets/t%d", i)}})
		require.NoError(t, err)
		f.until("the other process's write", func() bool { return len(f.state) == i+1 })
	}
}
