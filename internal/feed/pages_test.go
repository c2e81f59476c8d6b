package feed

import (
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Callers who share tails are not charged for the pages that the tails keep for all of them. However many
// callers act together, and tails they have, these pages are bounded.
func TestPagesThatCallersShareAreBounded_I20(t *testing.T) {
	t.Parallel()
	var kept atomic.Int64
	tails := make([]pages[int], 50)
	most := int64(0)
	for i := range 40 {
		for at := range tails {
			ps := &tails[at]
			k := ps.add(&kept, strconv.Itoa(i), "newest", 0)
			k.page.bytes = 1 << 20
			ps.count(&kept, k, nil)
			require.LessOrEqual(t, kept.Load(), int64(maxKeptBytes))
			most = max(most, kept.Load())
		}
	}
	require.Equal(t, int64(maxKeptBytes), most)
	for at := range tails {
		tails[at].forget(&kept, "")
	}
	require.Zero(t, kept.Load(), "what is forgotten is free again")
}
