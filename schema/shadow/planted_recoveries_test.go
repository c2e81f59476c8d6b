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
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// Two processes begin the recovery of an epoch. The second one does not remove the work that the first one
// has made, and which is made once.
func TestOneProcessBeginsARecovery_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	id, pool := b.ID(aWest), b.Pools[b.ID(aWest)]
	g := newGate("commit")
	g.whole = true
	first, second := gatedProcess(t, b, aWest, g, b.Stores[id].Model()), b.Stores[id]
	exec(t, b, aWest, `UPDATE dbcontroller.meta SET server = 'another'`)
	for _, s := range []*shadow.Store{first, second} {
		_, err := s.Gate.NoticeEpoch(t.Context())
		require.NoError(t, err)
	}
	recovers := func(s *shadow.Store) <-chan error {
		done := make(chan error, 1)
		go func() { done <- s.Gate.Recover(context.Background(), b.Environment()) }()
		return done
	}
	g.arm(0)
	one := recovers(first)
	<-g.reached
	// between the statements of the second process, when it does not wait before them
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	locked := make(chan error, 1)
	go func() {
		_, err := tx.Exec(context.Background(), `LOCK TABLE dbcontroller.work IN SHARE MODE`)
		locked <- err
	}()
	stopped(t, b, aWest, 1)
	other := recovers(second)
	stopped(t, b, aWest, 2)
	close(g.open)
	require.NoError(t, <-one)
	require.NoError(t, <-locked)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-other)
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
}

// The registry has lost a holder's deployment, and all that the restored database has of it is a notice.
func TestWhoIsKnownByANoticeIsWaitedFor_I2_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	b.MustPut(holder, nil)
	_, err := b.Do(b.ID(bEast), schema.Release)
	require.NoError(t, err)
	exec(t, b, aWest, `DELETE FROM dbcontroller.holder_entry`) // as if it had had a right, which it has returned
	require.Equal(t, [3]int{0, 0, 1}, [3]int{
		b.Count(aWest, "blockade"), b.Count(aWest, "holder_entry"),
		b.Count(aWest, "notice"),
	})
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target2}) // lost by the restore
	b.Settle()
	restore()
	store := b.Stores[b.ID(aWest)]
	_, err = store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.NoError(t, store.Gate.Recover(t.Context(), without(b, bEast)))
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	b.Settle()
	_, err = b.Delete(target2)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// A target waits for the acknowledgement of a deployment that has no reference any more, and whose database
// loses that it ever had one.
func TestWhoIsToldOfItsNoticesStaysInterested_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, nil)
	b.Settle()
	restore := b.Backup(bEast)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	b.MustPut(holder, nil)
	_, err := b.Do(b.ID(bEast), schema.Release)
	require.NoError(t, err)
	exec(t, b, aWest, `DELETE FROM dbcontroller.holder_entry`) // as if it had had a right, which it has returned
	restore()
	b.Recover(bEast)
	announced(t, b, bEast)
	_, err = b.Do(b.ID(aWest), schema.VerifyBlockades)
	require.NoError(t, err)
	pointedTo, err := b.Stores[b.ID(bEast)].Attempts.ReferencedDeployments(t.Context())
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{b.ID(aWest)}, pointedTo)
	b.Settle()
	b.Gone(target)
}

// A deployment cannot be reminded of its entries when its blockades have been compared: the work stays.
func TestWhoCannotBeRemindedIsRemindedLater_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.Renew(aWest)
	b.SetDown(bEast, true)
	_, err := b.Do(b.ID(aWest), schema.VerifyBlockades)
	require.Error(t, err)
	require.Len(t, recovering(b, aWest, bEast, schema.VerifyBlockades), 1)
	b.SetDown(bEast, false)
	b.Settle()
	require.Zero(t, b.Count(aWest, "work"))
}

// Another epoch is announced while references are compared: the comparison is of the epoch before.
func TestAComparisonIsOfTheEpochInWhichItBegan_I2_I3(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	renewed := func() {
		b.Renew(aWest)
		announced(t, b, aWest)
		_, err := b.Do(b.ID(aWest), schema.VerifyBlockades) // it tells again of deletions
		require.NoError(t, err)
	}
	renewed()
	b.AfterCheckReferences = func([]peer.Known) {
		b.AfterCheckReferences = nil
		renewed()
	}
	_, err := b.Do(b.ID(bEast), schema.ConfirmAgain)
	require.NoError(t, err)
	require.Nil(t, b.AfterCheckReferences)
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
}

// A deployment calls between the beginning of an epoch and of its recovery, and the registry has lost it: it
// is waited for, and told, and the wait is one of the changes that keep away from a decommissioning under
// way.
func TestWhoCallsBeforeARecoveryIsWaitedFor_I2_I13_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.MustPut(holder, nil) // no row remains
	b.Settle()
	store := b.Stores[b.ID(aWest)]
	calls := func(ctx context.Context) error {
		return store.Gate.CheckDatabase(ctx, b.ID(bEast), b.Stores[b.ID(bEast)].Gate.Database())
	}
	require.NoError(t, store.Gate.Recover(t.Context(), b.Environment())) // as a process does with its first environment
	require.NoError(t, calls(t.Context()))
	exec(t, b, aWest, `UPDATE dbcontroller.meta SET server = 'another'`)
	awaiting, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.True(t, awaiting)
	awaits(t, b, aWest, exclusively, calls)
	require.NoError(t, store.Gate.Recover(t.Context(), without(b, bEast)))
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, unconfirmed(t, b, aWest))
	require.Len(t, recovering(b, aWest, bEast, schema.AnnounceEpoch), 1)
	b.Settle()
	require.Empty(t, unconfirmed(t, b, aWest))
}

// A deployment that calls is waited for, in each process, before its messages count: also when it calls
// again.
func TestWhoCannotBeWaitedForYetIsNotHeard_I2_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	store, other := b.Stores[b.ID(aWest)], b.Stores[b.ID(bEast)].Gate.Database()
	require.NoError(t, store.Gate.CheckDatabase(t.Context(), b.ID(bEast), other))
	b.Renew(aWest)
	b.Settle()
	exec(t, b, aWest, `UPDATE dbcontroller.deployment SET counted_in = NULL`) // it was unknown when the recovery began
	process := b.SecondProcess(aWest, shadow.Config{})                        // without an environment
	for range 2 {
		require.ErrorIs(t, process.Gate.CheckDatabase(t.Context(), b.ID(bEast), other), peer.ErrRecovering)
	}
	require.NoError(t, process.Gate.Recover(t.Context(), b.Environment()))
	require.NoError(t, process.Gate.CheckDatabase(t.Context(), b.ID(bEast), other))
}

// An environment that cannot be recovered from yet is tried again.
func TestALaterEnvironmentIsTriedAgain_I2_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.Renew(aWest)
	b.Settle()
	// the environment has had no other deployment
	exec(t, b, aWest, `UPDATE dbcontroller.deployment SET counted_in = NULL`)
	exec(t, b, aWest,
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'stopped'; END $$`)
	exec(t, b, aWest,
		`CREATE TRIGGER stop BEFORE UPDATE ON dbcontroller.deployment FOR EACH ROW EXECUTE FUNCTION refuse()`)
	ctx, cancel := context.WithCancel(t.Context())
	ended, env := make(chan error, 1), b.Environment()
	looks := make(chan struct{}, 100)
	go func() {
		ended <- b.Stores[b.ID(aWest)].Admin.FollowEpochs(ctx, shadow.EpochConfig{
			Latest: func() *schema.Environment {
				select {
				case looks <- struct{}{}:
				default:
				}
				return env
			},
			Renewed: make(chan struct{}, 1),
		})
	}()
	for range 3 {
		<-looks
	}
	exec(t, b, aWest, `DROP TRIGGER stop ON dbcontroller.deployment`)
	require.Eventually(t, func() bool { return len(unconfirmed(t, b, aWest)) == 1 }, wait.Limit, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}

// The report of a deployment about a later epoch counts when it is repeated, after the database could not be
// asked.
func TestAReportOfALaterEpochThatFailedCounts_I2_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, known := b.Stores[b.ID(aWest)], uuid.Must(uuid.NewV7())
	away, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, store.Gate.OutdoEpoch(away, b.ID(bEast), known), context.Canceled)
	require.NoError(t, store.Gate.OutdoEpoch(t.Context(), b.ID(bEast), known))
}

// A note that is written once an epoch is written when it failed the first time.
func TestANoteThatFailedIsWrittenAgain_I13_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	fails := func(deployment string, step func(context.Context) error) {
		t.Helper()
		tx, err := b.Pools[b.ID(deployment)].Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, err = tx.Exec(t.Context(), `SELECT FROM dbcontroller.deployment FOR UPDATE`)
		require.NoError(t, err)
		soon, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		require.Error(t, step(soon))
		require.Eventually(t, func() bool { // the statement ends before its lock is free
			return countRows(t, b.Pools[b.ID(deployment)],
				`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 0
		}, wait.Limit, 10*time.Millisecond)
	}
	there, here := b.Stores[b.ID(aWest)], b.Stores[b.ID(bEast)]
	// the numbers of the names, and the databases
	for deployment, other := range map[string]string{aWest: bEast, bEast: aWest} {
		require.NoError(t, b.Stores[b.ID(deployment)].Gate.CheckDatabase(t.Context(), b.ID(other),
			b.Stores[b.ID(other)].Gate.Database()))
	}
	fails(aWest, func(ctx context.Context) error {
		_, err := there.Targets.Establish(ctx, b.ID(bEast), newAttempt(),
			[]peer.EstablishReference{reference("block", schema.Block, uuid.New())})
		return err
	})
	require.Zero(t, countRows(t, b.Pools[b.ID(bEast)], `SELECT count(*) FROM dbcontroller.deployment WHERE pointed_to`))
	fails(bEast, func(ctx context.Context) error {
		_, err := here.Attempts.Answer(ctx, b.ID(aWest), nil)
		return err
	})
	_, err := here.Attempts.Answer(t.Context(), b.ID(aWest), nil)
	require.NoError(t, err)
	require.Equal(t, 1, countRows(t, b.Pools[b.ID(bEast)],
		`SELECT count(*) FROM dbcontroller.deployment WHERE pointed_to`))
	b.MustPut(holder, body{"cascade": target})
	require.Equal(t, 1, countRows(t, b.Pools[b.ID(aWest)],
		`SELECT count(*) FROM dbcontroller.deployment WHERE referred`))
}

// Two processes meet two databases of one deployment at once, on which rows depend: one of the databases
// counts.
func TestTwoProcessesMeetOneDatabase_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	exec(t, b, aWest, `UPDATE dbcontroller.deployment SET database_id = NULL`) // it is not met yet
	processes := []*shadow.Store{b.SecondProcess(aWest, shadow.Config{}), b.SecondProcess(aWest, shadow.Config{})}
	tx, err := b.Pools[b.ID(aWest)].Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), shared, int64(versionLock))
	require.NoError(t, err)
	met := make(chan error, 2)
	for _, s := range processes {
		go func() { met <- s.Gate.CheckDatabase(context.Background(), b.ID(bEast), uuid.New()) }()
	}
	stopped(t, b, aWest, 2)
	require.NoError(t, tx.Rollback(t.Context()))
	var refused int
	for range 2 {
		if err := <-met; err != nil {
			require.ErrorAs(t, err, new(*peer.DatabaseError))
			refused++
		}
	}
	require.Equal(t, 1, refused)
}

// A database is met anew while a transaction that makes rows depend on the former one is not committed: the
// met database does not replace the former one.
func TestADatabaseIsMetAfterWritesUnderWay_I15_I17(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, services, nil, aEast, bEast)
	store, ctx := b.Stores[b.ID(aEast)], t.Context()
	require.NoError(t, store.Gate.CheckDatabase(ctx, b.ID(bEast), b.Stores[b.ID(bEast)].Gate.Database()))
	process := b.SecondProcess(aEast, shadow.Config{})
	end := opened(t, store, b.Pools[b.ID(aEast)], peer.Write{
		Name:   "targets/owned",
		Owners: []peer.OwnerReference{owner(t, holder, "Holder")},
	})
	met := make(chan error, 1)
	go func() { met <- process.Gate.CheckDatabase(context.Background(), b.ID(bEast), uuid.New()) }()
	stopped(t, b, aEast, 1)
	require.NoError(t, end(nil))
	require.ErrorAs(t, <-met, new(*peer.DatabaseError))
}

// The process at which an operator accepts a database compares with that one at once, and tells it no
// position of the former one.
func TestAnAcceptedDatabaseIsComparedAtOnce_I2_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"unset": target})
	b.Settle()
	store, former := b.Stores[b.ID(bEast)], b.Stores[b.ID(aWest)].Gate.Database()
	exec(t, b, bEast, `INSERT INTO dbcontroller.position (deployment_id, token) SELECT id, 'before' FROM dbcontroller.deployment WHERE service = 'a.example.com' AND region = 'us-west2'
		ON CONFLICT (deployment_id) DO UPDATE SET token = 'before'`)
	require.NoError(t, store.Gate.CheckDatabase(t.Context(), b.ID(aWest), former))
	b.Replace(aWest)
	accept(t, b, bEast, aWest)
	require.ErrorAs(t, store.Gate.CheckDatabase(t.Context(), b.ID(aWest), former), new(*peer.DatabaseError))
	token, err := store.Follow.Position(t.Context(), b.ID(aWest))
	require.NoError(t, err)
	require.Empty(t, token)
}
