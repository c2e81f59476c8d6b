package controller_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/dbctest"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

// doors is a world outside: calls to it fail at first. It is the Finalizers of a test as well.
type doors struct {
	mu      sync.Mutex
	fail    int      // guarded by mu; that many calls fail
	closed  []string // guarded by mu
	removed []string // guarded by mu
}

func (d *doors) close(_ context.Context, r *controller.Resource, _ *controller.View) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail > 0 {
		d.fail--
		return errors.New("the door is jammed")
	}
	d.closed = append(d.closed, r.GetName())
	return nil
}

func (d *doors) RemoveFinalizer(_ context.Context, name, uid, finalizer string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removed = append(d.removed, name+" "+uid+" "+finalizer)
	return nil
}

func (d *doors) seen() (closed, removed []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.closed), slices.Clone(d.removed)
}

// A resource in DELETING that has the finalizer is cleaned up after, and not reconciled; the filter drops its
// mark, and the clean-up comes nevertheless. One without the finalizer is reconciled.
func TestAFinalizerIsRemovedAfterTheCleanUp_I33(t *testing.T) {
	t.Parallel()
	m := newMemory(here)
	device := func(name string, state resourcev1.Resource_State, finalizers ...string) {
		m.write(&resourcev1.Resource{Name: "devices/" + name, Kind: "Device", State: state, Finalizers: finalizers})
	}
	const active, deleting = resourcev1.Resource_STATE_ACTIVE, resourcev1.Resource_STATE_DELETING
	device("before", deleting, "badge", "other")
	device("another's", deleting, "other")
	device("d", active)
	d := &doors{fail: 1}
	var mu sync.Mutex
	ran := map[string]int{}
	reconcile := controller.Func(
		func(_ context.Context, req controller.Request, _ *controller.View) (controller.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			ran[req.Name.Name]++
			return controller.Result{}, nil
		})
	c := clientOf(true, m)
	background(t, controller.New(c, devices, controller.GenerationChanged).Finalizer("badge", d, d.close).
		Backoff(time.Millisecond, time.Millisecond), reconcile)
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return ran["devices/d"] == 1 && ran["devices/another's"] == 1
	}, wait.Limit, time.Millisecond)
	device("d", deleting, "badge")
	require.Eventually(t, func() bool {
		_, removed := d.seen()
		return len(removed) == 2
	}, wait.Limit, time.Millisecond)
	closed, removed := d.seen()
	require.ElementsMatch(t, []string{"devices/before", "devices/d"}, closed)
	require.Contains(t, removed, "//devices.example.com/eu/devices/d uid3 badge")
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, map[string]int{"devices/d": 1, "devices/another's": 1}, ran)
}

// Without the finalizer in the descriptor resources would be removed without a clean-up.
func TestAFinalizerThatTheKindLacksIsRefused(t *testing.T) {
	t.Parallel()
	d := &doors{}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	for finalizer, kind := range map[string]controller.Kind{"door": devices, "badge": jobs} {
		err := controller.New(clientOf(true, newMemory(here)), kind).Finalizer(finalizer, d, d.close).Run(ctx, nil)
		require.ErrorContains(t, err, "has no finalizer "+finalizer+
			": add it to the kind's finalizers in the descriptor")
	}
}

// badges deletes a badge while no controller closes doors, and while the deployment crashes: the badge stays
// until a controller, with the identity that the kind names, has closed its door. Its status is written apart
// from its body.
func badges(t *testing.T, in *dbctest.Installation) (end, isGone func()) {
	t.Helper()
	ctx, badge, kind := t.Context(), full(projects, "badges/b"), controller.Kind{Deployment: iam, Name: "Badge"}
	stranger, holder := in.As("user/stranger"), in.As("user/doors")
	made, err := stranger.Put(ctx, &resourcev1.Resource{Name: badge, Body: fields(map[string]any{"door": "7"})})
	require.NoError(t, err)
	type opened struct{ Open bool }
	told, err := holder.UpdateStatus(ctx, badge, opened{true}, client.StatusOf(made))
	require.NoError(t, err)
	require.Equal(t, []int64{1, 1}, []int64{told.GetGeneration(), told.GetStatusGeneration()})
	_, err = holder.UpdateStatus(ctx, badge, opened{false}, client.StatusOf(made))
	require.ErrorIs(t, err, client.ErrConflict)
	require.Error(t, holder.RemoveFinalizer(ctx, badge, made.GetUid(), "door"), "nobody has deleted it")
	deleted, err := stranger.Delete(ctx, badge, client.Version{})
	require.NoError(t, err)
	require.False(t, deleted.GetRemoved())
	require.ErrorIs(t, stranger.RemoveFinalizer(ctx, badge, made.GetUid(), "door"), client.ErrDenied)
	left, err := stranger.Get(ctx, badge)
	require.NoError(t, err)
	require.Equal(t, []string{"door"}, left.GetFinalizers())
	require.Equal(t, "for user/doors to clean up (finalizer door)", left.GetConditions()[0].GetMessage())
	var is opened
	require.NoError(t, client.DecodeStatus(left, &is))
	require.True(t, is.Open)

	d := &doors{fail: 1}
	end = background(t, controller.New(holder, kind).Finalizer("door", holder, d.close),
		controller.Func(func(context.Context, controller.Request, *controller.View) (controller.Result, error) {
			return controller.Result{}, nil
		}))
	return end, func() {
		t.Helper()
		require.Eventually(t, func() bool {
			_, err := stranger.Get(ctx, badge)
			return errors.Is(err, client.ErrNotFound)
		}, wait.Limit, 10*time.Millisecond, "the badge is gone")
		closed, _ := d.seen()
		require.NotEmpty(t, closed)
		require.NoError(t, holder.RemoveFinalizer(ctx, badge, made.GetUid(), "door"), "a repeated call")
	}
}
