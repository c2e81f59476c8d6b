package shadow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

func countRows(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func tidied(t *testing.T, b *harness.Box, deployment string) {
	t.Helper()
	more, err := b.Stores[b.ID(deployment)].Admin.Tidy(context.Background())
	require.NoError(t, err)
	require.False(t, more)
}

// Each row is removed when its retention has ended by both clocks, and not before.
func TestTidyRemovesOnlyRowsPastTheirRetention_I5_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	pool := b.Pools[b.ID(aWest)]
	const peer = `(SELECT id FROM dbcontroller.deployment WHERE service = 'a.example.com' AND region = 'us-west2')`
	for _, row := range []struct {
		what, insert, age string
		left              int
	}{
		{
			"an ABORTED decision",
			`INSERT INTO dbcontroller.attempt (id, committed, decided_at) VALUES ($1, false, now() - $2::interval)`,
			"24 hours", 1,
		},
		{
			"an ABORTED decision",
			`INSERT INTO dbcontroller.attempt (id, committed, decided_at) VALUES ($1, false, now() - $2::interval)`,
			"26 hours", 0,
		},
		{
			"a COMMITTED decision",
			`INSERT INTO dbcontroller.attempt (id, committed, decided_at) VALUES ($1, true, now() - $2::interval)`,
			"50 min", 1,
		},
		{
			"a COMMITTED decision",
			`INSERT INTO dbcontroller.attempt (id, committed, decided_at) VALUES ($1, true, now() - $2::interval)`,
			"70 min", 0,
		},
		{"a COMMITTED decision that is not confirmed", `
			WITH owed AS (INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt) VALUES (1, 0, ` + peer + `, $1))
			INSERT INTO dbcontroller.attempt (id, committed, decided_at) VALUES ($1, true, now() - $2::interval)`, "50 hours", 1},
		{
			"a closed attempt",
			`INSERT INTO dbcontroller.closed_attempt (attempt, deployment_id, closed_at) VALUES ($1, ` + peer +
				`, now() - $2::interval)`, "24 hours", 1,
		},
		{
			"a closed attempt",
			`INSERT INTO dbcontroller.closed_attempt (attempt, deployment_id, closed_at) VALUES ($1, ` + peer +
				`, now() - $2::interval)`, "26 hours", 0,
		},
		{
			"a request",
			`INSERT INTO dbcontroller.request (id, hash, outcome, created_at) VALUES ($1, '\x00', '{}', now() - $2::interval)`, "23 hours", 1,
		},
		{
			"a request",
			`INSERT INTO dbcontroller.request (id, hash, outcome, created_at) VALUES ($1, '\x00', '{}', now() - $2::interval)`, "25 hours", 0,
		},
		{
			"a target that is closed",
			`INSERT INTO dbcontroller.closing SELECT id, $1, now() - $2::interval FROM dbcontroller.shadow`,
			"-3 min", 1,
		},
		{
			"a target that was closed",
			`INSERT INTO dbcontroller.closing SELECT id, $1, now() - $2::interval FROM dbcontroller.shadow`,
			"3 min", 0,
		},
		{
			"a right that is about to end",
			`INSERT INTO dbcontroller.ending SELECT hashtextextended($1::text, 0), now() - $2::interval`, "-30 s", 1,
		},
		{
			"a right whose end a process began",
			`INSERT INTO dbcontroller.ending SELECT hashtextextended($1::text, 0), now() - $2::interval`, "30 s", 1,
		},
		{
			"a right whose end a process left unfinished",
			`INSERT INTO dbcontroller.ending SELECT hashtextextended($1::text, 0), now() - $2::interval`, "2 min", 0,
		},
		{
			"a right whose end a clock set ahead",
			`INSERT INTO dbcontroller.ending SELECT hashtextextended($1::text, 0), now() - $2::interval`, "-1 hour", 0,
		},
	} {
		id := uuid.New()
		_, err := pool.Exec(t.Context(), row.insert, id, row.age)
		require.NoError(t, err, row.what)
		tidied(t, b, aWest)
		require.Equal(t, row.left, countRows(t, pool, `SELECT (SELECT count(*) FROM dbcontroller.attempt WHERE id = $1)
			+ (SELECT count(*) FROM dbcontroller.closed_attempt WHERE attempt = $1) + (SELECT count(*) FROM dbcontroller.request WHERE id = $1)
			+ (SELECT count(*) FROM dbcontroller.closing WHERE delete_id = $1)
			+ (SELECT count(*) FROM dbcontroller.ending WHERE target_id = hashtextextended($1::text, 0))`, id), "%s, after %s", row.what, row.age)
	}
}

// meta.forgotten never decreases: an attempt that began between two values may have been aborted by the
// greater one.
func TestTheForgottenMarkOnlyGrows_I5(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	pool := b.Pools[b.ID(aWest)]
	for _, mark := range []int{700, 300, 500} {
		_, err := pool.Exec(t.Context(), `INSERT INTO dbcontroller.attempt (id, committed, decided_at, mark)
			VALUES (gen_random_uuid(), false, now() - interval '26 hours', $1), (gen_random_uuid(), true, now() - interval '26 hours', 900)`, mark)
		require.NoError(t, err)
		tidied(t, b, aWest)
		require.Zero(t, countRows(t, pool, `SELECT count(*) FROM dbcontroller.attempt`))
		require.Equal(t, 700, countRows(t, pool, `SELECT forgotten FROM dbcontroller.meta`))
	}
}

// Tidy starts again after the last foreign target: a target that had references in the last round may have
// none now.
func TestTidyVisitsForeignTargetsAgain(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	tidied(t, b, bEast)
	require.Equal(t, 1, b.Count(bEast, "foreign_target"))
	b.MustPut(holder, nil)
	b.Settle()
	tidied(t, b, bEast)
	require.Zero(t, b.Count(bEast, "foreign_target"))
	b.Audit()
}

// waiting reports whether a session of a database waits for a lock.
func waiting(t *testing.T, pool *pgxpool.Pool) bool {
	t.Helper()
	return countRows(t, pool,
		`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
}

// beside runs fn until it has ended or waits for a lock, then releases the lock, and returns the result of
// fn.
func beside(t *testing.T, pool *pgxpool.Pool, fn func() error, goOn func()) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	require.Eventually(t, func() bool { return len(done) > 0 || waiting(t, pool) }, wait.Limit, 5*time.Millisecond)
	goOn()
	return <-done
}

// Tidy removes a foreign target beside an uncommitted write with a new reference to it: it waits, and checks
// again.
func TestAForeignTargetWithANewReferenceIsKept_I1(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder2, body{"block": target})
	b.MustPut(holder2, nil)
	b.Settle()
	g := newGate("commit")
	g.whole = true
	process := gatedProcess(t, b, bEast, g, b.Stores[b.ID(bEast)].Model())
	b.AfterEstablish = func() { g.arm(0) }
	saved := make(chan error, 1)
	go func() {
		_, err := process.Write.Save(context.Background(),
			[]peer.Write{{Name: "holders/h", Body: body{"block": target}}})
		saved <- err
	}()
	<-g.reached
	require.NoError(t, beside(t, b.Pools[b.ID(bEast)], func() error {
		_, err := b.Stores[b.ID(bEast)].Admin.Tidy(context.Background())
		return err
	}, func() { close(g.open) }))
	require.NoError(t, <-saved)
	b.AfterEstablish = nil
	require.Equal(t, 1, b.Count(bEast, "foreign_target"))
	b.Settle()
	b.Audit()
}

// Messages to a decommissioned deployment are removed; the work of the decommissioning itself is not.
func TestMessagesToADecommissionedDeploymentAreRemoved_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	decommission(t, b, aWest, bEast, schema.Unset)
	tidied(t, b, aWest)
	require.Equal(t, 1, b.Count(aWest, "work"), "it is worked off")
	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"))
	exec(t, b, aWest, `INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt)
		SELECT 2, 0, id, gen_random_uuid() FROM dbcontroller.deployment WHERE service = 'b.example.com' AND region = 'eastus2'`)
	tidied(t, b, aWest)
	require.Zero(t, b.Count(aWest, "work"))
	b.MustDelete(target)
}

// meta.compacted is the newest transaction of the removed rows, and never decreases: no token is accepted
// whose rows are removed.
func TestTheCompactedMarkIsThatOfTheNewestRow_I24(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	pool := b.Pools[b.ID(aWest)]
	exec(t, b, aWest, `UPDATE dbcontroller.meta SET compacted = '10'`)
	for _, c := range []struct{ older, newer, mark int }{{300, 500, 500}, {200, 400, 500}, {400, 600, 600}} {
		for _, xid := range []int{c.newer, c.older} { // transactions commit in another order than they begin
			_, err := pool.Exec(t.Context(), `INSERT INTO dbcontroller.change (xid, uid, revision, generation, kind_id, state, created_at, changed_at, name)
				VALUES ($1::bigint::text::xid8, gen_random_uuid(), 1, 1, 1, 3, now(), now() - interval '25 hours', 'targets/t')`, xid)
			require.NoError(t, err)
		}
		tidied(t, b, aWest)
		require.Zero(t, b.Count(aWest, "change"))
		require.Equal(t, c.mark, countRows(t, pool, `SELECT compacted::text::int FROM dbcontroller.meta`))
	}
}

// Tidy says that there may be more when it has removed as many rows of a table as it removes at once.
func TestTidySaysThatThereMayBeMore_I28(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	const peer = `(SELECT id FROM dbcontroller.deployment WHERE service = 'a.example.com' AND region = 'us-west2')`
	for _, insert := range []string{
		`INSERT INTO dbcontroller.attempt (id, committed, decided_at) SELECT gen_random_uuid(), false, now() - interval '26 hours' FROM generate_series(1, 5000)`,
		`INSERT INTO dbcontroller.closed_attempt (attempt, deployment_id, closed_at) SELECT gen_random_uuid(), ` +
			peer + `, now() - interval '26 hours' FROM generate_series(1, 5000)`,
		`INSERT INTO dbcontroller.request (id, hash, outcome, created_at) SELECT gen_random_uuid(), '\x00', '{}', now() - interval '26 hours' FROM generate_series(1, 5000)`,
		`INSERT INTO dbcontroller.change (uid, revision, generation, kind_id, state, created_at, changed_at, name)
			SELECT gen_random_uuid(), 1, 1, 1, 3, now(), now() - interval '25 hours', 'targets/t' FROM generate_series(1, 5000)`,
		`INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name) SELECT gen_random_uuid(), ` +
			peer + `, 1, 'targets/' || n FROM generate_series(1, 5000) n`,
	} {
		exec(t, b, aWest, insert)
		more, err := b.Stores[b.ID(aWest)].Admin.Tidy(t.Context())
		require.NoError(t, err)
		require.True(t, more, insert)
		tidied(t, b, aWest)
	}
}

// Foreign targets that are in use keep none behind them from being removed.
func TestTidyGoesOnBehindForeignTargetsInUse_I28(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	exec(t, b, aWest, `INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name, block_attempt)
		SELECT gen_random_uuid(), (SELECT id FROM dbcontroller.deployment WHERE service = 'a.example.com' AND region = 'us-west2'), 1, 'targets/' || n, CASE WHEN n <= 5000 THEN gen_random_uuid() END
		FROM generate_series(1, 5001) n`)
	more, err := b.Stores[b.ID(aWest)].Admin.Tidy(t.Context())
	require.NoError(t, err)
	require.True(t, more)
	_, err = b.Stores[b.ID(aWest)].Admin.Tidy(t.Context())
	require.NoError(t, err)
	require.Equal(t, 5000, b.Count(aWest, "foreign_target"))
}

// Changes are kept for the time that is set, also when it is set anew.
func TestChangesAreKeptForTheirTime_I25(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Retention.Changes = 3 * time.Hour })
	b.MustPut(target, nil)
	exec(t, b, aWest, `UPDATE dbcontroller.change SET changed_at = now() - interval '2 hours'`)
	tidied(t, b, aWest)
	require.Equal(t, 1, b.Count(aWest, "change"))
	b.Stores[b.ID(aWest)].Tune(shadow.Tuning{})
	tidied(t, b, aWest)
	require.Equal(t, 1, b.Count(aWest, "change"))
	b.Stores[b.ID(aWest)].Tune(shadow.Tuning{ChangesKept: time.Hour})
	tidied(t, b, aWest)
	require.Zero(t, b.Count(aWest, "change"))
}

// A database refuses to forget removals that early: all other rows are tidied.
func TestRemovalsThatAreKeptKeepNothingElse_I28(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Retention.Removals = time.Hour })
	exec(t, b, aWest,
		`INSERT INTO dbcontroller.attempt (id, committed, decided_at) VALUES (gen_random_uuid(), false, now() - interval '26 hours')`)
	_, err := b.Stores[b.ID(aWest)].Admin.Tidy(t.Context())
	require.ErrorContains(t, err, "removals are kept for at least 7 days")
	require.Zero(t, countRows(t, b.Pools[b.ID(aWest)], `SELECT count(*) FROM dbcontroller.attempt`))
}

// The record of a resource that lived for less than an hour is kept for a week, others for as long as
// removals are kept. Its cause stays while another record has it.
func TestRecordsOfBriefResourcesAreKeptForAWeek_I28(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	const week, day = 7 * 24 * time.Hour, 24 * time.Hour
	now := time.Now()
	for i, r := range []struct {
		brief bool
		gone  time.Duration
		cause int64
	}{
		{true, week + day, 1e9 + 1},
		{true, week + time.Hour, 1e9 + 2},
		{false, week + time.Hour, 1e9 + 2},
		{false, week + day, 1e9 + 3},
		{true, week - day, 1e9 + 4},
	} {
		_, err := b.Pools[b.ID(aWest)].Exec(t.Context(), `
WITH r AS (INSERT INTO dbcontroller.removal (name, uid, kind_id, cause_id, decided_at, brief) VALUES ($1, gen_random_uuid(), 1, $2, $3, $4))
INSERT INTO dbcontroller.cause (id, how, deletion_id, actor, root, root_uid, at, noted_at) VALUES ($2, 1, gen_random_uuid(), 'user/ann', $1, gen_random_uuid(), $3, $3)
ON CONFLICT (id) DO NOTHING`, fmt.Sprintf("targets/t%d", i), r.cause, now.Add(-r.gone), r.brief)
		require.NoError(t, err)
	}
	b.MustPut(target, nil)
	b.MustDelete(target)
	b.Settle()
	tidied(t, b, aWest)
	left := func(sql string) (texts []string) {
		rows, err := b.Pools[b.ID(aWest)].Query(t.Context(), sql)
		require.NoError(t, err)
		texts, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return texts
	}
	require.Equal(t, []string{"targets/t true", "targets/t2 false", "targets/t3 false", "targets/t4 true"},
		left(`SELECT name || ' ' || brief FROM dbcontroller.removal ORDER BY 1`))
	require.Equal(t, []string{"2", "3", "4"},
		left(`SELECT (id - 1000000000)::text FROM dbcontroller.cause WHERE at < now() - interval '1 day' ORDER BY id`))
}

// Each process learns of a deployment that was decommissioned at another one.
func TestTidyLearnsWhoIsDecommissioned_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	other := b.SecondProcess(aWest, shadow.Config{})
	decommission(t, b, aWest, bEast, schema.Unset)
	require.False(t, other.Gate.IsDecommissioned(b.ID(bEast)))
	_, err := other.Admin.Tidy(t.Context())
	require.NoError(t, err)
	require.True(t, other.Gate.IsDecommissioned(b.ID(bEast)))
}
