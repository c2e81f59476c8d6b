package test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// prompt is far below the five seconds between two bookmarks of an idle watch, and enough for a few
// milliseconds of work on a busy machine.
const prompt = 1500 * time.Millisecond

// promptly runs a step that takes a moment unless it waits for a timer: play returns its time, and the time
// of the step before, which takes longer the busier the machine is. A step that waits for a bookmark, a tick
// or a back-off is late in each try.
func (f *fixture) promptly(what string, play func(try int) (step, before time.Duration)) {
	f.t.Helper()
	var took []time.Duration
	for try := range 4 {
		step, before := play(try)
		if took = append(took, step, before); step < max(prompt, 3*before) {
			return
		}
	}
	require.Fail(f.t, what+" waits for something", "%v", took)
}

// holders returns 1 while some of a target's holders are left, then 0.
func (f *fixture) holders(target string) int {
	f.t.Helper()
	_, resources := f.named(bWest + "holders/x")
	list, err := resources.ListResources(f.t.Context(), &resourcev1.ListResourcesRequest{
		Kind: "Holder", Filter: fmt.Sprintf(`name = "holders/%s-*"`, target), PageSize: 1,
	})
	require.NoError(f.t, err)
	return len(list.GetResources())
}

// A deletion between idle deployments is acknowledged, and its target removed, when the last of any number of
// holders is gone: nothing waits for the next bookmark of an idle watch.
func TestADeletionAmongIdleDeploymentsWaitsForNoTimer_I13(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, n := range []int{1, 200, 201, 300, 1000, 3000} {
		f.promptly(fmt.Sprint("a deletion with ", n, " holders"), func(try int) (step, before time.Duration) {
			target := fmt.Sprintf("idle%dx%d", n, try)
			f.mustPut(aWest+"targets/"+target, nil)
			require.NoError(t, dev.PutMany(t.Context(), f.Client, f.id(bWest+"x/y"), "holders/"+target+"-", n,
				fields{"cascade": aWest + "targets/" + target}))
			f.settled()
			began := time.Now()
			f.mustDelete(aWest + "targets/" + target)
			f.eventually("the holders are gone", func() bool { return f.holders(target) == 0 })
			gone := time.Now()
			f.gone(aWest + "targets/" + target)
			return time.Since(gone), gone.Sub(began)
		})
	}
}
