package shadow_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// More ownees that always fail than a call has time for keep neither the others of their owner waiting,
func TestManyFailingOwneesDelayNoOther_drop_I20(t *testing.T) {
	t.Parallel()
	b := boxOfOwnees(t)
	b.MustDelete(targetName("t"))
	require.Eventually(t, func() bool {
		_, err := b.Do(b.ID(aWest), schema.DropOwners)
		require.ErrorContains(t, err, "could not be handled")
		return b.Get(goodOwnee) == nil
	}, wait.Limit, time.Millisecond)
	require.Equal(t, 40, b.Count(bEast, "shadow"))
	require.NotNil(t, b.Get(targetName("t")), "it waits for them")
	repaired(t, b)
	b.Gone(targetName("t"))
	require.Zero(t, b.Count(bEast, "shadow"))
	b.Audit()
}

// nor from the version of the owner's deployment.
func TestManyFailingOwneesDelayNoOther_upgrade_I20(t *testing.T) {
	t.Parallel()
	b := boxOfOwnees(t)
	b.Switch(aWest, "v2")
	require.Eventually(t, func() bool {
		_, err := b.Do(b.ID(aWest), schema.UpgradeOwners)
		require.ErrorContains(t, err, "40 are left")
		return b.Get(goodOwnee).Owners[0].Version == "v2"
	}, wait.Limit, time.Millisecond)
	repaired(t, b)
	require.Equal(t, "v2", b.Get("//" + bEast + "/holders/bad0").Owners[0].Version)
	b.Audit()
}

const goodOwnee = "//" + bEast + "/holders/good39"

// boxOfOwnees has a target with 40 ownees that fail, and 40 behind them.
func boxOfOwnees(t *testing.T) *harness.Box {
	t.Helper()
	b := newVersions(t, func(cfg *shadow.Config) { cfg.Limits.Batch, cfg.Times.OwneeCall = 20, time.Millisecond })
	b.MustPut(targetName("t"), nil)
	for _, name := range []string{"bad", "good"} {
		var writes []peer.Write
		for n := range 40 {
			writes = append(writes, peer.Write{
				Name:   fmt.Sprintf("holders/%s%d", name, n),
				Owners: []peer.OwnerReference{owner(t, targetName("t"), "Target")},
			})
		}
		_, err := b.Stores[b.ID(bEast)].Write.Save(t.Context(), writes)
		require.NoError(t, err)
	}
	b.Settle()
	_, err := b.Pools[b.ID(bEast)].Exec(t.Context(), failingSQL)
	require.NoError(t, err)
	return b
}

func repaired(t *testing.T, b *harness.Box) {
	t.Helper()
	_, err := b.Pools[b.ID(bEast)].Exec(t.Context(),
		`DROP TRIGGER fails ON dbcontroller.shadow; DROP TRIGGER fails ON dbcontroller.resource`)
	require.NoError(t, err)
	b.Settle()
}
