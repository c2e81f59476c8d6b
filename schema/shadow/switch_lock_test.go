package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// switching switches the version, and returns when the switch waits for a lock, or has ended.
func switching(t *testing.T, b *harness.Box, deployment string, model *schema.Model) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- b.Stores[b.ID(deployment)].Admin.Switch(context.Background(), model) }()
	require.Eventually(t, func() bool {
		return len(done) > 0 || waiting(t, b.Pools[b.ID(deployment)])
	}, wait.Limit, 5*time.Millisecond)
	return done
}

// A switch waits for an uncommitted write of the earlier version, and derives its references.
func TestASwitchWaitsForAWriteThatIsUnderWay_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	store := b.Stores[b.ID(bEast)]
	b.MustPut(targetName("t"), nil)
	end := opened(t, store, b.Pools[b.ID(bEast)], peer.Write{Name: "holders/h", Body: body{"added": targetName("t")}})
	done := switching(t, b, bEast, modelOf(t, versions, "b.example.com", "v2"))
	require.NoError(t, end(nil))
	require.NoError(t, <-done)
	b.Settle()
	_, err := b.Delete(targetName("t"))
	require.ErrorAs(t, err, new(*peer.BlockedError), "v2 refers to it")
	b.Audit()
}

// A switch waits for an owner check of the earlier version whose ownee entry is not committed yet, and sends
// the new version to the ownee's deployment.
func TestASwitchWaitsForACheckOfAnOwnerThatIsUnderWay_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	owner := b.MustPut(targetName("t"), nil)
	g := newGate("INSERT INTO dbcontroller.ownee_entry")
	asked := gatedProcess(t, b, aWest, g, modelOf(t, versions, "a.example.com", "v1"))
	g.arm(0)
	checked := make(chan error, 1)
	go func() {
		_, err := asked.Owners.CheckOwners(context.Background(), b.ID(bEast),
			[]peer.OwnerQuestion{{Kind: "Target", Name: "targets/t", UID: owner.UID}})
		checked <- err
	}()
	<-g.reached // it has the lock of the version
	done := switching(t, b, aWest, modelOf(t, versions, "a.example.com", "v2"))
	close(g.open)
	require.NoError(t, <-checked)
	require.NoError(t, <-done)
	var told []schema.DeploymentID
	for _, w := range b.Work(b.ID(aWest)) {
		if w.Action == schema.UpgradeOwners {
			told = append(told, w.Deployment)
		}
	}
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, told)
}
