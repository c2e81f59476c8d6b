package shadow_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// A reference in a body that is not stored protects nothing, and comparing two databases does not show it; a
// stored reference that is in no body protects a target without a holder.
func TestVerifyReadsBodies_I1_I8(t *testing.T) {
	t.Parallel()
	b, ctx := newPair(t, nil), context.Background()
	pool := b.Pools[b.ID(bEast)]
	for _, n := range []string{"lost", "left", "turned", "fine"} {
		b.MustPut("//"+aWest+"/targets/"+n, nil)
	}
	b.MustPut("//"+bEast+"/holders/near", nil)
	b.MustPut("//"+bEast+"/holders/fine", body{"block": "//" + aWest + "/targets/fine", "dangling": "//" + aWest +
		"/targets/fine"})
	b.MustPut(holder, body{"block": "//" + aWest + "/targets/lost", "near": body{"block": "holders/near"}})
	b.MustPut(holder2, body{"block": "//" + aWest + "/targets/left", "unset": "//" + aWest + "/targets/turned"})
	b.Settle()
	require.Empty(t, verified(t, b, bEast, false))

	// References of h are lost, with the blockade: both sides agree. The body of h2 forgets one, and another
	// behaves otherwise.
	_, err := pool.Exec(ctx,
		`DELETE FROM dbcontroller.reference WHERE holder_id = (SELECT id FROM dbcontroller.shadow WHERE name = 'holders/h')`)
	require.NoError(t, err)
	_, err = b.Pools[b.ID(aWest)].Exec(ctx,
		`DELETE FROM dbcontroller.blockade WHERE target_id = (SELECT id FROM dbcontroller.shadow WHERE name = 'targets/lost')`)
	require.NoError(t, err)
	_, err = pool.Exec(ctx,
		`UPDATE dbcontroller.resource SET body = body - 'block' WHERE id = (SELECT id FROM dbcontroller.shadow WHERE name = 'holders/h2')`)
	require.NoError(t, err)
	_, err = pool.Exec(ctx, `UPDATE dbcontroller.reference SET behaviour = 3 WHERE behaviour = 2`)
	require.NoError(t, err)

	found := verified(t, b, bEast, false)
	var told []string
	for _, d := range found {
		require.NotEmpty(t, d.Cause())
		require.Equal(t, "verify --repair", d.Remedy())
		told = append(told, fmt.Sprintf("%s %s %s %s", d.Kind, d.Holder.Name, d.Path, d.Target.Name))
	}
	require.Equal(t, []string{
		"REFERENCE_NOT_STORED holders/h block targets/lost",
		"REFERENCE_NOT_STORED holders/h near.block holders/near",
		"REFERENCE_NOT_IN_BODY holders/h2 block targets/left",
		"REFERENCE_NOT_STORED holders/h2 unset targets/turned",
	}, told)
	require.Zero(t, b.Count(bEast, "work"), "nothing is repaired unasked")

	for _, d := range verified(t, b, bEast, true) {
		require.True(t, d.Repaired, d)
	}
	again := verified(t, b, bEast, true)
	require.Empty(t, again, "pending derivations are reported elsewhere")
	require.Equal(t, 1+1, b.Count(bEast, "work"), "one for each")
	b.Settle()
	require.Empty(t, verified(t, b, bEast, false))
	_, err = b.Delete("//" + aWest + "/targets/lost")
	require.ErrorAs(t, err, new(*peer.BlockedError))
	_, err = b.Delete("//" + bEast + "/holders/near")
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.MustDelete("//" + aWest + "/targets/left")
	b.Settle()
	b.Audit()
}

// Resources that wait to be derived, or are set aside, have no differences; nor has a reference that may
// dangle.
func TestPendingDerivationsAreNoDifference_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"added": targetName("missing"), "dropped": targetName("t"), "loose": "holders/nobody"})
	b.MustPut(holder2, body{"added": targetName("t")})
	b.Settle()
	b.Switch(bEast, "v2")
	require.Empty(t, verified(t, b, bEast, false), "the kind is to be derived")
	b.Settle()
	require.Equal(t, 1, b.Count(bEast, "work"), "set aside")
	require.Empty(t, verified(t, b, bEast, false))
	b.Switch(bEast, "v4")
	b.Settle()
	require.Empty(t, verified(t, b, bEast, false))
}

// A process with an outdated version would report false differences.
func TestASupersededProcessVerifiesNoBodies_I26(t *testing.T) {
	t.Parallel()
	b, ctx := newVersions(t, nil), context.Background()
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"added": targetName("t"), "dropped": targetName("t")})
	asleep := b.SecondProcess(bEast, shadow.Config{})
	b.Switch(bEast, "v2")
	b.Settle()
	_, err := asleep.Verify.Verify(ctx, shadow.Verification{Settle: 1, Repair: true})
	require.ErrorIs(t, err, peer.ErrAborted)
	require.Zero(t, b.Count(bEast, "work"))
}

// An audit reads a sample of bodies, and all of them in turn.
func TestAnAuditReadsBodiesInTurn_I21(t *testing.T) {
	t.Parallel()
	b, ctx := newPair(t, nil), context.Background()
	var writes []peer.Write
	for i := range 250 {
		writes = append(writes, peer.Write{
			Name: fmt.Sprintf("holders/h%03d", i),
			Body: body{"near": body{"block": "holders/h000"}},
		})
	}
	store := b.Stores[b.ID(bEast)]
	_, err := store.Write.Save(ctx, writes)
	require.NoError(t, err)
	_, err = b.Pools[b.ID(bEast)].Exec(ctx, `DELETE FROM dbcontroller.reference`)
	require.NoError(t, err)
	seen := map[schema.FullName]int{}
	for range 5 {
		done, err := store.Verify.Verify(ctx, shadow.Verification{
			Settle: 1, Bodies: 120,
			Report: func(d shadow.Difference) error {
				seen[d.Holder]++
				return nil
			},
		})
		require.NoError(t, err)
		require.EqualValues(t, 120, done.Bodies)
	}
	require.Len(t, seen, 250)
	for name, n := range seen {
		require.LessOrEqual(t, n, 3, name)
		require.GreaterOrEqual(t, n, 2, name)
	}
	small, err := store.Verify.Verify(ctx, shadow.Verification{Settle: 1, Bodies: 1000})
	require.NoError(t, err)
	require.EqualValues(t, 250, small.Bodies, "none is read twice")
}

// Large bodies are compared, and derived, a few at a time.
func TestLargeBodiesAreReadAFewAtATime_I21(t *testing.T) {
	t.Parallel()
	b, ctx := newPair(t, nil), t.Context()
	const resources = 14
	for i := range resources {
		b.MustPut(fmt.Sprintf("//%s/holders/large%02d", bEast, i), body{"text": strings.Repeat("x", 900<<10)})
	}
	store := b.Stores[b.ID(bEast)]
	pages := 0
	done, err := store.Verify.Verify(ctx,
		shadow.Verification{Settle: 1, Progress: func(context.Context, shadow.Verified) error {
			pages++
			return nil
		}})
	require.NoError(t, err)
	require.EqualValues(t, resources, done.Bodies)
	require.GreaterOrEqual(t, pages, resources/4)
}

// The list of owners is stored with the body. An owner of the list without an owner reference keeps nothing,
// and its deletion collects nothing; an owner reference that is not in the list would be followed all the
// same.
func TestVerifyReadsListsOfOwners_I16_I17(t *testing.T) {
	t.Parallel()
	b := newBox(t, graceless)
	for _, name := range []string{holder, holder2, "//" + bEast + "/holders/h3"} {
		b.MustPut(name, nil)
	}
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"), owner(t, holder2, "Holder"))
	mustOwn(t, b, "//"+aEast+"/targets/fine", nil, owner(t, holder2, "Holder"))
	b.Settle()
	require.Empty(t, verified(t, b, aEast, false))

	exec(t, b, aEast,
		`DELETE FROM dbcontroller.owner_reference WHERE name = 'holders/h' AND ownee_id = (SELECT id FROM dbcontroller.shadow WHERE name = $1)`, relative(t, ownee))
	exec(t, b, aEast,
		`UPDATE dbcontroller.owner_reference SET name = 'holders/h3', uid = $2 WHERE ownee_id = (SELECT id FROM dbcontroller.shadow WHERE name = $1)`,
		relative(t, ownee), b.Get("//"+bEast+"/holders/h3").UID)
	told := map[string]bool{}
	for _, d := range verified(t, b, aEast, false) {
		require.NotEmpty(t, d.Cause())
		told[fmt.Sprintf("%s %s %s", d.Kind, d.Holder, d.Target)] = true
	}
	for _, want := range []string{
		"OWNER_NOT_STORED " + ownee + " " + holder, "OWNER_NOT_STORED " + ownee + " " + holder2, "OWNER_NOT_IN_LIST " +
			ownee + " //" + bEast + "/holders/h3",
	} {
		require.True(t, told[want], "%s: %v", want, told)
	}
	for _, d := range verified(t, b, aEast, true) {
		require.True(t, d.Repaired, d)
	}
	b.Settle()
	require.Empty(t, verified(t, b, aEast, false))
	b.MustDelete("//" + bEast + "/holders/h3")
	b.MustDelete(holder)
	b.Settle()
	require.NotNil(t, b.Get(ownee), "one owner is left")
	b.MustDelete(holder2)
	b.Settle()
	b.Gone(ownee)
	b.Audit()
}

func relative(t *testing.T, name string) string {
	t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(t, err)
	return full.Name
}
