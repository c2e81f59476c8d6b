package shadow_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/wait"
)

// After a restore the registry names the deployments that may refer to resources here. The answer of a
// registry that may have lost deployments is not used, nor one without this deployment, such as an empty one.
// Until a complete answer comes, nothing is deleted; then deployments that only the stored environment names
// are waited for as well.
func TestARecoveryWaitsForACompleteRegistry_I2_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore()
	store := b.Stores[b.ID(aWest)]
	type answer struct {
		env   *schema.Environment
		err   error
		asked atomic.Int64
	}
	var registry atomic.Pointer[answer]
	incomplete := b.Environment()
	incomplete.Incomplete = true
	unheard := b.Environment()
	unheard.Unheard = []string{bEast}
	registry.Store(&answer{env: incomplete})
	var latest atomic.Pointer[schema.Environment]
	latest.Store(without(b, bWest))
	renewed := make(chan struct{}, 1)
	exec(t, b, aWest, `UPDATE dbcontroller.meta SET server = 'another'`) // while the process runs
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- store.Admin.FollowEpochs(ctx, shadow.EpochConfig{
			Ask: func(context.Context) (*schema.Environment, error) {
				said := registry.Load()
				said.asked.Add(1)
				return said.env, said.err
			},
			Kept:    func(context.Context) (*schema.Environment, error) { return without(b, bWest), nil },
			Latest:  latest.Load,
			Renewed: renewed,
		})
	}()
	remedies := map[string]string{
		"incomplete": "apply the files that describe all of them", "not heard": bEast + " have not reported",
		"empty":                  "apply the files",
		"without the deployment": "apply the files", "unreachable": "the registry is unreachable",
	}
	for name, said := range map[string]*answer{
		"incomplete":             {env: incomplete},
		"not heard":              {env: unheard},
		"empty":                  {env: &schema.Environment{}},
		"without the deployment": {env: without(b, aWest)},
		"unreachable":            {err: errors.New("the registry is unreachable")},
	} {
		registry.Store(said)
		require.Eventually(t, func() bool { return said.asked.Load() >= 2 }, wait.Limit, 10*time.Millisecond, name)
		epoch, err := store.Operate.Epoch(t.Context())
		require.NoError(t, err)
		require.True(t, epoch.Awaiting, name)
		_, err = b.Delete(target)
		require.ErrorAs(t, err, new(*peer.UnavailableError), name)
		require.ErrorIs(t, err, peer.ErrRecovering, name)
		require.ErrorContains(t, err, remedies[name])
	}
	require.Len(t, renewed, 1, "nodes begin anew in the new epoch, whatever it waits for")
	registry.Store(&answer{env: without(b, bEast, bWest)})
	require.Eventually(t, func() bool {
		e, err := store.Operate.Epoch(t.Context())
		return err == nil && !e.Awaiting
	}, wait.Limit, 10*time.Millisecond)
	require.Contains(t, unconfirmed(t, b, aWest), b.ID(bEast))
	require.NotContains(t, unconfirmed(t, b, aWest), b.ID(bWest))
	latest.Store(b.Environment())
	require.Eventually(t, func() bool {
		return slices.Contains(unconfirmed(t, b, aWest), b.ID(bWest))
	}, wait.Limit, 10*time.Millisecond, "a later environment adds it")
	cancel()
	require.NoError(t, <-ended)
	b.Settle()
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}
