package feed

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAPaceIsAtOnceAfterAPauseAndThenOnceInItsInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		p := NewPace(100*time.Millisecond, func() { at = append(at, time.Since(began)) })
		for range 25 { // until 240 ms
			p.Ring()
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		p.Ring()
		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 100 * ms, 200 * ms, 300 * ms, 1250 * ms}, at)
	})
}

// A write before a Ring is read by a call that begins after it.
func TestNoRingIsForgotten(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			var written atomic.Int64 // timers call beside the writes
			var read int64
			var calls int
			p := NewPace(100*time.Millisecond, func() { calls++; read = written.Load() })
			began := time.Now()
			for range 100 {
				if written.Add(1); r.IntN(3) > 0 {
					p.Ring()
				}
				time.Sleep(time.Duration(r.IntN(120)) * time.Millisecond)
				synctest.Wait()
			}
			p.Ring()
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			require.Equal(t, written.Load(), read)
			require.LessOrEqual(t, calls, 2+int(time.Since(began)/(100*time.Millisecond)))
		})
	}
}
