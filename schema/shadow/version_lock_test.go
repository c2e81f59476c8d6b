package shadow_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// versionLock is the advisory lock of writes and switches.
const versionLock = 0x6462_6374_6c01

// awaits runs a step while a transaction holds the version lock, which the step has to wait for.
func awaits(t *testing.T, b *harness.Box, deployment, lock string, step func(context.Context) error) {
	t.Helper()
	tx, err := b.Pools[b.ID(deployment)].Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), lock, int64(versionLock))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- step(context.Background()) }()
	stopped(t, b, deployment, 1)
	require.Empty(t, done)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-done)
}

const (
	exclusively = `SELECT pg_advisory_xact_lock($1)`
	shared      = `SELECT pg_advisory_xact_lock_shared($1)`
)

// A change of the environment or the version waits for writes under way, which hold the version lock shared;
// each transaction that relies on them holds it shared itself.
func TestStepsOfARecoveryHoldTheVersionLock_I1_I5_I8(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	store := b.Stores[b.ID(aWest)]
	awaits(t, b, aWest, shared, func(ctx context.Context) error {
		_, err := store.Gate.RecordPeerEpoch(ctx, b.ID(bWest), uuid.Must(uuid.NewV7()), peer.TargetKinds{})
		return err
	})
	awaits(t, b, aWest, shared, func(ctx context.Context) error {
		return store.Gate.AcceptDatabase(ctx, shadow.AcceptedDatabase{
			Deployment: b.ID(bWest), Database: uuid.New(),
			Epoch: uuid.Must(uuid.NewV7()), Reason: "burnt down", By: "eve",
		})
	})
	restore()
	store = b.Stores[b.ID(aWest)]
	_, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	awaits(t, b, aWest, exclusively, func(ctx context.Context) error {
		return store.Gate.Recover(ctx, b.Environment())
	})
	awaits(t, b, bEast, exclusively, func(ctx context.Context) error {
		found, err := b.Stores[b.ID(bEast)].Verify.Verify(ctx, shadow.Verification{Repair: true, Settle: 1})
		if err == nil {
			require.EqualValues(t, 1, found.Repaired)
		}
		return err
	})
	b.Settle()
	b.Audit()
}

// Between the two transactions of a switch another one may come, but not beside the second one.
func TestASwitchWaitsForTheSecondTransactionOfAnother_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	pool, second := b.Pools[b.ID(bEast)], b.SecondProcess(bEast, shadow.Config{})
	b.MustPut(holder, nil)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `SELECT FROM dbcontroller.derivation FOR UPDATE`)
	require.NoError(t, err)
	there := switching(t, b, bEast, modelOf(t, versions, "b.example.com", "v2"))
	stopped(t, b, bEast, 1)
	back := make(chan error, 1)
	go func() { back <- second.Admin.Switch(context.Background(), modelOf(t, versions, "b.example.com", "v1")) }()
	stopped(t, b, bEast, 2)
	var version string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT version FROM dbcontroller.meta`).Scan(&version))
	require.Equal(t, "v2", version)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-there)
	require.NoError(t, <-back)
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT version FROM dbcontroller.meta`).Scan(&version))
	require.Equal(t, "v1", version)
}
