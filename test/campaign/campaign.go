package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// Plan is the extent of a campaign.
type Plan struct {
	Seed uint64
	// Binary is the program; empty: the program of this source.
	Binary string
	// Rounds of Steps operations under faults; after each, all faults are repaired, and the system is
	// settled, drained and compared.
	Rounds, Steps int
	// HotCalls are the calls of each client on shared targets.
	HotCalls int
	// Calm: no faults.
	Calm bool
}

// Play plays one campaign, and fails the test when the system differs from the oracle.
func Play(t testing.TB, plan Plan, c *Coverage) {
	t.Helper()
	began := time.Now()
	r := rand.New(rand.NewPCG(plan.Seed, 20260101))
	l, each := full, 2
	if plan.Seed%3 == 0 {
		l = exact
	}
	w := NewWorld(t, plan.Binary, plan.Seed%2 == 1)
	w.calm = plan.Calm
	ctx, cancel := context.WithTimeout(t.Context(), playLimit)
	defer cancel()
	p := NewPlayer(t, w, c, r, l, each)
	var watchers []*Watcher
	watching, stop := context.WithCancel(ctx)
	defer stop()
	for _, id := range deployments {
		watcher, ended := Watch(watching, w, id, c, p.cleaner)
		watchers = append(watchers, watcher)
		defer func() { stop(); <-ended }()
	}
	nemesis := NewNemesis(t, w, c, rand.New(rand.NewPCG(plan.Seed, 1)), p.note)
	under := func(do func()) {
		var wg sync.WaitGroup
		breaking, mend := context.WithCancel(ctx)
		defer func() { mend(); wg.Wait() }() // also when the campaign has failed
		if !plan.Calm {
			wg.Go(func() { nemesis.Run(breaking) })
		}
		do()
		mend()
		wg.Wait()
		w.ready(ctx)
	}
	p.Populate(ctx)
	for range plan.Rounds {
		under(func() {
			for range plan.Steps {
				p.Step(ctx)
			}
			if !plan.Calm {
				p.blockLate(ctx)
				p.refuse(ctx)
				p.loseCommit(ctx)
				p.referInTheDark(ctx)
				p.recall(ctx)
				for range 2 {
					p.answerLate(ctx)
				}
			}
		})
		p.Rest(ctx)
		w.calm = true
		for range 4 { // at rest every decision has to equal the decision of native keys
			p.Step(ctx)
		}
		p.recall(ctx)
		p.blockLate(ctx)
		w.calm = plan.Calm
	}
	p.Rest(ctx)
	if plan.HotCalls > 0 {
		under(func() { Hot(ctx, t, w, c, r, plan.HotCalls) })
		p.Quiet(ctx, false)
		p.Audit(ctx)
	}
	p.Still(ctx)
	listed := p.list(ctx)
	for _, watcher := range watchers {
		if wrong := watcher.Check(listed); len(wrong) > 0 {
			p.wrong("%v", wrong)
		}
	}
	c.add("campaigns", 1)
	for _, line := range w.said("request failed") {
		t.Log(line)
	}
	t.Logf("seed %d played in %s", plan.Seed, time.Since(began).Round(100*time.Millisecond))
}

// playLimit ends a play that hangs: it is hundreds of waits, one after the other.
const playLimit = 8 * wait.Limit

// ready waits until every process is ready, and no delayed message is in flight: a message that arrives after
// everything has settled would rightly create a tentative blockade.
func (w *World) ready(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	for _, s := range w.sites {
		require.NoError(w.t, s.WaitReady(ctx))
		require.NoError(w.t, s.calls.Landed(ctx))
	}
}

// Rest lets everything settle, removes all blockers, and compares everything.
func (p *Player) Rest(ctx context.Context) {
	p.t.Helper()
	p.note("rest")
	p.Drain(ctx)
	p.Quiet(ctx, false)
	p.Compare(ctx)
	p.Audit(ctx)
}

// Audit reads all databases itself (I1, I8, I17), and calls verify.
func (p *Player) Audit(ctx context.Context) {
	p.t.Helper()
	if problems := harness.AuditDatabases(p.t, p.w.pools()); len(problems) > 0 {
		p.wrong("%v", problems)
	}
	for _, d := range p.verify(ctx) {
		p.wrong("verify finds a difference: %v", d)
	}
}

// verify lets all deployments compare themselves with one another, and returns the differences.
func (p *Player) verify(ctx context.Context) (all []*adminv1.VerifyResponse_Difference) {
	p.t.Helper()
	for _, id := range deployments {
		all = append(all, p.insistVerified(ctx, id, &adminv1.VerifyRequest{})...)
	}
	return all
}

// insistVerified repeats verify until it could ask every deployment: broken connections are opened again
// within seconds. It returns the findings and repairs of the first one as well.
func (p *Player) insistVerified(ctx context.Context, id schema.DeploymentID,
	req *adminv1.VerifyRequest,
) (all []*adminv1.VerifyResponse_Difference) {
	p.t.Helper()
	began := time.Now()
	found, unreachable := p.verifyAt(ctx, id, req)
	for ; len(unreachable) > 0; found, unreachable = p.verifyAt(ctx, id, req) {
		if time.Since(began) > quietBound {
			p.wrong("verify at %s could not ask %v for %s (I28)", id, unreachable, quietBound)
		}
		for _, d := range found {
			if d.GetRepaired() || d.GetActedUpon() {
				all = append(all, d)
			}
		}
		<-time.After(200 * time.Millisecond)
	}
	return append(all, found...)
}

func (p *Player) verifyAt(ctx context.Context, id schema.DeploymentID,
	req *adminv1.VerifyRequest,
) (found []*adminv1.VerifyResponse_Difference, unreachable []string) {
	p.t.Helper()
	admin, err := p.w.Client.Admin(ctx, id)
	require.NoError(p.t, err)
	p.insist(func() error {
		found, unreachable = nil, nil
		stream, err := admin.Verify(ctx, req)
		for done := false; err == nil; {
			var answer *adminv1.VerifyResponse
			if answer, err = stream.Recv(); errors.Is(err, io.EOF) {
				require.True(p.t, done, "verify at %s did not end", id)
				return nil
			}
			if progress := answer.GetProgress(); progress.GetDone() {
				done, unreachable = true, progress.GetUnreachable()
			}
			if d := answer.GetDifference(); d != nil {
				found = append(found, d)
			}
		}
		return err
	})
	return found, unreachable
}

const stillSQL = `
SELECT (SELECT last_value FROM dbcontroller.work_seq_seq), (SELECT last_value FROM dbcontroller.change_seq_seq), (SELECT last_value FROM dbcontroller.notice_seq_seq)`

// marks returns numbers that grow with every write.
func (p *Player) marks(ctx context.Context) (all string) {
	for _, id := range deployments {
		var work, change, notice int64
		require.NoError(p.t, p.w.sites[id].admin.QueryRow(ctx, stillSQL).Scan(&work, &change, &notice))
		all += fmt.Sprintf("%s: work %d, changes %d, notices %d\n", id, work, change, notice)
	}
	return all
}

// unusedSQL counts the targets that nothing here refers to: they are removed within seconds, and the entries
// that their deployments have go with them.
const unusedSQL = `
SELECT count(*) FROM dbcontroller.foreign_target f WHERE f.block_attempt IS NULL AND NOT EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = f.id)`

// Still fails if anything but heartbeats is written (I28), after unused targets are removed.
func (p *Player) Still(ctx context.Context) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		unused := int64(0)
		for _, id := range deployments {
			var n int64
			require.NoError(p.t, p.w.sites[id].admin.QueryRow(ctx, unusedSQL).Scan(&n))
			unused += n
		}
		return unused == 0
	}, wait.Limit, wait.Poll, "unused targets are removed")
	p.Quiet(ctx, true)
	before := p.marks(ctx)
	select {
	case <-ctx.Done():
	case <-time.After(1500 * time.Millisecond):
	}
	if after := p.marks(ctx); after != before {
		p.wrong("writes at rest (I28):\nbefore:\n%safter:\n%s", before, after)
	}
	p.c.add("nothing written at rest", 1)
}
