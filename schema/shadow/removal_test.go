package shadow_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
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

// A chain over four deployments: each removal records the deleted root, the actor, the request, and the next
// link.
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
	_, err := b.Stores[b.ID(aWest)].Deletions.Delete(t.Context(), shadow.DeleteRequest{
		Name:  "targets/t",
		Actor: "user/alice", RequestID: request,
	})
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
		aWest: {"targets/t", "targets/t/children/c"}, bEast: {"holders/h", "holders/h2", "holders/near"},
		aEast: {"targets/owned"}, bWest: nil,
	} {
		var got []string
		for token := ""; ; {
			page, next, err := b.Stores[b.ID(at)].Operate.Removals(t.Context(), shadow.RemovalQuery{Deletion: cause.ID},
				token, 2)
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
	found, _, err := b.Stores[b.ID(bWest)].Operate.Removals(t.Context(), shadow.RemovalQuery{
		Name: "holders/unset",
		UID:  unset.UID,
	}, "", 10)
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

// resourcesToken is the token behind all present resources, of a watch with a kind and a filter.
func resourcesToken(t *testing.T, store *shadow.Store, kind, filter string) (token string) {
	t.Helper()
	end := errors.New("the snapshot ends")
	err := store.Read.WatchResources(t.Context(), kind, filter, "", func(e schema.Event[peer.Resource]) error {
		if e.EndOfSnapshot {
			token = e.Token
			return end
		}
		return nil
	})
	require.ErrorIs(t, err, end)
	return token
}

// What was removed after a token is there, whatever the watch of the token was, and when the removal was
// decided; until its changes are compacted away.
func TestRemovalsAreListedSinceAToken(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	store := b.Stores[b.ID(aWest)]
	b.MustPut("//"+aWest+"/targets/before", nil)
	b.MustDelete("//" + aWest + "/targets/before")
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	request := uuid.New()
	_, err := store.Deletions.Delete(t.Context(), shadow.DeleteRequest{
		Name: "targets/t", Actor: "user/alice",
		RequestID: request,
	})
	require.NoError(t, err)
	require.False(t, removed(t, store, "targets/t").Gone)
	// decided before, removed after them
	tokens := []string{resourcesToken(t, store, "Target", ""), resourcesToken(t, store, "", `labels.x = "y"`)}
	for _, token := range tokens {
		found, _, err := store.Operate.Removals(t.Context(), shadow.RemovalQuery{Since: token}, "", 10)
		require.NoError(t, err)
		require.Empty(t, found)
	}
	b.Settle()
	b.MustDelete(target2)
	for _, token := range tokens {
		var names []string
		for page, next := 0, ""; page == 0 || next != ""; page++ {
			var found []shadow.Removal
			found, next, err = store.Operate.Removals(t.Context(), shadow.RemovalQuery{Since: token}, next, 1)
			require.NoError(t, err)
			for _, r := range found {
				require.True(t, r.Gone)
				require.NotNil(t, r.Cause)
				names = append(names, r.Name+" "+r.Cause.Actor)
			}
		}
		require.Equal(t, []string{"targets/t2 ", "targets/t user/alice"}, names)
	}
	now := resourcesToken(t, store, "", "")
	found, _, err := store.Operate.Removals(t.Context(), shadow.RemovalQuery{Since: now}, "", 10)
	require.NoError(t, err)
	require.Empty(t, found)

	found, _, err = store.Operate.Removals(t.Context(), shadow.RemovalQuery{Request: request}, "", 10)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "targets/t", found[0].Name)
	found, _, err = b.Stores[b.ID(bEast)].Operate.Removals(t.Context(), shadow.RemovalQuery{Request: request}, "", 10)
	require.NoError(t, err)
	require.Empty(t, found, "the request did not ask for what went along")

	for _, wrong := range []string{"x", tokens[0][1:], tokens[0][:len(tokens[0])-4]} {
		_, _, err = store.Operate.Removals(t.Context(), shadow.RemovalQuery{Since: wrong}, "", 10)
		require.ErrorIs(t, err, peer.ErrReset)
	}
	_, err = b.Pools[b.ID(aWest)].Exec(t.Context(), `UPDATE dbcontroller.meta SET compacted = pg_current_xact_id()`)
	require.NoError(t, err)
	_, _, err = store.Operate.Removals(t.Context(), shadow.RemovalQuery{Since: now}, "", 10)
	require.ErrorIs(t, err, peer.ErrReset)
	require.ErrorContains(t, err, "retention of changes")
}

// Nothing of what a removed resource contained is left in the tables, and a repeated request is not carried
// out again. What belongs to a later resource of the name, and to others of a batch, stays.
func TestAPurgeForgetsWhatARemovedResourceContained_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, pool := b.Stores[b.ID(aWest)], b.Pools[b.ID(aWest)]
	request := uuid.New()
	secret, public := "Ada Lovelace", "stays"
	writes := []peer.Write{
		{Name: "targets/t", Labels: map[string]string{"who": "ada"}, Body: body{"title": secret}},
		{Name: "targets/t2", Body: body{"title": public}},
	}
	saved, err := store.Write.SaveRequested(t.Context(), request, writes)
	require.NoError(t, err)
	token := resourcesToken(t, store, "", "")
	b.MustPut(target, body{"title": secret, "n": 2})

	_, _, err = store.Operate.Purge(t.Context(), "targets/t")
	require.ErrorIs(t, err, peer.ErrExists)
	require.ErrorContains(t, err, "targets/t exists: delete it")
	b.MustDelete(target)
	b.Settle()
	b.MustPut("//"+aWest+"/targets/other", body{"title": public})

	kept := func(text string) (n int) {
		t.Helper()
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM dbcontroller.change WHERE body::text LIKE '%' || $1 || '%')
    + (SELECT count(*) FROM dbcontroller.request WHERE EXISTS (
        SELECT FROM jsonb_array_elements(outcome->'saved') x WHERE convert_from(decode(x->>'Body', 'base64'), 'UTF8') || COALESCE(x->>'Labels', '') LIKE '%' || $1 || '%'))`, text).Scan(&n))
		return n
	}
	require.Equal(t, 3, kept(secret), "two changes, and an answer")
	before := kept(public)
	changes, requests, err := store.Operate.Purge(t.Context(), "targets/t")
	require.NoError(t, err)
	require.Equal(t, []int64{2, 1}, []int64{changes, requests})
	require.Zero(t, kept(secret))
	require.Zero(t, kept("ada"))
	require.Equal(t, before, kept(public))
	changes, requests, err = store.Operate.Purge(t.Context(), "targets/t")
	require.NoError(t, err)
	require.Equal(t, []int64{0, 0}, []int64{changes, requests}, "a repetition")

	again, err := store.Write.SaveRequested(t.Context(), request, writes)
	require.NoError(t, err)
	require.Equal(t, saved[0].UID, again[0].UID)
	require.JSONEq(t, `{}`, string(again[0].Body))
	require.Empty(t, again[0].Labels)
	require.Equal(t, saved[1].Body, again[1].Body)
	require.True(t, removed(t, store, "targets/t").Gone, "the record stays, and no resource is made")

	end, seen := errors.New("enough"), []string(nil)
	err = store.Read.WatchResources(t.Context(), "", "", token, func(e schema.Event[peer.Resource]) error {
		for _, r := range e.Items {
			seen = append(seen, fmt.Sprint(r.Name, " ", r.State == peer.Gone))
		}
		if len(seen) == 2 {
			return end
		}
		return nil
	})
	require.ErrorIs(t, err, end)
	require.Equal(t, []string{"targets/t true", "targets/other false"}, seen, "a resumed watch has its removal")
}
