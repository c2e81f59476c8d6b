package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const finalizedLater = `
service: a.example.com
version: v1
kinds: [{ kind: Old, patterns: ["targets/{target}"] }]
---
service: a.example.com
version: v2
kinds:
  - { kind: Target, previous_name: Old, patterns: ["targets/{target}"], finalizers: [{ name: badge, holder: user/badges }] }
  - { kind: Fresh, patterns: ["fresh/{fresh}"], finalizers: [{ name: badge, holder: user/badges }] }
---
service: a.example.com
version: v3
kinds: [{ kind: Other, patterns: ["others/{other}"] }]
`

// A version and its finalizers are stored by one transaction: a switch that stops half-way leaves no version
// that runs without them.
func TestASwitchThatStopsHalfWayHasItsFinalizers_I33(t *testing.T) {
	t.Parallel()
	b, ctx := harness.NewBox(t, finalizedLater, nil, aWest), context.Background()
	id := b.ID(aWest)
	other := b.SecondProcess(aWest, shadow.Config{})
	b.MustPut(target, nil)
	_, err := b.Pools[id].Exec(ctx, `
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'stopped'; END $$;
CREATE TRIGGER stop BEFORE INSERT ON dbcontroller.derivation EXECUTE FUNCTION refuse()`)
	require.NoError(t, err)
	v2, err := schema.NewModel(schema.ServiceVersion{Service: id.Service, Version: "v2"}, b.Environment().Services)
	require.NoError(t, err)
	require.ErrorContains(t, b.Stores[id].Admin.Switch(ctx, v2), "stopped")
	deleted, err := other.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t"})
	require.NoError(t, err)
	require.False(t, deleted.Removed)
	require.ErrorAs(t, other.Admin.Adopt(ctx, v2), new(*peer.UnavailableError), "it is not complete")
	_, err = b.Pools[id].Exec(ctx, `DROP TRIGGER stop ON dbcontroller.derivation`)
	require.NoError(t, err)
	b.Switch(aWest, "v2")
	require.NoError(t, other.Admin.Adopt(ctx, v2))
	_, err = other.Write.Save(ctx, []peer.Write{{Name: "fresh/f"}})
	require.NoError(t, err)
	deleted, err = other.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "fresh/f"})
	require.NoError(t, err)
	require.False(t, deleted.Removed)
}

// A finalizer is removed also when the version that runs lacks the kind.
func TestAFinalizerOfAKindThatIsGone_I33(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, finalizedLater, nil, aWest)
	b.Switch(aWest, "v2")
	uid := b.MustPut(target, nil).UID
	require.False(t, b.MustDelete(target).Removed)
	b.Switch(aWest, "v3")
	b.Settle()
	require.Equal(t, 1, b.Count(aWest, "deleting"))
	clean(t, b, target, uid, "badge")
	b.Settle()
	require.Zero(t, b.Count(aWest, "deleting"))
}

// A status that is written while a write of the body asks elsewhere is in the answer of the write and in its
// change.
func TestAStatusBesideAWriteOfTheBody(t *testing.T) {
	t.Parallel()
	b, ctx := newPair(t, nil), context.Background()
	b.MustPut(target, nil)
	made := b.MustPut(holder, body{"x": 1})
	store := b.Stores[b.ID(bEast)]
	b.AfterEstablish = func() {
		b.AfterEstablish = nil
		_, err := store.Write.UpdateStatus(ctx, "holders/h", made.UID, []byte(`{"phase": "new"}`), nil)
		require.NoError(t, err)
	}
	put := b.MustPut(holder, body{"block": target, "x": 2})
	require.Equal(t, []any{int64(2), int64(1), `{"phase": "new"}`}, []any{
		put.Generation, put.StatusGeneration,
		string(put.Status),
	})
	var noted string
	require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(ctx,
		`SELECT status::text FROM dbcontroller.change ORDER BY seq DESC LIMIT 1`).Scan(&noted))
	require.Equal(t, `{"phase": "new"}`, noted)
}

// A resource waits for its finalizers when it waits for nothing else: an operator has released its entry, or
// its deployment is decommissioned; block_deletion was set and cleared meanwhile.
func TestFinalizersBesideDecisionsOfOperators_I33(t *testing.T) {
	t.Parallel()
	b, ctx := harness.NewBox(t, finalized, func(c *shadow.Config) {
		c.Delegations = false
	}, aWest, bEast), context.Background()
	west := b.Stores[b.ID(aWest)]
	uid := b.MustPut(target, nil).UID
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.SetDown(bEast, true)
	require.False(t, b.MustDelete(target).Removed)
	_, released, err := releaseEntry(t, b, true) // its deployment does not answer
	require.NoError(t, err)
	require.Len(t, released, 1)
	_, err = b.Do(b.ID(aWest), schema.Finalise)
	require.NoError(t, err)
	require.Len(t, b.Get(target).Finalizers, 2)
	protect(t, b, target, true)
	clean(t, b, target, uid, "badge", "calendar")
	_, err = b.Do(b.ID(aWest), schema.Finalise)
	require.NoError(t, err)
	require.Equal(t, peer.Deleting, b.Get(target).State)
	_, err = west.Write.RemoveFinalizer(ctx, "targets/t", uid, "badge")
	require.NoError(t, err)
	protect(t, b, target, false)
	_, err = b.Do(b.ID(aWest), schema.Finalise)
	require.NoError(t, err)
	b.Gone(target)
}

// A database that has lost the removal of a finalizer has it again, for the same uid.
func TestARestoreBringsAFinalizerBack_I33(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, finalized, nil, aWest, bEast)
	uid := b.MustPut(target, nil).UID
	require.False(t, b.MustDelete(target).Removed)
	restore := b.Backup(aWest)
	clean(t, b, target, uid, "badge", "calendar")
	b.Settle()
	b.Gone(target)
	restore()
	b.Recover(aWest)
	b.Settle()
	require.Len(t, b.Get(target).Finalizers, 2)
	clean(t, b, target, uid, "badge", "calendar")
	b.Settle()
	b.Gone(target)
	b.Audit()
}

// An ownee in another deployment waits for its finalizer, and its owner does not wait for it.
func TestAnOwneeWaitsForItsFinalizerAndItsOwnerIsGone_I33(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, finalized, nil, aWest, bEast)
	plain := "//" + aWest + "/plains/p"
	b.MustPut(plain, nil)
	ownee, err := b.PutOwned(holder, nil, owner(t, plain, "Plain"))
	require.NoError(t, err)
	b.Settle()
	b.MustDelete(plain)
	b.Settle()
	b.Gone(plain)
	require.Equal(t, []string{"badge"}, b.Get(holder).Finalizers)
	clean(t, b, holder, ownee.UID, "badge")
	b.Settle()
	b.Gone(holder)
	b.Audit()
}

// A release of an owner wakes the watches of resources.
func TestAForcedReleaseOfAnOwnerWakesWatches(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(c *shadow.Config) { c.Times.PollInterval = time.Hour })
	east := b.Stores[b.ID(bEast)]
	b.MustPut(target, nil)
	_, err := b.PutOwned(holder, nil, owner(t, target, "Target"))
	require.NoError(t, err)
	b.Settle()
	f, _ := follow(t, east, "")
	var seen int
	f.until("the end of the snapshot", func() bool { seen = f.events; return f.ended })
	require.True(t, forceRelease(t, east, releasable(t, east, "holders/h", "OWNER_REFERENCE").Key))
	f.until("the resource without its owner", func() bool { return f.events > seen })
}
