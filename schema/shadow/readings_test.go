package shadow_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
)

// Writes read the version that runs before they establish references elsewhere. Writes that ask while a
// reading is under way share it.
func TestWritesShareTheReadingOfTheVersion(t *testing.T) {
	t.Parallel()
	const writes = 40
	b, c := countedPair(t)
	east := b.ID(bEast)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	<-time.After(150 * time.Millisecond) // the last reading stands for others for a tenth of a second
	c.reset(t, "before")
	block, err := b.Pools[east].Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = block.Rollback(t.Context()) }()
	_, err = block.Exec(t.Context(), `LOCK TABLE dbcontroller.meta IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	var all sync.WaitGroup
	errs := make([]error, writes)
	for i := range writes {
		all.Go(func() {
			_, errs[i] = b.Stores[east].Write.Save(t.Context(),
				[]peer.Write{{Name: fmt.Sprintf("holders/read%d", i), Body: body{"cascade": target}}})
		})
	}
	stopped(t, b, bEast, 1)
	require.NoError(t, block.Rollback(t.Context()))
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	readings := 0
	for _, sent := range c.sent {
		if len(sent) == 1 && strings.HasPrefix(sent[0], "SELECT m.version, m.generation, m.digest, ") {
			readings++
		}
	}
	require.Positive(t, readings)
	require.LessOrEqual(t, readings, 2, "%d writes", writes)
}
