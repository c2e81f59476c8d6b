package shadow_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

func deleteTogether(t *testing.T, b *harness.Box, at string, requestID uuid.UUID,
	names ...string,
) ([]peer.DeleteResult, error) {
	t.Helper()
	var reqs []shadow.DeleteRequest
	for _, name := range names {
		reqs = append(reqs, shadow.DeleteRequest{Name: name, RequestID: requestID})
	}
	return b.Stores[b.ID(at)].Deletions.DeleteAll(t.Context(), reqs)
}

// Several resources are deleted together or not at all. A blocker of one of them, inside this database or
// from a deployment that the deletion reaches, does not block if it goes with another one; a blocker that
// stays does. A plan says the same before.
func TestSeveralResourcesAreDeletedTogether_I13_I14(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	in := func(name string) string { return "//" + bEast + "/holders/" + name }
	west := func(name string) string { return "//" + aWest + "/targets/" + name }
	for _, name := range []string{"t", "u", "v"} {
		b.MustPut(west(name), nil)
	}
	// x and y block one another; z goes with t, and blocks u.
	b.MustPut(in("x"), nil)
	b.MustPut(in("y"), body{"near": body{"block": "holders/x"}})
	b.MustPut(in("x"), body{"near": body{"block": "holders/y"}})
	b.MustPut(in("z"), body{"cascade": west("t"), "block": west("u")})
	b.MustPut(in("stays"), body{"block": west("v")})
	b.Settle()
	plan := func(at string, names ...string) *shadow.DeletePlan {
		p, err := b.Stores[b.ID(at)].Deletions.PlanDelete(t.Context(), names...)
		require.NoError(t, err)
		return p
	}
	var blocked *peer.BlockedError
	for _, name := range []string{"holders/x", "holders/y"} {
		require.ErrorAs(t, plan(bEast, name).Refusal, &blocked, name)
		_, err := deleteTogether(t, b, bEast, uuid.Nil, name)
		require.ErrorAs(t, err, &blocked, name)
	}
	require.NoError(t, plan(bEast, "holders/x", "holders/y").Refusal)
	_, err := deleteTogether(t, b, aWest, uuid.Nil, "targets/t", "targets/u", "targets/v")
	require.ErrorAs(t, err, &blocked)
	require.Equal(t, "targets/t, targets/u, targets/v", blocked.Name)
	require.Len(t, blocked.Holders, 1)
	require.Equal(t, in("stays"), blocked.Holders[0].Name.String())
	require.ErrorAs(t, plan(aWest, "targets/t", "targets/u", "targets/v").Refusal, &blocked)
	for _, name := range []string{"t", "u", "v"} {
		require.Equal(t, peer.Active, b.Get(west(name)).State, "nothing has changed")
	}
	_, err = deleteTogether(t, b, aWest, uuid.Nil, "targets/t", "targets/none")
	require.ErrorIs(t, err, peer.ErrNotFound)
	_, err = deleteTogether(t, b, aWest, uuid.Nil, "targets/t", "targets/t")
	require.ErrorAs(t, err, new(*peer.InvalidError))
	_, err = b.Delete(west("u"))
	require.ErrorAs(t, err, &blocked, "by itself")

	id := uuid.Must(uuid.NewV7())
	p := plan(aWest, "targets/t", "targets/u")
	require.NoError(t, p.Refusal)
	require.Len(t, p.Groups, 2, "the two targets, and z")
	require.Equal(t, 2, p.Groups[0].Count)
	first, err := deleteTogether(t, b, aWest, id, "targets/t", "targets/u")
	require.NoError(t, err)
	again, err := deleteTogether(t, b, aWest, id, "targets/t", "targets/u")
	require.NoError(t, err)
	require.Equal(t, first[0].Deletion, again[0].Deletion, "the answer is kept with the request")
	require.NotEqual(t, first[0].Deletion, first[1].Deletion, "each has a record of its own")
	_, err = deleteTogether(t, b, aWest, id, "targets/t")
	require.ErrorIs(t, err, peer.ErrRequestReused)
	b.Settle()
	b.Gone(west("t"), west("u"), in("z"))

	results, err := deleteTogether(t, b, bEast, uuid.Nil, "holders/x", "holders/y")
	require.NoError(t, err)
	require.True(t, results[0].Removed && results[1].Removed, "in one transaction")
	b.Audit()
}

// One that does not exist is left out where that is allowed; one whose kind hides it from its mark on counts
// as removed, as by itself.
func TestSeveralResourcesOfWhichOneIsMissingOrHidden_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	reqs := []shadow.DeleteRequest{{Name: "targets/none", AllowMissing: true}, {Name: "targets/t", AllowMissing: true}}
	results, err := b.Stores[b.ID(aWest)].Deletions.DeleteAll(t.Context(), reqs)
	require.NoError(t, err)
	require.True(t, results[0].Removed && results[1].Removed)
	require.Equal(t, uuid.Nil, results[0].Deletion, "by no deletion")
	require.NotEqual(t, uuid.Nil, results[1].Deletion)
	results, err = b.Stores[b.ID(aWest)].Deletions.DeleteAll(t.Context(), reqs)
	require.NoError(t, err)
	require.True(t, results[0].Removed && results[1].Removed, "none is left")
	b.Audit()
}

// The statements of a delete are planned for its members, and not for the one resource that it names: plans
// for few rows compare each member with each other. The bound is between the linear ratio and the quadratic
// one.
func TestADeleteOfManyMembersIsLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("writes thousands of resources")
	}
	t.Parallel()
	b := newPair(t, nil)
	pool, computed := b.Pools[b.ID(aWest)], map[int]time.Duration{} // by members: processor time of the sessions
	sessions := func() (sum time.Duration) {
		rows, err := pool.Query(t.Context(),
			`SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'`)
		require.NoError(t, err)
		pids, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
		require.NoError(t, err)
		for _, pid := range pids {
			sum += computedBy(t, pid)
		}
		return sum
	}
	for _, n := range []int{1000, 6000} {
		b.MustPut(target, nil)
		var writes []peer.Write
		for i := range n {
			of := body{"next": "targets/t"}
			if i > 0 {
				of["peer"] = fmt.Sprintf("targets/c%d", i-1)
			}
			if writes = append(writes, peer.Write{Name: fmt.Sprintf("targets/c%d", i), Body: of}); len(writes) == 500 {
				_, err := b.Stores[b.ID(aWest)].Write.Save(t.Context(), writes)
				require.NoError(t, err)
				writes = nil
			}
		}
		before := sessions()
		b.MustDelete(target)
		computed[n] = sessions() - before
		b.Settle()
		b.Gone(target, targetName("c0"))
	}
	t.Log(computed)
	require.Less(t, computed[6000], 18*computed[1000])
}

// A resource that is being deleted is no obstacle for the resources that are deleted together with it.
func TestOneOfSeveralIsBeingDeleted(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.SetDown(bEast, true)
	before := b.MustDelete(target)
	require.False(t, before.Removed)
	results, err := deleteTogether(t, b, aWest, uuid.Nil, "targets/t", "targets/t2")
	require.NoError(t, err)
	require.Equal(t, before.Deletion, results[0].Deletion)
	require.Equal(t, peer.Deleting, results[0].Resource.State)
	require.True(t, results[1].Removed)
	b.SetDown(bEast, false)
	b.Settle()
	b.Gone(target, target2, holder)
	b.Audit()
}
