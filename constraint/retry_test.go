package constraint_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/schema"
)

// While the watch of a deployment is lost no handler begins for its deletions: another process has done the
// deletions that the next snapshot lacks.
func TestALostWatchHoldsBackItsDeployment(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.failed = map[uuid.UUID]error{uidOf("bad"): errors.New("poison")}
		s.work <- endOfWork()
		s.deletions[near] <- deletion("bad")
		s.deletions[near] <- endOfDeletions("p1")
		synctest.Wait()
		s.deletions[near] <- cutDeletion
		synctest.Wait()
		r.take()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Empty(t, r.take())
		s.deletions[near] <- endOfDeletions("p2")
	})
}

// A deployment that did not answer about expired blockades is asked again, also when the next look finds
// none.
func TestAResolveThatFailedIsTriedAgain(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		asked := 0
		r.expired = []schema.DeploymentID{near}
		r.handle = func(_ context.Context, what string) error {
			if what == "resolve us-west2" {
				if asked++; asked == 1 {
					r.expired = nil
					return errors.New("away")
				}
			}
			return nil
		}
		s.work <- endOfWork()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"resolve us-west2", "resolve us-west2"}, r.take())
	})
}

// A run of retried deletions that fails as a whole is retried by itself: together with new deletions it would
// delay them.
func TestARunOfRetriedDeletionsThatFailsIsRetriedByItself_I20(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.failed = map[uuid.UUID]error{uidOf("large"): schema.ErrUnfinished}
		r.handle = func(_ context.Context, what string) error {
			if strings.HasPrefix(what, "again ") {
				return errors.New("the database is away")
			}
			return nil
		}
		s.work <- endOfWork()
		s.deletions[near] <- deletion("large")
		s.deletions[near] <- endOfDeletions("p1")
		time.Sleep(time.Minute)
		synctest.Wait()
		for i, what := range r.take() {
			require.Equal(t, i == 0, strings.HasPrefix(what, "subscribed "), what)
		}
	})
}

// One node of a deployment looks for expired blockades.
func TestOnlyASweepingNodeLooksForExpiredBlockades(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newStreams(), &recorder{expired: []schema.DeploymentID{near}}
		node, err := constraint.New(constraint.Config{
			Name: "1", Deployment: self, Subscriptions: make(chan []schema.Subscription), Watches: s, Observer: r,
			Logger: zap.NewNop(),
			Handlers: constraint.Handlers{
				Owned: ownedHandler{r}, Resolver: resolveHandler{r},
				Subscribed: subscribedHandler{r},
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- node.Run(ctx) }()
		s.work <- endOfWork()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, r.take())
		cancel()
		require.NoError(t, <-done)
	})
}

// After a success the back-off begins anew: the next failure is tried again at once.
func TestAFailureAfterASuccessIsTriedAgainAtOnce(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		fails := errors.New("away")
		r.handle = func(context.Context, string) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			return fails
		}
		set := func(err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			fails = err
		}
		s.work <- endOfWork()
		s.work <- work(schema.Release, near, 1)
		time.Sleep(time.Minute)
		set(nil)
		time.Sleep(10 * time.Second)
		set(errors.New("away again"))
		r.take()
		s.work <- work(schema.Release, near, 2)
		time.Sleep(400 * time.Millisecond)
		require.GreaterOrEqual(t, len(r.take()), 3)
	})
}

// An operator's retry ends the back-offs of one deployment, or of all: of batches that fail, of pieces of
// work that wait, of deletions that fail, and of lost watches.
func TestARetryEndsBackOffs(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		away := true
		r.handle = func(_ context.Context, what string) error {
			if away && strings.HasPrefix(what, "pending ") {
				return errors.New("away")
			}
			return nil
		}
		r.waiting = map[int64]bool{3: true}
		r.failed = map[uuid.UUID]error{uidOf("bad"): errors.New("poison")}
		s.work <- work(schema.Confirm, near, 1)
		s.work <- work(schema.Confirm, far, 2)
		s.work <- work(schema.Finalise, self, 3)
		s.work <- endOfWork()
		s.deletions[near] <- deletion("bad")
		s.deletions[near] <- endOfDeletions("p1")
		s.deletions[far] <- endOfDeletions("p1")
		time.Sleep(5 * time.Minute) // every pause is between 5 and 10 s by now; from here on no time passes
		synctest.Wait()
		r.take()
		away = false
		r.waiting, r.failed = nil, nil
		r.bell.Ring(near)
		synctest.Wait()
		require.ElementsMatch(t, []string{"pending us-west2 [1]", `again us-west2 [bad] "p1" except 0`}, r.take(),
			"neither the work for the other deployment nor that of this one")
		r.bell.Ring(schema.DeploymentID{})
		synctest.Wait()
		require.ElementsMatch(t, []string{"pending eastus2 [2]", "deleting [3]"}, r.take())

		for range 20 { // lost again and again, so that the pause is long
			s.deletions[far] <- cutDeletion
		}
		synctest.Wait()
		opened := s.opened[far.String()]
		r.bell.Ring(far)
		synctest.Wait()
		require.Equal(t, opened+1, s.opened[far.String()])

		for range 20 {
			s.work <- cutWork
		}
		synctest.Wait()
		opened = s.opened["own"]
		r.bell.Ring(self)
		synctest.Wait()
		require.Equal(t, opened+1, s.opened["own"])
	})
}
