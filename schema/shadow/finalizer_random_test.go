package shadow_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
)

// cleanUps is a model of the finalizers of the targets: the remaining ones of each incarnation in DELETING.
type cleanUps map[uuid.UUID][]string

func (c cleanUps) copied() cleanUps {
	out := cleanUps{}
	for uid, left := range c {
		out[uid] = slices.Clone(left)
	}
	return out
}

// Resources are created, deleted and cleaned up after at random, by name and late, in a database that is
// restored now and then: each incarnation stays in DELETING exactly as long as one of its finalizers is left.
// Without restores the resources have holders in another deployment, whose acknowledgements are further
// reasons to look at them.
func TestFinalizersInRandomSteps_I33(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			playFinalizers(t, rand.New(rand.NewPCG(seed, 33)), seed == 0)
		})
	}
}

func playFinalizers(t *testing.T, rnd *rand.Rand, restores bool) {
	t.Helper()
	b, ctx := harness.NewBox(t, finalized, nil, aWest, bEast), context.Background()
	west := b.Stores[b.ID(aWest)]
	left, seen := cleanUps{}, map[uuid.UUID]string{}
	var restore func()
	var then cleanUps
	for step := range 60 {
		name := fmt.Sprint("targets/t", rnd.IntN(3))
		full := "//" + aWest + "/" + name
		switch rnd.IntN(5) {
		case 0:
			if r, err := b.Put(full, body{"n": step}); err == nil {
				seen[r.UID] = name
			}
			if !restores {
				_, _ = b.Put(fmt.Sprint("//", bEast, "/holders/h", step), body{"cascade": full})
			}
		case 1:
			if r := b.Get(full); r != nil && r.State == peer.Active {
				b.MustDelete(full)
				left[r.UID] = []string{"badge", "calendar"}
			}
		case 2, 3: // for any incarnation, also a gone one or one of another name
			uids := slices.SortedFunc(maps.Keys(seen), func(x, y uuid.UUID) int { return slices.Compare(x[:], y[:]) })
			if len(uids) == 0 {
				continue
			}
			uid, finalizer := uids[rnd.IntN(len(uids))], []string{"badge", "calendar", "other"}[rnd.IntN(3)]
			if _, err := west.Write.RemoveFinalizer(ctx, seen[uid], uid, finalizer); err == nil {
				left[uid] = slices.DeleteFunc(left[uid], func(f string) bool { return f == finalizer })
			}
		case 4:
			switch {
			case !restores:
			case restore == nil && step > 10:
				b.Settle()
				restore, then = b.Backup(aWest), left.copied()
			case restore != nil && step > 30 && then != nil:
				restore()
				b.Recover(aWest)
				left, then = then, nil
			}
		}
		b.Settle()
		if h := b.Get(fmt.Sprint("//", bEast, "/holders/h", rnd.IntN(step+1))); h != nil && h.State == peer.Deleting {
			clean(t, b, "//"+bEast+"/"+h.Name, h.UID, "badge")
		}
		for i := range 3 {
			r := b.Get(fmt.Sprint("//", aWest, "/targets/t", i))
			if r != nil && r.State == peer.Deleting {
				require.Equal(t, left[r.UID], r.Finalizers, "step %d", step)
			}
		}
		for uid, finalizers := range left {
			if len(finalizers) > 0 {
				r := b.Get("//" + aWest + "/" + seen[uid])
				require.True(t, r != nil && r.UID == uid, "step %d: %s waits for %v", step, seen[uid], finalizers)
			}
		}
	}
	for uid, finalizers := range left {
		clean(t, b, "//"+aWest+"/"+seen[uid], uid, finalizers...)
	}
	b.Settle()
	require.Zero(t, b.Count(aWest, "deleting"))
	b.Audit()
}
