package constraint_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/schema"
)

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

func TestADeploymentWithoutEndOfSnapshotHoldsBackOnlyItsOwnTasks(t *testing.T) {
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

// I20: a deployment that is slow or fails delays only its own work.
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
		s.work <- work(schema.Confirm, near, 3, 4) // 2 was done by another process meanwhile
		s.work <- endOfWork()
		synctest.Wait()
		got := r.take()
		require.Equal(t, []string{"pending us-west2 [3 4]"}, got)
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Equal(t, map[string]int{"own": 2, near.String(): 1, far.String(): 1}, s.opened,
			"losing one watch costs one")
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
		require.ErrorContains(t, r.ran.Failed, "poison", "status shows why, also after a run without it")
		require.False(t, r.ran.Next.IsZero())
		r.failed = nil
		r.mu.Unlock()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		got := r.take()
		require.NotEmpty(t, got)
		require.Equal(t, `again us-west2 [bad] "p2" except 0`, got[len(got)-1])
		require.NoError(t, r.ran.Failed)
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

// A deletion that failed in a batch without a position, and succeeded later, is acknowledged with the next
// position.
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
		require.Equal(t, []string{`subscribed us-west2 [bad] "" except 0`, `again us-west2 [bad] "" except 0`},
			r.take())
		s.deletions[near] <- bookmark("p1")
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [] "p1" except 0`}, r.take())
	})
}

func TestADeletionThatAlwaysFailsIsTriedLessAndLess(t *testing.T) {
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

// A worker of a lost stream reports late: the snapshot of the new stream counts, not the worker's result.
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

// The result of a run for a subscription that was replaced meanwhile is dropped: the deployment has moved, or
// switched its version, and the new watch delivers its deletions.
func TestAResultOfAReplacedSubscriptionIsDropped(t *testing.T) {
	inSubscribedNode(t, func(s *streams, r *recorder, subscriptions chan<- []schema.Subscription) {
		block := make(chan struct{})
		r.handle = func(_ context.Context, what string) error {
			if strings.HasSuffix(what, `"p1" except 0`) {
				<-block
			}
			return nil
		}
		s.work <- endOfWork()
		s.deletions[near] <- deletion("x")
		s.deletions[near] <- endOfDeletions("p1")
		synctest.Wait()
		r.take()
		subscriptions <- []schema.Subscription{{DeploymentID: near, Address: "it has moved"}, {DeploymentID: far}}
		synctest.Wait()
		s.deletions[near] <- deletion("x", "y")
		s.deletions[near] <- endOfDeletions("p2")
		synctest.Wait()
		close(block)
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [x y] "p2" except 0`}, r.take())
	})
}

// The work for a deployment that is reachable again begins at once: nothing waits until the end of a
// back-off. Others keep theirs.
func TestADeploymentThatIsReachableAgainGetsItsWorkAtOnce(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		away := true
		r.handle = func(_ context.Context, what string) error {
			if away && strings.Contains(what, "us-west2") || strings.Contains(what, "eastus2") {
				return errors.New("away")
			}
			return nil
		}
		s.work <- endOfWork()
		s.deletions[near] <- deletion("x")
		s.deletions[near] <- endOfDeletions("p1")
		s.work <- work(schema.Release, near, 1)
		s.work <- work(schema.Release, far, 2)
		time.Sleep(time.Minute)
		s.deletions[near] <- cutDeletion
		time.Sleep(10 * time.Second)
		synctest.Wait()
		r.take()
		away = false
		s.deletions[near] <- deletion("x")
		s.deletions[near] <- endOfDeletions("p2")
		synctest.Wait()
		require.ElementsMatch(t, []string{"pending us-west2 [1]", `subscribed us-west2 [x] "p2" except 0`}, r.take())
	})
}

// Some pieces of a batch fail: the others are done, and these wait by themselves and delay no new work (I20).
func TestPiecesThatFailWaitByThemselves_I20(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.handle = func(_ context.Context, what string) error {
			if strings.HasPrefix(what, "deleting [1") {
				return &schema.PartError{Failed: []int64{1}, Cause: errors.New("poison")}
			}
			return nil
		}
		s.work <- endOfWork()
		s.work <- work(schema.Finalise, self, 1, 2)
		time.Sleep(time.Minute)
		synctest.Wait()
		tries := r.take()
		require.Equal(t, []string{"deleting [1 2]", "deleting [1]"}, tries[:2])
		require.Less(t, len(tries), 25, "less and less")
		s.work <- work(schema.Finalise, self, 3)
		synctest.Wait()
		require.Equal(t, []string{"deleting [3]"}, r.take(), "at once")
	})
}

// Work that waits (for an owner that may still come) waits by itself, longer each time, and delays no other
// work.
func TestWorkThatWaitsDelaysNoOther_I20(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.waiting = map[int64]bool{1: true, 2: true}
		s.work <- endOfWork()
		s.work <- work(schema.CheckOwners, near, 1, 2, 3)
		synctest.Wait()
		require.Equal(t, []string{"pending us-west2 [1 2 3]"}, r.take())
		s.work <- work(schema.CheckOwners, near, 4)
		s.work <- work(schema.Confirm, near, 5)
		synctest.Wait()
		require.ElementsMatch(t, []string{"pending us-west2 [4]", "pending us-west2 [5]"}, r.take(), "at once")
		time.Sleep(time.Minute)
		synctest.Wait()
		tries := r.take()
		require.Greater(t, len(tries), 8)
		require.Less(t, len(tries), 60, "with a growing pause, of ten seconds at most")
		r.mu.Lock()
		delete(r.waiting, 1)
		r.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		r.take()
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, try := range r.take() {
			require.Equal(t, "pending us-west2 [2]", try, "what is done is not tried again")
		}
		s.work <- schema.Event[schema.Work]{Token: "cut"} // a new stream delivers the outstanding work
		time.Sleep(time.Minute)
		synctest.Wait()
		r.take()
		s.work <- endOfWork()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, r.take())
	})
}

// A deployment that switched its version, or moved, gets a new watch; the watches of others go on.
func TestASwitchOfAnotherDeploymentRenewsOnlyItsSubscription(t *testing.T) {
	inSubscribedNode(t, func(s *streams, r *recorder, subscriptions chan<- []schema.Subscription) {
		opened := func(d schema.DeploymentID) int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.opened[d.String()]
		}
		s.work <- endOfWork()
		s.deletions[near] <- endOfDeletions("p1")
		s.deletions[far] <- endOfDeletions("q1")
		subscriptions <- []schema.Subscription{{DeploymentID: near, Version: "v2"}, {DeploymentID: far}}
		synctest.Wait()
		require.Equal(t, 2, opened(near))
		require.Equal(t, 1, opened(far))
		s.deletions[near] <- deletion("x")
		synctest.Wait()
		require.Empty(t, r.take(), "the new watch is not primed yet")
		s.deletions[near] <- endOfDeletions("p2")
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [x] "p2" except 0`}, r.take())
		subscriptions <- []schema.Subscription{{DeploymentID: far}}
		synctest.Wait()
		require.Equal(t, 1, opened(far))
		s.deletions[far] <- deletion("y")
		s.deletions[far] <- bookmark("q2")
		synctest.Wait()
		require.NotEmpty(t, r.take())
	})
}

// A deletion with many holders goes on beside later ones, and is acknowledged when it is done.
func TestALargeDeletionKeepsNoOtherWaiting_I20(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.failed = map[uuid.UUID]error{uidOf("large"): schema.ErrUnfinished}
		release := make(chan struct{})
		r.handle = func(_ context.Context, what string) error {
			if strings.HasPrefix(what, "again ") {
				<-release
			}
			return nil
		}
		s.work <- endOfWork()
		s.deletions[near] <- deletion("large")
		s.deletions[near] <- endOfDeletions("p1")
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [large] "p1" except 0`, `again us-west2 [large] "p1" except 0`},
			r.take())
		s.deletions[near] <- deletion("small")
		s.deletions[near] <- bookmark("p2")
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [small] "" except 1`, `subscribed us-west2 [] "p2" except 1`},
			r.take())
		release <- struct{}{}
		synctest.Wait()
		require.Equal(t, []string{`again us-west2 [large] "p2" except 0`}, r.take(), "at once: it did not fail")
		r.mu.Lock()
		r.failed = nil
		r.mu.Unlock()
		close(release)
		synctest.Wait()
		require.Equal(t, []string{`again us-west2 [large] "p2" except 0`}, r.take())
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, r.take(), "quiet")
	})
}

// A watch begins and ends with its subscription, and ends with its node: the observer is told, so that its
// metrics begin and end.
func TestARemovedWatchIsReportedToHaveEnded(t *testing.T) {
	inSubscribedNode(t, func(s *streams, r *recorder, subscriptions chan<- []schema.Subscription) {
		told := func(want map[string]constraint.Primed) {
			t.Helper()
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			require.Equal(t, want, r.watches)
		}
		primed, began, ended := constraint.Primed{Done: true}, constraint.Primed{Began: true},
			constraint.Primed{Ended: true}
		told(map[string]constraint.Primed{
			"shadows-0 us-west2": began, "deletions us-west2": began,
			"deletions eastus2": began,
		})
		s.work <- endOfWork()
		s.deletions[near] <- endOfDeletions("p1")
		s.deletions[far] <- endOfDeletions("q1")
		told(map[string]constraint.Primed{
			"shadows-0 us-west2": primed, "deletions us-west2": primed,
			"deletions eastus2": primed,
		})
		subscriptions <- []schema.Subscription{{DeploymentID: near, Address: "it has moved"}}
		told(map[string]constraint.Primed{
			"shadows-0 us-west2": primed, "deletions us-west2": began,
			"deletions eastus2": ended,
		})
		s.deletions[near] <- endOfDeletions("p1")
		r.ended = func(done <-chan error) {
			require.NoError(t, <-done)
			told(map[string]constraint.Primed{
				"shadows-0 us-west2": ended, "deletions us-west2": ended,
				"deletions eastus2": ended,
			})
		}
	})
}

// The stream of a watch is lost: its share is not primed until the next snapshot, and the observer is told at
// once.
func TestALostWatchIsReportedToBeUnprimed(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		told := func(work, deletions bool) {
			t.Helper()
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			require.Equal(t, constraint.Primed{Done: work}, r.watches["shadows-0 us-west2"])
			require.Equal(t, constraint.Primed{Done: deletions}, r.watches["deletions us-west2"])
		}
		s.work <- endOfWork()
		s.deletions[near] <- endOfDeletions("p1")
		told(true, true)
		s.deletions[near] <- cutDeletion
		told(true, false)
		s.work <- cutWork
		told(false, false)
		s.work <- endOfWork()
		s.deletions[near] <- endOfDeletions("p2")
		told(true, true)
	})
}

// The run of a large deletion ends while the acknowledgement that excepted it is under way: another
// acknowledgement follows that one, without a further event of the watch, which is idle from then on.
func TestALargeDeletionIsAcknowledgedWhenItIsDone_I13(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.failed = map[uuid.UUID]error{uidOf("large"): schema.ErrUnfinished}
		again, told := make(chan struct{}), make(chan struct{})
		r.handle = func(_ context.Context, what string) error {
			switch {
			case strings.HasPrefix(what, "again "):
				<-again
			case strings.HasSuffix(what, `"p1" except 1`):
				<-told
			}
			return nil
		}
		s.work <- endOfWork()
		s.deletions[near] <- endOfDeletions("p0")
		s.deletions[near] <- deletion("large")
		synctest.Wait()
		r.mu.Lock()
		r.failed = nil
		r.mu.Unlock()
		again <- struct{}{} // this run did not finish it, and the next one will
		synctest.Wait()
		s.deletions[near] <- bookmark("p1")
		synctest.Wait()
		require.Equal(t, []string{
			`subscribed us-west2 [large] "" except 0`, `again us-west2 [large] "" except 0`,
			`again us-west2 [large] "" except 0`, `subscribed us-west2 [] "p1" except 1`,
		}, r.take())
		again <- struct{}{}
		synctest.Wait()
		close(told)
		synctest.Wait()
		require.Equal(t, []string{`subscribed us-west2 [] "p1" except 0`}, r.take(), "at once")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, r.take(), "quiet")
	})
}

// A stream that begins while only a large deletion is under way delivers its position before that is done,
// and may be idle from then on.
func TestALargeDeletionIsAcknowledgedWithAPositionOfTheNewStream_I13(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.failed = map[uuid.UUID]error{uidOf("large"): schema.ErrUnfinished}
		again := make(chan struct{})
		r.handle = func(_ context.Context, what string) error {
			if strings.HasPrefix(what, "again ") {
				<-again
			}
			return nil
		}
		s.work <- endOfWork()
		s.deletions[near] <- deletion("large")
		s.deletions[near] <- endOfDeletions("p1")
		synctest.Wait()
		r.take()
		s.deletions[near] <- cutDeletion
		time.Sleep(time.Second)
		again <- struct{}{} // still unfinished
		s.deletions[near] <- deletion("large")
		synctest.Wait()
		r.mu.Lock()
		r.failed = nil
		r.mu.Unlock()
		s.deletions[near] <- endOfDeletions("p2")
		synctest.Wait()
		close(again)
		synctest.Wait()
		require.Equal(t, []string{`again us-west2 [large] "p2" except 0`}, r.take(), "at once")
	})
}

// Each deletion that fails has a back-off of its own: others that fail again and again do not prolong it
// (I20).
func TestADeletionThatFailsWaitsByItself_I20(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		r.failed = map[uuid.UUID]error{}
		s.work <- endOfWork()
		s.deletions[near] <- endOfDeletions("p0")
		fails := func(name string) {
			r.mu.Lock()
			r.failed[uidOf(name)] = errors.New("poison")
			r.mu.Unlock()
			s.deletions[near] <- deletion(name)
			s.deletions[near] <- bookmark("after " + name)
			synctest.Wait()
		}
		fails("first")
		for i := range 30 { // one more each two seconds
			time.Sleep(2 * time.Second)
			fails(strconv.Itoa(i))
		}
		r.take()
		fails("last")
		r.mu.Lock()
		delete(r.failed, uidOf("last"))
		r.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		require.True(t, slices.ContainsFunc(r.take(), func(what string) bool {
			return strings.HasPrefix(what, "again ") && strings.Contains(what, "last")
		}), "it has failed once, and waits for the others' tries no more than they for it")
	})
}

// A deployment that floods with deletions delays neither the deletions of another deployment nor outstanding
// work.
func TestAFloodingDeploymentDelaysNoOther_I20(t *testing.T) {
	inNode(t, func(s *streams, r *recorder) {
		release := make(chan struct{})
		r.handle = func(_ context.Context, what string) error {
			if strings.HasPrefix(what, "subscribed eastus2 ") {
				<-release
			}
			return nil
		}
		s.work <- endOfWork()
		s.deletions[far] <- endOfDeletions("f0")
		s.deletions[near] <- endOfDeletions("n0")
		for i := range 5000 {
			s.deletions[far] <- deletion(strconv.Itoa(i))
		}
		s.deletions[near] <- deletion("one")
		s.deletions[near] <- bookmark("n1")
		s.work <- work(schema.Release, near, 1)
		synctest.Wait()
		got := r.take()
		require.Contains(t, got, `subscribed us-west2 [one] "" except 0`)
		require.Contains(t, got, "pending us-west2 [1]")
		require.Len(t, slices.DeleteFunc(got, func(what string) bool {
			return !strings.HasPrefix(what, "subscribed eastus2")
		}), 1, "one batch of the flood is under way")
		close(release)
		synctest.Wait()
		require.LessOrEqual(t, len(r.take()), 7, "the rest comes in large batches")
	})
}
