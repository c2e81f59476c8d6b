package shadow_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/shadow/internal/standby"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// replicated is a deployment whose reads a standby may answer.
type replicated struct {
	t                 *testing.T
	store             *shadow.Store
	primary, standby  *harness.Cluster
	ofPrimary, ofCopy *pgxpool.Pool
}

// newReplicated starts both servers; reads go to the standby, or to the address that where returns.
func newReplicated(t *testing.T, maxLag time.Duration, where func(r *replicated) string) *replicated {
	t.Helper()
	r := &replicated{t: t, primary: newServer(t)}
	r.primary.Stop()
	r.standby = r.primary.Copy()
	r.primary.Start()
	r.standby.StartStandby(r.primary)
	connect := func(dsn string) *pgxpool.Pool {
		pool, err := postgres.Connect(t.Context(), dsn, "test", 8)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	r.ofPrimary, r.ofCopy = connect(r.primary.DSN("a")), connect(r.standby.DSN("a"))
	address := r.standby.DSN("a")
	if where != nil {
		address = where(r)
	}
	lanes := postgres.NewLanes(r.ofPrimary)
	reads := shadow.NewStandby(shadow.StandbyConfig{
		Primary: lanes, MaxLag: maxLag, Logger: zap.NewNop(),
		Connect: func(ctx context.Context) (*pgxpool.Pool, error) {
			return postgres.Connect(ctx, address, "test reads", 8)
		},
	})
	r.store = openWith(t, shadow.Config{Pool: lanes, Standby: reads})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- reads.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		reads.Close()
	})
	return r
}

// person returns a context of somebody's reads, which may be old.
func (r *replicated) person(who string) context.Context {
	return postgres.WithCaller(r.t.Context(), postgres.Caller{Lane: postgres.Reads, Who: who, Standby: true})
}

func (r *replicated) save(name, label string) {
	r.t.Helper()
	_, err := r.store.Write.Save(r.t.Context(), []peer.Write{{Name: name, Labels: map[string]string{"v": label}}})
	require.NoError(r.t, err)
}

func (r *replicated) label(ctx context.Context, name string) string {
	r.t.Helper()
	found, err := r.store.Read.Get(ctx, name)
	require.NoError(r.t, err)
	return found.Labels["v"]
}

// answered waits until the standby answers reads.
func (r *replicated) answered() {
	r.t.Helper()
	before := r.store.Standby.Reads()[standby.Answered]
	require.Eventually(r.t, func() bool {
		_, _, err := r.store.Read.List(r.person("somebody"), shadow.ListRequest{Kind: "Target", Limit: 1})
		require.NoError(r.t, err)
		return r.store.Standby.Reads()[standby.Answered] > before
	}, wait.Limit, 5*time.Millisecond)
}

// halt makes the standby show the present state from now on.
func (r *replicated) halt() {
	r.t.Helper()
	ctx := r.t.Context()
	var at string
	require.NoError(r.t, r.ofPrimary.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&at))
	require.Eventually(r.t, func() bool {
		var reached bool
		return r.ofCopy.QueryRow(ctx, `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, at).
			Scan(&reached) == nil && reached
	}, wait.Limit, 5*time.Millisecond)
	_, err := r.ofCopy.Exec(ctx, `SELECT pg_wal_replay_pause()`)
	require.NoError(r.t, err)
	require.Eventually(r.t, func() bool {
		var state string
		return r.ofCopy.QueryRow(ctx, `SELECT pg_get_wal_replay_pause_state()`).Scan(&state) == nil && state == "paused"
	}, wait.Limit, 5*time.Millisecond)
}

// A standby whose replay stands still shows who reads what: an hour may pass before it counts as late.
func TestReadsThatMayBeOldAreOfTheStandby_I37(t *testing.T) {
	t.Parallel()
	r := newReplicated(t, time.Hour, nil)
	r.save("targets/a", "old")
	r.answered()
	r.halt()
	r.save("targets/a", "new")
	r.save("targets/b", "new")

	require.Equal(t, "old", r.label(r.person("ada"), "targets/a"))
	require.Equal(t, "new", r.label(t.Context(), "targets/a"), "reads of the process are of the primary")
	require.Equal(t, "new", r.label(postgres.OfPrimary(r.person("ada")), "targets/a"),
		"so are reads of the latest state")
	require.Equal(t, "new", r.label(r.person("eve"), "targets/b"),
		"the primary is asked for a resource that the standby does not find")
	require.Equal(t, "new", r.label(r.person("eve"), "targets/a"), "after that nothing older is shown")

	page, _, err := r.store.Read.List(r.person("ada"), shadow.ListRequest{Limit: 10})
	require.NoError(t, err)
	require.Len(t, page, 1)
	page, _, err = r.store.Read.List(postgres.OfPrimary(r.person("ada")), shadow.ListRequest{Limit: 10})
	require.NoError(t, err)
	require.Len(t, page, 2)

	r.save("targets/refers", "new")
	_, err = r.store.Write.Save(t.Context(),
		[]peer.Write{{Name: "targets/refers", Body: body{"next": "//a.example.com/us-west2/targets/a"}}})
	require.NoError(t, err)
	of := shadow.ReferrersRequest{
		Target: schema.FullName{Deployment: r.store.Deployment(), Name: "targets/a"},
		Limit:  10,
	}
	referrers, err := r.store.Operate.Referrers(r.person("ada"), of)
	require.NoError(t, err)
	require.Empty(t, referrers.List)
	referrers, err = r.store.Operate.Referrers(postgres.OfPrimary(r.person("ada")), of)
	require.NoError(t, err)
	require.Len(t, referrers.List, 1)

	r.store.Standby.Saw("ada")
	require.Equal(t, "new", r.label(r.person("ada"), "targets/a"), "her own write")
	require.Equal(t, "old", r.label(r.person("bob"), "targets/a"))
}

// What a process keeps is of the primary, also when it meets it in a read that may be old: a name, and the
// version.
func TestAStandbyChangesNothingThatTheProcessKeeps_I37(t *testing.T) {
	t.Parallel()
	r := newReplicated(t, time.Hour, nil)
	r.answered()
	r.halt()
	running := func() (generation int64) {
		require.NoError(t, r.ofPrimary.QueryRow(t.Context(), `SELECT generation FROM dbcontroller.meta`).Scan(
			&generation))
		return generation
	}
	before := running()
	// another process has switched to a version and back
	_, err := r.ofPrimary.Exec(t.Context(), `UPDATE dbcontroller.meta SET generation = generation + 2`)
	require.NoError(t, err)
	for range 2 {
		_, _, err = r.store.Read.List(r.person("ada"), shadow.ListRequest{Limit: 10})
		require.NoError(t, err)
		require.Equal(t, before+2, r.store.Gate.Version.Load().Generation)
	}
}

// A read that begins when the bound is over after a write shows the write, whatever the standby does.
func TestAReadIsNoOlderThanTheBound_I37(t *testing.T) {
	t.Parallel()
	const bound = 300 * time.Millisecond
	r := newReplicated(t, bound, nil)
	for round := range 3 {
		label := strings.Repeat("x", round+1)
		r.save("targets/a", "before "+label)
		r.answered()
		r.halt()
		r.save("targets/a", label)
		wrote := time.Now()
		for late := 0; late < 20; {
			begin := time.Now()
			shown := r.label(r.person("ada"), "targets/a")
			if begin.Sub(wrote) > bound {
				require.Equal(t, label, shown)
				late++
			}
		}
		_, err := r.ofCopy.Exec(t.Context(), `SELECT pg_wal_replay_resume()`)
		require.NoError(t, err)
	}
}

// A standby that stays in the epoch before may have commits that the present primary has lost.
func TestAStandbyOfAnotherEpochAnswersNothing_I37(t *testing.T) {
	t.Parallel()
	r := newReplicated(t, time.Hour, nil)
	r.save("targets/a", "old")
	r.answered()
	r.halt()
	r.save("targets/a", "new")
	require.Equal(t, "old", r.label(r.person("ada"), "targets/a"))
	_, err := r.ofPrimary.Exec(t.Context(), `UPDATE dbcontroller.meta SET epoch = gen_random_uuid()`)
	require.NoError(t, err)
	r.turnsToThePrimary()
}

func (r *replicated) turnsToThePrimary() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		return r.label(r.person("ada"), "targets/a") == "new"
	}, wait.Limit, 5*time.Millisecond)
	for range 10 {
		require.Equal(r.t, "new", r.label(r.person("ada"), "targets/a"))
	}
}

// A promoted standby, a stopped one, and a server of another database cost the primary their reads, and
// nothing else.
func TestReadsGoOnWithoutTheStandby(t *testing.T) {
	t.Parallel()
	t.Run("promoted", func(t *testing.T) {
		t.Parallel()
		r := newReplicated(t, time.Hour, nil)
		r.save("targets/a", "old")
		r.answered()
		_, err := r.ofCopy.Exec(t.Context(), `SELECT pg_promote()`)
		require.NoError(t, err)
		r.save("targets/a", "new")
		r.turnsToThePrimary()
	})
	t.Run("stopped and started", func(t *testing.T) {
		t.Parallel()
		r := newReplicated(t, time.Hour, nil)
		r.save("targets/a", "new")
		r.answered()
		r.standby.Stop()
		r.turnsToThePrimary()
	})
	t.Run("of another database", func(t *testing.T) {
		t.Parallel()
		r := newReplicated(t, time.Hour, func(*replicated) string { return harness.DeploymentDatabase(t) })
		r.save("targets/a", "new")
		r.turnsToThePrimary()
		require.Zero(t, r.store.Standby.Reads()[standby.Answered])
		require.Zero(t, r.store.Standby.Reads()[standby.Failed], "it was not asked")
	})
	t.Run("the primary itself", func(t *testing.T) {
		t.Parallel()
		r := newReplicated(t, time.Hour, func(r *replicated) string { return r.primary.DSN("a") })
		r.save("targets/a", "new")
		r.turnsToThePrimary()
		require.Zero(t, r.store.Standby.Reads()[standby.Answered], "it would take the place of nothing")
	})
}
