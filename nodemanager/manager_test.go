package nodemanager_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/nodemanager"
	"github.com/db-controller/db-controller/schema"
)

var self = schema.DeploymentID{Service: "b.example.com", Region: "us-west2"}

// world records the actions of the manager.
type world struct {
	mu         sync.Mutex
	log        []string
	running    int
	shards     map[uint32]int
	workers    map[uint32][]uuid.UUID
	subs       map[string][]string // node of a member → deployments; of running nodes
	fail       error
	away       error // guarded by mu; every read of the database fails with it
	noNode     error // guarded by mu; no node can be made
	leases     *table
	renewed    chan struct{}
	superseded chan struct{}
	// database is the model that the deployment's database runs, kept the environment that is in it; guarded
	// by mu.
	database *schema.Model
	kept     *schema.Environment
	followed int // guarded by mu; the number of times that the kept one was taken
	// pointedTo are the referenced deployments of the store; guarded by mu once the manager runs.
	pointedTo []schema.DeploymentID
	known     []schema.DeploymentID // guarded by mu; as they were read last
	ran       *schema.Model         // guarded by mu; the model that the store has switched to
	read      int                   // guarded by mu; the number of times that the manager read them
	refreshed int                   // guarded by mu; how often the store got a model of newer descriptors
}

func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	log := w.log
	w.log = nil
	slices.Sort(log)
	return log
}

type node struct {
	w     *world
	share nodemanager.Share
}

func (n node) Run(ctx context.Context) error {
	n.w.mu.Lock()
	n.w.running++
	if n.share.First != slices.Contains(n.share.Shards, 0) {
		n.w.log = append(n.w.log, fmt.Sprintf("first: %v, with the shards %v", n.share.First, n.share.Shards))
	}
	for _, s := range n.share.Shards {
		n.w.shards[s]++
		for _, other := range n.w.workers[s] { // a process that was given up may still run, without effect
			if other == n.share.Member || n.w.leases.lives(other) && n.w.leases.lives(n.share.Member) {
				n.w.log = append(n.w.log, fmt.Sprintf("shard %d is worked on twice", s))
			}
		}
		n.w.workers[s] = append(n.w.workers[s], n.share.Member)
	}
	n.w.mu.Unlock()
	defer func() {
		n.w.mu.Lock()
		defer n.w.mu.Unlock()
		for _, s := range n.share.Shards {
			n.w.shards[s]--
			i := slices.Index(n.w.workers[s], n.share.Member)
			n.w.workers[s] = slices.Delete(n.w.workers[s], i, i+1)
		}
	}()
	key := n.share.Name + " of " + n.share.Member.String()
	for {
		select {
		case set := <-n.share.Subscriptions:
			n.w.mu.Lock()
			n.w.subs[key] = nil
			for _, s := range set {
				n.w.subs[key] = append(n.w.subs[key], s.String()+"@"+s.Version)
			}
			n.w.mu.Unlock()
		case <-ctx.Done():
			time.Sleep(time.Second) // running nodes end
			n.w.mu.Lock()
			n.w.running--
			delete(n.w.subs, key)
			n.w.mu.Unlock()
			return nil
		}
	}
}

func (w *world) reads() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.read
}

func (w *world) subscriptions() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.subs {
		all = append(all, s...)
	}
	slices.Sort(all)
	return all
}

func (w *world) store() nodemanager.Store {
	return nodemanager.Store{
		Switch: func(_ context.Context, model *schema.Model) error {
			w.mu.Lock()
			running, err := w.running, w.fail
			w.fail = nil
			if err == nil {
				w.database, w.ran = model, model
			}
			w.mu.Unlock()
			w.say("switch to %s with %d nodes running", model.Descriptor.Version, running)
			return err
		},
		PointedTo: func(context.Context) ([]schema.DeploymentID, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.read, w.known = w.read+1, w.pointedTo
			return w.pointedTo, w.away
		},
		Refresh: func(*schema.Model) { w.mu.Lock(); defer w.mu.Unlock(); w.refreshed++ },
		Renewed: w.renewed,
	}
}

func (w *world) others() nodemanager.Others {
	return nodemanager.Others{
		Look: func(_ context.Context, model *schema.Model) (bool, []schema.DeploymentID, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.read++
			if w.away != nil {
				return false, nil, w.away
			}
			w.known = w.pointedTo
			return model.Says(w.database.Descriptor.Version, w.database.Digest), w.pointedTo, nil
		},
		Superseded: w.superseded,
		Kept: func(context.Context) (*schema.Environment, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.kept, w.away
		},
		Follows: func(*schema.Environment) { w.mu.Lock(); defer w.mu.Unlock(); w.followed++ },
	}
}

// look does the looks of the store, each second: it signals what the manager has not read.
func (w *world) look(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		w.mu.Lock()
		differs := w.ran != nil && (!w.ran.Says(w.database.Descriptor.Version, w.database.Digest) ||
			!slices.Equal(w.known, w.pointedTo))
		w.mu.Unlock()
		if differs {
			select {
			case w.superseded <- struct{}{}:
			default:
			}
		}
	}
}

func inManager(t *testing.T, test func(w *world, m *nodemanager.Manager, envs chan *schema.Environment)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			shards: map[uint32]int{}, workers: map[uint32][]uuid.UUID{}, subs: map[string][]string{},
			leases: newTable(), renewed: make(chan struct{}, 1), superseded: make(chan struct{}, 1),
		}
		envs := make(chan *schema.Environment)
		m, err := nodemanager.New(nodemanager.Config{
			Deployment: self, Environments: envs, Store: w.store(), Others: w.others(), Logger: zap.NewNop(),
			Sharing: nodemanager.Sharing{Leases: w.leases.process(), Nodes: 3},
			NewNode: func(share nodemanager.Share) (nodemanager.Runner, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return node{w, share}, w.noNode
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		go w.look(ctx)
		test(w, m, envs)
		cancel()
		require.NoError(t, <-done)
		require.Zero(t, w.running, "Run returns when all nodes have")
	})
}

func environment(t *testing.T, deployments ...string) *schema.Environment {
	t.Helper()
	file, err := schema.ParseFile("f", strings.NewReader(`
service: a.example.com
version: v1
kinds: [{kind: T, patterns: ["ts/{t}"]}]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
---
service: b.example.com
version: v2
---
service: c.example.com
version: v1
`))
	require.NoError(t, err)
	env := &schema.Environment{Services: file.Services}
	for _, d := range deployments {
		name, version, _ := strings.Cut(d, "@")
		id, err := schema.ParseDeploymentID(name)
		require.NoError(t, err)
		env.Deployments = append(env.Deployments, schema.Deployment{DeploymentID: id, Version: version, Address: "x:1"})
	}
	return env
}

func TestNodesShareTheRingAndTheInterestedDeployments(t *testing.T) {
	inManager(t, func(w *world, m *nodemanager.Manager, envs chan *schema.Environment) {
		require.ErrorContains(t, m.Ready(), "no environment has come from the registry yet")
		envs <- environment(t, "b.example.com/us-west2@v1", "b.example.com/eastus2@v1", "a.example.com/us-west2@v1",
			"c.example.com/us-west2@v1")
		synctest.Wait()
		require.NoError(t, m.Ready())
		require.Equal(t, []string{"a.example.com/us-west2@v1", "b.example.com/eastus2@v1", "b.example.com/us-west2@v1"},
			w.subscriptions())
		require.Equal(t, 3, w.running)
		require.Len(t, w.shards, schema.RingSize)
		for shard, n := range w.shards {
			require.Equal(t, 1, n, "shard %d", shard)
		}
		envs <- environment(t, "b.example.com/us-west2@v1", "a.example.com/us-west2@v1", "a.example.com/eastus2@v1")
		synctest.Wait()
		require.Equal(t, []string{"a.example.com/eastus2@v1", "a.example.com/us-west2@v1", "b.example.com/us-west2@v1"},
			w.subscriptions())
		require.Equal(t, []string{"switch to v1 with 0 nodes running"}, w.take(), "nothing was restarted")
	})
}

func TestADeploymentThatReferencesStillPointToIsFollowed(t *testing.T) {
	inManager(t, func(w *world, _ *nodemanager.Manager, envs chan *schema.Environment) {
		w.pointedTo = []schema.DeploymentID{{Service: "c.example.com", Region: "us-west2"}}
		envs <- environment(t, "b.example.com/us-west2@v1", "c.example.com/us-west2@v1", "c.example.com/eastus2@v1")
		synctest.Wait()
		require.Equal(t, []string{"b.example.com/us-west2@v1", "c.example.com/us-west2@v1"}, w.subscriptions())
		before := w.reads()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, before, w.reads(), "nothing is read while no look of the store finds others")
	})
}

// Stored references can point to a further deployment later, such as after a restore.
func TestADeploymentThatReferencesPointToLaterIsFollowedWithoutTheRegistry(t *testing.T) {
	inManager(t, func(w *world, _ *nodemanager.Manager, envs chan *schema.Environment) {
		envs <- environment(t, "b.example.com/us-west2@v1", "c.example.com/us-west2@v1")
		synctest.Wait()
		require.Equal(t, []string{"b.example.com/us-west2@v1"}, w.subscriptions())
		w.take()
		w.mu.Lock()
		w.pointedTo = []schema.DeploymentID{{Service: "c.example.com", Region: "us-west2"}}
		w.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"b.example.com/us-west2@v1", "c.example.com/us-west2@v1"}, w.subscriptions())
		require.Empty(t, w.take(), "no version is switched for it")
	})
}

// The store knows the names of kinds in versions that were described after its own began to run.
func TestEachEnvironmentRefreshesTheModel(t *testing.T) {
	inManager(t, func(w *world, _ *nodemanager.Manager, envs chan *schema.Environment) {
		for range 3 {
			envs <- environment(t, "b.example.com/us-west2@v1")
			synctest.Wait()
		}
		require.Equal(t, 3, w.refreshed)
		require.Equal(t, []string{"switch to v1 with 0 nodes running"}, w.take())
	})
}

func TestAVersionSwitchStopsAllNodesFirstAndWaitsForThem(t *testing.T) {
	inManager(t, func(w *world, _ *nodemanager.Manager, envs chan *schema.Environment) {
		envs <- environment(t, "b.example.com/us-west2@v1")
		synctest.Wait()
		w.take()
		envs <- environment(t, "b.example.com/us-west2@v2")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"switch to v2 with 0 nodes running"}, w.take())
		require.Equal(t, 3, w.running)
	})
}

// After a restore of the database the caches of the nodes are out of date, and the switch of the version may
// be lost.
func TestANewEpochOfTheDatabaseStartsEverythingAnew_I26(t *testing.T) {
	inManager(t, func(w *world, _ *nodemanager.Manager, envs chan *schema.Environment) {
		w.renewed <- struct{}{} // before a node runs
		synctest.Wait()
		envs <- environment(t, "b.example.com/us-west2@v1")
		synctest.Wait()
		w.take()
		w.renewed <- struct{}{}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"switch to v1 with 0 nodes running"}, w.take())
		require.Equal(t, 3, w.running)
		require.NotEmpty(t, w.subscriptions())
	})
}

func TestASwitchThatFailsIsTriedAgain(t *testing.T) {
	inManager(t, func(w *world, m *nodemanager.Manager, envs chan *schema.Environment) {
		w.fail = errors.New("database away")
		envs <- environment(t, "b.example.com/us-west2@v1")
		synctest.Wait()
		require.ErrorContains(t, m.Ready(), "database away")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.NoError(t, m.Ready())
	})
}

// I27: an environment that is empty, or has an unknown version, stops no node.
func TestABadEnvironmentChangesNothing_I27(t *testing.T) {
	inManager(t, func(w *world, m *nodemanager.Manager, envs chan *schema.Environment) {
		envs <- environment(t, "b.example.com/us-west2@v1")
		synctest.Wait()
		w.take()
		envs <- &schema.Environment{}
		envs <- environment(t, "b.example.com/us-west2@v9")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.NoError(t, m.Ready())
		require.Equal(t, 3, w.running)
		require.Empty(t, w.take())
	})
}
