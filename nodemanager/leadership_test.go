package nodemanager_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// leader is the number of the process that leads the deployment, and -1 for none.
func leader(members ...*member) int {
	synctest.Wait()
	for n, m := range members {
		if led := m.led(); len(led) > 0 && led[len(led)-1] {
			return n
		}
	}
	return -1
}

// The process that leads ends, and a process that is cut off from the registry takes the lead: other
// deployments could not reach the deployment until the registry is back. It leaves the lead to a process that
// can be registered, and all shards are worked on.
func TestTheLeadMovesToAProcessThatCanBeRegistered(t *testing.T) {
	inTable(t, func(t *testing.T, w *world) {
		first := w.begin(t)
		time.Sleep(ttl)
		cutOff := w.begin(t)
		cutOff.cutOff.Store(true)
		time.Sleep(2 * ttl)
		first.cancel()
		require.NoError(t, <-first.done)
		time.Sleep(2 * ttl / 5)
		require.Equal(t, 0, leader(cutOff), "it is alone")
		third := w.begin(t)
		time.Sleep(3 * ttl)
		require.Equal(t, 1, leader(cutOff, third))
		require.Equal(t, schema.RingSize, w.worked(t))
		moved := len(third.led())
		time.Sleep(30 * ttl)
		require.Len(t, third.led(), moved, "the lead stays there")

		third.cancel()
		require.NoError(t, <-third.done)
		time.Sleep(2 * ttl)
		require.Equal(t, 0, leader(cutOff), "nobody else is left")
		require.Equal(t, schema.RingSize, w.worked(t))
		cutOff.end(t)
	})
}

// If no process can be registered, the lead is left for a moment and rarely: the work of its shard goes on.
// With the registry back, no process leaves it.
func TestTheLeadIsRarelyLeftInVain_I20(t *testing.T) {
	inTable(t, func(t *testing.T, w *world) {
		first := w.begin(t)
		time.Sleep(ttl)
		second := w.begin(t)
		time.Sleep(2 * ttl)
		require.Equal(t, 0, leader(first, second))
		first.cutOff.Store(true)
		second.cutOff.Store(true)
		led, without := len(first.led()), 0
		const span = 40
		for range span * 5 {
			time.Sleep(ttl / 5)
			if leader(first, second) < 0 {
				without++
			}
		}
		require.Less(t, without, span*5/10)
		require.LessOrEqual(t, len(first.led())-led, 2*span/12+2)
		require.Equal(t, schema.RingSize, w.worked(t)+boolToInt(leader(first, second) < 0))
		first.cutOff.Store(false)
		second.cutOff.Store(false)
		time.Sleep(2 * ttl)
		led = len(first.led()) + len(second.led())
		time.Sleep(20 * ttl)
		require.Equal(t, led, len(first.led())+len(second.led()))
		require.Equal(t, schema.RingSize, w.worked(t))
		first.end(t)
		second.end(t)
	})
}

// A process alone keeps the lead, whether or not it can be registered.
func TestAProcessAloneKeepsTheLead(t *testing.T) {
	inTable(t, func(t *testing.T, w *world) {
		only := w.begin(t)
		only.cutOff.Store(true)
		time.Sleep(40 * ttl)
		require.Equal(t, 0, leader(only))
		require.Equal(t, []bool{true}, only.led())
		only.end(t)
	})
}

// A process that was cut off for moments leaves the lead only after it was cut off for the whole time at
// once.
func TestMomentsOfBeingCutOffAreNotAddedUp(t *testing.T) {
	inTable(t, func(t *testing.T, w *world) {
		first := w.begin(t)
		time.Sleep(ttl)
		second := w.begin(t)
		time.Sleep(2 * ttl)
		for range 6 {
			first.cutOff.Store(true)
			time.Sleep(3 * ttl / 5)
			require.Equal(t, 0, leader(first, second))
			first.cutOff.Store(false)
			time.Sleep(2 * ttl / 5)
			require.Equal(t, 0, leader(first, second))
		}
		first.end(t)
		second.end(t)
	})
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
