package shadow_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// A certificate of a deployment that the environment does not list, of a service that nothing describes,
// stops no delete: neither with an announced epoch nor with a call, also in a database that was restored
// once.
func TestAStrangerStopsNoDelete_I13_I20(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.Settle()
	stranger := schema.DeploymentID{Service: "evil.example.com", Region: "us-west2"}
	attack := func() {
		store := b.Stores[b.ID(aWest)]
		require.NoError(t, store.Gate.Recover(t.Context(), b.Environment())) // as each process does at its start
		require.ErrorIs(t, store.Gate.CheckCaller(t.Context(), stranger), peer.ErrStranger)
		require.ErrorIs(t, store.Gate.CheckDatabase(t.Context(), stranger, uuid.New()), peer.ErrStranger)
		for _, token := range []string{"", "invented", tokenOf(t, b, aWest, b.ID(bEast))} {
			require.ErrorIs(t, store.Read.CheckKept(t.Context(), stranger, token), peer.ErrStranger)
		}
		_, err := store.Gate.RecordPeerEpoch(t.Context(), stranger, uuid.Must(uuid.NewV7()), peer.TargetKinds{})
		require.ErrorAs(t, err, new(*peer.UnavailableError), "the registry may list it later")
		require.ErrorContains(t, err,
			"is not in the environment that this deployment last received from the registry, and has nothing here")
		require.Empty(t, unconfirmed(t, b, aWest))
		require.Empty(t, recovering(b, aWest, stranger.String(), schema.AnnounceEpoch, schema.ConfirmAgain,
			schema.VerifyBlockades))
		require.Zero(t, countRows(t, b.Pools[b.ID(aWest)],
			`SELECT count(*) FROM dbcontroller.deployment WHERE service = 'evil.example.com'`))
	}
	attack()
	b.MustDelete(target)
	b.Backup(aWest)()
	b.Recover(aWest)
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
	attack()
	b.MustDelete(target2)
}

// tokenOf returns a token of the watch of the deletions at a deployment.
func tokenOf(t *testing.T, b *harness.Box, at string, holder schema.DeploymentID) string {
	t.Helper()
	_, token := b.Seen(holder, b.ID(at))
	return token
}

// The same of a service that imports the called one, whose other regions the environment lists: it is waited
// for when it is listed.
func TestAnUnlistedRegionOfAnImportingServiceStopsNoDelete_I13_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	b.Backup(aWest)()
	b.Recover(aWest)
	b.Settle()
	store, unlisted := b.Stores[b.ID(aWest)], schema.DeploymentID{Service: "b.example.com", Region: "mars"}
	require.ErrorIs(t, store.Gate.CheckDatabase(t.Context(), unlisted, uuid.New()), peer.ErrStranger)
	require.ErrorIs(t, store.Read.CheckKept(t.Context(), unlisted, ""), peer.ErrStranger)
	_, err := store.Gate.RecordPeerEpoch(t.Context(), unlisted, uuid.Must(uuid.NewV7()), peer.TargetKinds{})
	require.ErrorIs(t, err, peer.ErrStranger)
	b.MustDelete(target)
	env := b.Environment()
	env.Deployments = append(env.Deployments, schema.Deployment{
		DeploymentID: unlisted, Version: "v1", Address: "box",
		Database: uuid.New(),
	})
	require.NoError(t, store.Gate.Recover(t.Context(), env))
	require.Equal(t, []schema.DeploymentID{unlisted}, unconfirmed(t, b, aWest))
}

// The target's database and the registry are restored to before the holder's deployment came, and an operator
// has vouched for the registry's list. The holder opens its watch with a position of the target's database,
// as soon as it has a reference: it is waited for, and its reference counts again.
func TestAHolderThatEverybodyHasLostIsNoStranger_I2_I15(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(b *harness.Box){
		"a second after its first write": func(*harness.Box) {},
		"at rest":                        func(b *harness.Box) { b.Settle() },
		"after an epoch that is lost as well": func(b *harness.Box) {
			b.Settle()
			b.Renew(aWest)
			b.Settle()
			exec(t, b, bEast, `DELETE FROM dbcontroller.position`)
			b.MustPut(holder2, body{"block": target})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, nil)
			b.MustPut(target, nil)
			b.Settle()
			restore := b.Backup(aWest)
			b.MustPut(holder, body{"block": target})
			after(b)
			restore()
			store := b.Stores[b.ID(aWest)]
			exec(t, b, aWest,
				`DELETE FROM dbcontroller.deployment WHERE service = 'b.example.com' AND region = 'eastus2'`)
			_, err := store.Gate.NoticeEpoch(t.Context())
			require.NoError(t, err)
			listed := without(b, bEast)
			require.NoError(t, store.Gate.Recover(t.Context(), listed))
			require.NotContains(t, unconfirmed(t, b, aWest), b.ID(bEast))
			ctx := peer.WithCallerDatabase(t.Context(), uuid.New())
			require.ErrorIs(t, store.Read.CheckKept(ctx, b.ID(bEast), ""), peer.ErrStranger,
				"an empty database in its place has no position")
			require.NoError(t, b.OpenWatch(b.ID(bEast), b.ID(aWest)))
			require.Contains(t, unconfirmed(t, b, aWest), b.ID(bEast))
			_, err = b.Delete(target)
			require.ErrorAs(t, err, new(*peer.UnavailableError))
			require.Error(t, store.Gate.CheckDatabase(t.Context(), b.ID(bEast), uuid.New()),
				"the empty database comes later")
			b.Settle()
			require.NotContains(t, unconfirmed(t, b, aWest), b.ID(bEast))
			_, err = b.Delete(target)
			require.ErrorAs(t, err, new(*peer.BlockedError))
			b.Audit()
		})
	}
}

// An operator lifts the wait for a deployment that has shown a position and is gone; the decision is
// recorded, and the deployment can be decommissioned, known or not.
func TestTheWaitForALostHolderCanBeWaived_I13(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	token := tokenOf(t, b, aWest, b.ID(bEast))
	b.Backup(aWest)()
	store := b.Stores[b.ID(aWest)]
	_, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	exec(t, b, aWest, `DELETE FROM dbcontroller.deployment WHERE service = 'b.example.com' AND region = 'eastus2'`)
	require.NoError(t, store.Gate.Recover(t.Context(), without(b, bEast)))
	b.Settle()
	require.NoError(t, store.Read.CheckKept(t.Context(), b.ID(bEast), token))
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	require.NoError(t, store.Operate.WaiveComparison(t.Context(), b.ID(bEast), "lost", "operator/eve"))
	decisions, err := store.Operate.OperatorDecisions(t.Context())
	require.NoError(t, err)
	require.Equal(t, "operator/eve", decisions[0].By)
	b.MustDelete(target)
	for _, gone := range []schema.DeploymentID{b.ID(bEast), {Service: "evil.example.com", Region: "mars"}} {
		require.NoError(t, store.Admin.Decommission(t.Context(), shadow.Decommissioned{
			Deployment: gone,
			Blocking:   schema.Unset, Reason: "stolen", By: "operator/eve",
		}))
		require.NoError(t, store.Gate.CheckCaller(t.Context(), gone), "it is refused as decommissioned")
		_, err := store.Gate.RecordPeerEpoch(t.Context(), gone, uuid.Must(uuid.NewV7()), peer.TargetKinds{})
		require.ErrorIs(t, err, peer.ErrDecommissioned)
	}
}

// A deployment that the registry has lost with its service's descriptor is no stranger where it has rows.
func TestWhoHasReferencesIsNoStranger_I2_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	env := without(b, bEast, bWest)
	env.Services = nil
	store := b.Stores[b.ID(aWest)]
	require.NoError(t, store.Gate.Recover(t.Context(), env))
	_, err := store.Gate.RecordPeerEpoch(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()), peer.TargetKinds{})
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	require.NoError(t, store.Operate.WaiveComparison(t.Context(), b.ID(bEast), "lost", "operator/eve"),
		"an operator can lift it")
	require.Empty(t, unconfirmed(t, b, aWest))
}

// A process that has not received an environment yet takes no deployment for a stranger: it looks for one
// again, and recovers from none that lacks its own deployment.
func TestBeforeTheFirstEnvironmentNobodyIsAStranger_I2_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	store := b.Stores[b.ID(aWest)]
	ctx, cancel := context.WithCancel(t.Context())
	looked, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- store.Admin.FollowEpochs(ctx, shadow.EpochConfig{
			Latest: func() *schema.Environment {
				select {
				case looked <- struct{}{}:
				case <-ctx.Done():
				}
				return &schema.Environment{}
			},
			Renewed: make(chan struct{}, 1),
		})
	}()
	<-looked
	<-looked // the first look has ended
	go func() {
		for {
			select {
			case <-looked:
			case <-ctx.Done():
				return
			}
		}
	}()
	_, err := store.Gate.RecordPeerEpoch(t.Context(), schema.DeploymentID{
		Service: "unheard.example.com",
		Region:  "mars",
	}, uuid.Must(uuid.NewV7()), peer.TargetKinds{})
	require.NoError(t, err)
	cancel()
	require.NoError(t, <-ended)
}

// A process of a restored database that has not received an environment yet makes nothing wait for a caller:
// it refuses the call.
func TestBeforeTheFirstEnvironmentAStrangerStopsNoDelete_I13_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	b.Backup(aWest)()
	b.Recover(aWest)
	b.Settle()
	started := b.SecondProcess(aWest, shadow.Config{})
	err := started.Gate.CheckDatabase(t.Context(), schema.DeploymentID{Service: "evil.example.com", Region: "us-west2"},
		uuid.New())
	require.ErrorAs(t, err, new(*peer.UnavailableError), "the registry may list it later")
	require.Empty(t, unconfirmed(t, b, aWest))
	b.MustDelete(target)
}
