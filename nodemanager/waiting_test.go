package nodemanager_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/nodemanager"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// workingNode does the work for which a switch of the version waits.
type workingNode struct {
	left  *atomic.Bool
	share nodemanager.Share
}

func (n workingNode) Run(ctx context.Context) error {
	works := time.After(100 * time.Millisecond)
	for {
		select {
		case <-n.share.Subscriptions:
		case <-works:
			n.left.Store(false)
		case <-ctx.Done():
			return nil
		}
	}
}

// A switch waits for the members of atomic deletions, which only nodes mark or open.
func TestASwitchThatWaitsForNodesLetsThemRun_I35(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left, ran := &atomic.Bool{}, &atomic.Value{}
		store := idleStore
		store.Switch = func(_ context.Context, model *schema.Model) error {
			if left.Load() {
				return fmt.Errorf("%w: an atomic deletion has frozen resources here", peer.ErrAborted)
			}
			ran.Store(model.Descriptor.Version)
			return nil
		}
		envs := make(chan *schema.Environment)
		m, err := nodemanager.New(nodemanager.Config{
			Deployment: self, Environments: envs, Store: store, Logger: zap.NewNop(), Sharing: nodemanager.Sharing{Leases: newTable().process()},
			NewNode: func(share nodemanager.Share) (nodemanager.Runner, error) { return workingNode{left, share}, nil },
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		envs <- environment(t, "b.example.com/us-west2@v1")
		time.Sleep(time.Second)
		left.Store(true)
		envs <- environment(t, "b.example.com/us-west2@v2")
		time.Sleep(time.Minute)
		synctest.Wait()
		ready := m.Ready()
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, ready)
		require.Equal(t, "v2", ran.Load())
	})
}
