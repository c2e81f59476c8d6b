package standby

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A caller's write is remembered for the time, and forgotten after twice the time at the latest: the memory of a process is that of its last writers.
func TestAWriteIsRememberedForTheTime_I21_I37(t *testing.T) {
	t.Parallel()
	const keep = 10 * time.Second
	for first := range 25 {
		for pause := range 25 {
			w, begin := writers{keep: keep}, time.Now()
			w.wrote("other", begin)
			at := begin.Add(time.Duration(first) * time.Second)
			w.wrote("ada", at)
			then := at.Add(time.Duration(pause) * time.Second)
			switch {
			case pause < 10:
				require.True(t, w.lately("ada", then), "%d s after the write", pause)
			case pause >= 20:
				require.False(t, w.lately("ada", then), "%d s after the write", pause)
				require.Empty(t, w.before)
				require.Empty(t, w.recent)
			}
			require.False(t, w.lately("bob", then))
		}
	}
}
