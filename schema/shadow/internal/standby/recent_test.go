package standby

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A caller is remembered for the time, and forgotten after twice the time at the latest: the memory of a
// process is that of its last callers.
func TestACallerIsRememberedForTheTime_I21_I37(t *testing.T) {
	t.Parallel()
	const keep = 10 * time.Second
	for first := range 25 {
		for pause := range 25 {
			r, begin := recent{keep: keep}, time.Now()
			r.add("other", begin)
			at := begin.Add(time.Duration(first) * time.Second)
			r.add("ada", at)
			then := at.Add(time.Duration(pause) * time.Second)
			switch {
			case pause < 10:
				require.True(t, r.has("ada", then), "after %d s", pause)
			case pause >= 20:
				require.False(t, r.has("ada", then), "after %d s", pause)
				require.Empty(t, r.before)
				require.Empty(t, r.new)
			}
			require.False(t, r.has("bob", then))
		}
	}
}

// Of too many callers everybody is taken for one of them.
func TestTooManyCallersAreEverybody_I21_I37(t *testing.T) {
	t.Parallel()
	r, now := recent{keep: time.Hour}, time.Now()
	for i := range 2 * mostRecent {
		require.Equal(t, i >= mostRecent, r.has("bob", now), i)
		r.add(i, now)
	}
	require.Len(t, r.new, mostRecent)
	require.True(t, r.has(2*mostRecent-1, now))
}
