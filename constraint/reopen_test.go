package constraint_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

var (
	cutWork     = schema.Event[schema.Work]{Token: "cut"}
	cutDeletion = schema.Event[schema.Deletion]{Token: "cut"}
)

func TestAReopenedWatchReplaysNothingThatHasNotChanged(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		s.work <- work(schema.CheckOwners, near, 1)
		s.work <- endOfWork()
		s.deletions[near] <- endOfDeletions("p0")
		s.deletions[near] <- deletion("x") // acted upon, and not acknowledged yet
		synctest.Wait()
		require.ElementsMatch(t, []string{"pending us-west2 [1]", `subscribed us-west2 [x] "" except 0`}, r.take())
		s.deletions[near] <- cutDeletion
		time.Sleep(time.Second)
		s.deletions[near] <- deletion("x", "y")
		s.deletions[near] <- endOfDeletions("p2")
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [y] "p2" except 0`}, r.take())
		s.deletions[near] <- bookmark("p3")
		s.work <- cutWork
		time.Sleep(time.Second)
		s.work <- endOfWork() // 1 is done, and 2 is new
		s.work <- work(schema.CheckOwners, near, 2)
		synctest.Wait()
		require.Equal(t, []string{"pending us-west2 [2]"}, r.take())
	})
}

// A stream that breaks in the middle of its snapshot primes nothing: its events wait for the end of the next
// snapshot.
func TestAWatchThatBreaksInItsSnapshotPrimesNothing(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		s.work <- endOfWork()
		s.deletions[near] <- deletion("x", "y")
		s.deletions[near] <- cutDeletion
		time.Sleep(time.Second)
		s.deletions[near] <- deletion("x")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Empty(t, r.take())
		s.deletions[near] <- deletion("z")
		s.deletions[near] <- endOfDeletions("p1")
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [x z] "p1" except 0`}, r.take(), "y is gone")
	})
}

// slowStart are watches that need a while for their snapshots, and deliver nothing after them.
type slowStart struct{ *streams }

func (s slowStart) WatchShadows(ctx context.Context, _ []uint32, deliver func(schema.Event[schema.Work]) error) error {
	time.Sleep(10 * time.Second)
	return errors.Join(deliver(endOfWork()), relay(ctx, s.work, deliver))
}

func (s slowStart) WatchDeletions(ctx context.Context, from schema.DeploymentID,
	deliver func(schema.Event[schema.Deletion]) error,
) error {
	time.Sleep(10 * time.Second)
	return errors.Join(deliver(deletion(from.Region)), deliver(endOfDeletions("p")),
		relay(ctx, s.deletions[from], deliver))
}

func TestWatchesArePrimedBesideOneAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newStreams(), &recorder{}
		node, subscriptions := newNode(t, slowStart{s}, r)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- node.Run(ctx) }()
		subscriptions <- []schema.Subscription{{DeploymentID: near}, {DeploymentID: far}}
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		require.Len(t, r.take(), 2)
		cancel()
		require.NoError(t, <-done)
	})
}

// A deletion that a new snapshot lacks is gone, and is not handled again.
func TestADeletionThatANewSnapshotLacksIsNotTriedAgain(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.failed = map[uuid.UUID]error{uidOf("bad"): errors.New("poison")}
		s.work <- endOfWork()
		s.deletions[near] <- deletion("bad")
		s.deletions[near] <- endOfDeletions("p1")
		synctest.Wait()
		require.NotEmpty(t, r.take())
		s.deletions[near] <- cutDeletion
		time.Sleep(time.Second)
		r.take()
		s.deletions[near] <- endOfDeletions("p2")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, r.take())
	})
}

// A silent stream is closed and opened again: its server sends an event every few seconds. The other streams
// go on.
func TestASilentWatchIsOpenedAgain(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		s.work <- endOfWork()
		s.deletions[far] <- endOfDeletions("q1")
		s.deletions[near] <- endOfDeletions("p1")
		s.deletions[near] <- schema.Event[schema.Deletion]{Token: "silence"}
		time.Sleep(25 * time.Second)
		s.mu.Lock()
		require.Equal(t, 1, s.opened[near.String()])
		s.mu.Unlock()
		time.Sleep(6 * time.Second)
		s.deletions[near] <- deletion("x")
		s.deletions[near] <- endOfDeletions("p2")
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [x] "p2" except 0`}, r.take())
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Equal(t, map[string]int{"own": 1, near.String(): 2, far.String(): 1}, s.opened)
	})
}

// No handler begins after the node's context has ended, and Run waits for the handlers that are running.
func TestANodeThatEndsStartsNothingAndWaits(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		began, finish := make(chan struct{}), make(chan struct{})
		r.handle = func(ctx context.Context, what string) error {
			if what == "pending us-west2 [1]" {
				close(began)
				<-ctx.Done() // the lease is lost
				<-finish
			}
			return nil
		}
		s.work <- endOfWork()
		s.work <- work(schema.Confirm, near, 1)
		<-began
		for seq := range int64(5000) {
			s.work <- work(schema.Confirm, near, seq+2)
		}
		synctest.Wait()
		r.ended = func(done <-chan error) {
			synctest.Wait()
			require.Empty(t, done, "it waits for running handlers")
			close(finish)
			require.NoError(t, <-done)
			require.Equal(t, []string{"pending us-west2 [1]"}, r.take(), "what is queued is dropped")
		}
	})
}

// Many events of one key while it is queued are one run; while it runs, one more.
func TestManyEventsOfOneKeyAreOneRun(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		block := make(chan struct{})
		r.handle = func(_ context.Context, what string) error {
			if what == "deleting [1]" {
				<-block
			}
			return nil
		}
		s.work <- endOfWork()
		s.work <- work(schema.Finalise, self, 1)
		synctest.Wait()
		for range 10 {
			s.work <- work(schema.Finalise, self, 1, 2)
		}
		synctest.Wait()
		close(block)
		synctest.Wait()
		require.Equal(t, []string{"deleting [1]", "deleting [2]"}, r.take())
	})
}
