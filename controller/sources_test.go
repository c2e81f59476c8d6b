package controller_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
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

// pointsTo maps a resource to the device in its body.
func pointsTo(_ context.Context, r *controller.Resource, _ *controller.View) ([]controller.Request, error) {
	return []controller.Request{{Name: schema.FullName{Deployment: here, Name: "devices/" + text(r, "device")}}}, nil
}

func on(device string) map[string]any { return map[string]any{"device": device} }

// A resource that changes its reference concerns the former target as well; so does a removed one.
func TestAMapperSeesTheFormerStateAndTheNewOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r := newMemory(here), &recorder{}
		m.write(device("a", nil), device("b", nil), device("c", nil), job("j", on("a")))
		end := running(t, controller.New(clientOf(false, m), devices).Watches(jobs, pointsTo), r)
		require.Contains(t, r.take(), "devices/c")
		m.write(job("j", on("b")))
		require.Equal(t, []string{"devices/a", "devices/b"}, r.take())
		m.write(job("j", on("c")), job("k", on("d")))
		require.Equal(t, []string{"devices/b", "devices/c", "devices/d"}, r.take(), "also what does not exist")
		m.write(gone("jobs/j"))
		require.Equal(t, []string{"devices/c"}, r.take())
		require.NoError(t, end())
	})
}

// While a mapper is busy, states gather: each of them was the state that a reconciler may have seen. The last
// call has the newest one.
func TestAMapperThatIsBusyMissesNoState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r, release := newMemory(here), &recorder{}, make(chan struct{})
		var mu sync.Mutex
		var seen []string
		var once atomic.Bool // a call that fails forgets none of the states that came meanwhile
		mapper := func(ctx context.Context, j *controller.Resource, v *controller.View) ([]controller.Request, error) {
			mu.Lock()
			seen = append(seen, text(j, "device"))
			mu.Unlock()
			<-release
			if once.Swap(true) {
				return pointsTo(ctx, j, v)
			}
			return nil, errMine
		}
		m.write(job("j", on("a")))
		end := running(t, controller.New(clientOf(false, m), devices).Watches(jobs, mapper).Workers(2), r)
		for _, at := range []string{"b", "c", "d"} {
			m.write(job("j", on(at)), device("other", on(at)))
			require.Equal(t, []string{"devices/other"}, r.take(), "others are not held up")
		}
		close(release)
		pass(time.Second)
		require.Equal(t, []string{"devices/a", "devices/b", "devices/c", "devices/d"}, slices.Compact(r.take()))
		require.Equal(t, "d", seen[len(seen)-1])
		require.NoError(t, end())
	})
}

func TestAMapperThatFailsOrPanicsIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r, calls := newMemory(here), &recorder{}, 0
		mapper := func(ctx context.Context, j *controller.Resource, v *controller.View) ([]controller.Request, error) {
			if text(j, "device") == "a" {
				switch calls++; calls {
				case 1:
					return nil, errMine
				case 2:
					panic("a mistake")
				}
			}
			return pointsTo(ctx, j, v)
		}
		m.write(job("j", on("0")))
		end := running(t, controller.New(clientOf(false, m), devices).Watches(jobs, mapper), r)
		require.Equal(t, []string{"devices/0"}, r.take())
		m.write(job("j", on("a")))
		m.write(job("j", on("b")), job("k", on("c")))
		require.Contains(t, r.take(), "devices/c", "at once")
		pass(time.Second)
		require.Contains(t, r.take(), "devices/a", "a state that is gone, and for which the mapper failed")
		require.NoError(t, end())
	})
}

func TestRequestsForOtherResourcesAreDropped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r := newMemory(here), &recorder{}
		m.write(job("j", nil), device("a", nil))
		core, logs := observer.New(zap.WarnLevel)
		mapper := func(context.Context, *controller.Resource,
			*controller.View,
		) (requests []controller.Request, _ error) {
			for _, name := range []schema.FullName{
				{},
				{Deployment: here},
				{Deployment: here, Name: "jobs/j"},
				{Deployment: here, Name: "jobs/new"},
				{Deployment: elsehere, Name: "devices/a"},
				{Deployment: here, Name: "devices/new"},
			} {
				requests = append(requests, controller.Request{Name: name})
			}
			return requests, nil
		}
		end := running(t, controller.New(clientOf(false, m), devices).Watches(jobs, mapper).Logger(zap.New(core)), r)
		require.Equal(t, []string{"devices/a", "devices/new"}, r.take())
		require.Equal(t, 5, logs.FilterMessage("a request is not for a resource of the controlled kind, it is dropped").
			Len())
		require.NoError(t, end())
	})
}

// interrupted is a source whose watches are interrupted once.
type interrupted struct{ controller.Source }

func (s interrupted) Watch(ctx context.Context, id schema.DeploymentID, q client.WatchQuery) iter.Seq2[client.Event,
	error] {
	q.Interrupted(errors.New("a fault"))
	q.Interrupted(nil)
	return s.Source.Watch(ctx, id, q)
}

func TestAnInterruptedWatchIsALineOfTheLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r := newMemory(here), &recorder{}
		m.write(device("a", nil))
		core, logs := observer.New(zap.InfoLevel)
		end := running(t, controller.New(interrupted{clientOf(false, m)}, devices).Logger(zap.New(core)), r)
		require.Equal(t, []string{"devices/a"}, r.take())
		require.NoError(t, end())
		of := zap.Stringer("deployment", here)
		require.Equal(t, 1, logs.FilterMessage("a watch is interrupted, it is tried again").FilterField(of).Len())
		require.Equal(t, 1, logs.FilterMessage("a watch goes on").FilterField(of).Len())
	})
}

func TestTheOwnersOfTheControlledKindAreReconciled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r := newMemory(here), &recorder{}
		end := running(t, controller.New(clientOf(false, m), devices).Owns(jobs), r)
		owned := job("j", nil)
		for i, owner := range []string{
			"devices/a", "//devices.example.com/eu/devices/b",
			"//devices.example.com/us/devices/c", "sites/s",
		} {
			kind := []string{"Device", "Device", "Device", "Site"}[i]
			owned.OwnerReferences = append(owned.OwnerReferences, &resourcev1.OwnerReference{Name: owner, Kind: kind})
		}
		m.write(owned)
		require.Equal(t, []string{"devices/a", "devices/b"}, r.take())
		owned.OwnerReferences = owned.GetOwnerReferences()[1:]
		m.write(owned)
		require.Equal(t, []string{"devices/a", "devices/b"}, r.take())
		m.write(gone("jobs/j"))
		require.Equal(t, []string{"devices/b"}, r.take())
		require.NoError(t, end())
	})
}

// A source that ends, fails or panics is started again, and the log says so. It starts when the caches are
// there.
func TestASourceIsStartedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r, starts, ended := newMemory(here), &recorder{}, 0, 0
		core, logs := observer.New(zap.WarnLevel)
		c := controller.New(clientOf(false, m), devices).Logger(zap.New(core)).
			From("webhook", func(ctx context.Context, enqueue func(...controller.Request)) error {
				starts++
				enqueue(controller.Request{Name: m.name(fmt.Sprint("devices/", starts))},
					controller.Request{Name: m.name("jobs/j")})
				switch starts {
				case 1:
					return nil
				case 2:
					return errMine
				case 3:
					panic("a mistake")
				}
				<-ctx.Done()
				time.Sleep(time.Minute)
				ended++
				return ctx.Err()
			})
		end := running(t, c, r)
		pass(time.Minute)
		require.Equal(t, []string{"devices/1", "devices/2", "devices/3", "devices/4"}, r.take())
		require.Equal(t, 3, logs.FilterMessage("a source ended, it is started again").Len())
		require.NoError(t, end())
		require.Equal(t, 1, ended, "Run waits for its sources")
		require.NoError(t, running(t, c, r)(), "the controller can be run again")
	})
}

func TestResourcesAreReconciledAgainAfterSomeTimeUntilTheyAreGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, began := newMemory(here), time.Now()
		var mu sync.Mutex
		at := map[string][]time.Duration{}
		r := &recorder{does: func(_ context.Context, name string, _ *controller.View) (controller.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			at[name] = append(at[name], time.Since(began))
			return controller.Result{}, nil
		}}
		for i := range 50 {
			m.write(device(fmt.Sprint(i), nil))
		}
		end := running(t, controller.New(clientOf(false, m), devices).Resync(time.Hour), r)
		pass(66 * time.Minute)
		different := map[time.Duration]bool{}
		for name, runs := range at {
			require.Len(t, runs, 2, name)
			require.GreaterOrEqual(t, runs[1], 54*time.Minute)
			different[runs[1]] = true
		}
		require.Greater(t, len(different), 40, "they do not come together")
		r.take()
		m.write(gone("devices/7"))
		require.Contains(t, r.take(), "devices/7")
		pass(3 * time.Hour)
		require.NotContains(t, r.take(), "devices/7")
		require.NoError(t, end())
	})
}

// Changes that a filter drops cause no run, and are in the cache.
func TestChangesThatDoNotMatterCauseNoRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, labelled := newMemory(here), 0
		r := &recorder{does: func(_ context.Context, name string, v *controller.View) (controller.Result, error) {
			if d, ok := v.Get(m.name(name)); ok {
				labelled = len(d.GetLabels())
			}
			return controller.Result{}, nil
		}}
		broken := func(_, after *controller.Resource) bool {
			if after.GetName() == "jobs/bad" {
				panic("a mistake")
			}
			return true
		}
		m.write(device("a", nil))
		end := running(t, controller.New(clientOf(false, m), devices, controller.GenerationChanged).
			Watches(jobs, pointsTo, controller.GenerationChanged, broken), r)
		require.Len(t, r.take(), 1)
		changed := device("a", nil)
		changed.Labels = map[string]string{"k": "v"}
		m.write(changed)
		require.Empty(t, r.take())
		m.write(job("j", on("a")))
		require.Len(t, r.take(), 1)
		require.Equal(t, 1, labelled)
		changed = job("j", on("a"))
		changed.Labels = map[string]string{"k": "v"}
		m.write(changed)
		require.Empty(t, r.take())
		m.write(job("bad", on("a")))
		require.Len(t, r.take(), 1, "a filter that panics drops nothing")
		m.write(gone("devices/a"))
		require.Len(t, r.take(), 1)
		m.write(device("a", nil))
		require.Len(t, r.take(), 1)
		m.cut(true) // and no watch sees the removal in between
		m.write(gone("devices/a"), device("a", nil))
		pass(time.Second)
		require.Len(t, r.take(), 1, "another incarnation has the same generation")
		require.NoError(t, end())
	})
}

// observed keeps the received keys.
type observed struct {
	mu      sync.Mutex
	ran     map[string]int // by which reconciler, and whether it failed
	took    time.Duration
	waiting []int
	cached  map[schema.DeploymentID]int
}

func (o *observed) Ran(what string, took time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		what += " failed"
	}
	o.ran[what]++
	o.took += took
}

func (o *observed) Waiting(keys int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, keys)
}

func (o *observed) Cached(of schema.DeploymentID, resources int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cached[of] = resources
}

func TestAnObserverReceivesWhatMetricsNeed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, o, tries := newMemory(here), &observed{ran: map[string]int{}, cached: map[schema.DeploymentID]int{}}, 0
		r := &recorder{does: func(context.Context, string, *controller.View) (controller.Result, error) {
			time.Sleep(time.Second)
			if tries++; tries == 1 {
				return controller.Result{}, errMine
			}
			return controller.Result{}, nil
		}}
		m.write(device("a", nil), device("b", nil), device("c", nil), job("j", on("a")))
		initial := func(context.Context, *controller.View) error { return nil }
		end := running(t, controller.New(clientOf(false, m), devices).Watches(jobs, pointsTo).Initialise(initial).
			Observe(o), r)
		pass(time.Minute)
		m.write(gone("jobs/j"))
		pass(time.Minute)
		require.NoError(t, end())
		require.Equal(t, map[string]int{
			"initialise": 1, "reconcile": len(r.take()) - 1, "reconcile failed": 1,
			"map": 2,
		}, o.ran)
		require.GreaterOrEqual(t, o.took, 4*time.Second)
		require.GreaterOrEqual(t, slices.Max(o.waiting), 3)
		require.Zero(t, o.waiting[len(o.waiting)-1])
		require.Equal(t, 3, o.cached[here])
	})
}
