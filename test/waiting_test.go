package test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// prompt is far below the five seconds between two bookmarks of an idle watch, and above what a busy machine makes of some
// milliseconds.
const prompt = 1500 * time.Millisecond

// promptly plays something that takes one moment where nothing is waited for. A busy machine may need another try; what waits for
// a bookmark, a tick or a back-off is late each time.
func (f *fixture) promptly(what string, play func(try int) time.Duration) {
	f.t.Helper()
	var took []time.Duration
	for try := range 4 {
		if took = append(took, play(try)); took[try] < prompt {
			return
		}
	}
	require.Fail(f.t, what+" waits for something", "%v", took)
}

// holders tells how many of a target's are left: none, or some.
func (f *fixture) holders(target string) int {
	f.t.Helper()
	_, resources := f.named(bWest + "holders/x")
	list, err := resources.ListResources(f.t.Context(), &resourcev1.ListResourcesRequest{
		Kind: "Holder", Filter: fmt.Sprintf(`name = "holders/%s-*"`, target), PageSize: 1,
	})
	require.NoError(f.t, err)
	return len(list.GetResources())
}

// A deletion between deployments that are idle otherwise is acknowledged, and its target removed, when the last holder is gone,
// whatever their number: nothing waits for the next word of an idle watch.
func TestADeletionAmongIdleDeploymentsWaitsForNothing_I13(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, n := range []int{1, 200, 201, 300, 1000, 3000} {
		f.promptly(fmt.Sprint("a deletion with ", n, " holders"), func(try int) time.Duration {
			target := fmt.Sprintf("idle%dx%d", n, try)
			f.mustPut(aWest+"targets/"+target, nil)
			require.NoError(t, f.Client.PutMany(t.Context(), f.id(bWest+"x/y"), "holders/"+target+"-", n, fields{"cascade": aWest + "targets/" + target}))
			f.settled()
			f.mustDelete(aWest + "targets/" + target)
			f.eventually("the holders are gone", func() bool { return f.holders(target) == 0 })
			began := time.Now()
			f.gone(aWest + "targets/" + target)
			return time.Since(began)
		})
	}
}
