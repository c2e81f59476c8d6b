package recovery

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func playPromotion(w *PromotionWorld) *PromotionWorld {
	steps := []func(){
		w.Commit, w.Commit, w.Replicate, w.Replicate, w.Replicate, w.Tell, w.Tell, w.Deliver, w.Deliver, w.Bookmark,
		w.Notice, w.Notice, w.Ask, w.Ask, w.Learn, w.Learn, w.Delete, w.Delete,
	}
	rare := []func(){w.Promote, w.Promote, w.Compare, w.Degrade, w.Cancel, w.Crash, w.TellStill, w.Snapshot, w.Restart}
	for range 80 {
		if w.r.IntN(4) == 0 {
			rare[w.r.IntN(len(rare))]()
		} else {
			steps[w.r.IntN(len(steps))]()
		}
		if len(w.broken) > 0 {
			return w
		}
	}
	w.Rest()
	return w
}

// each calls do with each field of a struct of flags set alone.
func each[F any](t *testing.T, do func(t *testing.T, set F)) {
	t.Helper()
	of := reflect.TypeFor[F]()
	for i := range of.NumField() {
		t.Run(of.Field(i).Name, func(t *testing.T) {
			t.Parallel()
			var f F
			reflect.ValueOf(&f).Elem().Field(i).SetBool(true)
			do(t, f)
		})
	}
}

var everything = Hazards{true, true, true, true, true, true, true, true, true}

func hold(t *testing.T, e Evidence, h Hazards) map[string]int {
	t.Helper()
	count := map[string]int{}
	for seed := range uint64(schedules) {
		w := playPromotion(NewPromotion(seed, e, h))
		require.Empty(t, w.broken, "seed %d", seed)
		for what, n := range w.count {
			count[what] += n
		}
	}
	t.Log(count)
	require.Greater(t, min(count["promoted"], count["deleted"]), schedules)
	return count
}

// found requires that some schedule breaks a promise.
func found(t *testing.T, promise string, world func(seed uint64) *PromotionWorld) {
	t.Helper()
	for seed := range uint64(5 * schedules) {
		if w := playPromotion(world(seed)); len(w.broken) > 0 && strings.HasPrefix(w.broken[0], promise) {
			t.Logf("at schedule %d: %s", seed, w.broken[0])
			return
		}
	}
	t.Error("no schedule shows it")
}

// After each promotion all deployments compare: whatever was lost, nothing is deleted beside rows that rest
// on it. Kinds to which nobody refers need not wait for that.
func TestAComparisonAfterEachPromotion_I2_I13(t *testing.T) {
	t.Parallel()
	count := hold(t, KindsOfAnswers, everything)
	require.Zero(t, count["excused"])
	require.Greater(t, min(count["compared"], count["deleted before the comparisons"]), schedules/10)
}

func TestTheModelOfAnswersFindsMistakes_I2(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, m AnswerMistakes) {
		found(t, "I2", func(seed uint64) *PromotionWorld {
			w := NewPromotion(seed, KindsOfAnswers, everything)
			w.AnswerMistakes = m
			return w
		})
	})
}

// The numbers that watches have told, and synchronous replication, excuse nobody from the comparison: they
// show that nothing is lost only as long as PostgreSQL and its manager do nothing else than replicate to one
// standby and promote that one. Each hazard alone loses commits on which others rest, and the promoted server
// has all that these two show.
func TestMarksAndSynchronousReplicationDoNotShowThatNothingIsLost_I2(t *testing.T) {
	t.Parallel()
	t.Run("without a hazard", func(t *testing.T) {
		t.Parallel()
		require.Greater(t, hold(t, MarksUnderSynchronousReplication, Hazards{})["excused"], schedules)
	})
	each(t, func(t *testing.T, h Hazards) {
		found(t, "I2", func(seed uint64) *PromotionWorld {
			return NewPromotion(seed, MarksUnderSynchronousReplication, h)
		})
	})
}

// The place in the log that each message carries would show it, however PostgreSQL replicates.
func TestPositionsOfAllMessagesWouldShowThatNothingIsLost_I2_I13_I24(t *testing.T) {
	t.Parallel()
	count := hold(t, PositionsOfAllMessages, everything)
	require.Greater(t, min(count["excused"], count["compared"]), schedules/10)
}

func TestTheModelOfPositionsFindsMistakes_I2_I24(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, m PositionMistakes) {
		promise := "I2"
		if m.TheEpochStays { // nobody asks a client what it has seen
			promise = "I24"
		}
		found(t, promise, func(seed uint64) *PromotionWorld {
			w := NewPromotion(seed, PositionsOfAllMessages, everything)
			w.PositionMistakes = m
			return w
		})
	})
}
