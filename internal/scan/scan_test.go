package scan_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/db-controller/db-controller/internal/scan"
	"github.com/db-controller/db-controller/internal/scan/report"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(stopped{m}) }

type stopped struct{ m *testing.M }

func (s stopped) Run() int { return harness.Main(s.m) }

func execute(t testing.TB, dsn string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	for _, s := range statements {
		_, err := conn.Exec(t.Context(), s)
		require.NoError(t, err, s)
	}
}

func service(label, dsn string) scan.Database {
	return scan.Database{Label: label, Service: label + ".example.com", DSN: dsn}
}

var unlimited = scan.Limits{Statement: 30 * time.Second}

func run(t testing.TB, declared string, databases ...scan.Database) *report.Report {
	t.Helper()
	cfg := scan.Config{Databases: databases, Limits: unlimited}
	if declared != "" {
		f, err := schema.ParseFile("f.yaml", strings.NewReader(declared))
		require.NoError(t, err)
		cfg.Declared = f.Services
	}
	out, err := scan.Run(t.Context(), cfg)
	require.NoError(t, err)
	return out.Report
}

// declare describes tables of a and b that refer: one kind with one reference in a, one kind in b.
func declare(holder string, columns []string, target string, key []string) string {
	list := func(names []string) string { return `["` + strings.Join(names, `", "`) + `"]` }
	return `{service: a.example.com, version: v1, imports: [b.example.com@v1], kinds: [{kind: H, table: '` + holder + `', key: [id], patterns: ["hs/{h}"],
  references: [{columns: ` + list(columns) + `, targets: [b.example.com/T], behaviour: BLOCK}]}]}
---
{service: b.example.com, version: v1, kinds: [{kind: T, table: '` + target + `', key: ` + list(key) + `, patterns: ["ts/{t}"]}]}
`
}

// A declaration limits a reference to the rows of which another column says so.
func TestRowsOfOtherKindsAreNoOrphans(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	a, b := server.NewDatabase(t, ""), server.NewDatabase(t, "")
	execute(t, a, `CREATE TABLE h (id bigint PRIMARY KEY, kind text, c bigint)`,
		`INSERT INTO h VALUES (1, 'T', 1), (2, 'T', 77), (3, 'Other', 78), (4, NULL, 79), (5, 'T', NULL)`)
	execute(t, b, `CREATE TABLE t (id bigint PRIMARY KEY)`, `INSERT INTO t VALUES (1)`)
	declared := strings.Replace(declare("h", []string{"c"}, "t", []string{"id"}), "behaviour: BLOCK",
		"behaviour: BLOCK, when: {kind: T}", 1)
	r := run(t, declared, service("a", a), service("b", b)).References[0]
	require.EqualValues(t, 2, r.Rows)
	require.EqualValues(t, 1, r.Orphans.Rows)
}

// Random data of every type of keys: the numbers equal the results of one query over both tables in one
// database.
func TestOrphansAreCountedExactly(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	a, b, both := server.NewDatabase(t, ""), server.NewDatabase(t, ""), server.NewDatabase(t, "")
	for _, dsn := range []string{a, b, both} {
		execute(t, dsn, "CREATE TYPE colour AS ENUM ('red', 'Green', 'blue ''n'' black')", "CREATE DOMAIN code AS text",
			`CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	number := func(n int) string { return fmt.Sprint(n - 40) }
	word := func(n int) string {
		return []string{"", "A", "a", "ä", "Z z", "'", `\`, "%[1]s", "<b>", "1:x"}[n%10] + fmt.Sprint(n/20)
	}
	uuid := func(n int) string { return fmt.Sprintf("a0eebc99-9c0b-4ef8-bb6d-%012x", n) }
	for i, c := range []struct {
		holder, target string // columns c1, … and k1, …
		value          func(n int) []string
		held           func(n int) []string // nil for value
		equal          string
	}{
		{"c1 bigint", "k1 bigint", func(n int) []string { return []string{number(n)} }, nil, "c1 = k1"},
		{"c1 integer", "k1 bigint", func(n int) []string { return []string{number(n)} }, nil, "c1 = k1"},
		{"c1 bigint", "k1 smallint", func(n int) []string {
			return []string{number(n)}
		}, func(n int) []string { return []string{number(n%2*40000 + n)} }, "c1 = k1"},
		{"c1 numeric", "k1 integer", func(n int) []string {
			return []string{number(n)}
		}, func(n int) []string { return []string{number(n) + []string{"", ".00", ".5"}[n%3]} }, "c1 = k1"},
		{"c1 numeric(20,4)", "k1 numeric", func(n int) []string { return []string{number(n) + ".25"} }, nil, "c1 = k1"},
		{"c1 text", "k1 bigint", func(n int) []string { return []string{number(n)} }, nil, ""},
		{"c1 uuid", "k1 uuid", func(n int) []string { return []string{uuid(n)} }, nil, "c1 = k1"},
		{"c1 varchar(40)", "k1 uuid", func(n int) []string {
			return []string{uuid(n)}
		}, func(n int) []string {
			return []string{[]string{uuid(n), strings.ToUpper(uuid(n)), "none"}[n%3]}
		}, "c1 = CASE WHEN c1 <> 'none' THEN k1::text END OR lower(c1) = k1::text"},
		{"c1 text", "k1 text", func(n int) []string { return []string{word(n)} }, nil, "c1 = k1"},
		{"c1 code", "k1 varchar(30)", func(n int) []string { return []string{word(n)} }, nil, "c1 = k1"},
		{"c1 char(8)", "k1 char(8)", func(n int) []string { return []string{word(n)} }, nil, "c1 = k1"},
		{"c1 text", "k1 text COLLATE blind", func(n int) []string {
			return []string{word(n/20*20 + 1)}
		}, func(n int) []string { return []string{word(n)} }, "c1 = k1"},
		{"c1 colour", "k1 colour", func(n int) []string {
			return []string{[]string{"red", "Green"}[n%2]}
		}, func(n int) []string { return []string{[]string{"red", "Green", "blue 'n' black"}[n%3]} }, "c1 = k1"},
		{"c1 date", "k1 date", func(n int) []string {
			return []string{fmt.Sprintf("20%02d-01-31", n%90+10)}
		}, nil, "c1 = k1"},
		{"c1 timestamptz", "k1 timestamptz", func(n int) []string {
			return []string{fmt.Sprintf("2026-01-01 12:00:00.%06d+02", n)}
		}, nil, "c1 = k1"},
		{"c1 bytea", "k1 bytea", func(n int) []string { return []string{fmt.Sprintf(`\x%04x`, n)} }, nil, "c1 = k1"},
		{"c1 bigint, c2 text", "k1 bigint, k2 text", func(n int) []string {
			return []string{number(n % 7), word(n)}
		}, nil, "c1 = k1 AND c2 = k2"},
	} {
		if c.equal == "" { // an integer in a text
			c.held = func(n int) []string {
				return []string{fmt.Sprintf([]string{"%s", " %s ", "x%s", "%s.0"}[n%4], number(n))}
			}
			c.equal = `c1 ~ '^\s*-?[0-9]+\s*$' AND CASE WHEN c1 ~ '^\s*-?[0-9]+\s*$' THEN c1::bigint END = k1`
		}
		if c.held == nil {
			c.held = c.value
		}
		h, target := fmt.Sprintf("h%d", i), fmt.Sprintf("t%d", i)
		n := strings.Count(c.holder, ",") + 1
		if strings.Contains(c.holder, "(20,4)") {
			n = 1
		}
		columns, keys := []string{"c1", "c2"}[:n], []string{"k1", "k2"}[:n]
		make := []string{fmt.Sprintf("CREATE TABLE %s (%s, PRIMARY KEY (%s))", target, c.target,
			strings.Join(keys, ", "))}
		holders := []string{fmt.Sprintf("CREATE TABLE %s (id bigint PRIMARY KEY, %s)", h, c.holder)}
		insert := func(table string, more string, values []string) string {
			texts := []string{}
			for _, v := range values {
				texts = append(texts, "'"+strings.ReplaceAll(v, "'", "''")+"'")
				if random.IntN(12) == 0 && more != "" {
					texts[len(texts)-1] = "NULL"
				}
			}
			return "INSERT INTO " + table + " VALUES (" + more + strings.Join(texts, ", ") + ") ON CONFLICT DO NOTHING"
		}
		for range 60 {
			make = append(make, insert(target, "", c.value(random.IntN(100))))
		}
		for id := range 150 {
			holders = append(holders, insert(h, fmt.Sprint(id)+", ", c.held(random.IntN(120))))
		}
		execute(t, b, strings.Join(make, ";"))
		execute(t, a, strings.Join(holders, ";"))
		execute(t, both, strings.Join(make, ";"), strings.Join(holders, ";"))
		var rows, orphans, missing int64
		conn, err := pgx.Connect(t.Context(), both)
		require.NoError(t, err)
		list := strings.Join(columns, ", ")
		require.NoError(t, conn.QueryRow(t.Context(), fmt.Sprintf(`SELECT count(*), count(*) FILTER (WHERE NOT found), count(DISTINCT (%s)::text) FILTER (WHERE NOT found)
			FROM (SELECT h.*, EXISTS (SELECT FROM %s t WHERE %s) AS found FROM %s h WHERE num_nulls(%s) = 0) x`, "ROW("+list+")", target, c.equal, h, list)).Scan(&rows, &orphans, &missing), c.equal)
		require.NoError(t, conn.Close(t.Context()))
		got := run(t, declare(h, columns, target, keys), service("a", a), service("b", b)).References[0]
		require.Equal(t, report.Complete, got.State, "%s: %s", c.holder, got.Reason)
		require.Equal(t, rows, got.Rows, "%s -> %s", c.holder, c.target)
		require.Equal(t, orphans, got.Orphans.Rows, "%s -> %s", c.holder, c.target)
		require.Equal(t, missing, got.Orphans.Targets.N, "%s -> %s", c.holder, c.target)
		require.NotZero(t, orphans, c.holder)
		require.Less(t, orphans, rows, c.holder)
	}
}

// Relations of other forms, hidden rows, missing rights: each is told in words, with the statement that
// helps.
func TestOddRelationsAreToldInWords(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	a, b := server.NewDatabase(t, ""), server.NewDatabase(t, "")
	role := "scan_" + fmt.Sprint(time.Now().UnixNano())
	execute(t, b, "CREATE TABLE t (id bigint PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 10)",
		"CREATE VIEW tv AS SELECT * FROM t", "CREATE TABLE nokey (id bigint)",
		"CREATE TABLE pt (id bigint PRIMARY KEY) PARTITION BY RANGE (id)", "CREATE TABLE pt1 PARTITION OF pt DEFAULT",
		"INSERT INTO pt SELECT generate_series(1, 10)",
		"CREATE ROLE "+role+" LOGIN PASSWORD 'x'", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO "+role,
		"CREATE TABLE hidden (id bigint PRIMARY KEY)", "INSERT INTO hidden SELECT generate_series(1, 10)",
		"ALTER TABLE hidden ENABLE ROW LEVEL SECURITY", "CREATE POLICY few ON hidden USING (id < 6)",
		"GRANT SELECT ON hidden TO "+role, `CREATE SCHEMA "S x"`, `CREATE TABLE "S x".secret (id bigint PRIMARY KEY)`)
	t.Cleanup(func() { // before its database is dropped
		conn, err := pgx.Connect(context.Background(), b)
		if err == nil {
			_, _ = conn.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
			_ = conn.Close(context.Background())
		}
	})
	const rows = " SELECT i, i * 2 FROM generate_series(1, 8) i"
	execute(t, a, "CREATE TABLE h (id bigint PRIMARY KEY, c bigint)", "INSERT INTO h"+rows,
		"CREATE VIEW hv AS SELECT * FROM h",
		"CREATE TABLE hp (id bigint, c bigint, PRIMARY KEY (id)) PARTITION BY HASH (id)",
		"CREATE TABLE hp1 PARTITION OF hp FOR VALUES WITH (MODULUS 1, REMAINDER 0)", "INSERT INTO hp"+rows,
		"CREATE TABLE hi (id bigint PRIMARY KEY, c bigint)", "CREATE TABLE hi1 () INHERITS (hi)",
		"INSERT INTO hi1"+rows,
		"CREATE TABLE hg (id bigint PRIMARY KEY, base bigint, c bigint GENERATED ALWAYS AS (base * 2) STORED)",
		"INSERT INTO hg SELECT i, i FROM generate_series(1, 8) i",
		"CREATE MATERIALIZED VIEW hm AS SELECT * FROM h", `CREATE TABLE "order" (id bigint PRIMARY KEY, c bigint)`,
		`INSERT INTO "order"`+rows,
		"CREATE EXTENSION IF NOT EXISTS postgres_fdw",
		"CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw OPTIONS (dbname 'nowhere')",
		"CREATE USER MAPPING FOR CURRENT_USER SERVER s", "CREATE FOREIGN TABLE hf (id bigint, c bigint) SERVER s")
	asRole := service("b", b)
	cfg, err := pgx.ParseConfig(b)
	require.NoError(t, err)
	asRole.DSN = fmt.Sprintf("host=%s port=%d dbname=%s user=%s password=x", cfg.Host, cfg.Port, cfg.Database, role)
	for _, c := range []struct {
		holder, target string
		says, sql      string
		orphans        int64
		state          report.State
	}{
		{
			"h", "t", "no index on public.h (c) finds the holders",
			`CREATE INDEX CONCURRENTLY ON "public"."h" ("c");`, 3, report.Complete,
		},
		{
			"order", "t", "no index on public.order (c)",
			`CREATE INDEX CONCURRENTLY ON "public"."order" ("c");`, 3, report.Complete,
		},
		{"hv", "t", "a public.hv is a view", "", 3, report.Complete},
		{"hm", "t", "a public.hm is a view", "", 3, report.Complete},
		{"hp", "t", "a public.hp is partitioned", "", 3, report.Complete},
		{"hi", "t", "a public.hi has tables that inherit from it", "", 3, report.Complete},
		{"hg", "t", "c is a generated column", "", 3, report.Complete},
		{"hf", "t", "a public.hf is a foreign table", "", 0, report.Partial},
		{"h", "tv", "b public.tv is a view", "", 3, report.Complete},
		{"h", "pt", "b public.pt is partitioned", "", 3, report.Complete},
		{"h", "nokey", "b public.nokey has no unique key (id)", "", 8, report.Complete},
		{"h", "hidden", "row-level security hides rows of b public.hidden from this role", "", 6, report.Complete},
		{"h", "S x.secret", "the role may not read b S x.secret", `GRANT USAGE ON SCHEMA "S x" TO "` + role +
			`"; GRANT SELECT ("id") ON "S x"."secret" TO "` + role + `";`, 0, report.Unscanned},
	} {
		r := run(t, declare(c.holder, []string{"c"}, c.target, []string{"id"}), service("a", a), asRole).References[0]
		require.Equal(t, c.state, r.State, "%s %s: %s", c.holder, c.target, r.Reason)
		require.Equal(t, c.orphans, r.Orphans.Rows, "%s %s", c.holder, c.target)
		found := false
		for _, advice := range r.Advice {
			found = found || strings.Contains(advice.Text, c.says) && strings.Contains(advice.SQL, c.sql)
		}
		require.True(t, found, "%s: %+v", c.says, r.Advice)
	}
}

// The region in a column chooses the database; rows of a region without one are told.
func TestRegionsChooseTheDatabase(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	a, eu, us := server.NewDatabase(t, ""), server.NewDatabase(t, ""), server.NewDatabase(t, "")
	execute(t, eu, "CREATE TABLE users (id bigint PRIMARY KEY)", "INSERT INTO users VALUES (1)")
	execute(t, us, "CREATE TABLE users (id bigint PRIMARY KEY)", "INSERT INTO users VALUES (2)")
	execute(t, a, "CREATE TABLE orders (id bigint PRIMARY KEY, user_id bigint, user_region text)",
		"CREATE INDEX ON orders (user_id)",
		"INSERT INTO orders VALUES (1, 1, 'eu'), (2, 2, 'us'), (3, 1, 'us'), (4, 2, 'eu'), (5, 1, 'ap'), (6, 1, NULL), (7, NULL, 'eu')")
	crm := func(region, dsn string) scan.Database {
		return scan.Database{Label: "crm/" + region, Service: "crm.example.com", Region: region, DSN: dsn}
	}
	got := run(t, "", service("a", a), crm("eu", eu), crm("us", us)).References
	require.Len(t, got, 1)
	require.EqualValues(t, 4, got[0].Rows)
	require.EqualValues(t, 2, got[0].Unread)
	require.EqualValues(t, 2, got[0].Orphans.Rows)
	require.Equal(t, []report.Sample{
		{Key: []string{"3"}, Value: []string{"1"}},
		{Key: []string{"4"}, Value: []string{"2"}},
	}, got[0].Orphans.Samples)
}

// The cascade from the largest target: over databases, through native keys, with the blockers.
func TestACascadeIsWalked(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	a, b := server.NewDatabase(t, ""), server.NewDatabase(t, "")
	execute(t, b, "CREATE TABLE customers (id bigint PRIMARY KEY)",
		"INSERT INTO customers SELECT generate_series(1, 100)")
	execute(t, a, "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint)",
		"CREATE INDEX ON orders (customer_id)",
		"INSERT INTO orders SELECT i, CASE WHEN i <= 30 THEN 7 ELSE i % 100 + 1 END FROM generate_series(1, 100) i",
		"CREATE TABLE items (id bigint PRIMARY KEY, order_id bigint REFERENCES orders ON DELETE CASCADE)",
		"INSERT INTO items SELECT i, i % 10 + 1 FROM generate_series(1, 40) i",
		"CREATE TABLE refunds (id bigint PRIMARY KEY, order_id bigint REFERENCES orders)",
		"INSERT INTO refunds VALUES (1, 1), (2, 99)", "ANALYZE")
	got := run(t, "", service("a", a), service("b", b)).Cascades
	require.Len(t, got, 1)
	require.Equal(t, []string{"7"}, got[0].Key)
	var steps []string
	for _, s := range got[0].Steps {
		steps = append(steps, fmt.Sprint(s.Level, " ", s))
	}
	require.Equal(t, []string{
		"1 30 rows of a public.orders (customer_id): deleted (if the reference cascaded)",
		"2 40 rows of a public.items (order_id): deleted (native key items_order_id_fkey)",
		"2 1 row of a public.refunds (order_id): refuses (native key refunds_order_id_fkey)",
	}, steps)
}

// The rate bounds the walk as well, which reads tables that no reference between databases begins at.
func TestTheWalkOfACascadeKeepsTheRate(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	a, b := server.NewDatabase(t, ""), server.NewDatabase(t, "")
	execute(t, b, "CREATE TABLE customers (id bigint PRIMARY KEY)", "INSERT INTO customers VALUES (1)")
	execute(t, a, "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint)",
		"CREATE INDEX ON orders (customer_id)", "INSERT INTO orders VALUES (1, 1)",
		"CREATE TABLE items (id bigint PRIMARY KEY, order_id bigint REFERENCES orders ON DELETE CASCADE)",
		"INSERT INTO items SELECT i, 1 FROM generate_series(1, 4000) i", "CREATE INDEX ON items (order_id)", "ANALYZE")
	began := time.Now()
	out, err := scan.Run(t.Context(), scan.Config{
		Databases: []scan.Database{service("a", a), service("b", b)},
		Limits:    scan.Limits{Rate: 2000, Statement: time.Minute},
	})
	require.NoError(t, err)
	require.Len(t, out.Cascades, 1)
	require.Len(t, out.Cascades[0].Steps, 2)
	require.Greater(t, time.Since(began), 2*time.Second)
}

// A row that is removed together with its target while the table is read is no orphan.
func TestWhatIsRemovedMeanwhileIsNoOrphan(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	a, b := server.NewDatabase(t, ""), server.NewDatabase(t, "")
	execute(t, b, "CREATE TABLE customers (id bigint PRIMARY KEY)",
		"INSERT INTO customers SELECT generate_series(1, 5000)")
	execute(t, a, "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint)",
		"INSERT INTO orders SELECT i, i FROM generate_series(1, 5001) i")
	removed := false
	out, err := scan.Run(t.Context(), scan.Config{
		Databases: []scan.Database{service("a", a), service("b", b)},
		Limits:    unlimited, Progress: func(scan.Progress) {
			if !removed { // after the first batch
				removed = true
				execute(t, a, "DELETE FROM orders WHERE id BETWEEN 4500 AND 5000")
				execute(t, b, "DELETE FROM customers WHERE id BETWEEN 4500 AND 5000")
			}
		},
	})
	require.NoError(t, err)
	require.EqualValues(t, 1, out.References[0].Orphans.Rows)
	require.Equal(t, []report.Sample{{Key: []string{"5001"}, Value: []string{"5001"}}},
		out.References[0].Orphans.Samples)
	require.EqualValues(t, 4500, out.References[0].Rows)
}

// An interrupted scan reports the part that it has, and says so.
func TestAnInterruptedScanIsPartial(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	a, b := server.NewDatabase(t, ""), server.NewDatabase(t, "")
	execute(t, b, "CREATE TABLE customers (id bigint PRIMARY KEY)")
	execute(t, a, "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint)",
		"INSERT INTO orders SELECT i, i FROM generate_series(1, 20000) i",
		"CREATE TABLE visits (id bigint PRIMARY KEY, customer_id bigint)", "INSERT INTO visits VALUES (1, 1)")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, err := scan.Run(ctx, scan.Config{
		Databases: []scan.Database{service("a", a), service("b", b)},
		Limits:    scan.Limits{Rate: 20000, Statement: time.Minute}, Progress: func(scan.Progress) {
			cancel()
		},
	})
	require.NoError(t, err)
	require.NotEmpty(t, out.Partial)
	require.Equal(t, report.Partial, out.References[0].State)
	require.EqualValues(t, 2000, out.References[0].Orphans.Rows)
	require.Equal(t, report.Unscanned, out.References[1].State)
	require.Equal(t, "the scan was interrupted", out.References[1].Reason)
}

// A scan waits for a lock for a short time only, and holds none that a write waits for.
func TestALockedTableIsTold(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	a, b := server.NewDatabase(t, ""), server.NewDatabase(t, "")
	execute(t, b, "CREATE TABLE customers (id bigint PRIMARY KEY)")
	execute(t, a, "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint)", "INSERT INTO orders VALUES (1, 1)")
	conn, err := pgx.Connect(t.Context(), a)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), "BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	got := run(t, "", service("a", a), service("b", b)).References[0]
	require.Equal(t, report.Partial, got.State)
	require.Contains(t, got.Reason, "lock timeout")
}

// Rows with more different targets than are counted one by one need little memory.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("many rows")
	}
	server := harness.Postgres(t)
	a, b := server.NewDatabase(t, ""), server.NewDatabase(t, "")
	execute(t, b, "CREATE TABLE customers (id bigint PRIMARY KEY)",
		"INSERT INTO customers SELECT generate_series(1, 150000)")
	execute(t, a, "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint)",
		"INSERT INTO orders SELECT i, CASE WHEN i % 100 = 0 THEN 3 ELSE 1 + i::bigint * 7919 % 150150 END FROM generate_series(1, 300000) i")
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := uint64(0)
	out, err := scan.Run(t.Context(), scan.Config{
		Databases: []scan.Database{service("a", a), service("b", b)},
		Limits:    unlimited, Progress: func(scan.Progress) {
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc)
		},
	})
	require.NoError(t, err)
	require.Less(t, most-min(most, before.HeapAlloc), uint64(32<<20))
	r := out.References[0]
	require.EqualValues(t, 300_000, r.Rows)
	require.Equal(t, []string{"3"}, r.FanOut.Largest[0].Target)
	require.InDelta(t, 3002, r.FanOut.Largest[0].Rows.N, 3)
	require.True(t, r.FanOut.Targets.About)
	require.InEpsilon(t, 150_000, r.FanOut.Targets.N, 0.05)
	require.EqualValues(t, 2, r.FanOut.Median)
	var orphans int64
	for i := int64(1); i <= 300_000; i++ {
		if i%100 != 0 && 1+i*7919%150_150 > 150_000 {
			orphans++
		}
	}
	require.Equal(t, orphans, r.Orphans.Rows)
}

// Memory does not grow with the tables that were read before, and the cascade still knows the holders of its
// start.
func TestMemoryDoesNotGrowWithTheReferences(t *testing.T) {
	if testing.Short() {
		t.Skip("many rows")
	}
	const tables, rows = 8, 50_000
	server := harness.Postgres(t)
	a, b := server.NewDatabase(t, ""), server.NewDatabase(t, "")
	execute(t, b, "CREATE TABLE customers (id bigint PRIMARY KEY)",
		fmt.Sprintf("INSERT INTO customers SELECT generate_series(1, %d)", rows))
	for i := range tables {
		execute(t, a, fmt.Sprintf("CREATE TABLE orders_%d (id bigint PRIMARY KEY, customer_id bigint)", i),
			fmt.Sprintf(
				"INSERT INTO orders_%d SELECT i, CASE WHEN i <= %d THEN 7 ELSE i END FROM generate_series(1, %d) i", i,
				100+i, rows))
	}
	execute(t, a, "ANALYZE")
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	var heap []uint64
	out, err := scan.Run(t.Context(), scan.Config{
		Databases: []scan.Database{service("a", a), service("b", b)},
		Limits:    unlimited, Progress: func(p scan.Progress) {
			if p.Done {
				var now runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&now)
				heap = append(heap, now.HeapAlloc)
			}
		},
	})
	require.NoError(t, err)
	require.Len(t, heap, tables)
	require.Less(t, heap[tables-1]-min(heap[tables-1], heap[0]), uint64(6<<20), "%v", heap)
	require.Len(t, out.Cascades, 1)
	require.Equal(t, []string{"7"}, out.Cascades[0].Key)
	require.Len(t, out.Cascades[0].Steps, tables)
	for i, step := range out.Cascades[0].Steps {
		require.EqualValues(t, 100+i, step.Rows, "%s: %s", step.Place.Table, step.Reason)
	}
}

// A scan of tables that refer to nothing has a report without references, and a declaration without kinds.
// The tables of db-controller are not the user's.
func TestAScanThatGuessesNothing(t *testing.T) {
	t.Parallel()
	dsn := harness.DeploymentDatabase(t)
	execute(t, dsn, "CREATE TABLE notes (id bigint PRIMARY KEY, text text)")
	out, err := scan.Run(t.Context(), scan.Config{Databases: []scan.Database{service("a", dsn)}, Limits: unlimited})
	require.NoError(t, err)
	require.Empty(t, out.References)
	require.NotContains(t, string(out.Declaration), "service:")
	require.Contains(t, string(out.Declaration), "# A first declaration")
}

// A guess that the values disprove is no part of the declaration; one without rows stays.
func TestValuesDisproveAGuess(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	a, b := server.NewDatabase(t, ""), server.NewDatabase(t, "")
	execute(t, a, "CREATE TABLE orders (id int PRIMARY KEY, customer_id int, product_id int, shop_id int)",
		"INSERT INTO orders SELECT i, i % 5, 1000 + i, NULL FROM generate_series(1, 100) i")
	execute(t, b, "CREATE TABLE customers (id int PRIMARY KEY)", "INSERT INTO customers SELECT generate_series(0, 9)",
		"CREATE TABLE products (id int PRIMARY KEY)", "CREATE TABLE shops (id int PRIMARY KEY)")
	out, err := scan.Run(t.Context(), scan.Config{
		Databases: []scan.Database{service("a", a), service("b", b)},
		Limits:    unlimited,
	})
	require.NoError(t, err)
	f, err := schema.ParseFile("f", strings.NewReader(string(out.Declaration)))
	require.NoError(t, err)
	var columns []string
	for _, d := range f.Services {
		for _, k := range d.Kinds {
			for _, r := range k.References {
				columns = append(columns, r.Columns...)
			}
		}
	}
	require.ElementsMatch(t, []string{"customer_id", "shop_id"}, columns)
	require.Len(t, out.References, 3)
	for _, r := range out.References {
		wrong := slices.ContainsFunc(r.Advice, func(a report.Advice) bool {
			return strings.Contains(a.Text, "the guess is wrong")
		})
		require.Equal(t, r.Holder.Columns[0] == "product_id", wrong)
	}
}
