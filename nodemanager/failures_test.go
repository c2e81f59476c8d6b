package nodemanager_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/nodemanager"
	"github.com/db-controller/db-controller/schema"
)

// fails sets the errors of the database and of making nodes.
func (w *world) fails(database, noNode error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away, w.noNode = database, noNode
}

func TestADeploymentThatCannotBeReachedIsNotSubscribedTo(t *testing.T) {
	inManager(t, func(w *world, _ *nodemanager.Manager, envs chan *schema.Environment) {
		env := environment(t, "b.example.com/us-west2@v1", "b.example.com/eastus2@v1", "a.example.com/us-west2@v1",
			"a.example.com/eastus2@v1")
		env.Deployments[0].Address = "" // the own one needs none
		env.Deployments[1].Disabled = true
		env.Deployments[2].Address = "" // not registered yet
		envs <- env
		synctest.Wait()
		require.Equal(t, []string{"a.example.com/eastus2@v1", "b.example.com/us-west2@v1"}, w.subscriptions())
		registered := environment(t, "b.example.com/us-west2@v1", "a.example.com/us-west2@v1",
			"a.example.com/eastus2@v1")
		envs <- registered
		synctest.Wait()
		require.Equal(t, []string{"a.example.com/eastus2@v1", "a.example.com/us-west2@v1", "b.example.com/us-west2@v1"},
			w.subscriptions())
	})
}

func TestInterestedDeploymentsThatCannotBeReadAreReadAgain(t *testing.T) {
	inManager(t, func(w *world, _ *nodemanager.Manager, envs chan *schema.Environment) {
		w.fails(errors.New("database unavailable"), nil)
		envs <- environment(t, "b.example.com/us-west2@v1", "a.example.com/us-west2@v1")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Empty(t, w.subscriptions(), "no node believes that the set is empty, or whole")
		w.fails(nil, nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"a.example.com/us-west2@v1", "b.example.com/us-west2@v1"}, w.subscriptions())
		require.Equal(t, []string{"switch to v1 with 0 nodes running"}, w.take(), "the version is switched once")
	})
}

func TestAKeptEnvironmentThatCannotBeReadIsReadAgain_I26(t *testing.T) {
	inManager(t, func(w *world, m *nodemanager.Manager, envs chan *schema.Environment) {
		env := environment(t, "b.example.com/us-west2@v1")
		envs <- env
		synctest.Wait()
		next := environment(t, "b.example.com/us-west2@v2")
		next.Revision = 1
		w.switched(t, next, true)
		time.Sleep(1500 * time.Millisecond)
		w.fails(errors.New("database unavailable"), nil)
		w.superseded <- struct{}{}
		time.Sleep(3 * time.Second)
		w.fails(nil, nil)
		time.Sleep(4 * time.Second)
		synctest.Wait()
		require.NoError(t, m.Ready())
		require.Equal(t, 3, w.running)
	})
}

func TestANodeThatCannotBeMadeIsMadeWithTheNextRenewal(t *testing.T) {
	inManager(t, func(w *world, _ *nodemanager.Manager, envs chan *schema.Environment) {
		w.fails(nil, errors.New("no node"))
		envs <- environment(t, "b.example.com/us-west2@v1")
		synctest.Wait()
		require.Zero(t, w.running)
		w.fails(nil, nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, 3, w.running)
		require.Equal(t, []string{"b.example.com/us-west2@v1"}, w.subscriptions())
	})
}

// idleStore switches to every version, and has no references.
var idleStore = nodemanager.Store{
	Switch:    func(context.Context, *schema.Model) error { return nil },
	PointedTo: func(context.Context) ([]schema.DeploymentID, error) { return nil, nil },
}

// A node that ends by itself takes no more subscriptions, and does not hold the others up.
type endedNode struct{}

func (endedNode) Run(context.Context) error { return errors.New("it ended") }

func TestANodeThatEndedHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		envs := make(chan *schema.Environment)
		m, err := nodemanager.New(nodemanager.Config{
			Deployment: self, Environments: envs, Store: idleStore, Logger: zap.NewNop(),
			Sharing: nodemanager.Sharing{Leases: newTable().process()},
			NewNode: func(nodemanager.Share) (nodemanager.Runner, error) { return endedNode{}, nil },
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		for range 3 {
			envs <- environment(t, "b.example.com/us-west2@v1")
			synctest.Wait()
		}
		require.NoError(t, m.Ready())
		cancel()
		require.NoError(t, <-done)
	})
}

// A process that cannot release its shards when it ends blocks no other process for good: its lease expires.
type unreleasable struct{ *process }

func (unreleasable) Release(context.Context, uuid.UUID, []uint32) error { return errAway }

func TestShardsThatCannotBeReleasedExpire_I18(t *testing.T) {
	inTable(t, func(t *testing.T, w *world) {
		envs := make(chan *schema.Environment, 1)
		m, err := nodemanager.New(nodemanager.Config{
			Deployment: self, Environments: envs, Store: idleStore, Logger: zap.NewNop(),
			Sharing: nodemanager.Sharing{Leases: unreleasable{w.leases.process()}, TTL: ttl},
			NewNode: func(share nodemanager.Share) (nodemanager.Runner, error) { return node{w, share}, nil },
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		envs <- environment(t, "b.example.com/us-west2@v1")
		require.Equal(t, schema.RingSize, w.worked(t))
		cancel()
		require.NoError(t, <-done)
		next := w.begin(t)
		time.Sleep(3 * ttl)
		require.Equal(t, schema.RingSize, w.worked(t))
		next.end(t)
	})
}

func TestAManagerNeedsItsParts(t *testing.T) {
	_, err := nodemanager.New(nodemanager.Config{})
	require.ErrorContains(t, err, "a node manager needs environments, a switch, leases, nodes and a logger")
	_, err = nodemanager.New(nodemanager.Config{
		Environments: make(chan *schema.Environment), Store: idleStore,
		Sharing: nodemanager.Sharing{Leases: newTable().process()}, Logger: zap.NewNop(),
		NewNode: func(nodemanager.Share) (nodemanager.Runner, error) { return endedNode{}, nil },
		Others: nodemanager.Others{Look: func(context.Context, *schema.Model) (bool, []schema.DeploymentID, error) {
			return true, nil, nil
		}},
	})
	require.ErrorContains(t, err, "needs the kept environment")
}
