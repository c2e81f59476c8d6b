package shadow_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// A certificate of a deployment that the environment does not list, of a service that nothing describes, stops no delete: neither
// with an announced epoch nor with a call, also in a database that was restored once.
func TestAStrangerStopsNoDelete_I13_I20(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.Settle()
	stranger := schema.DeploymentID{Service: "evil.example.com", Region: "us-west2"}
	attack := func() {
		store := b.Stores[b.ID(aWest)]
		require.NoError(t, store.Recover(t.Context(), b.Environment())) // as each process does at its start
		require.NoError(t, store.CheckDatabase(t.Context(), stranger, uuid.New()))
		_, err := store.RecordPeerEpoch(t.Context(), stranger, uuid.Must(uuid.NewV7()))
		require.ErrorAs(t, err, new(*peer.UnavailableError), "the registry may list it later")
		require.ErrorContains(t, err, "is not in the environment that this deployment last received from the registry, and has nothing here")
		require.Empty(t, unconfirmed(t, b, aWest))
		require.Empty(t, recovering(b, aWest, stranger.String(), schema.AnnounceEpoch, schema.ConfirmAgain, schema.VerifyBlockades))
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

// A deployment that the registry has lost with its service's descriptor is no stranger where it has anything.
func TestWhoHasReferencesIsNoStranger_I2_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	env := without(b, bEast, bWest)
	env.Services = nil
	store := b.Stores[b.ID(aWest)]
	require.NoError(t, store.Recover(t.Context(), env))
	_, err := store.RecordPeerEpoch(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()))
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	require.NoError(t, store.WaiveComparison(t.Context(), b.ID(bEast), "lost", "operator/eve"), "an operator can lift it")
	require.Empty(t, unconfirmed(t, b, aWest))
}

// A process that has not received an environment yet takes nobody for a stranger: it looks for one again, and recovers from none that
// lacks its own deployment.
func TestBeforeTheFirstEnvironmentNobodyIsAStranger_I2_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	store := b.Stores[b.ID(aWest)]
	ctx, cancel := context.WithCancel(t.Context())
	looked, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- store.FollowEpochs(ctx, shadow.EpochConfig{
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
	_, err := store.RecordPeerEpoch(t.Context(), schema.DeploymentID{Service: "unheard.example.com", Region: "mars"}, uuid.Must(uuid.NewV7()))
	require.NoError(t, err)
	cancel()
	require.NoError(t, <-ended)
}

// A process of a restored database that has not received an environment yet makes nothing wait for a caller: it refuses the call.
func TestBeforeTheFirstEnvironmentAStrangerStopsNoDelete_I13_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	b.Backup(aWest)()
	b.Recover(aWest)
	b.Settle()
	started := b.SecondProcess(aWest, shadow.Config{})
	err := started.CheckDatabase(t.Context(), schema.DeploymentID{Service: "evil.example.com", Region: "us-west2"}, uuid.New())
	require.ErrorAs(t, err, new(*peer.UnavailableError), "the registry may list it later")
	require.Empty(t, unconfirmed(t, b, aWest))
	b.MustDelete(target)
}
