package constraint_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/schema"
)

func TestANodeNeedsItsParts(t *testing.T) {
	t.Parallel()
	_, err := constraint.New(constraint.Config{})
	require.ErrorContains(t, err, "a node needs watches, handlers, an observer and a logger")
}

// A newer version of another process may write work of an action that this version does not know.
func TestWorkOfAnUnknownActionIsLeftToANewerVersion(t *testing.T) {
	t.Parallel()
	inNode(t, func(s *streams, r *recorder) {
		s.work <- endOfWork()
		s.work <- work(schema.Action(99), near, 1)
		s.work <- work(schema.Confirm, near, 2)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"pending us-west2 [2]"}, r.take(), "it keeps no other work back")
	})
}
