package shadow_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// removed returns the removal of the newest resource of a name.
func removed(t *testing.T, store *shadow.Store, name string) shadow.Removal {
	t.Helper()
	found, _, err := store.Operate.Removals(t.Context(), shadow.RemovalQuery{Name: name}, "", 10)
	require.NoError(t, err)
	require.NotEmpty(t, found, name)
	return found[0]
}

// A chain over four deployments: each removal records the deleted root, the actor, the request, and the next link.
func TestEachRemovalRecordsActorRequestAndRoot(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	root := b.MustPut(target, nil)
	child := b.MustPut(target+"/children/c", nil)
	cascading := b.MustPut(holder, body{"cascade": target})
	async := b.MustPut(holder2, body{"asyncCascade": target})
	near := b.MustPut("//"+bEast+"/holders/near", body{"near": body{"cascade": holder}})
	unset := b.MustPut("//"+bWest+"/holders/unset", body{"unset": target})
	owned := mustOwn(t, b, "//"+aEast+"/targets/owned", nil, owner(t, holder, "Holder"))
	b.Settle()

	request := uuid.New()
	_, err := b.Stores[b.ID(aWest)].Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/t", Actor: "user/alice", RequestID: request})
	require.NoError(t, err)
	going := removed(t, b.Stores[b.ID(aWest)], "targets/t")
	require.False(t, going.Gone, "it waits for its holders, and is noted already")
	b.Settle()
	b.Audit()

	cause := removed(t, b.Stores[b.ID(aWest)], "targets/t").Cause
	require.Equal(t, target, cause.Root)
	require.Equal(t, root.UID, cause.RootUID)
	require.Equal(t, "user/alice", cause.Actor)
	require.Equal(t, request, cause.RequestID)
	require.WithinDuration(t, time.Now(), cause.At, time.Minute)
	for _, c := range []struct {
		at, name string
		uid      uuid.UUID
		how      peer.How
		via      uuid.UUID
		viaAt    string
	}{
		{aWest, "targets/t", root.UID, peer.Requested, uuid.Nil, ""},
		{aWest, "targets/t/children/c", child.UID, peer.Cascaded, root.UID, aWest},
		{bEast, "holders/h", cascading.UID, peer.Cascaded, root.UID, aWest},
		{bEast, "holders/h2", async.UID, peer.Cascaded, root.UID, aWest},
		{bEast, "holders/near", near.UID, peer.Cascaded, cascading.UID, bEast},
		{aEast, "targets/owned", owned.UID, peer.Disowning, cascading.UID, bEast},
	} {
		r := removed(t, b.Stores[b.ID(c.at)], c.name)
		require.Equal(t, c.uid, r.UID, c.name)
		require.Equal(t, c.how, r.How, c.name)
		require.Equal(t, c.via, r.ViaUID, c.name)
		if c.viaAt != "" {
			require.Equal(t, c.viaAt, r.Via.Deployment.String(), c.name)
		}
		require.True(t, r.Gone, c.name)
		require.Equal(t, cause.ID, r.Cause.ID, c.name)
		require.Equal(t, "user/alice", r.Cause.Actor, c.name)
		require.Equal(t, request, r.Cause.RequestID, c.name)
		require.True(t, cause.At.Equal(r.Cause.At), c.name)
	}
	for at, names := range map[string][]string{ // the receipt of the deletion
		aWest: {"targets/t", "targets/t/children/c"}, bEast: {"holders/h", "holders/h2", "holders/near"}, aEast: {"targets/owned"}, bWest: nil,
	} {
		var got []string
		for token := ""; ; {
			page, next, err := b.Stores[b.ID(at)].Operate.Removals(t.Context(), shadow.RemovalQuery{Deletion: cause.ID}, token, 2)
			require.NoError(t, err)
			for _, r := range page {
				got = append(got, r.Name)
			}
			if token = next; token == "" {
				break
			}
		}
		require.ElementsMatch(t, names, got, at)
	}
	found, _, err := b.Stores[b.ID(bWest)].Operate.Removals(t.Context(), shadow.RemovalQuery{Name: "holders/unset", UID: unset.UID}, "", 10)
	require.NoError(t, err)
	require.Empty(t, found, "an unset holder is not removed")

	// A name that is used again has one line for each resource.
	b.MustPut(target, nil)
	b.MustDelete(target)
	found, _, err = b.Stores[b.ID(aWest)].Operate.Removals(t.Context(), shadow.RemovalQuery{Name: "targets/t"}, "", 10)
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Equal(t, root.UID, found[1].UID)
}

// A delete that is refused or rolled back records no removal.
func TestARefusedDeleteRecordsNoRemoval(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	_, err := b.Stores[b.ID(aWest)].Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/t"})
	require.ErrorAs(t, err, new(*peer.BlockedError))
	found, _, err := b.Stores[b.ID(aWest)].Operate.Removals(t.Context(), shadow.RemovalQuery{Name: "targets/t"}, "", 10)
	require.NoError(t, err)
	require.Empty(t, found)
}

func TestOldRemovalsAreForgotten(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustDelete(target)
	b.MustDelete(target2)
	pool, store := b.Pools[b.ID(aWest)], b.Stores[b.ID(aWest)]
	for sql, arg := range map[string]any{
		`UPDATE dbcontroller.removal SET decided_at = now() - interval '98 days' WHERE name = $1`: "targets/t",
		`UPDATE dbcontroller.cause SET noted_at = now() - interval '98 days' WHERE root = $1`:     target,
	} {
		_, err := pool.Exec(t.Context(), sql, arg)
		require.NoError(t, err)
	}
	for more := true; more; {
		var err error
		more, err = store.Admin.Tidy(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, 1, b.Count(aWest, "removal"))
	require.Equal(t, 1, b.Count(aWest, "cause"))
}
