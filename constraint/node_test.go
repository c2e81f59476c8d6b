package constraint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/schema"
)

var (
	self = schema.DeploymentID{Service: "b.example.com", Region: "us-west2"}
	near = schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	far  = schema.DeploymentID{Service: "a.example.com", Region: "eastus2"}
)

// streams are watches whose events a test sends. A stream that is cut ends with an error and is opened again.
type streams struct {
	mu        sync.Mutex
	work      chan schema.Event[schema.Work]
	deletions map[schema.DeploymentID]chan schema.Event[schema.Deletion]
	opened    map[string]int
}

func newStreams() *streams {
	return &streams{
		work: make(chan schema.Event[schema.Work]), opened: map[string]int{},
		deletions: map[schema.DeploymentID]chan schema.Event[schema.Deletion]{near: make(chan schema.Event[schema.Deletion]), far: make(chan schema.Event[schema.Deletion])},
	}
}

var errCut = errors.New("cut")

func relay[T any](ctx context.Context, from chan schema.Event[T], deliver func(schema.Event[T]) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-from:
			if e.Token == "cut" {
				return errCut
			}
			if err := deliver(e); err != nil {
				return err
			}
		}
	}
}

func (s *streams) count(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened[name]++
}

func (s *streams) WatchShadows(ctx context.Context, _ []uint32, deliver func(schema.Event[schema.Work]) error) error {
	s.count("own")
	return relay(ctx, s.work, deliver)
}

func (s *streams) WatchDeletions(ctx context.Context, from schema.DeploymentID, deliver func(schema.Event[schema.Deletion]) error) error {
	s.count(from.String())
	return relay(ctx, s.deletions[from], deliver)
}

// recorder is all three handlers.
type recorder struct {
	mu      sync.Mutex
	log     []string
	handle  func(ctx context.Context, what string) error
	failed  map[uuid.UUID]error
	expired []schema.DeploymentID
}

func (r *recorder) did(ctx context.Context, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	r.mu.Lock()
	r.log = append(r.log, what)
	r.mu.Unlock()
	if r.handle != nil {
		return r.handle(ctx, what)
	}
	return nil
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.log
	r.log = nil
	return log
}

func seqs(work []schema.Work) (out []int64) {
	for _, w := range work {
		out = append(out, w.Seq)
	}
	return out
}

type pendingHandler struct{ *recorder }

func (h pendingHandler) Handle(ctx context.Context, to schema.DeploymentID, work []schema.Work) error {
	return h.did(ctx, "pending %s %v", to.Region, seqs(work))
}

func (h pendingHandler) Expired(context.Context) ([]schema.DeploymentID, error) {
	return h.expired, nil
}

func (h pendingHandler) Resolve(ctx context.Context, holder schema.DeploymentID) error {
	return h.did(ctx, "resolve %s", holder.Region)
}

type deletingHandler struct{ *recorder }

func (h deletingHandler) Handle(ctx context.Context, work []schema.Work) error {
	return h.did(ctx, "deleting %v", seqs(work))
}

type subscribedHandler struct{ *recorder }

func (h subscribedHandler) Handle(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion, position string, earlier []uuid.UUID) (map[uuid.UUID]error, error) {
	var names []string
	failed := map[uuid.UUID]error{}
	h.mu.Lock()
	for _, d := range deletions {
		names = append(names, d.Name)
		if err := h.failed[d.UID]; err != nil {
			failed[d.UID] = err
		}
	}
	h.mu.Unlock()
	slices.Sort(names)
	return failed, h.did(ctx, "subscribed %s %v %q except %d", from.Region, names, position, len(earlier))
}

func (r *recorder) HandlerRan(string, schema.DeploymentID, int, time.Duration, error) {}
func (r *recorder) WatchPrimed(string, schema.DeploymentID, bool)                     {}
func (r *recorder) WatchHeard(string, schema.DeploymentID)                            {}

// inNode runs a node in a bubble of synctest, where time is the test's, and which fails when a goroutine is left.
func inNode(t *testing.T, test func(s *streams, r *recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, r := newStreams(), &recorder{}
		subscriptions := make(chan []constraint.Subscription)
		node, err := constraint.New(constraint.Config{
			Name: "0", Deployment: self, Shards: []uint32{0}, Subscriptions: subscriptions, Watches: s, Observer: r, Logger: zap.NewNop(), Sweeps: true,
			Pending: pendingHandler{r}, Deleting: deletingHandler{r}, Subscribed: subscribedHandler{r},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- node.Run(ctx) }()
		subscriptions <- []constraint.Subscription{{DeploymentID: near}, {DeploymentID: far}}
		test(s, r)
		cancel()
		require.NoError(t, <-done)
	})
}

func work(action schema.Action, to schema.DeploymentID, seqs ...int64) schema.Event[schema.Work] {
	e := schema.Event[schema.Work]{}
	for _, seq := range seqs {
		e.Items = append(e.Items, schema.Work{Seq: seq, Action: action, Deployment: to})
	}
	return e
}

func deletion(names ...string) schema.Event[schema.Deletion] {
	e := schema.Event[schema.Deletion]{}
	for _, name := range names {
		e.Items = append(e.Items, schema.Deletion{Name: name, UID: uidOf(name)})
	}
	return e
}

func uidOf(name string) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceURL, []byte(name)) }

func endOfWork() schema.Event[schema.Work] {
	return schema.Event[schema.Work]{EndOfSnapshot: true, Token: "w"}
}

func endOfDeletions(token string) schema.Event[schema.Deletion] {
	return schema.Event[schema.Deletion]{EndOfSnapshot: true, Token: token}
}

func bookmark(token string) schema.Event[schema.Deletion] {
	return schema.Event[schema.Deletion]{Token: token}
}

func TestNothingRunsBeforeTheOwnEndOfSnapshot(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		s.work <- work(schema.Confirm, near, 1, 2)
		s.deletions[near] <- deletion("x")
		s.deletions[near] <- endOfDeletions("p1")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, r.take(), "a half-filled cache")
		s.work <- endOfWork()
		synctest.Wait()
		require.ElementsMatch(t, []string{"pending us-west2 [1 2]", `subscribed us-west2 [x] "p1" except 0`}, r.take())
	})
}

func TestAForeignSetHoldsBackOnlyItsOwnTasks(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		s.work <- endOfWork()
		s.deletions[far] <- deletion("held") // and no end of snapshot
		s.deletions[near] <- deletion("x")
		s.deletions[near] <- endOfDeletions("p1")
		s.work <- work(schema.Finalise, self, 7)
		synctest.Wait()
		require.ElementsMatch(t, []string{"deleting [7]", `subscribed us-west2 [x] "p1" except 0`}, r.take())
		s.deletions[far] <- endOfDeletions("q1")
		synctest.Wait()
		require.Equal(t, []string{`subscribed eastus2 [held] "q1" except 0`}, r.take())
	})
}

func TestAPositionIsAcknowledgedOnlyAfterTheDeletionsBeforeIt(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		s.work <- endOfWork()
		s.deletions[near] <- endOfDeletions("p0")
		synctest.Wait()
		require.Empty(t, r.take(), "an idle watch has nothing to acknowledge")
		s.deletions[near] <- deletion("x")
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [x] "" except 0`}, r.take())
		s.deletions[near] <- bookmark("p1")
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [] "p1" except 0`}, r.take())
		s.deletions[near] <- bookmark("p2")
		synctest.Wait()
		require.Empty(t, r.take())
	})
}

func TestAFailedRunIsTriedAgainWithTheSameDeletionsAndPosition(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		fail := true
		r.handle = func(context.Context, string) error {
			if fail {
				fail = false
				return errors.New("away")
			}
			return nil
		}
		s.work <- endOfWork()
		s.deletions[near] <- deletion("x")
		s.deletions[near] <- endOfDeletions("p1")
		synctest.Wait()
		require.Len(t, r.take(), 1)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [x] "p1" except 0`}, r.take())
	})
}

// I20: what one deployment's slowness or failure holds up is its own.
func TestASlowDeploymentDelaysNoOther_I20(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.handle = func(ctx context.Context, what string) error {
			if what == "pending eastus2 [1]" {
				<-ctx.Done() // hangs until the node ends
				return ctx.Err()
			}
			return nil
		}
		s.work <- endOfWork()
		s.work <- work(schema.Release, far, 1)
		s.work <- work(schema.Release, far, 2)
		s.work <- work(schema.Release, near, 3)
		s.work <- work(schema.Finalise, self, 4)
		synctest.Wait()
		require.ElementsMatch(t, []string{"pending eastus2 [1]", "pending us-west2 [3]", "deleting [4]"}, r.take())
	})
}

func TestWorkThatFailsIsTriedAgainBehindNewWork(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.handle = func(_ context.Context, what string) error {
			if what == "pending us-west2 [1]" {
				return errors.New("away")
			}
			return nil
		}
		s.work <- endOfWork()
		s.work <- work(schema.Confirm, near, 1)
		synctest.Wait()
		s.work <- work(schema.Confirm, near, 2)
		synctest.Wait()
		require.Equal(t, []string{"pending us-west2 [1]"}, r.take(), "the deployment has a backoff")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"pending us-west2 [1 2]"}, r.take())
	})
}

func TestAPanicOfAHandlerIsAnErrorOfItsBatch(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		panicked := false
		r.handle = func(context.Context, string) error {
			if !panicked {
				panicked = true
				panic("bad")
			}
			return nil
		}
		s.work <- endOfWork()
		s.work <- work(schema.Finalise, self, 1)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"deleting [1]", "deleting [1]"}, r.take())
	})
}

func TestALostWatchIsOpenedAgainAndItsSnapshotReplacesWhatWasKnown(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		block := make(chan struct{})
		r.handle = func(_ context.Context, what string) error {
			if what == "pending us-west2 [1]" {
				<-block
			}
			return nil
		}
		s.work <- endOfWork()
		s.work <- work(schema.Confirm, near, 1)
		s.work <- work(schema.Confirm, near, 2, 3) // wait behind 1
		synctest.Wait()
		require.Equal(t, []string{"pending us-west2 [1]"}, r.take())
		s.work <- schema.Event[schema.Work]{Token: "cut"}
		synctest.Wait()
		close(block)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, r.take(), "not before the new end of snapshot")
		s.work <- work(schema.Confirm, near, 3, 4) // 2 was done by somebody else meanwhile
		s.work <- endOfWork()
		synctest.Wait()
		got := r.take()
		require.Equal(t, []string{"pending us-west2 [3 4]"}, got)
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Equal(t, map[string]int{"own": 2, near.String(): 1, far.String(): 1}, s.opened, "losing one watch costs one")
	})
}

func TestADeletionThatFailsHereIsExceptedAndTriedAgain(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.failed = map[uuid.UUID]error{uidOf("bad"): errors.New("poison")}
		s.work <- endOfWork()
		s.deletions[near] <- deletion("bad", "good")
		s.deletions[near] <- endOfDeletions("p1")
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [bad good] "p1" except 0`}, r.take())
		s.deletions[near] <- deletion("later")
		s.deletions[near] <- bookmark("p2")
		synctest.Wait()
		require.Contains(t, r.take()[0], "except 1")
		r.mu.Lock()
		r.failed = nil
		r.mu.Unlock()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		got := r.take()
		require.NotEmpty(t, got)
		require.Equal(t, `subscribed us-west2 [bad] "p2" except 0`, got[len(got)-1])
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, r.take(), "quiet")
	})
}

func TestExpiredBlockadesAreAskedAboutByDeployment(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.expired = []schema.DeploymentID{near, far}
		s.work <- endOfWork()
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		require.ElementsMatch(t, []string{"resolve us-west2", "resolve eastus2"}, r.take())
	})
}

// What failed in a batch that had no position yet, and succeeded later, is acknowledged with the next position.
func TestARetriedDeletionIsAcknowledgedAfterItSucceeded(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.failed = map[uuid.UUID]error{uidOf("bad"): errors.New("poison")}
		s.work <- endOfWork()
		s.deletions[near] <- endOfDeletions("p0")
		s.deletions[near] <- deletion("bad")
		synctest.Wait()
		r.mu.Lock()
		r.failed = nil
		r.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [bad] "" except 0`, `subscribed us-west2 [bad] "" except 0`}, r.take())
		s.deletions[near] <- bookmark("p1")
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [] "p1" except 0`}, r.take())
	})
}

func TestWhatAlwaysFailsIsTriedLessAndLess(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.failed = map[uuid.UUID]error{uidOf("bad"): errors.New("poison")}
		s.work <- endOfWork()
		s.deletions[near] <- deletion("bad")
		s.deletions[near] <- endOfDeletions("p1")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Less(t, len(r.take()), 25)
	})
}

// A worker of a stream that was lost reports late: the new stream's snapshot counts, not what the worker brings back.
func TestAResultOfALostStreamIsDropped(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		block := make(chan struct{})
		r.handle = func(_ context.Context, what string) error {
			if what == `subscribed us-west2 [x] "p1" except 0` {
				<-block
				return errors.New("the connection was lost")
			}
			return nil
		}
		s.work <- endOfWork()
		s.deletions[near] <- deletion("x")
		s.deletions[near] <- endOfDeletions("p1")
		synctest.Wait()
		r.take()
		s.deletions[near] <- schema.Event[schema.Deletion]{Token: "cut"}
		time.Sleep(time.Second)
		s.deletions[near] <- deletion("x", "y")
		s.deletions[near] <- endOfDeletions("p2")
		synctest.Wait()
		close(block)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [x y] "p2" except 0`}, r.take())
	})
}
