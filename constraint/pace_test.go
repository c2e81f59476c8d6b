package constraint_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// inPacedNode is inNode with a pace of 100 ms for messages, and none for other work.
func inPacedNode(t *testing.T, test func(s *streams, r *recorder)) {
	t.Helper()
	inNode(t, func(s *streams, r *recorder) {
		r.paces = map[string]time.Duration{"pending": 100 * time.Millisecond}
		s.work <- endOfWork()
		test(s, r)
	})
}

func TestTheFirstPieceOfAPacedTaskIsDoneAtOnceAndTheNextOnesTogether(t *testing.T) {
	inPacedNode(t, func(s *streams, r *recorder) {
		s.work <- work(schema.Confirm, near, 1)
		synctest.Wait()
		require.Equal(t, []string{"pending us-west2 [1]"}, r.take())
		s.work <- work(schema.Confirm, near, 2)
		time.Sleep(60 * time.Millisecond)
		s.work <- work(schema.Confirm, near, 3)
		time.Sleep(39 * time.Millisecond)
		require.Empty(t, r.take())
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []string{"pending us-west2 [2 3]"}, r.take())
		time.Sleep(time.Second)
		s.work <- work(schema.Confirm, near, 4)
		synctest.Wait()
		require.Equal(t, []string{"pending us-west2 [4]"}, r.take(), "the pause is over")
	})
}

func TestAPaceDelaysNoOtherDeploymentAndNoOtherTask_I20(t *testing.T) {
	inPacedNode(t, func(s *streams, r *recorder) {
		s.work <- work(schema.Confirm, near, 1)
		synctest.Wait()
		s.work <- work(schema.Confirm, near, 2)
		s.work <- work(schema.Confirm, far, 3)
		s.work <- work(schema.Finalise, self, 4)
		synctest.Wait()
		require.ElementsMatch(t, []string{"pending us-west2 [1]", "pending eastus2 [3]", "deleting [4]"}, r.take())
		s.work <- work(schema.Finalise, self, 5)
		synctest.Wait()
		require.Equal(t, []string{"deleting [5]"}, r.take())
	})
}

// A backlog is worked off at full speed.
func TestAFullBatchWaitsForNoPace(t *testing.T) {
	inPacedNode(t, func(s *streams, r *recorder) {
		var seqs []int64
		for seq := range int64(2500) {
			seqs = append(seqs, seq)
		}
		s.work <- work(schema.Confirm, near, seqs...)
		synctest.Wait()
		require.Len(t, r.take(), 2, "1,000 each")
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		require.Len(t, r.take(), 1)
	})
}

// A failure makes the task wait for its back-off, and a request that ends the back-off does not end the pace.
func TestABatchThatFailedKeepsThePace(t *testing.T) {
	inPacedNode(t, func(s *streams, r *recorder) {
		r.handle = func(context.Context, string) error { return errors.New("away") }
		s.work <- work(schema.Confirm, near, 1)
		synctest.Wait()
		for range 50 {
			r.bell.Ring(near)
			synctest.Wait()
		}
		require.Len(t, r.take(), 1)
		time.Sleep(100 * time.Millisecond)
		r.bell.Ring(near)
		synctest.Wait()
		require.Len(t, r.take(), 1)
	})
}
