package shadow_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const finalized = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
    hide_while_deleting: true
    finalizers: [{ name: calendar, holder: user/calendar }, { name: badge, holder: user/badges }]
    references:
      - { path: up, targets: [Target], behaviour: CASCADE_DELETE }
      - { path: block, targets: [Target], behaviour: BLOCK }
  - kind: Plain
    patterns: ["plains/{plain}"]
    references: [{ path: block, targets: [Target], behaviour: BLOCK }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    finalizers: [{ name: badge, holder: user/badges }]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: cascade, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }
`

func clean(t *testing.T, b *harness.Box, name string, uid uuid.UUID, finalizers ...string) {
	t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(t, err)
	for _, f := range finalizers {
		_, err := b.Stores[full.Deployment].Write.RemoveFinalizer(context.Background(), full.Name, uid, f)
		require.NoError(t, err)
	}
}

// A resource in DELETING stays until each finalizer of its kind is removed, for every cause of the deletion;
// otherwise it is a resource in DELETING like any other: its holders cascade, it takes no references, and it
// blocks nothing.
func TestAResourceWaitsForItsFinalizers_I33(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, finalized, nil, aWest, bEast)
	west := b.Stores[b.ID(aWest)]
	other := "//" + aWest + "/targets/other"
	otherUID := b.MustPut(other, nil).UID
	uid := b.MustPut(target, body{"block": other}).UID
	holderUID := b.MustPut(holder, body{"cascade": target}).UID
	b.Settle()
	_, err := west.Write.RemoveFinalizer(context.Background(), "targets/t", uid, "calendar")
	require.ErrorIs(t, err, peer.ErrNotDeleting, "nobody has deleted it: a clean-up now would not be the last one")

	plan, err := west.Deletions.PlanDelete(context.Background(), "targets/t")
	require.NoError(t, err)
	require.Equal(t, []string{"badge", "calendar"}, plan.Groups[0].Finalizers)
	require.Equal(t, []string{"badge"}, plan.Groups[1].Finalizers)
	require.False(t, b.MustDelete(target).Removed)
	b.Settle()
	left := b.Get(target)
	require.Equal(t, []any{peer.Deleting, []string{"badge", "calendar"}, uid}, []any{
		left.State, left.Finalizers,
		left.UID,
	}, "readable, although its kind hides")
	require.Equal(t, []string{"badge"}, b.Get(holder).Finalizers, "the cascade has marked it, and it waits as well")
	conditions, err := west.Read.Conditions(context.Background(), "targets/t")
	require.NoError(t, err)
	require.Equal(t, "for user/badges to clean up (finalizer badge)", conditions[0].Message)
	stuck, err := west.Operate.Stuck(context.Background(), 0, "", 10)
	require.NoError(t, err)
	require.Len(t, stuck.Resources[0].Conditions, 2)
	_, err = b.Put("//"+aWest+"/plains/p", body{"block": target})
	require.Error(t, err, "it takes no references")
	require.False(t, b.MustDelete(other).Removed)
	clean(t, b, other, otherUID, "calendar", "badge")
	b.Settle()
	b.Gone(other) // the target in DELETING had dropped its reference, and blocked nothing

	clean(t, b, target, uid, "calendar", "calendar", "nobody's") // repeated
	_, err = west.Write.RemoveFinalizer(context.Background(), "targets/t", holderUID, "badge")
	require.ErrorIs(t, err, peer.ErrNotFound, "another uid")
	b.Settle()
	require.Equal(t, []string{"badge"}, b.Get(target).Finalizers)
	clean(t, b, target, uid, "badge")
	b.Settle()
	b.Gone(target)
	require.Equal(t, peer.Deleting, b.Get(holder).State)
	clean(t, b, holder, holderUID, "badge")
	b.Settle()
	b.Gone(holder)
	b.Audit()

	// The next incarnation of the name has finalizers of its own, which a late call does not remove.
	again := b.MustPut(target, nil).UID
	require.False(t, b.MustDelete(target).Removed)
	_, err = west.Write.RemoveFinalizer(context.Background(), "targets/t", uid, "badge")
	require.ErrorIs(t, err, peer.ErrNotFound)
	require.Len(t, b.Get(target).Finalizers, 2)
	clean(t, b, target, again, "badge", "calendar")
	b.Settle()
	b.Gone(target)
}

// The version that runs in the database decides which finalizers a resource gets with its mark: also for a
// process that has not heard of a switch. A switch leaves the finalizers of resources in DELETING.
func TestFinalizersAreThoseOfTheRunningVersion_I26_I33(t *testing.T) {
	t.Parallel()
	const (
		v1 = "service: a.example.com\nversion: v1\nkinds: [{ kind: Target, patterns: [\"targets/{target}\"] }]\n"
		v2 = "---\nservice: a.example.com\nversion: v2\nkinds: [{ kind: Target, patterns: [\"targets/{target}\"], finalizers: [{ name: badge, holder: user/badges }] }]\n"
	)
	b, ctx := harness.NewBox(t, v1+v2, nil, aWest), context.Background()
	store := b.Stores[b.ID(aWest)]
	uid := b.MustPut(target, nil).UID
	b.MustPut("//"+aWest+"/targets/early", nil)
	require.True(t, b.MustDelete("//"+aWest+"/targets/early").Removed)
	asleep := b.SecondProcess(aWest, shadow.Config{})
	b.Switch(aWest, "v2")
	deleted, err := asleep.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t"})
	require.NoError(t, err)
	require.False(t, deleted.Removed)
	b.Switch(aWest, "v1")
	b.Settle()
	require.Equal(t, []string{"badge"}, b.Get(target).Finalizers)
	conditions, err := store.Read.Conditions(ctx, "targets/t")
	require.NoError(t, err)
	require.Contains(t, conditions[0].Message, "for an operator to remove finalizer badge")
	b.MustPut("//"+aWest+"/targets/late", nil)
	require.True(t, b.MustDelete("//"+aWest+"/targets/late").Removed)
	_, err = asleep.Write.RemoveFinalizer(ctx, "targets/t", uid, "badge")
	require.NoError(t, err)
	require.Len(t, b.Work(b.ID(aWest)), 1,
		"the look is committed with the removal: whichever process lives on removes the resource")
	b.Settle()
	b.Gone(target)
}
