package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// A confirm that finds no blockade is the first sign that the target's database has lost one: the reference
// is established again at once, without waiting for a comparison.
func TestAConfirmWithoutBlockadesEstablishesAgain_I2_I8(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"block", "cascade", "unset"} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			b := newPair(t, nil)
			b.MustPut(target, nil)
			b.MustPut(holder, body{field: target})
			_, err := b.Pools[b.ID(aWest)].Exec(t.Context(), `DELETE FROM dbcontroller.blockade`)
			require.NoError(t, err)
			b.Settle()
			b.Audit()
		})
	}
}

// Of an attempt with several references the target's database has lost some blockades, and a confirm finds
// the others: that is a sign as well. References under one attempt that are all there cause no comparison.
func TestAConfirmThatLacksBlockadesEstablishesAgain_I2_I8(t *testing.T) {
	t.Parallel()
	for name, refs := range map[string]body{
		"the block": {"block": target, "cascade": target2}, "the cascade": {"block": target2, "cascade": target},
		"one of two": {"list": []any{target, target2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newPair(t, nil)
			first := b.MustPut(target, nil)
			b.MustPut(target2, nil)
			b.MustPut(holder, refs)
			checks := 0
			b.AfterCheckReferences = func([]peer.Known) { checks++ }
			_, err := b.Pools[b.ID(aWest)].Exec(t.Context(),
				`DELETE FROM dbcontroller.blockade WHERE target_id = (SELECT id FROM dbcontroller.shadow WHERE uid = $1)`, first.UID)
			require.NoError(t, err)
			b.Settle()
			require.Positive(t, checks)
			b.Audit()
			checks = 0
			b.MustPut(holder2, refs)
			b.Settle()
			require.Zero(t, checks, "nothing is lost")
			b.Audit()
		})
	}
}

// An acting reference is dropped before the confirm, and leaves its blockade for a while, which does not
// stand for a lost one.
func TestABlockadeOfADroppedReferenceHidesNoLostOne_I8(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	lost := b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"block": target, "cascade": target2})
	_, err := b.Pools[b.ID(aWest)].Exec(t.Context(),
		`DELETE FROM dbcontroller.blockade WHERE target_id = (SELECT id FROM dbcontroller.shadow WHERE uid = $1)`,
		lost.UID)
	require.NoError(t, err)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// A confirm finds no blockade when it is repeated, when its reference was dropped and released before, or
// when its target is gone: then nothing is established again.
func TestARepeatedOrLateConfirmHasNoEffect_I7_I8(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.MustPut(holder2, body{"block": target})
	confirms := func() (work []schema.Work) {
		for _, w := range b.Work(b.ID(bEast)) {
			if w.Action == schema.Confirm {
				work = append(work, w)
			}
		}
		return work
	}
	all := confirms()
	require.Len(t, all, 2)
	var attempts []string
	require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(),
		`SELECT array_agg(attempt::text ORDER BY holder_id) FROM dbcontroller.reference`).Scan(&attempts))
	b.Settle()
	b.MustPut(holder2, nil)
	b.Settle()
	_, err := b.Pools[b.ID(bEast)].Exec(t.Context(), `
		INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt)
		SELECT 1, 0, f.deployment_id, a::uuid FROM unnest($1::text[]) a, dbcontroller.foreign_target f LIMIT 2`, attempts)
	require.NoError(t, err)
	require.Len(t, confirms(), 2)
	b.Settle()
	b.Audit()
	require.Zero(t, b.Count(aWest, "blockade"))
	var stored []string
	require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(),
		`SELECT array_agg(attempt::text) FROM dbcontroller.reference`).Scan(&stored))
	require.Equal(t, attempts[:1], stored, "the reference stays as it is")
}
