package shadow_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// blocking returns deployments of which one asks for the right to block from the second reference on.
func blocking(t *testing.T) *harness.Box {
	t.Helper()
	return newPair(t, withBlockRights)
}

func withBlockRights(cfg *shadow.Config) { cfg.Delegations, cfg.Limits.BlockRightFrom = true, 2 }

// blockRights is the number of rights to block that count, and of proxies.
func blockRights(t *testing.T, b *harness.Box, deployment string) (rights, proxies int) {
	t.Helper()
	require.NoError(t, b.Pools[b.ID(deployment)].QueryRow(t.Context(),
		`SELECT count(*) FILTER (WHERE block_epoch IS NOT NULL), count(*) FROM dbcontroller.foreign_target WHERE block_attempt IS NOT NULL`).Scan(&rights, &proxies))
	return rights, proxies
}

// acquired writes two blocking references by asking, which give the right, and one under it.
func acquired(t *testing.T, b *harness.Box) uuid.UUID {
	t.Helper()
	uid := b.MustPut(target, nil).UID
	b.MustPut(holderNumber(0), body{"block": target})
	b.MustPut(holderNumber(1), body{"block": target})
	b.Settle()
	rights, _ := blockRights(t, b, bEast)
	require.Equal(t, 1, rights)
	unasked(t, b, holderNumber(2), body{"block": target})
	require.Empty(t, b.Work(b.ID(bEast)), "nothing is owed")
	return uid
}

// idleRight gives the right, with nothing written under it.
func idleRight(t *testing.T, b *harness.Box) {
	t.Helper()
	if b.Get(target) == nil {
		b.MustPut(target, nil)
	}
	b.MustPut(holderNumber(0), body{"dangling": target})
	b.Settle()
	var id int64
	require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(), `SELECT id FROM dbcontroller.foreign_target`).Scan(
		&id))
	require.NoError(t, b.Stores[b.ID(bEast)].Rights.Acquire(t.Context(), b.ID(aWest), []int64{id}))
	b.Settle()
	rights, _ := blockRights(t, b, bEast)
	require.Equal(t, 1, rights)
	b.Audit()
}

// While the right lasts, blocking references are written with the target's deployment away, and keep the
// target.
func TestBlockingWritesUnderARightNeedNobody_I3_I30_I32(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	acquired(t, b)
	b.SetDown(aWest, true)
	for n := 3; n < 6; n++ {
		unasked(t, b, holderNumber(n), body{"block": target})
	}
	_, err := b.Put(holderNumber(9), body{"unset": target})
	require.Error(t, err, "the right to block does not include the other one")
	b.SetDown(aWest, false)
	b.Settle()
	b.Audit()
	require.Equal(t, 3, b.Count(aWest, "blockade"), "two of references, and that of the proxy")
	b.MustPut(holderNumber(0), nil)
	b.MustPut(holderNumber(1), nil)
	b.Settle()
	_, err = b.Delete(target)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.Equal(t, 4, blocked.Total, "those under the right are named")
	rights, _ := blockRights(t, b, bEast)
	require.Equal(t, 1, rights, "a delete that is refused takes nothing away")
	for n := 2; n < 6; n++ {
		b.MustDelete(holderNumber(n))
	}
	b.Settle()
	b.Audit()
	b.MustDelete(target)
	b.Settle()
	b.Gone(target)
	b.Audit()
	rights, proxies := blockRights(t, b, bEast)
	require.Zero(t, rights+proxies)
}

// Unknown is not absent: while the holders' deployment is away, its right keeps the target, and the answer
// names it.
func TestARightKeepsItsTargetWhileItsDeploymentIsAway_I5_I13(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	idleRight(t, b)
	b.SetDown(bEast, true)
	_, err := b.Delete(target)
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.Contains(t, unavailable.Deployments, b.ID(bEast))
	require.Equal(t, peer.Active, b.Get(target).State)
	b.Expire(aWest)
	b.SetDown(bEast, false)
	b.MustDelete(target)
	b.Gone(target)
	b.Settle()
	b.Audit()
}

// A delete recalls the right before it is decided: a write under it that has not committed is waited for, and
// then blocks.
func TestARecallWaitsForWritesUnderTheRight_I3_I31(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	idleRight(t, b)
	b.MustPut(holderNumber(3), nil)
	ctx := t.Context()
	paused, err := b.Pools[b.ID(bEast)].Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = paused.Rollback(ctx) }()
	_, err = paused.Exec(ctx, `SELECT FROM dbcontroller.foreign_target FOR SHARE`)
	require.NoError(t, err)
	_, err = paused.Exec(ctx, `
INSERT INTO dbcontroller.reference (holder_id, target_id, attempt, field_id, behaviour, delegated)
SELECT s.id, f.id, $1, (SELECT id FROM dbcontroller.field WHERE path = 'block'), 1, true FROM dbcontroller.foreign_target f, dbcontroller.shadow s WHERE s.name = 'holders/d3'`, uuid.Must(uuid.NewV7()))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { _, err := b.Delete(target); done <- err }()
	waitsForLock(t, b.Pools[b.ID(bEast)]) // the recall waits for the writer
	require.NoError(t, paused.Commit(ctx))
	var blocked *peer.BlockedError
	require.ErrorAs(t, <-done, &blocked)
	require.Equal(t, 1, blocked.Total)
	b.MustDelete(holderNumber(3))
	b.Settle()
	b.Audit()
}

// A recall looks at a proxy, and another one has taken its place before the recall has the lock of its row:
// the recall ends neither, so that the blockade of the other one keeps its proxy, which releases it.
func TestARecallEndsNoOtherProxy_I8_I13(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	idleRight(t, b)
	ctx, pool, holders := t.Context(), b.Pools[b.ID(bEast)], b.Stores[b.ID(bEast)]
	var asked, other uuid.UUID
	require.NoError(t,
		pool.QueryRow(ctx, `SELECT block_attempt FROM dbcontroller.foreign_target WHERE block_attempt IS NOT NULL`).
			Scan(&asked))
	other = newAttempt()
	key := peer.BlockadeKey{Attempt: asked, Path: peer.RightPath, TargetUID: b.Get(target).UID}
	acquires, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = acquires.Rollback(ctx) }()
	_, err = acquires.Exec(ctx, `UPDATE dbcontroller.foreign_target SET block_attempt = $1 WHERE block_attempt = $2`,
		other, asked)
	require.NoError(t, err)
	var committed atomic.Bool
	done := make(chan *peer.Recalled, 1)
	go func() {
		var first *peer.Recalled
		for again := true; again; again = !committed.Load() { // the lock may not be had in time
			answer, err := holders.Rights.Recall(ctx, b.ID(aWest),
				[]peer.Recall{{Question: peer.Question{Key: key}, Mode: peer.RecallIfFree}})
			if err != nil {
				answer = &peer.Recalled{}
			}
			first = cmp.Or(first, answer)
		}
		done <- first
	}()
	waitsForLock(t, pool)
	require.NoError(t, acquires.Commit(ctx))
	committed.Store(true)
	answer := <-done
	require.Len(t, answer.Answers, 1)
	require.Equal(t, peer.Undecided, answer.Answers[0].Verdict)
	var stands uuid.UUID
	require.NoError(t,
		pool.QueryRow(ctx, `SELECT block_attempt FROM dbcontroller.foreign_target WHERE block_attempt IS NOT NULL`).
			Scan(&stands))
	require.Equal(t, other, stands)
}

// alongUnderARight gives a right, and leaves holders that all go along with the target: one by asking, and
// one under the right, which also blocks.
func alongUnderARight(t *testing.T) *harness.Box {
	t.Helper()
	b := blocking(t)
	acquired(t, b)
	b.MustPut(holderNumber(4), body{"cascade": target})
	b.Settle()
	unasked(t, b, holderNumber(5), body{"block": target, "cascade": target})
	for n := range 3 {
		b.MustDelete(holderNumber(n))
	}
	b.Settle()
	return b
}

// A holder that is deleted along refuses nothing, also under a right: the right ends first, so that a later
// write is asked for.
func TestHoldersUnderARightGoAlong_I1_I3(t *testing.T) {
	t.Parallel()
	b := alongUnderARight(t)
	b.MustDelete(target)
	rights, _ := blockRights(t, b, bEast)
	require.Zero(t, rights, "it ended before the delete was decided")
	_, err := b.Put(holderNumber(6), body{"block": target})
	require.Error(t, err)
	b.Settle()
	b.Gone(target, holderNumber(4), holderNumber(5))
	_, proxies := blockRights(t, b, bEast)
	require.Zero(t, proxies)
	b.Audit()
}

// All holders under a right go along, the right is to end, and another holder is written under it first: that
// one does not go along, and refuses.
func TestAHolderUnderARightThatComesBeforeItsEndIsNotExcused_I3(t *testing.T) {
	t.Parallel()
	b := alongUnderARight(t)
	asked := 0
	b.OnResolve = func(schema.DeploymentID) error {
		if asked++; asked == 2 { // the first question found that all go along; this one ends the right
			unasked(t, b, holderNumber(6), body{"block": target})
		}
		return nil
	}
	_, err := b.Delete(target)
	require.GreaterOrEqual(t, asked, 2)
	requireBlocked(t, err, holderNumber(6))
	b.OnResolve = nil
	b.Settle()
	require.Equal(t, peer.Active, b.Get(target).State)
	b.Audit()
}

// A cascade that reaches the target waits for the references under the right, whose deployment gets a notice.
func TestACascadeWaitsForARight_I2_I13(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, services, withBlockRights, aWest, aEast, bEast)
	root := "//" + aEast + "/targets/root"
	b.MustPut(root, nil)
	b.MustPut(target, body{"next": root})
	b.Settle()
	idleRight(t, b)
	b.MustDelete(root) // no holder blocks it now; the cascade has not arrived
	unasked(t, b, holderNumber(2), body{"block": target})
	b.Settle()
	rights, proxies := blockRights(t, b, bEast)
	require.Zero(t, rights)
	require.Equal(t, 1, proxies, "a holder has not let go")
	require.Equal(t, peer.Deleting, b.Get(target).State)
	conditions, err := b.Stores[b.ID(aWest)].Read.Conditions(t.Context(), "targets/t")
	require.NoError(t, err)
	require.Equal(t, "by references of "+bEast+" under its right to block", conditions[0].Message)
	explained, err := b.Stores[b.ID(aWest)].Operate.Explain(t.Context(), "targets/t")
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(explained.Reasons, func(r shadow.ExplainedReason) bool {
		return r.Type == "DELEGATED" && strings.HasPrefix(r.Message, bEast+" may block it without asking")
	}), "%v", explained.Reasons)
	b.MustPut(holderNumber(2), nil)
	b.Settle()
	b.Gone(target)
	b.Audit()
}

// Rights of a lost epoch are void on both sides. References that were written under them are compared, and
// keep their target.
func TestBlockRightsEndWithTheEpoch_I8_I30(t *testing.T) {
	t.Parallel()
	for _, failing := range []string{aWest, bEast} {
		t.Run(failing, func(t *testing.T) {
			t.Parallel()
			b := blocking(t)
			b.MustPut(target, nil)
			b.MustPut(holderNumber(0), body{"block": target})
			b.Settle()
			restore := b.Backup(failing) // without the right
			b.MustPut(holderNumber(1), body{"block": target})
			b.Settle()
			unasked(t, b, holderNumber(2), body{"block": target})
			restore()
			b.Recover(failing)
			b.Settle()
			b.Audit()
			if failing == aWest {
				require.Equal(t, 4, b.Count(aWest, "blockade"),
					"all are established by themselves, and gave another right")
				_, err := b.Delete(target)
				var blocked *peer.BlockedError
				require.ErrorAs(t, err, &blocked)
				require.Equal(t, 3, blocked.Total)
			} else {
				require.Equal(t, 1, b.Count(aWest, "blockade"), "the proxy is of nothing")
			}
			b.MustPut(holderNumber(3), body{"block": target})
			b.MustPut(holderNumber(4), body{"block": target})
			b.Settle()
			unasked(t, b, holderNumber(5), body{"block": target})
			b.Audit()
		})
	}
}

// Both databases stay, but the epoch changes: the proxy stands, and the right does not count.
func TestABlockRightOfAnEarlierEpochIsNotUsed_I30(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	acquired(t, b)
	b.Renew(aWest)
	b.Settle()
	b.Audit()
	b.MustPut(holderNumber(3), body{"block": target})
	require.NotEmpty(t, b.Work(b.ID(bEast)), "it was asked for")
	b.Settle()
	unasked(t, b, holderNumber(4), body{"block": target})
	require.Equal(t, 4, b.Count(aWest, "blockade"), "three of references, and that of one proxy")
	b.Audit()
	for _, n := range []int{0, 1, 3} {
		b.MustDelete(holderNumber(n))
	}
	b.Settle()
	_, err := b.Delete(target)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.Equal(t, 2, blocked.Total, "that of the earlier right as well")
}

// A row that was closed, or a target in DELETING, gives no right; references that were established for it are
// released.
func TestALateBlockRightIsNotTaken_I30_I31(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	b.Settle()
	ctx, store, pool := t.Context(), b.Stores[b.ID(bEast)], b.Pools[b.ID(bEast)]
	var id int64
	require.NoError(t, pool.QueryRow(ctx, `SELECT id FROM dbcontroller.foreign_target`).Scan(&id))
	b.AfterEstablish = func() {
		_, err := pool.Exec(ctx, `UPDATE dbcontroller.foreign_target SET turn = nextval('dbcontroller.object_id')`)
		require.NoError(t, err)
	}
	require.NoError(t, store.Rights.Acquire(ctx, b.ID(aWest), []int64{id}))
	b.AfterEstablish = nil
	rights, proxies := blockRights(t, b, bEast)
	require.Zero(t, rights+proxies)
	require.Equal(t, 1, b.Count(aWest, "tentative"))
	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"))
	b.Audit()
}

// Excluded kinds give no right, to any deployment.
func TestExcludedKindsGiveNoRightToBlock_I30(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, undelegated, func(cfg *shadow.Config) { cfg.Delegations = true }, aWest, bEast)
	full := "//" + aWest + "/targets/t"
	uid := b.MustPut(full, nil).UID
	_, err := b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()),
		[]peer.EstablishReference{{
			HolderUID: uid, HolderKind: "Target", HolderName: "targets/t", Path: peer.RightPath, TargetKind: "Target",
			TargetName: "targets/t", TargetUID: uid, Behaviour: schema.Block,
		}})
	var refused *peer.RefusedError
	require.ErrorAs(t, err, &refused)
	require.True(t, refused.Only(peer.NotReferable), "%v", err)
}

// Rows of attached tables are deleted by statements whose triggers cannot recall a right, so no right is
// asked for because of many references.
func TestRowsAreNotBlockedByRightsOfNumbers_I30(t *testing.T) {
	t.Parallel()
	a := &attached{Box: harness.NewBox(t, attachedServices, func(cfg *shadow.Config) {
		cfg.Delegations, cfg.Limits.BlockRightFrom = true, 2
	}, crm, shop), t: t}
	a.tables()
	a.exec(a.crm, `INSERT INTO customers VALUES (1)`)
	a.attach()
	for n := range 4 {
		a.MustPut(fmt.Sprintf("//%s/letters/%d", shop, n), harness.Body{"customer": "//" + crm + "/customers/1"})
		a.Settle()
	}
	rights, proxies := blockRights(t, a.Box, shop)
	require.Zero(t, rights+proxies)
	require.Equal(t, 4, a.Count(crm, "blockade"))
}

// A right that nothing here needs is returned.
func TestUnusedBlockRightsAreReturned(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	acquired(t, b)
	for n := range 3 {
		b.MustPut(holderNumber(n), nil)
	}
	b.Settle()
	_, err := b.Stores[b.ID(bEast)].Admin.Tidy(t.Context())
	require.NoError(t, err)
	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"))
	b.Audit()
}

// A process with rights switched off ends the rights to block by joining; the proxy stays while references
// are left under it.
func TestAProcessWithoutRightsEndsBlockRights_I31(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	acquired(t, b)
	require.NoError(t, joins(b, bEast, shadow.Config{}))
	rights, proxies := blockRights(t, b, bEast)
	require.Zero(t, rights)
	require.Equal(t, 1, proxies)
	b.MustPut(holderNumber(3), body{"block": target})
	b.Settle()
	rights, _ = blockRights(t, b, bEast)
	require.Zero(t, rights, "none is asked for while it is there")
	b.Audit()
}

// A switch of the version derives references under a right by asking.
func TestVersionsAreSwitchedWithBlockRights_I26_I30(t *testing.T) {
	t.Parallel()
	b := newVersions(t, func(cfg *shadow.Config) { cfg.Delegations, cfg.Limits.BlockRightFrom = true, 1 })
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"turns": body{"unset": target}}) // BLOCK in v1
	b.Settle()
	unasked(t, b, holderNumber(1), body{"turns": body{"unset": target}})
	b.Switch(bEast, "v2")
	b.Settle()
	b.Audit()
	_, err := b.Stores[b.ID(bEast)].Admin.Tidy(t.Context())
	require.NoError(t, err)
	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"))
	b.MustDelete(target)
	b.Settle()
	b.Gone(target)
	require.JSONEq(t, `{"turns": {}}`, string(b.Get(holderNumber(1)).Body))
	b.Audit()
}

// Rights go with a decommissioned deployment, on either side.
func TestBlockRightsEndWhenADeploymentIsDecommissioned_I15_I31(t *testing.T) {
	t.Parallel()
	t.Run("of the targets", func(t *testing.T) {
		t.Parallel()
		b := blocking(t)
		acquired(t, b)
		b.SetDown(aWest, true)
		decommission(t, b, bEast, aWest, schema.Unset)
		_, err := b.Put(holderNumber(3), body{"block": target})
		var refused *peer.RefusedError
		require.ErrorAs(t, err, &refused)
		b.Settle()
		require.Zero(t, b.Count(bEast, "reference"))
	})
	t.Run("of the holders", func(t *testing.T) {
		t.Parallel()
		b := blocking(t)
		acquired(t, b)
		decommission(t, b, aWest, bEast, schema.Unset)
		b.Settle()
		require.Zero(t, b.Count(aWest, "blockade"))
		require.NoError(t, b.Stores[b.ID(bEast)].Targets.DecommissionedBy(t.Context(), b.ID(aWest)))
		rights, _ := blockRights(t, b, bEast)
		require.Zero(t, rights)
		b.MustDelete(target)
		b.Gone(target)
	})
}

// More holders than an answer names refuse a delete all the same.
func TestManyHoldersUnderARight_I3_I21(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	acquired(t, b)
	writes := make([]peer.Write, peer.MaxRecalled+10)
	for i := range writes {
		writes[i] = peer.Write{Name: fmt.Sprintf("holders/m%d", i), Body: body{"block": target}}
	}
	_, err := b.Stores[b.ID(bEast)].Write.Save(t.Context(), writes)
	require.NoError(t, err)
	_, err = b.Delete(target)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.True(t, blocked.AtLeast)
}

// A write within an application's transaction blocks a target elsewhere under the right, without a call.
func TestAnApplicationsTransactionBlocksUnderARight_I22_I30(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	acquired(t, b)
	b.SetDown(aWest, true)
	require.NoError(t, within(t.Context(), b.Stores[b.ID(bEast)], b.Pools[b.ID(bEast)],
		peer.Write{Name: "holders/tx", Body: body{"block": target}}))
	b.SetDown(aWest, false)
	b.Audit()
}

// Recalls of another deployment than the target's end no right, and made-up ones leave as few rows as its
// quota of attempts allows.
func TestRecallsOfAHostileDeployment_I15_I31(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(cfg *shadow.Config) {
		withBlockRights(cfg)
		cfg.Limits.Quotas.Tentative = 100
	})
	uid := acquired(t, b)
	store, hostile := b.Stores[b.ID(bEast)], b.ID(aEast)
	var attempt uuid.UUID
	require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(),
		`SELECT block_attempt FROM dbcontroller.foreign_target WHERE uid = $1`, uid).Scan(&attempt))
	decided := func() (n int) {
		require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.attempt`).Scan(
			&n))
		return n
	}
	before := decided()
	for _, mode := range []peer.RecallMode{peer.RecallLooks, peer.RecallIfFree, peer.RecallEnds} {
		key := peer.BlockadeKey{Attempt: attempt, HolderUID: uid, Path: peer.RightPath, TargetUID: uid}
		out, err := store.Rights.Recall(t.Context(), hostile,
			[]peer.Recall{{Question: peer.Question{Key: key, Expired: true}, Mode: mode}})
		require.NoError(t, err)
		require.Empty(t, out.Answers[0].Holders, "names of holders are for the target's deployment")
	}
	made := func(n int) []peer.Recall {
		all := make([]peer.Recall, n)
		for i := range all {
			all[i] = peer.Recall{Mode: peer.RecallEnds, Question: peer.Question{
				Expired: true, Key: peer.BlockadeKey{
					Attempt: uuid.Must(uuid.NewV7()), HolderUID: uuid.New(),
					Path: peer.RightPath, TargetUID: uuid.New(),
				},
			}}
		}
		return all
	}
	var refused bool
	for range 20 {
		_, err := store.Rights.Recall(t.Context(), hostile, made(50))
		refused = refused || errors.Is(err, peer.ErrQuota)
	}
	require.True(t, refused)
	require.LessOrEqual(t, decided(), before+101)
	rights, _ := blockRights(t, b, bEast)
	require.Equal(t, 1, rights)
	unasked(t, b, holderNumber(3), body{"block": target})
	_, err := b.Delete(target)
	require.Error(t, err, "it blocks")
}
