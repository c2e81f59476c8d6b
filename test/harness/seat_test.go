package harness

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/wait"
)

// ownSeats returns the tests' server with seats that no other test takes.
func ownSeats(t *testing.T) *Server {
	t.Helper()
	shared := Postgres(t)
	deploymentTemplate(t, shared)
	own := &Server{
		postgres: shared.postgres, prefix: shared.prefix + "s" + fmt.Sprint(shared.count.Add(1)) + "_",
		templates: map[string]*template{"deployment": shared.template("deployment")},
	}
	t.Cleanup(func() { require.NoError(t, own.dropSeats()) })
	return own
}

// own returns a new seat, which ends with the test.
func (s *Server) own(t *testing.T) *seat {
	t.Helper()
	made := s.newSeat(t)
	t.Cleanup(func() { require.NoError(t, made.discard()) })
	return made
}

// A test that has written to every table, with every setting and lock that a session can keep, leaves a seat
// that equals a new database.
func TestASeatIsLikeNewAfterATestThatTouchedEveryTable(t *testing.T) {
	t.Parallel()
	s := ownSeats(t)
	used := s.own(t)
	require.Equal(t, contents(t, s.own(t).test), contents(t, used.test), "two new ones are equal")
	for _, analysed := range []bool{false, true} { // by autovacuum, which may come at any time
		touched := fillEveryTable(t, used.test)
		require.Greater(t, touched, 30)
		const manySQL = `INSERT INTO dbcontroller.word (deployment_id, what, reason, said_by) SELECT g, repeat('x', 1000), '', '' FROM generate_series(2, 200) g`
		_, err := used.test.Exec(t.Context(), manySQL)
		require.NoError(t, err)
		if analysed {
			_, err := used.test.Exec(t.Context(), `ANALYZE`)
			require.NoError(t, err)
		}
		keepInSession(t, used.test)
		keepInSession(t, used.serving)

		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		require.NoError(t, used.reset(ctx, s.seats.blank))
		again := s.own(t)
		require.Equal(t, contents(t, again.test), contents(t, used.test))
		require.Equal(t, sessions(t, again.test), sessions(t, used.test))
		require.Equal(t, sessions(t, again.serving), sessions(t, used.serving))
		require.NoError(t, used.reset(ctx, s.seats.blank), "once more")
	}
}

// contents describes everything that a reset restores: rows, sequences, statistics of all tables, and the
// sizes of the tables that have more than the few pages which a reset leaves.
func contents(t *testing.T, pool *pgxpool.Pool) map[string]string {
	t.Helper()
	out := map[string]string{}
	add := func(sql string) {
		rows, err := pool.Query(t.Context(), sql)
		require.NoError(t, err)
		var name, value string
		_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
			out[name] = value
			return nil
		})
		require.NoError(t, err)
	}
	add(`SELECT 'statistics of ' || starelid::regclass::text, count(*)::text FROM pg_statistic WHERE starelid >= 16384 GROUP BY starelid`)
	add(`SELECT 'size of ' || oid::regclass::text, CASE WHEN pg_relation_size(oid) <= 65536 THEN 'small' ELSE pg_relation_size(oid)::text END || CASE WHEN relkind = 'r' THEN ' ' || reltuples ELSE '' END
FROM pg_class WHERE oid >= 16384 AND relkind IN ('r', 'i', 't')`)
	for _, name := range relations(t, pool, 'S') {
		add(fmt.Sprintf(`SELECT 'sequence %[1]s', (last_value, is_called)::text FROM %[1]s`, name))
	}
	for _, name := range relations(t, pool, 'r') {
		add(fmt.Sprintf(`SELECT 'rows of %[1]s', COALESCE(string_agg(t::text, ' ' ORDER BY t::text), '') FROM %[1]s t`,
			name))
	}
	return out
}

func relations(t *testing.T, pool *pgxpool.Pool, kind rune) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(),
		`SELECT oid::regclass::text FROM pg_class WHERE relkind = $1::text::"char" AND oid >= 16384 ORDER BY 1`,
		string(kind))
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return names
}

// fillEveryTable removes the rows of every table, inserts a row of made-up values, and moves every sequence.
// It returns the number of tables.
func fillEveryTable(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	const insertSQL = `
SELECT format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE VALUES (%s)', attrelid::regclass, string_agg(quote_ident(attname), ', '), string_agg(
    CASE WHEN attname = 'trace_parent' THEN quote_literal(repeat('1', 55)) WHEN atttypid = 'text'::regtype THEN quote_literal('targets/t') WHEN atttypid = 'bool'::regtype THEN 'true' WHEN atttypid = 'uuid'::regtype THEN 'gen_random_uuid()' WHEN atttypid = 'bytea'::regtype THEN 'decode(repeat(''ab'', 5000), ''hex'')'
        WHEN typcategory = 'D' THEN 'now()' WHEN typcategory = 'A' THEN quote_literal('{}') WHEN typcategory = 'T' THEN quote_literal('1 s')
        WHEN atttypid IN ('json'::regtype, 'jsonb'::regtype) THEN quote_literal('{}') ELSE quote_literal('1') END, ', '))
FROM pg_attribute JOIN pg_type y ON y.oid = atttypid WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' GROUP BY attrelid`
	tables := relations(t, pool, 'r')
	for _, table := range tables {
		var insert string
		require.NoError(t, pool.QueryRow(t.Context(), insertSQL, table).Scan(&insert))
		for _, sql := range []string{"DELETE FROM " + table, insert} {
			_, err := pool.Exec(t.Context(), "SET session_replication_role = replica; "+sql)
			require.NoError(t, err, sql)
		}
	}
	_, err := pool.Exec(t.Context(), `SELECT nextval(oid) FROM pg_class WHERE relkind = 'S'`)
	require.NoError(t, err)
	return len(tables)
}

// keepInSession leaves in one session of a pool every kind of state that a session can keep.
func keepInSession(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `
SET statement_timeout = 7777; SET search_path = public; SET ROLE NONE; SET shadow.mine = 'x'; LISTEN mine; SELECT pg_advisory_lock_shared(7); CREATE TEMPORARY TABLE mine AS SELECT 1;
DECLARE mine CURSOR WITH HOLD FOR SELECT 1; SET TIME ZONE 'Asia/Tokyo'`)
	require.NoError(t, err)
}

// sessions describes a session of a pool.
func sessions(t *testing.T, pool *pgxpool.Pool) (out []string) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
SELECT name || ' ' || setting || ' ' || source FROM pg_settings WHERE name <> 'transaction_read_only'
UNION ALL SELECT 'user ' || current_user || ' ' || session_user UNION ALL SELECT 'listens ' || c FROM pg_listening_channels() c
UNION ALL SELECT 'holds a lock ' || objid FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'
UNION ALL SELECT 'has a temporary ' || relname FROM pg_class WHERE relnamespace = pg_my_temp_schema() UNION ALL SELECT 'has a cursor ' || name FROM pg_cursors WHERE is_holdable
UNION ALL SELECT 'mine ' || current_setting('shadow.mine', true) WHERE current_setting('shadow.mine', true) <> '' ORDER BY 1`)
	require.NoError(t, err)
	out, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return out
}

// A seat is thrown away when its catalogues, its settings or its sessions differ from a new seat's.
func TestASeatThatIsNotLikeNewIsThrownAway(t *testing.T) {
	t.Parallel()
	s := ownSeats(t)
	for _, sql := range []string{
		`CREATE TABLE public.mine (id int)`,
		`DROP TABLE dbcontroller.word`,
		`ALTER TABLE dbcontroller.word ADD mine int`,
		`ALTER TABLE dbcontroller.work SET (fillfactor = 50)`,
		`ALTER TABLE dbcontroller.word ENABLE ROW LEVEL SECURITY`,
		`ALTER TABLE dbcontroller.word ALTER reason DROP NOT NULL`,
		`CREATE INDEX ON dbcontroller.word (reason)`,
		`CREATE FUNCTION public.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
		`CREATE FUNCTION public.mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER mine BEFORE DELETE ON dbcontroller.word EXECUTE FUNCTION public.mine()`,
		`CREATE SCHEMA mine`,
		`CREATE TYPE public.mine AS ENUM ('a')`,
		`GRANT SELECT ON dbcontroller.word TO PUBLIC`,
		`GRANT CREATE ON SCHEMA public TO PUBLIC`,
		`ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC`,
		`REVOKE EXECUTE ON FUNCTION pg_catalog.pg_sleep(float8) FROM PUBLIC`,
		`CREATE STATISTICS public.mine ON what, reason FROM dbcontroller.word`,
		`SELECT lo_create(0)`,
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 7', current_database()); END $$`,
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 7', current_database()); END $$`,
	} {
		used := s.newSeat(t)
		_, err := used.test.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
		require.ErrorIs(t, used.reset(t.Context(), s.seats.blank), errChanged, sql)
		require.NoError(t, s.giveBack(used, false))
		require.Empty(t, s.seats.free, sql)
		var there bool
		require.NoError(t, connect(t, s.DSN("")).QueryRow(t.Context(),
			`SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, used.database).Scan(&there))
		require.False(t, there, sql)
	}
}

// A seat whose test has left connections or transactions is thrown away.
func TestASeatInUseIsThrownAway(t *testing.T) {
	t.Parallel()
	s := ownSeats(t)
	used := s.newSeat(t)
	conn, err := used.test.Acquire(t.Context())
	require.NoError(t, err)
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, used.reset(soon, s.seats.blank), "left running")
	conn.Release()

	stranger, err := pgx.Connect(t.Context(), s.DSN(used.database))
	require.NoError(t, err)
	require.ErrorContains(t, used.reset(t.Context(), s.seats.blank), "left sessions")
	_, err = stranger.Exec(t.Context(),
		`BEGIN; INSERT INTO dbcontroller.word (deployment_id, what, reason, said_by) VALUES (1, '', '', ''); PREPARE TRANSACTION 'mine'`)
	require.NoError(t, err)
	require.NoError(t, stranger.Close(t.Context()))
	require.ErrorIs(t, used.reset(t.Context(), s.seats.blank), errChanged)
	_, err = used.test.Exec(t.Context(), `ROLLBACK PREPARED 'mine'`)
	require.NoError(t, err)
	require.NoError(t, s.giveBack(used, false))

	require.Len(t, s.seats.free, 1)
	require.NoError(t, used.test.Ping(t.Context())) // a goroutine of the former test
	require.Nil(t, s.freeSeat(t))

	failed := s.newSeat(t)
	require.NoError(t, s.giveBack(failed, true))
	require.Empty(t, s.seats.free, "its test has failed")
}

// Boxes one after another have the same databases, sessions and pools, and nothing of the box before.
func TestABoxTakesTheSeatsOfTheOneBefore(t *testing.T) {
	const services = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
`
	const deployment, name = "a.example.com/eu", "//a.example.com/eu/targets/t"
	id := schema.DeploymentID{Service: "a.example.com", Region: "eu"}
	type of struct {
		database, identity string
		session            int32
		sessions           []int32 // all of the database
	}
	var boxes []of
	for range 3 {
		t.Run("box", func(t *testing.T) {
			b := NewBox(t, services, nil, deployment)
			require.Nil(t, b.Get(name))
			require.EqualValues(t, 1, b.MustPut(name, nil).Revision)
			box := of{
				database: b.Pools[id].Config().ConnConfig.Database,
				identity: b.Stores[id].Gate.Database().String(),
			}
			const sql = `SELECT pg_backend_pid(), array_agg(pid) FROM pg_stat_activity WHERE datname = current_database() AND usesysid IS NOT NULL`
			require.NoError(t, b.configs[id].Pool.QueryRow(t.Context(), sql).Scan(&box.session, &box.sessions))
			boxes = append(boxes, box)
		})
	}
	for _, later := range boxes[1:] {
		require.Equal(t, boxes[0].database, later.database)
		require.Contains(t, boxes[0].sessions, later.session)
		require.NotEqual(t, boxes[0].identity, later.identity)
	}
}

// A test that fails with an open transaction does not keep the others from ending.
func TestASeatWithAnOpenTransactionIsDiscarded(t *testing.T) {
	t.Parallel()
	s := ownSeats(t)
	used := s.newSeat(t)
	open, err := used.test.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = open.Rollback(context.Background()) }() // its session is gone
	discarded := make(chan error, 1)
	go func() { discarded <- s.giveBack(used, true) }()
	select {
	case err := <-discarded:
		require.NoError(t, err)
	case <-time.After(wait.Limit):
		t.Fatal("it waits for the connection of the transaction")
	}
}
