package controller_test

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

var leases = controller.Kind{Deployment: here, Name: "Lease"}

const leaseTime = 15 * time.Second

// cuttable is a client whose writes do not arrive while it is cut.
type cuttable struct {
	*client.Client
	away atomic.Bool
	deaf atomic.Bool // its watches stand still
}

func (c *cuttable) Watch(ctx context.Context, id schema.DeploymentID, q client.WatchQuery) iter.Seq2[client.Event,
	error] {
	return func(yield func(client.Event, error) bool) {
		for e, err := range c.Client.Watch(ctx, id, q) {
			for c.deaf.Load() && ctx.Err() == nil {
				time.Sleep(time.Second)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

func (c *cuttable) reach(ctx context.Context) error {
	if c.away.Load() {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (c *cuttable) Create(ctx context.Context, r *controller.Resource) (*controller.Resource, error) {
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	return c.Client.Create(ctx, r)
}

func (c *cuttable) Update(ctx context.Context, r *controller.Resource, mask ...string) (*controller.Resource, error) {
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	return c.Client.Update(ctx, r, mask...)
}

func (c *cuttable) Delete(ctx context.Context, name string,
	only client.Version,
) (*resourcev1.DeleteResourceResponse, error) {
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	return c.Client.Delete(ctx, name, only)
}

// crew is processes that share a controller's resources, and a record of their runs.
type crew struct {
	t *testing.T
	m *memory

	mu      sync.Mutex
	running map[string]int      // guarded by mu; by resource
	runs    map[int][]string    // guarded by mu; by process
	terms   map[string][]string // guarded by mu; the uids of the terms of a resource
	takes   time.Duration       // guarded by mu; of each run
	deaf    bool                // guarded by mu; runs do not end with their context
}

// join starts a process.
func (c *crew) join(id int) (end func() error, conn *cuttable) {
	conn = &cuttable{Client: clientOf(false, c.m)}
	control := controller.New(conn, devices).Workers(100).
		Share(controller.Sharing{Writer: conn, Kind: leases, Prefix: "leases/devices-", Duration: leaseTime})
	return running(c.t, control,
		controller.Func(
			func(ctx context.Context, req controller.Request, _ *controller.View) (controller.Result, error) {
				term, ok := controller.TermOf(ctx)
				require.True(c.t, ok)
				guard := term.Guard().GetUpdate().GetResource()
				require.Equal(c.t, term, controller.Term{Lease: guard.GetName(), UID: guard.GetUid()},
					"no other term passes the guard")
				name := req.Name.Name
				c.mu.Lock()
				c.running[name]++
				if c.running[name] != 1 {
					c.t.Errorf("%s runs in two processes", name)
				}
				c.runs[id] = append(c.runs[id], name)
				if !slices.Contains(c.terms[name], term.UID) {
					c.terms[name] = append(c.terms[name], term.UID)
				}
				takes, deaf := c.takes, c.deaf
				c.mu.Unlock()
				if deaf {
					ctx = context.WithoutCancel(ctx)
				}
				select {
				case <-time.After(takes):
				case <-ctx.Done():
				}
				c.mu.Lock()
				c.running[name]--
				c.mu.Unlock()
				return controller.Result{}, ctx.Err()
			})), conn
}

// shares changes each resource once, and returns how many each process reconciles. Each is reconciled exactly
// once.
func (c *crew) shares(t *testing.T, note string) map[int]int {
	t.Helper()
	pass(time.Second + 2*c.takes)
	c.mu.Lock()
	clear(c.runs)
	c.mu.Unlock()
	var all []*resourcev1.Resource
	for i := range 100 {
		all = append(all, device(fmt.Sprint(i), map[string]any{"note": note}))
	}
	c.m.write(all...)
	pass(2*c.takes + time.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	shares := map[int]int{}
	for id, runs := range c.runs {
		shares[id] = len(runs)
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(c.terms)), slices.Concat(slices.Collect(maps.Values(c.runs))...),
		note)
	return shares
}

func newCrew(t *testing.T) *crew {
	c := &crew{
		t: t, m: newMemory(here), running: map[string]int{}, runs: map[int][]string{},
		terms: map[string][]string{}, takes: time.Second,
	}
	for i := range 100 {
		c.m.write(device(fmt.Sprint(i), nil))
	}
	return c
}

func TestProcessesThatJoinAndLeaveShareTheResources(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCrew(t)
		end1, _ := c.join(1)
		require.Equal(t, map[int]int{1: 100}, c.shares(t, "alone"))
		end2, _ := c.join(2)
		pass(leaseTime)
		require.NotEmpty(t, c.runs[2], "what it takes over is reconciled")
		end3, _ := c.join(3)
		pass(leaseTime)
		shares := c.shares(t, "three")
		require.Len(t, shares, 3, "%v", shares)
		require.NoError(t, end2())
		pass(leaseTime / 3) // it has left, and needs not expire
		require.Len(t, c.shares(t, "two"), 2)
		require.NoError(t, end1())
		pass(leaseTime / 3)
		require.Equal(t, map[int]int{3: 100}, c.shares(t, "the last one"))
		require.NoError(t, end3())
		for name := range c.m.stored {
			require.False(t, strings.HasPrefix(name, "leases/"), "%s is left", name)
		}
	})
}

// A process that joins or leaves waits for the runs of the others, also for runs that do not end with their
// context.
func TestAShardIsHandedOverWhenItsRunsHaveEnded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCrew(t)
		c.takes, c.deaf = 10*leaseTime, true
		end1, _ := c.join(1)
		pass(leaseTime)
		end2, _ := c.join(2)
		pass(5 * leaseTime)
		require.Empty(t, c.runs[2])
		pass(10 * leaseTime)
		require.NotEmpty(t, c.runs[2])
		ended := make(chan error)
		go func() { ended <- end2() }()
		pass(40 * leaseTime)
		require.NoError(t, <-ended)
		require.NoError(t, end1())
	})
}

// A process that cannot renew its lease is replaced; its runs have ended before. When it is back, it gets a
// share again.
func TestAProcessThatCannotRenewIsReplaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCrew(t)
		end1, conn := c.join(1)
		end2, _ := c.join(2)
		pass(leaseTime)
		require.Len(t, c.shares(t, "both"), 2)
		c.mu.Lock()
		c.takes = time.Hour // until the context ends
		c.mu.Unlock()
		var all []*resourcev1.Resource
		for i := range 100 {
			all = append(all, device(fmt.Sprint(i), map[string]any{"n": 1}))
		}
		c.m.write(all...)
		synctest.Wait()
		conn.away.Store(true)
		pass(leaseTime*2/3 + time.Second)
		c.mu.Lock()
		running := 0
		for _, n := range c.running {
			running += n
		}
		require.Less(t, running, 100, "those of the first process have ended before its lease has")
		require.Positive(t, running)
		c.takes = time.Second
		c.mu.Unlock()
		pass(leaseTime)
		c.mu.Lock()
		require.Equal(t, 100-running, len(slices.DeleteFunc(slices.Collect(maps.Values(c.running)), func(n int) bool {
			return n > 0
		})))
		c.mu.Unlock()
		conn.away.Store(false)
		pass(2 * leaseTime)
		require.NoError(t, end2())
		pass(leaseTime)
		require.Equal(t, map[int]int{1: 100}, c.shares(t, "it is back"))
		require.NoError(t, end1())
	})
}

// A lease that is removed from outside, or restored from an older state, ends the term.
func TestATermEndsWithItsLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCrew(t)
		end1, _ := c.join(1)
		pass(leaseTime)
		terms := func() (n int) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, of := range c.terms {
				n += len(of)
			}
			return n
		}
		require.Equal(t, 100, terms())
		for i := range 16 {
			c.m.write(gone(fmt.Sprint("leases/devices-shard-", i)))
		}
		pass(leaseTime)
		require.Equal(t, 200, terms())
		for i := range 16 {
			name := fmt.Sprint("leases/devices-shard-", i)
			older := of("Lease", name, map[string]any{"member": "of somebody who is gone"})
			c.m.write(gone(name), older)
		}
		pass(leaseTime)
		require.Equal(t, 300, terms())
		require.Equal(t, map[int]int{1: 100}, c.shares(t, "again"))
		require.NoError(t, end1())
	})
}

// A process whose watches stand still removes no process that has renewed its lease meanwhile.
func TestAProcessThatSeesNothingRemovesNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCrew(t)
		end1, _ := c.join(1)
		end2, conn := c.join(2)
		pass(leaseTime)
		made := func() (made []string) {
			c.m.mu.Lock()
			defer c.m.mu.Unlock()
			for name, r := range c.m.stored {
				if strings.HasPrefix(name, "leases/devices-member-") {
					made = append(made, r.GetUid())
				}
			}
			slices.Sort(made)
			return made
		}
		before := made()
		require.Len(t, before, 2)
		conn.deaf.Store(true)
		pass(5 * leaseTime)
		conn.deaf.Store(false)
		pass(leaseTime)
		require.Equal(t, before, made())
		require.NoError(t, end1())
		require.NoError(t, end2())
	})
}

// Processes come, go, and are cut off in a random order: no resource runs in two of them, and in the end each
// runs in one.
func TestSharesOnRandomSchedules(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, c := rand.New(rand.NewPCG(seed, seed)), newCrew(t)
				type process struct {
					end  func() error
					conn *cuttable
				}
				processes := map[int]process{}
				for step := range 40 {
					switch id := r.IntN(4); {
					case processes[id].end == nil:
						p := process{}
						p.end, p.conn = c.join(id)
						processes[id] = p
					case r.IntN(3) == 0:
						require.NoError(t, processes[id].end())
						delete(processes, id)
					default:
						processes[id].conn.away.Store(!processes[id].conn.away.Load())
					}
					c.m.write(device(fmt.Sprint(step), map[string]any{"step": step}))
					if r.IntN(5) == 0 {
						c.m.cut(r.IntN(2) == 0)
					}
					pass(time.Duration(r.IntN(int(leaseTime))))
				}
				for _, p := range processes {
					p.conn.away.Store(false)
				}
				c.m.cut(false)
				end, _ := c.join(9)
				pass(4 * leaseTime)
				c.shares(t, "at the end")
				for _, p := range processes {
					require.NoError(t, p.end())
				}
				require.NoError(t, end())
			})
		})
	}
}
