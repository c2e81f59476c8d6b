package shadow_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// known makes a deployment known to a store, which it does not refer to yet.
func known(t *testing.T) func(*shadow.Store) {
	return func(store *shadow.Store) {
		_, err := store.Targets.Establish(t.Context(), peerOfA, newAttempt(), nil)
		require.NoError(t, err)
		require.NoError(t, store.Read.CheckKept(t.Context(), peerOfA, ""))
	}
}

// useTransactions makes another database of a server use as many ids of transactions, in one transaction.
func useTransactions(t *testing.T, server *harness.Cluster, n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	_, err = conn.Exec(t.Context(), `CREATE TEMPORARY TABLE used (i int)`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(),
		fmt.Sprintf(
			`DO $$ BEGIN FOR i IN 1..%d LOOP BEGIN INSERT INTO used VALUES (i); EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$`, n))
	require.NoError(t, err)
}

// seen lets a process read from disk the numbers of its own commits.
func seen(t *testing.T, store *shadow.Store) {
	t.Helper()
	for range 2 { // the second look finds the numbers that the first one has passed over
		_, err := store.Gate.NoticeEpoch(t.Context())
		require.NoError(t, err)
	}
}

// A copy of the server's files is started in place of the server, and another database of the server uses
// more transactions than were lost. The lost reference is the first of its deployment. The process that
// starts over the copy decides nothing until that deployment has shown its token, which reveals the copy,
// also after the copy has taken more numbers than were lost.
func TestACopyBesideABusyDatabaseDecidesNothing_I2_I3(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(*swapped, *shadow.Store){
		"at once": func(*swapped, *shadow.Store) {},
		"after more were taken": func(s *swapped, store *shadow.Store) {
			s.store = store
			for range 200 {
				s.establish("targets/t1")
			}
		},
		"after a look at the copy": func(s *swapped, store *shadow.Store) { seen(s.t, store) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSwapped(t, known(t))
			s.establish("targets/t0") // one number: fewer than a sequence is ahead in the log
			seen(t, s.store)
			token := deletionsToken(t, s.store)
			s.swap()
			useTransactions(t, s.copy, 5000)
			_, store := movingPool(t, s.copy, s.address)
			awaiting, err := store.Gate.NoticeEpoch(t.Context())
			require.NoError(t, err)
			require.False(t, awaiting, "the process cannot know")
			refused := func() {
				t.Helper()
				_, err := store.Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/t0"})
				var unavailable *peer.UnavailableError
				require.ErrorAs(t, err, &unavailable)
				require.ErrorIs(t, err, peer.ErrRecovering)
			}
			refused()
			_, err = store.Attempts.Answer(t.Context(), peerOfA,
				[]peer.Question{{Key: peer.BlockadeKey{Attempt: newAttempt()}, Expired: true}})
			require.ErrorIs(t, err, peer.ErrRecovering, "a verdict of a copy may be wrong")
			write(s, store)
			require.ErrorIs(t, store.Read.CheckKept(t.Context(), peerOfA, token), schema.ErrReset)
			refused()
			awaiting, err = store.Gate.NoticeEpoch(t.Context())
			require.NoError(t, err)
			require.True(t, awaiting)
		})
	}
}

// A server that starts again is no copy: the deletes wait until the position of each other deployment is
// shown, or for some seconds. A process that has run on has compared its own numbers, and does not wait.
func TestAStartWaitsForPositions_I13(t *testing.T) {
	t.Parallel()
	s := newSwapped(t, known(t))
	seen(t, s.store)
	token := deletionsToken(t, s.store)
	restart := func() {
		s.reset()
		s.primary.Stop()
		s.primary.Start()
		s.address.Store(s.primary.Address())
	}
	deletes := func(store *shadow.Store, name string) error {
		_, err := store.Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: name})
		return err
	}
	restart()
	seen(t, s.store)
	require.NoError(t, deletes(s.store, "targets/t0"))

	restart()
	_, store := movingPool(t, s.primary, s.address)
	seen(t, store)
	err := deletes(store, "targets/t1")
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.Equal(t, []schema.DeploymentID{peerOfA}, unavailable.Deployments)
	require.ErrorContains(t, err, "has started again")
	status, err := store.Operate.Epoch(t.Context())
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{peerOfA}, status.Unconfirmed)
	require.NoError(t, store.Read.CheckKept(t.Context(), peerOfA, token))
	require.NoError(t, deletes(store, "targets/t1"))

	_, err = store.Write.Save(t.Context(), []peer.Write{{Name: "targets/t2"}})
	require.NoError(t, err)
	restart()
	pool, again := movingPool(t, s.primary, s.address)
	store = again
	seen(t, store)
	require.True(t, errors.As(deletes(store, "targets/t2"), &unavailable))
	// the seconds have passed
	_, err = pool.Exec(t.Context(), `UPDATE dbcontroller.meta SET positions_until = clock_timestamp()`)
	require.NoError(t, err)
	require.NoError(t, deletes(store, "targets/t2"))
	awaiting, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.False(t, awaiting)
}
