package shadow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

func delegating(t *testing.T) *harness.Box {
	t.Helper()
	return newPair(t, func(cfg *shadow.Config) { cfg.Delegations = true })
}

// rights is the number of delegations that a deployment has.
func rights(t *testing.T, b *harness.Box, deployment string) (n int) {
	t.Helper()
	require.NoError(t, b.Pools[b.ID(deployment)].QueryRow(t.Context(),
		`SELECT count(*) FROM dbcontroller.foreign_target WHERE acting_epoch IS NOT NULL`).Scan(&n))
	return n
}

func epochOfRight(t *testing.T, b *harness.Box, deployment string) (epoch uuid.UUID) {
	t.Helper()
	require.NoError(t, b.Pools[b.ID(deployment)].QueryRow(t.Context(),
		`SELECT acting_epoch FROM dbcontroller.foreign_target`).Scan(&epoch))
	return epoch
}

func holderNumber(n int) string { return fmt.Sprintf("//b.example.com/eastus2/holders/d%d", n) }

// While rights last, references are written with the target's deployment away, and nothing dangles
// afterwards.
func TestWritesUnderARightNeedNobody_I30_I32(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"cascade": target})
	b.Settle()
	require.Equal(t, 1, rights(t, b, bEast))
	b.SetDown(aWest, true)
	for n := 1; n < 5; n++ {
		b.MustPut(holderNumber(n), body{[]string{"cascade", "unset", "asyncCascade"}[n%3]: target})
	}
	require.Empty(t, b.Work(b.ID(bEast)), "no confirm is owed")
	_, err := b.Put(holderNumber(9), body{"block": target})
	require.Error(t, err, "the acting right does not include the other one")
	b.SetDown(aWest, false)
	b.Settle()
	b.Audit()
	b.MustDelete(target)
	b.Settle()
	require.Zero(t, rights(t, b, bEast))
	b.Gone(target, holderNumber(0), holderNumber(2), holderNumber(3))
	b.Audit()
}

// A writer that is paused between the lock of the row and its commit is waited for: nothing is acknowledged
// before, and its reference is acted upon.
func TestACloseWaitsForAPausedWriter_I31(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	uid := b.MustPut(target, nil).UID
	b.MustPut(holderNumber(0), body{"unset": target})
	b.MustPut(holderNumber(1), nil)
	b.Settle()
	ctx, pool := context.Background(), b.Pools[b.ID(bEast)]
	// The locks of such a writer before its commit.
	paused, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = paused.Rollback(ctx) }()
	_, err = paused.Exec(ctx, `SELECT FROM dbcontroller.foreign_target WHERE uid = $1 FOR SHARE`, uid)
	require.NoError(t, err)
	_, err = paused.Exec(ctx, `
INSERT INTO dbcontroller.reference (holder_id, target_id, attempt, field_id, behaviour)
SELECT s.id, r.target_id, $1, r.field_id, r.behaviour FROM dbcontroller.reference r, dbcontroller.shadow s WHERE s.name = 'holders/d1'`, uuid.Must(uuid.NewV7()))
	require.NoError(t, err)
	b.MustDelete(target)
	_, err = b.Act(b.ID(bEast), b.ID(aWest))
	require.NoError(t, err)
	require.Equal(t, 1, b.Count(aWest, "notice"), "not acknowledged beside a writer under the right")
	_, err = b.Put(holderNumber(2), body{"cascade": target}) // ending: it asks, and does not wait for the lock
	require.Equal(t, peer.TargetDeleting, refusals(t, err)[0].Reason)
	require.NoError(t, paused.Commit(ctx))
	b.Settle()
	b.Gone(target)
	b.Audit()
}

// An answer that comes after its row was closed, or the row was made again, grants nothing.
func TestALateGrantIsNotTaken_I30_I31(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	uid := b.MustPut(target, nil).UID
	b.MustPut(holderNumber(0), body{"unset": target})
	ctx, store := t.Context(), b.Stores[b.ID(bEast)]
	var seqs []int64
	for _, w := range b.Work(b.ID(bEast)) {
		seqs = append(seqs, w.Seq)
	}
	m, err := store.Targets.Messages(ctx, b.ID(aWest), seqs)
	require.NoError(t, err)
	require.Len(t, m.Delegable, 1)
	m.Confirmed, err = b.Stores[b.ID(aWest)].Targets.Confirm(ctx, b.ID(bEast),
		peer.Confirm{Epoch: m.Epoch, Attempts: m.Confirm, References: m.References, Delegable: true})
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{uid}, m.Confirmed.Delegated)
	b.MustDelete(target)
	b.Settle()
	b.Gone(target)
	require.NoError(t, store.Targets.Delivered(ctx, m))
	require.Zero(t, rights(t, b, bEast))
	again, err := b.Stores[b.ID(aWest)].Targets.Confirm(ctx, b.ID(bEast),
		peer.Confirm{Epoch: m.Epoch, Attempts: m.Confirm, References: m.References, Delegable: true})
	require.NoError(t, err)
	require.Empty(t, again.Delegated, "an unknown attempt grants nothing")
	b.Audit()
}

// Rights of a lost epoch are void, on both sides, and references are asked for again.
func TestRightsEndWithTheEpoch_I30(t *testing.T) {
	t.Parallel()
	for _, failing := range []string{aWest, bEast} {
		t.Run(failing, func(t *testing.T) {
			t.Parallel()
			b := delegating(t)
			b.MustPut(target, nil)
			b.Settle()
			restore := b.Backup(aWest) // without the entry
			if failing == bEast {
				restore = nil
			}
			b.MustPut(holderNumber(0), body{"unset": target})
			b.Settle()
			if restore == nil {
				restore = b.Backup(bEast)
			}
			b.MustPut(holderNumber(1), body{"cascade": target})
			require.Empty(t, b.Work(b.ID(bEast)))
			restore()
			b.Recover(failing)
			b.Settle()
			b.Audit()
			// the reference under the lost right was established again, and its confirm granted another one
			if failing == aWest {
				require.Equal(t, b.Stores[b.ID(aWest)].Gate.PresentEpoch(), epochOfRight(t, b, bEast))
			} else {
				b.MustPut(holderNumber(2), body{"unset": target})
				require.NotEmpty(t, b.Work(b.ID(bEast)), "it was asked for, and is confirmed")
			}
			b.Settle()
			b.Audit()
			b.MustPut(holderNumber(3), body{"unset": target})
			require.Empty(t, b.Work(b.ID(bEast)), "under a new right")
			b.MustDelete(target)
			b.Settle()
			b.Gone(target, holderNumber(1))
			b.Audit()
		})
	}
}

// joins makes a second process of a deployment, with these settings, join the first.
func joins(b *harness.Box, deployment string, cfg shadow.Config) error {
	_, err := b.SecondProcess(deployment, cfg).Leases("second", time.Minute).Renew(context.Background(),
		uuid.Nil, false)
	return err
}

// A process with rights switched off ends all of them by joining, and none is asked for while it is there.
func TestAProcessWithoutRightsEndsThem_I31(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	b.Settle()
	require.Equal(t, 1, rights(t, b, bEast))
	require.NoError(t, joins(b, bEast, shadow.Config{}))
	require.Zero(t, rights(t, b, bEast))
	b.MustPut(holderNumber(1), body{"unset": target})
	b.Settle()
	require.Zero(t, rights(t, b, bEast))
	b.Audit()
}

// Without the setting there are none, on either side.
func TestDelegationsAreOffByDefault(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Delegations = cfg.Deployment.Service == "b.example.com" })
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	b.Settle()
	require.Zero(t, rights(t, b, bEast))
	require.Equal(t, peer.Active, b.Get(holderNumber(0)).State)
}
