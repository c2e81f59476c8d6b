package controller_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// ownedBy is a job of a device.
func ownedBy(v *controller.View, device, id string) *resourcev1.Resource {
	d, _ := v.Get(schema.FullName{Deployment: here, Name: device})
	j := job(id, nil)
	j.Name = full(jobs, j.GetName())
	j.OwnerReferences = []*resourcev1.OwnerReference{{Name: d.GetName(), Kind: d.GetKind(), Uid: d.GetUid()}}
	return j
}

// A reconciler gives its children names of chance. Each resource is reconciled again before its watch has
// delivered the child.
func TestAChildIsMadeOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		for i := range 40 {
			m.write(device(fmt.Sprint(i), nil))
		}
		m.late = func() { time.Sleep(50 * time.Millisecond) }
		c := clientOf(false, m)
		var made, runs atomic.Int64
		r := &recorder{does: func(ctx context.Context, name string, v *controller.View) (controller.Result, error) {
			runs.Add(1)
			for range v.Owned(m.name(name)) {
				return controller.Result{}, nil
			}
			_, err := c.Create(ctx, ownedBy(v, name, fmt.Sprint("made-", made.Add(1))))
			return controller.Result{RequeueAfter: time.Millisecond}, err
		}}
		end := running(t, controller.New(c, devices).Owns(jobs).Workers(4), r)
		pass(time.Minute)
		require.NoError(t, end())
		require.Equal(t, int64(40), made.Load(), "in %d runs", runs.Load())
	})
}

// A run sees the newest state of what the run before it has written: created, changed, in a batch, by a
// status, or removed.
func TestARunSeesTheWritesOfTheRunBefore(t *testing.T) {
	newJob := &resourcev1.Resource{Name: full(jobs, "jobs/j"), Body: fields(map[string]any{"title": "new"})}
	for does, write := range map[string]func(ctx context.Context, c *client.Client, m *memory) error{
		"put": func(ctx context.Context, c *client.Client, _ *memory) error {
			_, err := c.Put(ctx, newJob)
			return err
		},
		"delete": func(ctx context.Context, c *client.Client, _ *memory) error {
			_, err := c.Delete(ctx, full(jobs, "jobs/j"), client.Version{})
			return err
		},
		"delete one incarnation": func(ctx context.Context, c *client.Client, _ *memory) error {
			r, err := c.Get(ctx, full(jobs, "jobs/j"))
			if err == nil {
				_, err = c.Delete(ctx, full(jobs, "jobs/j"), client.Version{UID: r.GetUid()})
			}
			return err
		},
		"delete and create": func(ctx context.Context, c *client.Client, _ *memory) error {
			if _, err := c.Delete(ctx, full(jobs, "jobs/j"), client.Version{}); err != nil {
				return err
			}
			_, err := c.Create(ctx, newJob)
			return err
		},
		"without a client": func(ctx context.Context, _ *client.Client, m *memory) error {
			m.write(job("j", map[string]any{"title": "new"}))
			m.mu.Lock()
			defer m.mu.Unlock()
			controller.Await(ctx, m.stored["jobs/j"])
			return nil
		},
	} {
		t.Run(does, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := newMemory(here)
				m.write(device("a", nil), job("j", map[string]any{"title": "old"}))
				m.late = func() { time.Sleep(50 * time.Millisecond) }
				c := clientOf(false, m)
				var seen []string
				r := &recorder{does: func(ctx context.Context, _ string,
					v *controller.View,
				) (controller.Result, error) {
					j, ok := v.Get(m.name("jobs/j"))
					seen = append(seen, fmt.Sprint(ok, " ", text(j, "title")))
					if len(seen) > 1 {
						return controller.Result{}, nil
					}
					return controller.Result{RequeueAfter: time.Millisecond}, write(ctx, c, m)
				}}
				end := running(t, controller.New(c, devices).
					Watches(jobs,
						func(context.Context, *controller.Resource, *controller.View) ([]controller.Request, error) {
							return nil, nil
						}), r)
				pass(time.Second)
				require.NoError(t, end())
				want := "true new"
				if does == "delete" || does == "delete one incarnation" {
					want = "false "
				}
				require.Equal(t, []string{"true old", want}, seen)
			})
		})
	}
}

// A cache may never have a write, which another resource does not wait for.
func TestAWriteThatNeverArrivesIsWaitedForAWhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		m.write(device("a", nil), device("b", nil))
		entries, logs := observer.New(zap.WarnLevel)
		c := clientOf(false, m)
		wrote := false
		r := &recorder{does: func(ctx context.Context, name string, _ *controller.View) (controller.Result, error) {
			if name != "devices/a" || wrote {
				return controller.Result{}, nil
			}
			wrote = true
			controller.Await(ctx, &resourcev1.Resource{
				Name: "jobs/j", Deployment: here.String(), Uid: "lost",
				Revision: 1,
			},
				&resourcev1.Resource{Name: "sites/s", Deployment: here.String(), Uid: "not watched", Revision: 1},
				&resourcev1.Resource{Name: "sites/s", Deployment: elsehere.String(), Uid: "not watched", Revision: 1})
			return controller.Result{}, nil
		}}
		end := running(t, controller.New(c, devices).Owns(jobs).Logger(zap.New(entries)), r)
		require.Equal(t, []string{"devices/a", "devices/b"}, r.take())
		m.write(device("a", map[string]any{"n": 1}), device("b", map[string]any{"n": 1}))
		require.Equal(t, []string{"devices/b"}, r.take(), "the other one does not wait")
		pass(11 * time.Second)
		require.Equal(t, []string{"devices/a"}, r.take())
		require.Equal(t, 1, logs.FilterMessageSnippet("does not wait any longer").Len())
		m.write(device("a", map[string]any{"n": 2}))
		require.Equal(t, []string{"devices/a"}, r.take(), "it has given up")
		require.NoError(t, end())
	})
}

// The removal of a written incarnation ends the wait for it.
func TestAWriteThatIsRemovedIsNotWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		m.write(device("a", nil), job("j", nil))
		wrote := false
		r := &recorder{does: func(ctx context.Context, _ string, v *controller.View) (controller.Result, error) {
			if wrote {
				return controller.Result{}, nil
			}
			wrote = true
			j, _ := v.Get(m.name("jobs/j"))
			j.Revision += 100 // a state between, which a snapshot leaves out
			controller.Await(ctx, j)
			return controller.Result{}, nil
		}}
		end := running(t, controller.New(clientOf(false, m), devices).Owns(jobs), r)
		r.take()
		m.write(device("a", map[string]any{"n": 1}))
		require.Empty(t, r.take())
		m.write(gone("jobs/j"))
		require.Equal(t, []string{"devices/a"}, r.take())
		require.NoError(t, end())
	})
}

// A watch that is resumed at the position of a view has what the view lacks, such as removals while no
// controller ran.
func TestAViewHasAPosition(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		m.write(device("a", nil), device("b", nil))
		c := clientOf(false, m)
		var position string
		r := &recorder{does: func(_ context.Context, _ string, v *controller.View) (controller.Result, error) {
			position = v.Position(here)
			require.Empty(t, v.Position(elsehere))
			return controller.Result{}, nil
		}}
		end := running(t, controller.New(c, devices), r)
		m.write(device("a", map[string]any{"n": 1}))
		r.take()
		require.NoError(t, end())
		m.write(gone("devices/b"))
		var events []string
		for e, err := range c.Watch(t.Context(), here, client.WatchQuery{Kind: "Device", Token: position}) {
			require.NoError(t, err)
			events = append(events, fmt.Sprint(e.Type, " ", e.Resource.GetName()))
			break
		}
		require.Equal(t, []string{"deleted devices/b"}, events)
	})
}
