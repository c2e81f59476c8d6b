package shadow_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// acting verifies a deployment with the decision that dangling references act. Each difference is passed to
// report.
func acting(t *testing.T, b *harness.Box, deployment string,
	report func(shadow.Difference) error,
) (shadow.Verified, error) {
	t.Helper()
	return b.Stores[b.ID(deployment)].Verify.Verify(t.Context(), shadow.Verification{
		Repair: true, Settle: 1, Report: report, Dangling: &shadow.Decision{
			Reason: "the standby lagged",
			By:     "operator/ann",
		},
	})
}

func inEast(format string, args ...any) string {
	return "//" + bEast + "/holders/" + fmt.Sprintf(format, args...)
}

// putAll writes holders in batches.
func putAll(t *testing.T, b *harness.Box, n int, name, field string, to func(int) string) {
	t.Helper()
	var writes []peer.Write
	for i := range n {
		writes = append(writes, peer.Write{
			Name: fmt.Sprintf("holders/%s%d", name, i),
			Body: body{"kept": i, field: to(i)},
		})
	}
	for len(writes) > 0 {
		page := writes[:min(len(writes), 1000)]
		_, err := b.Stores[b.ID(bEast)].Write.Save(t.Context(), page)
		require.NoError(t, err)
		writes = writes[len(page):]
	}
}

// A lagging standby was promoted: thousands of references have lost their targets. One decision of an
// operator acts upon them as their descriptor says; it is interrupted in the middle, and goes on when it is
// made again.
func TestOneDecisionActsUponThousandsOfDanglingReferences_I1_I19(t *testing.T) {
	t.Parallel()
	const cascades, unsets, blocks = 1600, 500, 12
	b := harness.NewBox(t, services, nil, aWest, bEast)
	b.MustPut(target2, nil)
	b.MustPut(inEast("other"), body{"block": target2})
	b.Settle()
	promote := b.Backup(aWest)
	lost := func(i int) string { return targetName(fmt.Sprintf("lost%d", i%7)) }
	for i := range 7 {
		b.MustPut(lost(i), nil)
	}
	putAll(t, b, cascades, "c", "cascade", lost)
	putAll(t, b, unsets, "u", "unset", lost)
	putAll(t, b, blocks, "b", "block", lost)
	b.MustPut(inEast("child"), body{"near": body{"cascade": inEast("c0")}})
	b.MustPut(inEast("keeper"), body{"near": body{"block": inEast("c1")}})
	b.Settle()
	promote()
	b.Recover(aWest)
	b.Settle()
	require.Equal(t, cascades+unsets+blocks, b.Count(bEast, "dangling"))

	crash, seen := errors.New("the process ends"), 0
	_, err := acting(t, b, bEast, func(shadow.Difference) error {
		if seen++; seen > 500 {
			return crash
		}
		return nil
	})
	require.ErrorIs(t, err, crash)
	left := b.Count(bEast, "dangling")
	require.Positive(t, left-blocks, "it was interrupted in the middle")
	require.Less(t, left, cascades+unsets)

	kinds := map[string]int{}
	done, err := acting(t, b, bEast, func(d shadow.Difference) error {
		kinds[fmt.Sprintf("%s %s %t", d.Kind, d.Behaviour, d.ActedUpon)]++
		require.NoError(t, d.Err)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, int64(left-blocks), done.ActedUpon)
	require.Equal(t, blocks, kinds["TARGET_GONE BLOCK false"], "a person decides about holders that block: %v", kinds)
	require.Equal(t, blocks, b.Count(bEast, "dangling"))
	b.Settle()
	b.Gone(inEast("c0"), inEast("c%d", cascades-1), inEast("child"))
	require.Equal(t, peer.Deleting, b.Get(inEast("c1")).State, "as with any cascade, another holder blocks it")
	require.JSONEq(t, `{"kept": 7}`, string(b.Get(inEast("u7")).Body))
	require.Contains(t, string(b.Get(inEast("b3")).Body), "block")
	require.Contains(t, string(b.Get(inEast("other")).Body), "block", "its target exists")
	require.Equal(t, 1+1+1+unsets+blocks, b.Count(bEast, "shadow"),
		"other, keeper, c1 and those that were unset or left")

	words, err := b.Stores[b.ID(bEast)].Operate.OperatorDecisions(t.Context())
	require.NoError(t, err)
	require.Len(t, words, 2, "one for each run")
	require.Equal(t, "DANGLING_ACTED the standby lagged operator/ann", words[0].What+" "+words[0].Reason+" "+
		words[0].By)
	require.Equal(t, b.ID(aWest), words[0].Deployment)
	removed, _, err := b.Stores[b.ID(bEast)].Operate.Removals(t.Context(), shadow.RemovalQuery{Name: "holders/child"},
		"", 1)
	require.NoError(t, err)
	require.Equal(t, "//"+aWest, removed[0].Cause.Root)
	require.Equal(t, "operator/ann", removed[0].Cause.Actor)

	for _, how := range []shadow.Verification{
		{Repair: true, Dangling: &shadow.Decision{By: "operator/ann"}},
		{Dangling: &shadow.Decision{Reason: "lost", By: "operator/ann"}},
	} {
		_, err := b.Stores[b.ID(bEast)].Verify.Verify(t.Context(), how)
		require.ErrorAs(t, err, new(*peer.InvalidError), "a repair, with a reason")
	}
	again, err := acting(t, b, bEast, nil)
	require.NoError(t, err)
	require.Zero(t, again.ActedUpon)
	require.Equal(t, int64(blocks), again.Differences)
	b.Audit()
}

// actingBeside makes the decision in a process that stops between the answer that targets are gone and the
// transaction that acts, and runs meanwhile then. It returns the number of references that were acted upon,
// and the errors of the others.
func actingBeside(t *testing.T, b *harness.Box, meanwhile func()) (acted int64, why []string) {
	t.Helper()
	g := newGate("SELECT id, uid, kind_id, name FROM dbcontroller.foreign_target")
	store := gatedProcess(t, b, bEast, g, b.Stores[b.ID(bEast)].Model())
	g.arm(0)
	done := make(chan error)
	go func() {
		out, err := store.Verify.Verify(t.Context(), shadow.Verification{
			Repair: true, Settle: 1, Dangling: &shadow.Decision{Reason: "the standby lagged", By: "operator/ann"},
			Report: func(d shadow.Difference) error {
				if d.Err != nil {
					why = append(why, d.Err.Error())
				}
				return nil
			},
		})
		acted = out.ActedUpon
		done <- err
	}()
	<-g.reached
	meanwhile()
	close(g.open)
	require.NoError(t, <-done)
	return acted, why
}

const ended = "one of the two databases failed over or was restored meanwhile, or the deployment was decommissioned"

// Before the transaction that acts begins, users change references, or this database begins an epoch.
func TestADanglingReferenceThatChangesMeanwhileIsNotActedUpon_I11(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, services, nil, aWest, bEast)
	b.MustPut(target2, nil)
	lagging := b.Backup(aWest)
	b.MustPut(target, nil)
	for _, name := range []string{"moved", "blocks", "deleted", "left"} {
		b.MustPut(inEast("%s", name), body{"cascade": target})
	}
	b.MustPut(inEast("late"), body{"unset": target})
	b.Settle()
	lagging()
	b.Recover(aWest)
	b.Settle()
	require.Equal(t, 5, b.Count(bEast, "dangling"))
	acted, why := actingBeside(t, b, func() { b.Renew(bEast) })
	require.Zero(t, acted)
	require.Equal(t, []string{ended, ended, ended, ended, ended}, why)
	b.Settle()
	acted, why = actingBeside(t, b, func() {
		b.MustPut(inEast("moved"), body{"cascade": target2})
		b.MustPut(inEast("blocks"), body{"block": target2})
		b.MustDelete(inEast("deleted"))
	})
	require.Equal(t, int64(2), acted)
	require.Len(t, why, 3)
	b.Settle()
	b.Gone(inEast("left"), inEast("deleted"))
	require.NotNil(t, b.Get(inEast("moved")))
	require.NotNil(t, b.Get(inEast("blocks")))
	b.Audit()
}

// A better backup of the targets' database is restored, in which the target exists: its reference is not
// acted upon, whether or not it is established again when the transaction begins.
func TestADanglingReferenceWhoseTargetComesBackIsNotActedUpon_I2(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(*harness.Box){
		"established again": (*harness.Box).Settle, "announced": func(b *harness.Box) { announced(t, b, aWest) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := harness.NewBox(t, services, nil, aWest, bEast)
			lagging := b.Backup(aWest)
			b.MustPut(target, nil)
			better := b.Backup(aWest)
			b.MustPut(holder, body{"cascade": target})
			b.Settle()
			lagging()
			b.Recover(aWest)
			b.Settle()
			require.Equal(t, 1, b.Count(bEast, "dangling"))
			acted, why := actingBeside(t, b, func() { better(); b.Recover(aWest); then(b) })
			require.Zero(t, acted)
			require.Equal(t, []string{ended}, why)
			b.Settle()
			require.Zero(t, b.Count(bEast, "dangling"))
			b.Audit()
			b.MustDelete(target)
			b.Settle()
			b.Gone(holder)
		})
	}
}

// A reference whose new form cannot be established, since its target is gone, keeps its stored behaviour in
// another version, and acts by it.
func TestADanglingReferenceActsAsItIsStored_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	blocks, unsets := inEast("blocks"), inEast("unsets")
	lagging := b.Backup(aWest)
	b.MustPut(targetName("t"), nil)
	b.MustPut(blocks, body{"turns": body{"unset": targetName("t")}}) // UNSET in v2
	b.MustPut(unsets, body{"turns": body{"block": targetName("t")}}) // BLOCK in v2
	b.Settle()
	lagging()
	b.Recover(aWest)
	b.Settle()
	b.AfterCheckReferences = func([]peer.Known) {
		b.AfterCheckReferences = nil
		b.Switch(bEast, "v2")
		b.Settle()
	}
	done, err := acting(t, b, bEast, nil)
	require.NoError(t, err)
	require.Equal(t, int64(1), done.ActedUpon)
	require.JSONEq(t, `{"turns": {}}`, string(b.Get(unsets).Body))
	require.Contains(t, string(b.Get(blocks).Body), "unset")
	b.Settle()
	b.MustPut(blocks, body{})
	b.Settle()
	require.Zero(t, b.Count(bEast, "work"), "all is derived")
	require.Zero(t, b.Count(bEast, "dangling"))
	b.Audit()
}
