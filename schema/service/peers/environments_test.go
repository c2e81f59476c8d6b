package peers

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// The newest environment is received, and the connections follow each one.
func TestTheNewestEnvironmentIsFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(self, nil)
		from, to := make(chan *schema.Environment), make(chan *schema.Environment, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Follow(ctx, from, to) }()
		for revision := range int64(3) {
			from <- &schema.Environment{Revision: revision + 1}
			synctest.Wait()
			require.Equal(t, revision+1, p.Environment().Revision)
		}
		require.Equal(t, int64(3), (<-to).Revision, "earlier ones were replaced")
		require.Empty(t, to)
		from <- &schema.Environment{Revision: 4}
		require.Equal(t, int64(4), (<-to).Revision)
		cancel()
		require.NoError(t, <-ended)
	})
}
