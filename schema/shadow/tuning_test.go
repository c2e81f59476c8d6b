package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/wait"
)

// Settings change while the store works; zeros are the defaults.
func TestSettingsOfAStoreChange(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *shadow.Config) { c.Limits.Quotas.Tentative = 1 })
	b.MustPut(target, nil)
	store := b.Stores[b.ID(aWest)]
	establish := func() error {
		_, err := store.Targets.Establish(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()), []peer.EstablishReference{{
			HolderUID: uuid.New(), HolderKind: "Holder", HolderName: "holders/h", Path: "cascade", TargetKind: "Target",
			TargetName: "targets/t",
		}})
		return err
	}
	require.Eventually(t, func() bool { return establish() != nil }, wait.Limit, time.Millisecond)
	refusedFor(t, establish(), peer.QuotaExceeded)
	store.Tune(shadow.Tuning{TentativeTTL: time.Hour})
	require.NoError(t, establish(), "the default of the quota")
	require.Empty(t, expired(t, store))
	store.Tune(shadow.Tuning{TentativeTTL: time.Millisecond})
	require.NoError(t, establish())
	require.Eventually(t, func() bool {
		return len(expired(t, store)) > 0
	}, wait.Limit, time.Millisecond, "a tentative blockade expires sooner")
}

func expired(t *testing.T, store *shadow.Store) []schema.DeploymentID {
	t.Helper()
	holders, err := store.Targets.ExpiredHolders(t.Context())
	require.NoError(t, err)
	return holders
}

// An audit begins when it is due by the present pause; without one, none begins.
func TestTheNextAuditIsDueByThePresentPause(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	pauses, repaced, due := make(chan time.Duration, 1), make(chan struct{}), make(chan struct{}, 100)
	pause := time.Duration(0)
	done := make(chan error, 1)
	go func() {
		done <- b.Stores[b.ID(aWest)].Admin.RunAudits(ctx, shadow.AuditConfig{
			Pace: func() (time.Duration, int) {
				select {
				case pause = <-pauses:
				default:
				}
				return pause, 1000
			},
			Repaced: repaced, Leads: func() bool { due <- struct{}{}; return false },
		})
	}()
	repace := func(p time.Duration) { pauses <- p; repaced <- struct{}{} }
	repace(time.Hour)
	repace(0)
	require.Empty(t, due)
	repace(time.Millisecond)
	<-due
	<-due
	cancel()
	require.NoError(t, <-done)
}
