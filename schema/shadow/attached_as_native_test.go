package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// keyed is a reference, as a native key and as a declaration, and the cases of statements. A statement begins
// with the database: t has the targets, h the holders.
type keyed struct {
	name, columns, native, declared string
	key                             string // of the targets
	cases                           []keyedCase
}

// keyedCase has statements after which both must have had the same errors, and have the same rows. differs is
// the row of the documents that says why they do not.
type keyedCase struct {
	name    string
	steps   []string
	differs string
}

const tableOfDifferences = "../../docs/attached-tables.md"

var keyeds = []keyed{
	{
		name: "NO ACTION", key: "id", columns: "a bigint", native: "FOREIGN KEY (a) REFERENCES t (id)",
		declared: "columns: [a], behaviour: BLOCK",
		cases: []keyedCase{
			{name: "a row names a target", steps: []string{
				"h INSERT INTO h VALUES (1, 1)",
				"h INSERT INTO h VALUES (2, 99)", "h INSERT INTO h VALUES (3, NULL)",
				"h INSERT INTO h VALUES (4, 1), (5, 99)",
			}},
			{name: "a row is changed", steps: []string{
				"h INSERT INTO h VALUES (1, 1)", "h UPDATE h SET a = 2",
				"h UPDATE h SET a = 99", "h UPDATE h SET a = NULL", "h UPDATE h SET a = a",
			}},
			{name: "a target is deleted", steps: []string{
				"h INSERT INTO h VALUES (1, 1)",
				"t DELETE FROM t WHERE id = 1", "t DELETE FROM t WHERE id = 2", "t DELETE FROM t", "h DELETE FROM h",
				"t DELETE FROM t WHERE id = 1",
			}},
			{name: "a target is changed", steps: []string{
				"h INSERT INTO h VALUES (1, 1)", "t UPDATE t SET note = 'n'",
				"t UPDATE t SET id = 50 WHERE id = 1", "t UPDATE t SET id = 50 WHERE id = 2", "t UPDATE t SET id = id",
				"h INSERT INTO h VALUES (2, 50)",
			}},
			{name: "a statement deletes and inserts", steps: []string{
				"h INSERT INTO h VALUES (1, 1)",
				"t BEGIN; DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1); COMMIT",
				"h BEGIN; DELETE FROM h; INSERT INTO h VALUES (1, 2); COMMIT", "t DELETE FROM t WHERE id = 1",
			}},
			{name: "upserts and merges", steps: []string{
				"h INSERT INTO h VALUES (1, 1) ON CONFLICT (n) DO UPDATE SET a = 2",
				"h INSERT INTO h VALUES (1, 3) ON CONFLICT (n) DO UPDATE SET a = EXCLUDED.a",
				"h INSERT INTO h VALUES (1, 3) ON CONFLICT (n) DO UPDATE SET a = 99",
				"h MERGE INTO h USING (VALUES (1, 4), (2, 5)) AS v (n, a) ON h.n = v.n WHEN MATCHED THEN UPDATE SET a = v.a WHEN NOT MATCHED THEN INSERT VALUES (v.n, v.a)", "t DELETE FROM t WHERE id = 3", "t DELETE FROM t WHERE id = 5",
				"t MERGE INTO t USING (VALUES (4), (6)) AS v (id) ON t.id = v.id WHEN MATCHED THEN DELETE",
			}},
			{name: "a transaction is rolled back", steps: []string{
				"h BEGIN; INSERT INTO h VALUES (1, 1); ROLLBACK",
				"t DELETE FROM t WHERE id = 1", "t BEGIN; DELETE FROM t WHERE id = 2; ROLLBACK",
				"h INSERT INTO h VALUES (1, 2)",
				"h BEGIN; SAVEPOINT s; INSERT INTO h VALUES (2, 3); ROLLBACK TO s; COMMIT",
				"t DELETE FROM t WHERE id = 3",
			}},
			{
				name: "above READ COMMITTED",
				steps: []string{
					"h BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO h VALUES (1, 1); COMMIT",
					"t BEGIN ISOLATION LEVEL SERIALIZABLE; DELETE FROM t WHERE id = 1; COMMIT",
					"h BEGIN ISOLATION LEVEL SERIALIZABLE; DELETE FROM h; COMMIT",
					"t BEGIN ISOLATION LEVEL SERIALIZABLE; DELETE FROM t WHERE id = 1; COMMIT",
				},
			},
			{name: "rows are copied", steps: []string{
				"h INSERT INTO h SELECT g, g FROM generate_series(1, 9) g",
				"h INSERT INTO h SELECT 10 + n, a + 1 FROM h",
				"h UPDATE h SET a = h2.a FROM h AS h2 WHERE h2.n = h.n",
			}},
			{name: "a column is dropped", steps: []string{
				"t ALTER TABLE t DROP COLUMN id",
				"h INSERT INTO h VALUES (1, 1)", "t DROP TABLE t",
			}},
			{name: "TRUNCATE of targets to which nobody refers", steps: []string{
				"h INSERT INTO h VALUES (1, 1)",
				"h TRUNCATE h", "t TRUNCATE t",
			}, differs: "TRUNCATE of targets"},
			{
				name: "the holder's column is dropped", steps: []string{"h ALTER TABLE h DROP COLUMN a"},
				differs: "DROP of a column that refers",
			},
		},
	},
	{
		name: "DEFERRABLE INITIALLY DEFERRED", key: "id", columns: "a bigint",
		native:   "FOREIGN KEY (a) REFERENCES t (id) DEFERRABLE INITIALLY DEFERRED",
		declared: "columns: [a], behaviour: BLOCK",
		cases: []keyedCase{
			{name: "a mistake that stays", steps: []string{"h BEGIN; INSERT INTO h VALUES (1, 99); COMMIT"}},
			{
				name:    "a mistake that is mended before the commit",
				steps:   []string{"h BEGIN; INSERT INTO h VALUES (1, 99); UPDATE h SET a = 1; COMMIT"},
				differs: "DEFERRABLE",
			},
		},
	},
	{
		name: "ON DELETE CASCADE", key: "id", columns: "a bigint",
		native:   "FOREIGN KEY (a) REFERENCES t (id) ON DELETE CASCADE ON UPDATE CASCADE",
		declared: "columns: [a], behaviour: CASCADE_DELETE",
		cases: []keyedCase{
			{name: "targets go", steps: []string{
				"h INSERT INTO h VALUES (1, 1), (2, 1), (3, 2), (4, NULL)",
				"t DELETE FROM t WHERE id = 1", "t DELETE FROM t",
			}},
			{name: "a key changes", steps: []string{
				"h INSERT INTO h VALUES (1, 1)",
				"t UPDATE t SET id = 50 WHERE id = 1",
			}, differs: "ON UPDATE"},
		},
	},
	{
		name: "ON DELETE SET NULL", key: "id", columns: "a bigint",
		native: "FOREIGN KEY (a) REFERENCES t (id) ON DELETE SET NULL", declared: "columns: [a], behaviour: UNSET",
		cases: []keyedCase{{name: "targets go", steps: []string{
			"h INSERT INTO h VALUES (1, 1), (2, 1), (3, 2)",
			"t DELETE FROM t WHERE id = 1", "t UPDATE t SET note = 'n'", "t DELETE FROM t WHERE id = 3",
		}}},
	},
	{
		name: "MATCH SIMPLE", key: "a, b", columns: "a integer, b text",
		native:   "FOREIGN KEY (a, b) REFERENCES t (a, b) ON DELETE SET NULL (b)",
		declared: "columns: [a, b], behaviour: UNSET, unset: [b]",
		cases: []keyedCase{{name: "values and halves", steps: []string{
			"h INSERT INTO h VALUES (1, 1, 'x'), (2, 1, NULL), (3, NULL, 'x'), (4, NULL, NULL), (5, 77, NULL)",
			"h INSERT INTO h VALUES (6, 1, 'z')", "h UPDATE h SET b = 'y' WHERE n = 1",
			"h UPDATE h SET a = 99 WHERE n = 1", "t DELETE FROM t WHERE b = 'y'",
		}}},
	},
	{
		name: "MATCH FULL", key: "a, b", columns: "a integer, b text",
		native:   "FOREIGN KEY (a, b) REFERENCES t (a, b) MATCH FULL",
		declared: "columns: [a, b], behaviour: BLOCK, match: full",
		cases: []keyedCase{{name: "values and halves", steps: []string{
			"h INSERT INTO h VALUES (1, 1, 'x'), (4, NULL, NULL)", "h INSERT INTO h VALUES (2, 1, NULL)",
			"h INSERT INTO h VALUES (3, NULL, 'x')", "h UPDATE h SET b = NULL WHERE n = 1",
			"h UPDATE h SET a = 1 WHERE n = 4", "h UPDATE h SET a = NULL, b = NULL", "t DELETE FROM t",
		}}},
	},
}

// A strict reference decides as a native key does, but for the differences that the documents name.
func TestReferencesAreThoseOfNativeKeys(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(tableOfDifferences)
	require.NoError(t, err)
	for _, k := range keyeds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			a := newKeyed(t, k)
			native, err := pgx.Connect(t.Context(), harness.Postgres(t).NewDatabase(t, ""))
			require.NoError(t, err)
			defer func() { _ = native.Close(context.Background()) }()
			_, err = native.Exec(t.Context(), k.targets()+k.holders()+"ALTER TABLE h ADD "+k.native)
			require.NoError(t, err)
			for _, c := range k.cases {
				var want, got []string
				for _, step := range c.steps {
					want = append(want, codeOf(inOne(t, native, step[2:])))
				}
				want = append(append(want, a.rows(native, `SELECT h::text FROM h ORDER BY n`)...),
					a.rows(native, `SELECT t::text FROM t ORDER BY 1`)...)
				for _, step := range c.steps {
					got = append(got, a.step(step))
				}
				got = append(append(got, a.rows(a.shop, `SELECT h::text FROM h ORDER BY n`)...),
					a.rows(a.crm, `SELECT t::text FROM t ORDER BY 1`)...)
				if c.differs == "" {
					require.Equal(t, want, got, c.name)
				} else {
					require.NotEqual(t, want, got, c.name)
					require.Contains(t, string(text), "| "+c.differs)
				}
				_ = inOne(t, native, `TRUNCATE h, t; `+k.filled())
				a.exec(a.shop, `DELETE FROM h`)
				a.returned()
				a.exec(a.crm, `DELETE FROM t`)
				a.Settle()
				a.exec(a.crm, k.filled())
			}
		})
	}
}

func (k keyed) targets() string {
	if k.key == "id" {
		return "CREATE TABLE t (id bigint PRIMARY KEY, note text); " + k.filled()
	}
	return "CREATE TABLE t (a integer, b text, note text, PRIMARY KEY (a, b)); " + k.filled()
}

func (k keyed) filled() string {
	if k.key == "id" {
		return "INSERT INTO t SELECT generate_series(1, 9); "
	}
	return "INSERT INTO t VALUES (1, 'x'), (1, 'y'), (2, 'x'); "
}

func (k keyed) holders() string {
	return fmt.Sprintf("CREATE TABLE h (n bigint PRIMARY KEY, %s); ", k.columns)
}

func newKeyed(t *testing.T, k keyed) *attached {
	t.Helper()
	services := fmt.Sprintf(`
service: crm.example.com
version: v1
kinds:
  - {kind: T, table: public.t, key: [%s], patterns: ["ts/{t}"]}
---
service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - {kind: H, table: public.h, key: [n], patterns: ["hs/{h}"], references: [{targets: [crm.example.com/T], enforce: strict, %s}]}
`, k.key, k.declared)
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.crm = a.connect(crm, k.targets()+"GRANT ALL ON t TO dbcontroller_box_serving")
	index := "CREATE INDEX ON h (" + map[bool]string{true: "a", false: "a, b"}[k.key == "id"] + "); "
	a.shop = a.connect(shop, k.holders()+index+"GRANT ALL ON h TO dbcontroller_box_serving")
	a.prepare(crm)
	a.prepare(shop)
	a.Settle()
	return a
}

// inOne runs statements of one transaction, and rolls it back when one fails.
func inOne(t *testing.T, conn *pgx.Conn, sql string) error {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql)
	if err != nil {
		_, e := conn.Exec(t.Context(), `ROLLBACK`)
		require.NoError(t, e)
	}
	return err
}

// step runs a statement as an application whose statements wait for rights, until all its consequences are
// done.
func (a *attached) step(step string) string {
	a.t.Helper()
	conn := map[string]*pgx.Conn{"t": a.crm, "h": a.shop}[step[:1]]
	err := inOne(a.t, conn, step[2:])
	for asked := ""; codeOf(err) == "RD001"; { // of a MERGE, each kind of change asks
		var pg *pgconn.PgError
		_ = errors.As(err, &pg)
		if pg.Detail == asked { // the waiting statement is told that there is no such resource
			return "23503"
		}
		asked = pg.Detail
		a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, strings.Split(asked, "\n"))
		for range 3 {
			a.AnswerRequests(shop)
			a.Settle()
		}
		err = inOne(a.t, conn, step[2:])
	}
	a.returned()
	a.Settle()
	return codeOf(err)
}

func codeOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return "done"
}
