package campaign

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/wait"
)

// During random operations a standby without the last commits is promoted. Acknowledged operations of the
// lost commits are void; but once all deployments have compared, verify reports every dangling reference.
// After a person has resolved the blocking references, and one decision acts upon the others, the state
// equals the state in which native keys have deleted the lost targets.
func TestACampaignWithAFailoverThatLosesCommits_I1_I8(t *testing.T) {
	if testing.Short() {
		t.Skip("starts seven processes")
	}
	first, n := number(t, "DBCONTROLLER_CAMPAIGN_FIRST", "1"), number(t, "DBCONTROLLER_CAMPAIGN_SEEDS", "2")
	for seed := first; seed <= first+n/20; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { failover(t, seed) })
	}
}

// beforeStatement returns while the process of a site waits before its n-th statement from now on, in a
// transaction or between two. The statements before have seen a database that may be replaced when the
// process goes on. It goes on without its connection when the returned function is called.
func (s *site) beforeStatement(ctx context.Context, n int) (goOn func()) {
	var left atomic.Int64
	left.Store(int64(n))
	reached, swapped := make(chan struct{}), make(chan struct{})
	s.db.SetBetween(func() (end bool) {
		if left.Add(-1) != 0 {
			return false
		}
		close(reached)
		<-swapped
		return true
	})
	select {
	case <-reached:
	case <-ctx.Done():
	}
	s.db.SetBetween(nil)
	return func() { close(swapped) }
}

func failover(t *testing.T, seed uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), playLimit)
	defer cancel()
	c := NewCoverage()
	w := NewWorld(t, os.Getenv("DBCONTROLLER_CAMPAIGN_BINARY"), true)
	w.calm = true
	p := NewPlayer(t, w, c, rand.New(rand.NewPCG(seed, 5)), full, 2)
	site := w.sites[deployments[0]]
	p.Populate(ctx)
	p.Rest(ctx)

	w.cluster.Stop()
	standby := w.cluster.Copy()
	w.cluster.Start()
	moved := func() {
		site.db.Move(w.cluster.Address())
		site.side.Move(w.cluster.Address())
		site.admin.Reset()
		w.ready(ctx)
	}
	moved()
	for range 60 {
		p.Step(ctx)
	}
	lost, most := p.family(ctx)
	goOn := site.beforeStatement(ctx, 1+rand.New(rand.NewPCG(seed, 6)).IntN(150))
	w.cluster.Crash()
	w.cluster = standby
	standby.StartPromoted()
	site.db.Move(w.cluster.Address())
	goOn()
	moved()
	require.Eventually(t, func() bool {
		s, err := w.status(ctx, site.id)
		e := s.GetEpoch()
		return err == nil && e.GetOrdinal() > 1 && !e.GetAwaitingRegistry() && len(e.GetUnconfirmed()) == 0
	}, wait.Limit, 50*time.Millisecond, "everybody confirms")
	p.Quiet(ctx, true)

	// The remedies of verify: holders of references that block drop them, and one decision acts upon the
	// others.
	told, dangling := map[string][]string{}, p.verify(ctx)
	system := p.list(ctx)
	gone, acts := actable(dangling, system)
	require.True(t, gone[lost])
	for _, d := range dangling {
		require.Contains(t, []string{"TARGET_GONE", "TARGET_DELETING"}, d.GetKind(), "%v", d)
		if !acts(d) {
			told[d.GetHolder()] = append(told[d.GetHolder()], d.GetTarget())
		}
	}
	for holder, targets := range told {
		if system[holder] == nil {
			continue
		}
		content := read(system[holder])
		for _, target := range content.targets() {
			if system[target] == nil || gone[target] || slices.Contains(targets, target) {
				content = content.without(target, func(string) bool { return true })
			}
		}
		content.Owners = nil
		p.overwrite(ctx, holder, content)
	}
	p.Quiet(ctx, true)
	p.adopt(ctx, gone)
	acted := p.act(ctx, gone)
	require.GreaterOrEqual(t, acted, most)
	t.Logf("%d dangling references, all reported; %d acted upon", len(dangling), acted)
	p.Rest(ctx)
	for range 40 { // every decision equals the decision of native keys again
		p.Step(ctx)
	}
	p.Rest(ctx)
	p.Still(ctx)
}
