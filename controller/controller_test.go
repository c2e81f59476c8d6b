package controller_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

var errMine = errors.New("mine")

// recorder is a reconciler that keeps its requests.
type recorder struct {
	mu   sync.Mutex
	runs []string
	// does is called in each run; may be nil.
	does func(ctx context.Context, name string, v *controller.View) (controller.Result, error)
}

func (r *recorder) Reconcile(ctx context.Context, req controller.Request,
	v *controller.View,
) (controller.Result, error) {
	r.mu.Lock()
	r.runs = append(r.runs, req.Name.Name)
	r.mu.Unlock()
	if r.does == nil {
		return controller.Result{}, nil
	}
	return r.does(ctx, req.Name.Name, v)
}

// take returns the runs since the last call, in the order of the names.
func (r *recorder) take() []string {
	synctest.Wait()
	return r.taken()
}

// taken is take for a goroutine of the controller, beside which the test waits.
func (r *recorder) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	runs := r.runs
	r.runs = nil
	slices.Sort(runs)
	return runs
}

// running starts a controller in a bubble; end stops it, and returns its error.
func running(t *testing.T, c *controller.Controller, r controller.Reconciler) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, r) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-ended
	}
}

// bubble runs a test with a clock of its own; it fails when a goroutine is left.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// pass lets time pass, and then waits until nothing goes on.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestEachResourceIsReconciledOnceAfterTheStartAndAfterEachChange(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r := newMemory(here), &recorder{}
		m.write(device("a", nil), device("b", nil), job("j", nil))
		end := running(t, controller.New(clientOf(false, m), devices), r)
		require.Equal(t, []string{"devices/a", "devices/b"}, r.take())
		m.write(device("b", map[string]any{"n": 1}), job("j", nil))
		require.Equal(t, []string{"devices/b"}, r.take())
		m.write(gone("devices/a"), device("c", nil))
		require.Equal(t, []string{"devices/a", "devices/c"}, r.take())
		pass(time.Hour)
		require.Empty(t, r.take(), "nothing changed, also after lost streams")
		require.NoError(t, end())
	})
}

func TestNothingRunsBeforeAllKindsOfAllDeploymentsAreThere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, other, r := newMemory(here), newMemory(elsehere), &recorder{}
		m.write(device("a", nil))
		other.write(of("Site", "sites/s", nil))
		release := make(chan struct{})
		other.snapshot = func(*resourcev1.Resource) { <-release }
		mapped := 0
		c := controller.New(clientOf(false, m, other), devices).
			Watches(controller.Kind{Deployment: elsehere, Name: "Site"},
				func(_ context.Context, _ *controller.Resource, v *controller.View) ([]controller.Request, error) {
					_, ok := v.Get(other.name("sites/s"))
					require.True(t, ok)
					mapped++
					return nil, nil
				})
		end := running(t, c, r)
		m.write(device("b", nil))
		require.Empty(t, r.take())
		require.Zero(t, mapped)
		close(release)
		require.Equal(t, []string{"devices/a", "devices/b"}, r.take())
		require.Equal(t, 1, mapped)
		require.NoError(t, end())
	})
}

func TestAnEmptyKindIsThere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r, initial := newMemory(here), &recorder{}, 0
		end := running(t, controller.New(clientOf(false, m), devices).
			Initialise(func(context.Context, *controller.View) error {
				initial++
				return nil
			}), r)
		require.Equal(t, 1, initial)
		m.write(device("a", nil))
		require.Equal(t, []string{"devices/a"}, r.take())
		require.NoError(t, end())
	})
}

// Without Share each process has all resources, and needs no lease.
func TestWithoutShareEachProcessHasAllResources(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, first, second := newMemory(here), &recorder{}, &recorder{}
		m.write(device("a", nil))
		endFirst := running(t, controller.New(clientOf(false, m), devices), first)
		endSecond := running(t, controller.New(clientOf(false, m), devices), second)
		m.write(device("b", nil))
		require.Equal(t, []string{"devices/a", "devices/b"}, first.take())
		require.Equal(t, []string{"devices/a", "devices/b"}, second.take())
		require.NoError(t, endFirst())
		m.write(device("c", nil))
		require.Empty(t, first.take())
		require.Equal(t, []string{"devices/c"}, second.take())
		require.NoError(t, endSecond())
	})
}

// Run returns after its last run, also when that run ignores the end of its context; no run begins meanwhile.
func TestRunEndsAfterItsLastRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r, hold := newMemory(here), &recorder{}, make(chan struct{})
		r.does = func(ctx context.Context, _ string, _ *controller.View) (controller.Result, error) {
			<-hold
			return controller.Result{}, ctx.Err()
		}
		m.write(device("a", nil), device("b", nil), device("c", nil))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- controller.New(clientOf(false, m), devices).Run(ctx, r) }()
		require.Len(t, r.take(), 1, "one worker")
		cancel()
		pass(time.Hour)
		require.Empty(t, ended, "a run goes on")
		close(hold)
		require.NoError(t, <-ended)
		require.Empty(t, r.take(), "nothing has begun")
	})
}

func TestInitialisersRunFirstWithTheCacheUntilTheySucceed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r := newMemory(here), &recorder{}
		m.write(device("a", nil))
		tries := 0
		c := controller.New(clientOf(false, m), devices).Initialise(func(_ context.Context, v *controller.View) error {
			_, ok := v.Get(m.name("devices/a"))
			require.True(t, ok)
			require.Empty(t, r.taken(), "neither the resource nor its change")
			switch tries++; tries {
			case 1:
				m.write(device("a", map[string]any{"n": 1}))
				return errMine
			case 2:
				panic("a mistake")
			}
			return nil
		})
		began := time.Now()
		end := running(t, c, r)
		pass(time.Second)
		require.Equal(t, []string{"devices/a"}, r.take())
		require.Equal(t, 3, tries)
		require.Positive(t, time.Since(began))
		require.NoError(t, end())
	})
}

// Many events of a key are one run while it is queued, and one more while it runs; other keys go on
// meanwhile.
func TestManyChangesOfAResourceAreOneRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, release := newMemory(here), make(chan struct{})
		var last float64
		r := &recorder{does: func(_ context.Context, name string, v *controller.View) (controller.Result, error) {
			if name == "devices/slow" {
				o, _ := v.Get(m.name(name))
				last = o.GetBody().GetFields()["n"].GetNumberValue()
				<-release
			}
			return controller.Result{}, nil
		}}
		m.write(device("slow", nil))
		end := running(t, controller.New(clientOf(false, m), devices).Workers(2), r)
		require.Equal(t, []string{"devices/slow"}, r.take())
		for n := range 10 {
			m.write(device("slow", map[string]any{"n": n}), device("other", map[string]any{"n": n}))
			synctest.Wait()
		}
		runs := r.take()
		require.Len(t, runs, 10, "only the other one")
		require.NotContains(t, runs, "devices/slow")
		close(release)
		require.Equal(t, []string{"devices/slow"}, r.take())
		require.InDelta(t, 9, last, 0, "with the newest state")
		require.NoError(t, end())
	})
}

func TestWorkersRunDifferentKeysAndNoKeyTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		var mu sync.Mutex
		at, most, twice := map[string]int{}, 0, false
		r := &recorder{does: func(_ context.Context, name string, _ *controller.View) (controller.Result, error) {
			mu.Lock()
			at[name]++
			sum := 0
			for _, n := range at {
				sum += n
			}
			most = max(most, sum)
			twice = twice || at[name] > 1
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			at[name]--
			mu.Unlock()
			return controller.Result{}, nil
		}}
		for i := range 9 {
			m.write(device(fmt.Sprint(i), nil))
		}
		end := running(t, controller.New(clientOf(false, m), devices).Workers(3), r)
		for range 12 { // longer than the others need, so that workers are free while it runs
			pass(400 * time.Millisecond)
			m.write(device("1", map[string]any{"at": time.Now().String()}))
		}
		pass(time.Minute)
		require.Equal(t, 3, most)
		require.False(t, twice)
		require.NoError(t, end())
	})
}

func TestARunThatFailsOrPanicsIsRepeatedAfterItsOwnPause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, began := newMemory(here), time.Now()
		var at []time.Duration
		var broken atomic.Bool
		broken.Store(true)
		r := &recorder{does: func(_ context.Context, name string, _ *controller.View) (controller.Result, error) {
			if name != "devices/bad" {
				return controller.Result{}, nil
			}
			at = append(at, time.Since(began))
			switch {
			case !broken.Load():
				return controller.Result{}, nil
			case len(at)%2 == 0:
				panic("a mistake")
			}
			return controller.Result{}, errMine
		}}
		m.write(device("bad", nil), device("good", nil))
		end := running(t, controller.New(clientOf(false, m), devices).Backoff(time.Second, 16*time.Second), r)
		require.Equal(t, []string{"devices/bad", "devices/good"}, r.take())
		pass(time.Minute)
		for i, longest := range []time.Duration{
			time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second,
			16 * time.Second,
		} {
			pause := at[i+1] - at[i]
			require.LessOrEqual(t, pause, longest)
			require.GreaterOrEqual(t, pause, longest/2)
		}
		require.NotContains(t, r.take(), "devices/good")
		broken.Store(false)
		pass(time.Minute)
		r.take()
		broken.Store(true)
		n := len(at)
		m.write(device("bad", map[string]any{"n": 1}))
		pass(1001 * time.Millisecond)
		require.Len(t, at[n:], 2, "the first pause again, after a success")
		require.NoError(t, end())
	})
}

func TestARunIsRepeatedWhenItAsksForIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		var after atomic.Int64
		after.Store(int64(time.Minute))
		r := &recorder{does: func(context.Context, string, *controller.View) (controller.Result, error) {
			return controller.Result{RequeueAfter: time.Duration(after.Load())}, nil
		}}
		m.write(device("a", nil))
		end := running(t, controller.New(clientOf(false, m), devices), r)
		require.Len(t, r.take(), 1)
		pass(59 * time.Second)
		require.Empty(t, r.take())
		pass(time.Second)
		require.Len(t, r.take(), 1)
		// A later deferral never postpones an earlier one.
		pass(30 * time.Second)
		after.Store(int64(time.Hour))
		m.write(device("a", map[string]any{"n": 1}))
		require.Len(t, r.take(), 1)
		pass(30 * time.Second)
		require.Len(t, r.take(), 1)
		require.NoError(t, end())

		// Nor does a resync, in either order.
		after.Store(int64(time.Minute))
		end = running(t, controller.New(clientOf(false, m), devices).Resync(time.Hour), r)
		require.Len(t, r.take(), 1)
		after.Store(int64(3 * time.Hour))
		pass(time.Minute)
		require.Len(t, r.take(), 1, "before the resync")
		pass(66 * time.Minute)
		require.Len(t, r.take(), 1, "by the resync")
		require.NoError(t, end())
	})
}

// The reader's copies can be changed freely; the cache, and other readers, do not see it.
func TestReadsAreCopiesOfOneVersion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		spoil := func(r *controller.Resource) {
			r.Name, r.Labels, r.OwnerReferences = "spoilt", nil, nil
			r.Body.Fields["n"] = structpb.NewStringValue("spoilt")
		}
		seen, release := 0, make(chan struct{})
		r := &recorder{does: func(_ context.Context, name string, v *controller.View) (controller.Result, error) {
			for range 2 {
				o, ok := v.Get(m.name(name))
				require.True(t, ok)
				require.InDelta(t, 1, o.GetBody().GetFields()["n"].GetNumberValue(), 0)
				spoil(o)
				all, err := v.List(devices)
				require.NoError(t, err)
				found, err := v.By("n", "1")
				require.NoError(t, err)
				owned := slices.Collect(v.Owned(m.name("sites/s")))
				require.Len(t, owned, 1)
				for _, o := range slices.Concat(slices.Collect(all), slices.Collect(found), owned) {
					require.Equal(t, name, o.GetName())
					spoil(o)
				}
				seen++
				<-release // the state changes meanwhile
			}
			return controller.Result{}, nil
		}}
		first := device("a", map[string]any{"n": 1})
		first.OwnerReferences = []*resourcev1.OwnerReference{{Name: "sites/s", Kind: "Site"}}
		m.write(first)
		mapper := func(_ context.Context, s *controller.Resource, _ *controller.View) ([]controller.Request, error) {
			s.Name = "spoilt"
			return nil, nil
		}
		number := func(r *controller.Resource) ([]string, error) {
			key := fmt.Sprint(r.GetBody().GetFields()["n"].GetNumberValue())
			spoil(r)
			return []string{key}, nil
		}
		c := controller.New(clientOf(true, m), devices, func(_, after *controller.Resource) bool {
			spoil(after)
			return false
		}).Watches(jobs, mapper).Index("n", number)
		end := running(t, c, r)
		m.write(device("b", map[string]any{"n": 1}), device("a", map[string]any{"n": 2}), job("j", nil))
		m.write(job("j", map[string]any{"n": 1})) // the mapper gets the former state as well
		synctest.Wait()
		close(release)
		synctest.Wait()
		require.Equal(t, 2, seen)
		require.NoError(t, end())
		require.InDelta(t, 2, m.stored["devices/a"].GetBody().GetFields()["n"].GetNumberValue(), 0,
			"the deployment shares its messages with the cache")
		for _, e := range slices.Concat(m.log...) {
			require.NotEqual(t, "spoilt", e.GetUpsert().GetName())
		}
	})
}

// An index has the resources of all deployments, in an order that does not change.
func TestAnIndexIsReadByDeploymentsAndNames(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, other := newMemory(here), newMemory(elsehere)
		m.write(device("b", nil), device("a", nil))
		other.write(device("d", nil), device("c", nil))
		far := controller.Kind{Deployment: elsehere, Name: "Device"}
		r := &recorder{does: func(_ context.Context, _ string, v *controller.View) (controller.Result, error) {
			for range 20 {
				found, err := v.By("all", "yes")
				require.NoError(t, err)
				var names []string
				for o := range found {
					names = append(names, o.GetName())
				}
				require.Equal(t, []string{"devices/a", "devices/b", "devices/c", "devices/d"}, names)
			}
			return controller.Result{}, nil
		}}
		all := func(*controller.Resource) ([]string, error) { return []string{"yes"}, nil }
		end := running(t, controller.New(clientOf(false, m, other), devices).Owns(far).Index("all", all, devices, far),
			r)
		require.Len(t, r.take(), 2)
		require.NoError(t, end())
	})
}

func TestWhatIsUnknownIsAnError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		m.write(device("a", nil))
		r := &recorder{does: func(_ context.Context, _ string, v *controller.View) (controller.Result, error) {
			_, err := v.List(jobs)
			require.ErrorIs(t, err, controller.ErrUnknown)
			_, err = v.By("colour", "red")
			require.ErrorIs(t, err, controller.ErrUnknown)
			_, ok := v.Get(m.name("devices/b"))
			require.False(t, ok)
			_, ok = v.Get(schema.FullName{})
			require.False(t, ok)
			return controller.Result{}, nil
		}}
		end := running(t, controller.New(clientOf(false, m), devices), r)
		require.Len(t, r.take(), 1)
		require.NoError(t, end())

		robots := controller.Kind{Deployment: here, Name: "Robot"}
		require.ErrorIs(t, controller.New(clientOf(false, m), robots).Run(t.Context(), r), controller.ErrUnknown)
		require.ErrorContains(t, controller.New(clientOf(false, m), devices).Owns(devices).Run(t.Context(), r),
			"is watched twice")
		number := func(*controller.Resource) ([]string, error) { return nil, nil }
		require.ErrorContains(t, controller.New(clientOf(false, m), devices).Index("n", number, jobs).
			Run(t.Context(), r), "is not watched")
		require.ErrorContains(t, controller.New(clientOf(false, m), devices).Index("n", number).Index("n", number).
			Run(t.Context(), r), "two indexes")
		m.denied = map[string]bool{"Device": true}
		require.ErrorIs(t, controller.New(clientOf(false, m), devices).Run(t.Context(), r), client.ErrDenied)
	})
}

// brokenSource is a source whose watches end.
type brokenSource struct {
	controller.Source
	by error
}

func (b brokenSource) Watch(context.Context, schema.DeploymentID, client.WatchQuery) iter.Seq2[client.Event, error] {
	return func(yield func(client.Event, error) bool) { yield(client.Event{}, b.by) }
}

// A controller whose source gave up says so, also when a time limit of the source was the reason.
func TestAWatchThatEndsEndsTheController(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, by := range []error{
			errors.New("mine"), fmt.Errorf("no answer: %w", context.DeadlineExceeded),
			context.Canceled,
		} {
			err := controller.New(brokenSource{clientOf(false, newMemory(here)), by}, devices).
				Run(t.Context(), controller.Func(nil))
			require.ErrorIs(t, err, by)
		}
	})
}

// A resource that an index refuses is refused as a whole; the log has it, and the others go on.
func TestAnIndexThatFailsRefusesTheResource(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		m.write(device("a", map[string]any{"n": 1}), device("b", nil))
		r := &recorder{does: func(_ context.Context, _ string, v *controller.View) (controller.Result, error) {
			found, err := v.By("n", "1")
			require.NoError(t, err)
			require.Len(t, slices.Collect(found), 1)
			return controller.Result{}, nil
		}}
		end := running(t, controller.New(clientOf(false, m), devices).
			Index("n", func(r *controller.Resource) ([]string, error) {
				switch n := r.GetBody().GetFields()["n"].GetNumberValue(); n {
				case 2:
					return nil, errMine
				case 3:
					panic("a mistake")
				default:
					return []string{fmt.Sprint(n)}, nil
				}
			}), r)
		require.Len(t, r.take(), 2)
		for n := range 2 {
			m.write(device("a", map[string]any{"n": n + 2}), device("b", map[string]any{"m": n}))
			require.Equal(t, []string{"devices/b"}, r.take())
		}
		require.NoError(t, end())
	})
}

// A lost stream is opened again by itself: nothing is reconciled that did not change, and removals in between
// are found.
func TestALostStreamIsOpenedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, other, r := newMemory(here), newMemory(elsehere), &recorder{}
		m.write(device("a", nil), device("b", nil), device("c", nil))
		last := map[string]bool{}
		c := controller.New(clientOf(false, m, other), devices).Watches(jobs, controller.ByIndex("job")).
			Watches(controller.Kind{Deployment: elsehere, Name: "Job"}, controller.ByIndex("job")).
			Index("job", func(*controller.Resource) ([]string, error) { return nil, nil })
		r.does = func(_ context.Context, name string, v *controller.View) (controller.Result, error) {
			_, last[name] = v.Get(m.name(name))
			return controller.Result{}, nil
		}
		end := running(t, c, r)
		require.Len(t, r.take(), 3)
		for _, reset := range []bool{false, true} {
			streams := m.opened()
			m.cut(reset)
			m.write(gone("devices/a"), device("d", map[string]any{"reset": reset}))
			pass(time.Second)
			require.Equal(t, []string{"devices/a", "devices/d"}, r.take(), "reset: %v, %d", reset, m.opened())
			require.False(t, last["devices/a"])
			require.LessOrEqual(t, m.opened()-streams, 2)
			require.Equal(t, 1, other.opened())
			m.mu.Lock()
			m.reset = false
			m.mu.Unlock()
			m.write(device("a", map[string]any{"again": reset}))
			require.Equal(t, []string{"devices/a"}, r.take())
		}
		require.NoError(t, end())
		require.Len(t, slices.Collect(maps.Keys(last)), 4)
	})
}

// A deployment that was restored to an older state is followed there: to smaller revisions, and to missing
// resources.
func TestARestoredDeploymentIsFollowed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, r := newMemory(here), &recorder{}
		state := map[string]string{}
		r.does = func(_ context.Context, name string, v *controller.View) (controller.Result, error) {
			delete(state, name)
			if d, ok := v.Get(m.name(name)); ok {
				state[name] = text(d, "n")
			}
			return controller.Result{}, nil
		}
		m.write(device("a", map[string]any{"n": "old"}), device("b", map[string]any{"n": "old"}))
		end := running(t, controller.New(clientOf(false, m), devices), r)
		m.mu.Lock()
		older, revision := maps.Clone(m.stored), m.revision
		m.mu.Unlock()
		m.write(device("a", map[string]any{"n": "new"}), gone("devices/b"), device("c", map[string]any{"n": "new"}))
		synctest.Wait()
		require.Equal(t, map[string]string{"devices/a": "new", "devices/c": "new"}, state)
		m.mu.Lock()
		m.stored, m.revision = older, revision
		m.mu.Unlock()
		m.cut(true)
		pass(time.Second)
		require.Equal(t, map[string]string{"devices/a": "old", "devices/b": "old"}, state)
		require.NoError(t, end())
	})
}

func TestDeploymentsAreReadBesideOneAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, other, r, began := newMemory(here), newMemory(elsehere), &recorder{}, time.Now()
		for _, slow := range []*memory{m, other} {
			slow.write(device("a", nil))
			slow.snapshot = func(*resourcev1.Resource) { time.Sleep(time.Minute / 4) }
		}
		var started time.Duration
		r.does = func(context.Context, string, *controller.View) (controller.Result, error) {
			started = time.Since(began)
			return controller.Result{}, nil
		}
		far := controller.Kind{Deployment: elsehere, Name: "Device"}
		end := running(t, controller.New(clientOf(false, m, other), devices).Owns(far), r)
		pass(time.Minute)
		require.Equal(t, time.Minute/4, started)
		require.NoError(t, end())
	})
}

// A snapshot that is cut off is not used.
func TestASnapshotThatIsCutOffIsNotUsed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		m.write(device("a", nil), device("b", nil))
		blocked := make(chan struct{})
		var sent atomic.Int32
		m.snapshot = func(*resourcev1.Resource) {
			if sent.Add(1) == 2 {
				<-blocked // the connection is silent, and is given up
			}
		}
		r := &recorder{}
		end := running(t, controller.New(clientOf(false, m), devices), r)
		pass(10 * time.Second)
		require.Empty(t, r.take())
		pass(time.Minute)
		require.Equal(t, []string{"devices/a", "devices/b"}, r.take())
		close(blocked)
		require.NoError(t, end())
	})
}
