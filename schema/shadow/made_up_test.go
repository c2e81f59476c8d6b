package shadow_test

import (
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// A deployment that releases attempts, or asks about attempts, that it has made up leaves as many rows as its
// quota allows: the default one with DBCONTROLLER_TEST_HOSTILE (make hostile). Other deployments, and
// attempts that are known, are not affected.
func TestMadeUpAttemptsLeaveFewRows_I15(t *testing.T) {
	t.Parallel()
	quota, pages := 100, 1
	if os.Getenv("DBCONTROLLER_TEST_HOSTILE") != "" {
		quota, pages = 0, 1000
	}
	b := newBox(t, func(c *shadow.Config) { c.Limits.Quotas.Tentative = int64(quota) })
	b.MustPut(target, nil)
	ctx, store, hostile, other := t.Context(), b.Stores[b.ID(aWest)], b.ID(bEast), b.ID(bWest)
	moved := time.Now()
	store.SetClock(func() time.Time { return moved })
	release := func(by schema.DeploymentID, n int) error {
		attempts := make([]peer.AttemptID, n)
		for i := range attempts {
			attempts[i] = uuid.Must(uuid.NewV7())
		}
		return store.Targets.Release(ctx, by, uuid.Nil, nil, attempts)
	}
	ask := func(by schema.DeploymentID, n int) error {
		questions := make([]peer.Question, n)
		for i := range questions {
			questions[i] = peer.Question{Expired: true, Key: peer.BlockadeKey{
				Attempt:   uuid.Must(uuid.NewV7()),
				HolderUID: uuid.New(), Path: "block", TargetUID: uuid.New(),
			}}
		}
		_, err := store.Attempts.Answer(ctx, by, questions)
		return err
	}
	for left := 60 * pages; left > 0; left -= 10_000 {
		require.NoError(t, release(hostile, min(left, 10_000)))
	}
	for left := 40 * pages; left > 0; left -= 10_000 {
		require.NoError(t, ask(hostile, min(left, 10_000)))
	}
	for range 20 {
		require.ErrorIs(t, release(hostile, 50), peer.ErrQuota)
		require.ErrorIs(t, ask(hostile, 50), peer.ErrQuota)
	}
	var closed, decided int
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(ctx,
		`SELECT (SELECT count(*) FROM dbcontroller.closed_attempt), (SELECT count(*) FROM dbcontroller.attempt)`).
		Scan(&closed, &decided))
	require.Equal(t, 60*pages, closed)
	require.Equal(t, 40*pages, decided)
	var disk string
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(ctx,
		`SELECT pg_size_pretty(pg_total_relation_size('dbcontroller.closed_attempt') + pg_total_relation_size('dbcontroller.attempt'))`).Scan(&disk))
	t.Logf("%d rows of one deployment take %s", closed+decided, disk)
	known := uuid.Must(uuid.NewV7())
	_, err := store.Targets.Establish(ctx, hostile, known, []peer.EstablishReference{{
		HolderUID: uuid.New(), HolderKind: "Holder", HolderName: "holders/h", Path: "cascade", TargetKind: "Target",
		TargetName: "targets/t", Behaviour: schema.CascadeDelete,
	}})
	require.NoError(t, err)
	require.NoError(t, store.Targets.Release(ctx, hostile, uuid.Nil, nil, []peer.AttemptID{known}),
		"it had a blockade here")
	require.NoError(t, store.Targets.Release(ctx, hostile, uuid.Nil, nil, []peer.AttemptID{known}), "again")
	require.NoError(t, release(other, 50))
	require.NoError(t, ask(other, 50))
	moved = moved.Add(30 * time.Minute)
	for left := 50 * pages; left > 0; left -= 10_000 {
		require.NoError(t, release(hostile, min(left, 10_000)), "half an hour later")
	}
	require.ErrorIs(t, release(hostile, 1), peer.ErrQuota)
}

// Releases that are refused leave no rows, and take nothing of the quota: an honest deployment repeats them.
func TestRefusedReleasesTakeNothingOfTheQuota_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(c *shadow.Config) { c.Limits.Quotas.Tentative = 100 })
	ctx, store, by := t.Context(), b.Stores[b.ID(aWest)], b.ID(bEast)
	old, present := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	_, err := store.Gate.RecordPeerEpoch(ctx, by, present, peer.TargetKinds{})
	require.NoError(t, err)
	attempts := make([]peer.AttemptID, 80)
	for i := range attempts {
		attempts[i] = uuid.Must(uuid.NewV7())
	}
	for range 3 {
		require.ErrorIs(t, store.Targets.Release(ctx, by, old, nil, attempts), peer.ErrStaleEpoch)
	}
	require.NoError(t, store.Targets.Release(ctx, by, present, nil, attempts))
}
