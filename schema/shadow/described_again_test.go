package shadow_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
)

// restoredWith restores the target's database to before its holder came, and recovers by a changed
// environment: nothing is deleted.
func restoredWith(t *testing.T, b *harness.Box, change func(*schema.Environment)) {
	t.Helper()
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore()
	store, env := b.Stores[b.ID(aWest)], b.Environment()
	change(env)
	_, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.NoError(t, store.Gate.Recover(t.Context(), env))
	_, err = b.Delete(target)
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unavailable.Deployments)
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
}

// The holder's deployment was removed from the registry and is described again: until it registers, its
// database alone shows that it ran.
func TestADeploymentThatIsDescribedAgainIsWaitedFor_I2_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	restoredWith(t, b, func(env *schema.Environment) {
		for i := range env.Deployments {
			env.Deployments[i].Address = ""
		}
	})
	b.Audit()
}

// No description of the holder's service imports the target's service any more, but its deployment has
// referred to resources there.
func TestWhoHasReferredIsWaitedForWithoutADescription_I2_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder2, body{"block": target})
	b.MustPut(holder2, nil)
	b.Settle()
	restoredWith(t, b, func(env *schema.Environment) {
		env.Services = slices.Clone(env.Services)
		for i, d := range env.Services {
			without := *d
			without.Imports = nil
			env.Services[i] = &without
		}
	})
	b.Audit()
}
