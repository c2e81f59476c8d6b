package shadow_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const (
	strictCascade = "region: eu, enforce: strict, behaviour: CASCADE_DELETE"
	strictBlock   = "region: eu, enforce: strict, behaviour: BLOCK"
)

// newShopVersions has two versions of the shop: in each, one text of the declaration is replaced by another
// one.
func newShopVersions(t *testing.T, old, now string) *attached {
	t.Helper()
	parts := strings.Split(attachedServices, "---\n")
	v1 := strings.Replace(parts[1], "region: eu, behaviour: CASCADE_DELETE", old, 1)
	v2 := strings.Replace(strings.Replace(parts[1], "region: eu, behaviour: CASCADE_DELETE", now, 1), "version: v1",
		"version: v2", 1)
	a := &attached{Box: harness.NewBox(t, strings.Join([]string{parts[0], v1, v2}, "---\n"), func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.tables()
	a.exec(a.crm, `INSERT INTO customers SELECT g, 'c' FROM generate_series(1, 9) g`)
	return a
}

// attachAnew attaches the tables of the shop as the version that runs declares them. No process has noticed
// it yet.
func (a *attached) attachAnew() {
	a.t.Helper()
	plans, err := attach.Prepare(context.Background(), a.shop, a.Stores[a.ID(shop)].Model(), false)
	require.NoError(a.t, err)
	for _, p := range plans {
		require.False(a.t, p.Refused(), "%v", p.Findings)
		require.NoError(a.t, attach.Apply(context.Background(), a.shop, p, func(err error) { a.t.Log(err) }))
	}
}

// The rows that a table has when it is attached get the rights to their targets; rows whose target does not
// exist are reported, unset or deleted as declared.
func TestRowsOfBeforeAttachGetTheirRights_I34(t *testing.T) {
	t.Parallel()
	services := strings.Replace(attachedServices, "region: eu, behaviour: CASCADE_DELETE",
		strictCascade+", missing: delete", 1)
	services = strings.ReplaceAll(services, "region: eu, behaviour: BLOCK", strictBlock)
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.tables()
	a.exec(a.crm, `INSERT INTO customers SELECT g, 'c' FROM generate_series(1, 9) g`)
	a.exec(a.shop, `
INSERT INTO orders (customer_id, note) VALUES (1, 'one'), (1, 'another'), (77, 'missing'), (NULL, 'none');
INSERT INTO invoices (id, customer_id, room, seat) VALUES ('i', 2, NULL, NULL), ('j', 88, 'x', 1), ('k', 2, 'x', 2)`)
	a.attach()
	require.Equal(t, []string{"another", "none", "one"}, a.rows(a.shop, `SELECT note FROM orders ORDER BY 1`))
	require.Equal(t, []string{"i 2 ", "j 88 ", "k 2 "},
		a.rows(a.shop, `SELECT id || ' ' || customer_id || ' ' || COALESCE(room, '') FROM invoices ORDER BY 1`))
	require.Equal(t, []string{`customer_id ["88"] missing`}, a.noted())
	waiting, missing, err := a.Stores[a.ID(shop)].DeletedRows.Waiting(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1}, []int64{waiting, missing})
	require.Equal(t, []string{"true"},
		a.rows(a.shop, `SELECT walked::text FROM dbcontroller.attachment WHERE kind = 'Invoice'`))
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Settle()
	require.Equal(t, []string{"none"}, a.rows(a.shop, `SELECT note FROM orders`))

	// The target comes: its right is acquired when it is asked for again.
	a.exec(a.crm, `INSERT INTO customers VALUES (88, 'late')`)
	a.exec(a.shop, `UPDATE dbcontroller.lacking SET due = now()`)
	a.Capture(a.ID(shop))
	a.exec(a.shop, `UPDATE dbcontroller.lacking SET due = now()`)
	a.Capture(a.ID(shop))
	require.Empty(t, a.noted())
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 88`)
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// Rows whose target does not exist go when that was so for a while: two databases are two commits. A later
// row that names the target begins it anew, and a target that comes ends it. The removal is recorded, with
// the target as its cause.
func TestRowsOfAMissingTargetGoAfterAGrace_I34(t *testing.T) {
	t.Parallel()
	services := strings.Replace(attachedServices, "region: eu, behaviour: CASCADE_DELETE",
		"region: eu, behaviour: CASCADE_DELETE, missing: delete", 1)
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations, cfg.Times.MissingGrace = true, time.Hour
	}, crm, shop), t: t}
	a.tables()
	a.attach()
	later := func() {
		a.exec(a.shop, `UPDATE dbcontroller.lacking SET since = since - interval '40 min', due = '-infinity'`)
		a.Capture(a.ID(shop))
	}
	notes := func() string { return strings.Join(a.rows(a.shop, `SELECT note FROM orders ORDER BY 1`), " ") }
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (7, 'lost'), (8, 'found')`)
	a.Capture(a.ID(shop))
	later()
	require.Equal(t, "found lost", notes(), "40 minutes")
	require.Equal(t, []string{"true"},
		a.rows(a.shop,
			`SELECT (max(due) < now() + interval '21 min' AND min(due) > now())::text FROM dbcontroller.lacking`), "it is asked again when the time is over")
	a.exec(a.crm, `INSERT INTO customers VALUES (8, 'late')`)
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (7, 'lost too')`)
	later()
	require.Equal(t, "found lost lost too", notes(), "anew")
	later()
	require.Equal(t, "found lost lost too", notes())
	later()
	require.Equal(t, "found", notes())
	a.Settle()
	require.Empty(t, a.noted())
	require.Equal(t, []string{"2 //" + crm + "/customers/7"}, a.rows(a.shop, `
SELECT count(*) || ' ' || c.root FROM dbcontroller.removal r JOIN dbcontroller.cause c ON c.id = r.cause_id WHERE r.name LIKE 'orders/%' GROUP BY c.root`))
	_ = a.refused(a.crm, `UPDATE customers SET id = 9 WHERE id = 8`)
}

// Many rows of one missing target go in parts, so that new values do not wait for them.
func TestRowsOfAMissingTargetGoInParts(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.attach()
	a.exec(a.shop, `INSERT INTO invoices (id, room, seat) SELECT g, 'none', 1 FROM generate_series(1, 1500) g`)
	_, err := a.Stores[a.ID(shop)].RightRequests.AcquireForRows(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"500"}, a.rows(a.shop, `SELECT count(*)::text FROM invoices WHERE room IS NOT NULL`))
	require.Equal(t, []string{"true"},
		a.rows(a.shop, `SELECT (due < now() + interval '2 s')::text FROM dbcontroller.lacking`))
	a.again()
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM invoices WHERE room IS NOT NULL`))
}

// Many rows from before a table was attached wait for the word of a person; rows of later statements do not.
func TestManyRowsOfBeforeWaitForAPerson(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.shop, `INSERT INTO invoices (id, room, seat) SELECT 'b' || g, 'none', g % 3 FROM generate_series(1, 30) g`)
	a.attach()
	a.exec(a.shop, `INSERT INTO invoices (id, room, seat) VALUES ('later', 'none', 7)`)
	left := func() string {
		a.again()
		return a.rows(a.shop, `SELECT count(*)::text FROM invoices WHERE room IS NOT NULL`)[0]
	}
	require.Equal(t, "30", left(), "the later one is unset")
	all, err := attach.All(t.Context(), a.shop)
	require.NoError(t, err)
	invoices := all[slices.IndexFunc(all, func(one *attach.Attached) bool { return one.Kind == "Invoice" })]
	require.Equal(t, []attach.Missing{{
		Path: "room__seat", Effect: schema.MissingUnset, Values: 3, Rows: 30,
		Waits: true,
	}}, invoices.MissingRows)
	require.Equal(t,
		"room__seat: 30 rows name 3 targets that do not exist: nothing is done until attach --yes lets them be unset",
		invoices.MissingRows[0].String())
	a.exec(a.crm, `INSERT INTO seats VALUES ('none', 0)`)
	require.Equal(t, "30", left(), "twenty are left without a target")
	a.exec(a.crm, `INSERT INTO seats VALUES ('none', 1)`)
	require.Equal(t, "20", left(), "ten go without a question")

	a.exec(a.shop, `INSERT INTO invoices (id, room, seat) SELECT 'c' || g, 'gone', 1 FROM generate_series(1, 30) g`)
	require.Equal(t, "20", left())
	a.exec(a.shop,
		`SET session_replication_role = replica; INSERT INTO invoices (id, room, seat) SELECT 'd' || g, 'gone', 2 FROM generate_series(1, 30) g; RESET session_replication_role`)
	plans, err := attach.Prepare(t.Context(), a.shop, a.Stores[a.ID(shop)].Model(), false)
	require.NoError(t, err)
	for _, p := range plans {
		require.NoError(t, attach.ReadAgain(t.Context(), a.shop, p))
	}
	require.Equal(t, "50", left())
	for _, p := range plans {
		require.NoError(t, attach.Confirm(t.Context(), a.shop, p))
	}
	require.Equal(t, "20", left())
}

// Values of two references with the same texts are two: one target is missing, and the other one is there.
func TestTheSameTextInTwoReferencesIsTwoValues_I34(t *testing.T) {
	t.Parallel()
	services := strings.Replace(attachedServices,
		"  - kind: Seat\n    table: public.seats\n    key: [room, \"number\"]",
		"  - kind: Seat\n    table: public.seats\n    key: [\"number\"]", 1)
	services = strings.Replace(services,
		"columns: [room, seat], targets: [crm.example.com/Seat], region: eu, behaviour: BLOCK, missing: unset",
		"columns: [seat], targets: [crm.example.com/Seat], "+strictCascade+", missing: delete", 1)
	services = strings.Replace(services,
		"columns: [customer_id], targets: [crm.example.com/Customer], region: eu, behaviour: BLOCK",
		"columns: [customer_id], targets: [crm.example.com/Customer], "+strictCascade, 1)
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.tables()
	a.exec(a.crm,
		`DROP TABLE seats; CREATE TABLE seats (number bigint PRIMARY KEY); GRANT ALL ON seats TO dbcontroller_box_serving; INSERT INTO customers SELECT generate_series(1, 20)`)
	a.exec(a.shop,
		`CREATE INDEX ON invoices (seat); INSERT INTO invoices (id, customer_id) SELECT 'c' || g, g FROM generate_series(1, 20) g; INSERT INTO invoices (id, seat) SELECT 's' || g, g FROM generate_series(1, 20) g`)
	a.attach()
	a.exec(a.shop, `UPDATE dbcontroller.attachment SET confirmed = true`)
	a.again()
	require.Equal(t, []string{"20"},
		a.rows(a.shop, `SELECT count(*)::text FROM invoices WHERE customer_id IS NOT NULL`))
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM invoices WHERE seat IS NOT NULL`))
	require.Empty(t, a.noted())
}

// A row under a right is not deleted because an earlier question had found no target.
func TestAMissingValueWithARightIsNoMore_I34(t *testing.T) {
	t.Parallel()
	a := newShopVersions(t, strictCascade+", missing: delete", strictBlock)
	a.attach()
	a.write(`INSERT INTO orders (customer_id, note) VALUES (4, 'stays')`)
	a.exec(a.shop,
		`INSERT INTO dbcontroller.lacking (kind_id, path, texts, target, missing) SELECT kind_id, 'customer_id', '["4"]', '//`+crm+`/customers/4', true FROM dbcontroller.attachment WHERE kind = 'Order'`)
	a.Settle()
	require.Empty(t, a.noted())
	require.Equal(t, []string{"stays"}, a.rows(a.shop, `SELECT note FROM orders`))
}

// A version that declares another behaviour: the former one counts until each value has its new right, and
// nothing is let go in between.
func TestABehaviourThatChangesHoldsAllTheWay_I1_I3_I34(t *testing.T) {
	t.Parallel()
	t.Run("cascade, then block", func(t *testing.T) {
		t.Parallel()
		a := newShopVersions(t, strictCascade, strictBlock)
		a.attach()
		a.write(`INSERT INTO orders (customer_id, note) VALUES (1, 'one'), (2, 'two')`)
		a.Switch(shop, "v2")
		a.exec(a.crm, `DELETE FROM customers WHERE id = 1`) // not attached anew yet
		a.Settle()
		require.Equal(t, []string{"two"}, a.rows(a.shop, `SELECT note FROM orders`))
		require.Zero(t, a.Count(crm, "deleting"))
		a.write(`INSERT INTO orders (customer_id, note) VALUES (3, 'three')`)
		a.attachAnew()
		a.exec(a.crm, `DELETE FROM customers WHERE id = 3`)                // and not walked yet
		_, err := a.Stores[a.ID(shop)].DeletedRows.DeleteRows(t.Context()) // which notices the attachment
		require.NoError(t, err)
		a.Settle()
		require.Equal(t, []string{"two"}, a.rows(a.shop, `SELECT note FROM orders`))
		require.Zero(t, a.Count(crm, "deleting"))
		a.Capture(a.ID(shop))
		require.Equal(t, []string{"true []"},
			a.rows(a.shop, `SELECT walked || ' ' || former FROM dbcontroller.attachment WHERE kind = 'Order'`))
		_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
	})
	t.Run("block, then cascade", func(t *testing.T) {
		t.Parallel()
		a := newShopVersions(t, strictBlock, strictCascade)
		a.attach()
		a.write(`INSERT INTO orders (customer_id, note) VALUES (2, 'two')`)
		a.Switch(shop, "v2")
		_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
		a.SetDown(crm, true)
		a.attachAnew()
		a.Capture(a.ID(shop)) // the new right cannot be acquired
		require.Equal(t, []string{`customer_id ["2"]`}, a.noted())
		a.SetDown(crm, false)
		a.exec(a.shop, `UPDATE dbcontroller.foreign_target SET kept_until = NULL`)
		_, err := a.Stores[a.ID(shop)].Admin.Tidy(t.Context())
		require.NoError(t, err)
		_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
		for range 3 {
			a.exec(a.shop, `UPDATE dbcontroller.lacking SET due = now()`)
			a.Capture(a.ID(shop))
			a.Settle()
		}
		require.Equal(t, []string{"true []"},
			a.rows(a.shop, `SELECT walked || ' ' || former FROM dbcontroller.attachment WHERE kind = 'Order'`))
		a.returned()
		a.exec(a.crm, `DELETE FROM customers WHERE id = 2`)
		a.Settle()
		require.Empty(t, a.rows(a.shop, `SELECT note FROM orders`))
	})
	for _, order := range [][2]string{
		{"region: eu, behaviour: BLOCK", strictBlock},
		{strictBlock, "region: eu, behaviour: BLOCK"},
	} {
		t.Run(order[0]+", then "+order[1], func(t *testing.T) {
			t.Parallel()
			a := newShopVersions(t, order[0], order[1])
			a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (99, 'orphan')`)
			a.attach()
			a.exec(a.shop, `SELECT dbcontroller.acquire('{BLOCK `+customer("2")+`}')`)
			for range 3 {
				a.AnswerRequests(shop)
				a.Settle()
			}
			a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (2, 'two')`)
			a.Settle()
			refused := func(when string) {
				t.Helper()
				a.exec(a.shop, `UPDATE dbcontroller.foreign_target SET kept_until = NULL`)
				_, err := a.Stores[a.ID(shop)].Admin.Tidy(t.Context())
				require.NoError(t, err)
				_, err = a.crm.Exec(t.Context(), `DELETE FROM customers WHERE id = 2`)
				require.ErrorContains(t, err, "23503", when)
			}
			refused("as it was")
			a.Switch(shop, "v2")
			refused("switched")
			a.attachAnew()
			refused("attached")
			a.SetDown(crm, true)
			a.Capture(a.ID(shop)) // the rights cannot be acquired
			a.Capture(a.ID(shop))
			a.SetDown(crm, false)
			refused("captured")
			a.exec(a.shop, `UPDATE orders SET note = note || '.', customer_id = customer_id`)
			refused("updated")
			a.exec(a.shop, `UPDATE dbcontroller.deleted_row SET due = now()`)
			a.exec(a.shop, `UPDATE dbcontroller.lacking SET due = now()`)
			a.Settle()
			refused("at rest")
			a.Capture(a.ID(shop))
			a.Settle()
			_, err := a.Stores[a.ID(shop)].DeletedRows.DeleteRows(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"true []"},
				a.rows(a.shop, `SELECT walked || ' ' || former FROM dbcontroller.attachment WHERE kind = 'Order'`))
			refused("at rest without the former ones")
			require.Equal(t, []string{`customer_id ["99"] missing`}, a.noted())
			require.Empty(t, harness.AuditDatabases(t, a.Pools))
		})
	}
}

// Nothing is stored of rows: a table of any size costs its rights, and a constant.
func TestStrictRowsCostNothing(t *testing.T) {
	t.Parallel()
	n, of := 20_000, 10
	if testing.Short() {
		n = 2_000
	}
	a := newStrict(t)
	var rights []string
	for i := range 9 {
		rights = append(rights, "BLOCK "+customer(string(rune('1'+i))), "ACT "+customer(string(rune('1'+i))))
	}
	a.acquire(rights)
	size := func() (out int64) {
		require.NoError(t, a.shop.QueryRow(t.Context(), `
SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c WHERE c.relnamespace = 'dbcontroller'::regnamespace AND c.relkind = 'r'`).Scan(&out))
		return out
	}
	counts := func() []string {
		return a.rows(a.shop, `SELECT (SELECT count(*) FROM dbcontroller.shadow)::text || ' ' || (SELECT count(*) FROM dbcontroller.reference) || ' ' || (SELECT count(*) FROM dbcontroller.deleted_row)
|| ' ' || (SELECT count(*) FROM dbcontroller.deleted_row) || ' ' || (SELECT count(*) FROM dbcontroller.lacking) || ' ' || (SELECT count(*) FROM dbcontroller.foreign_target)`)
	}
	bytes, before := size(), counts()
	run := func(sql string, args ...any) { a.exec(a.shop, sql, args...) }
	run(`INSERT INTO orders (customer_id, note) SELECT 1 + g % 9, 'n' FROM generate_series(1, $1) g`, n)
	run(`INSERT INTO invoices (id, customer_id) SELECT g, 1 + g % 9 FROM generate_series(1, $1) g`, n)
	a.Settle()
	run(`UPDATE orders SET customer_id = 1 + customer_id % 9 WHERE id::text < '8'`)
	run(`UPDATE invoices SET customer_id = 1 + customer_id % 9 WHERE id LIKE '%1'`)
	run(`DELETE FROM orders WHERE id::text > '8'`)
	run(`DELETE FROM invoices WHERE id LIKE '%2'`)
	a.Settle()
	require.Equal(t, before, counts())
	require.Less(t, size()-bytes, int64(of*64<<10), "%d rows", 2*n)
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A table that the controller cannot read keeps no other one back, and a row whose value could be no name is
// reported.
func TestAnUnreadableTableKeepsNoOtherBack(t *testing.T) {
	t.Parallel()
	services := strings.ReplaceAll(strings.Replace(attachedServices, "region: eu, behaviour: CASCADE_DELETE",
		strictCascade, 1), "region: eu, behaviour: BLOCK", strictBlock)
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.tables()
	a.exec(a.crm, `INSERT INTO customers SELECT g, 'c' FROM generate_series(1, 9) g`)
	a.exec(a.shop,
		`INSERT INTO orders (customer_id) VALUES (1); INSERT INTO invoices (id, customer_id) VALUES ('i', 2)`)
	ctx := context.Background()
	for _, id := range []string{crm, shop} {
		conn := map[string]*pgx.Conn{crm: a.crm, shop: a.shop}[id]
		plans, err := attach.Prepare(ctx, conn, a.Stores[a.ID(id)].Model(), false)
		require.NoError(t, err)
		for _, p := range plans {
			require.NoError(t, attach.Apply(ctx, conn, p, func(err error) { t.Log(err) }))
		}
	}
	a.exec(a.shop, `REVOKE SELECT ON orders FROM `+rowsRole)
	a.Capture(a.ID(crm))
	store := a.Stores[a.ID(shop)]
	for range 4 {
		_, err := store.DeletedRows.DeleteRows(ctx)
		require.NoError(t, err)
		_, err = store.RightRequests.AcquireForRows(ctx)
		require.ErrorContains(t, err, "orders")
		a.exec(a.shop, `UPDATE dbcontroller.lacking SET due = now()`)
	}
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
}

// A process that has not noticed that a table was attached anew decides by the table as it is attached.
func TestAProcessThatHasNotNoticedAnAttachReleasesNothing_I1_I3_I34(t *testing.T) {
	t.Parallel()
	a := newShopVersions(t, strictCascade, strictBlock)
	a.attach()
	stale := a.SecondProcess(shop, shadow.Config{Delegations: true})
	a.Switch(shop, "v2")
	a.attachAnew()
	a.Capture(a.ID(shop))
	a.write(`INSERT INTO orders (customer_id, note) VALUES (2, 'two')`)
	a.exec(a.shop, `UPDATE dbcontroller.foreign_target SET kept_until = NULL`)
	a.Stores[a.ID(shop)] = stale
	_, err := a.Delete(customer("2"))
	require.ErrorContains(t, err, "orders/")
	require.Equal(t, []string{"two"}, a.rows(a.shop, `SELECT note FROM orders`))
}

// Values that stand for "none" name nothing: they need no right, nothing is missing, and a target of that
// name has no rows that refer to it.
func TestValuesThatNameNothing(t *testing.T) {
	t.Parallel()
	for _, enforce := range []string{"async", "strict"} {
		t.Run(enforce, func(t *testing.T) {
			t.Parallel()
			none := "region: eu, enforce: " + enforce + ", missing: delete, none: [0, -1], behaviour: "
			services := strings.ReplaceAll(attachedServices, "region: eu, behaviour: CASCADE_DELETE",
				none+"CASCADE_DELETE")
			services = strings.Replace(services, "region: eu, behaviour: BLOCK}", none+"BLOCK}", 1)
			a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
				cfg.Delegations = true
			}, crm, shop), t: t}
			a.tables()
			a.exec(a.crm, `INSERT INTO customers SELECT g, 'c' FROM generate_series(0, 3) g`)
			a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (0, 'before'), (1, 'named')`)
			a.attach()
			write := a.write
			if enforce == "async" {
				write = func(sql string) { a.exec(a.shop, sql) }
			}
			a.exec(a.shop, `INSERT INTO orders (customer_id, note) SELECT 0, 'many' FROM generate_series(1, 3)`)
			a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (-1, 'one')`)
			write(`INSERT INTO orders (customer_id, note) VALUES (2, 'named'), (0, 'among others')`)
			write(`INSERT INTO invoices (id, customer_id) VALUES ('a', 3), ('b', 0)`)
			a.Settle()
			require.Empty(t, a.noted())
			require.Equal(t, []string{"customers/1", "customers/2", "customers/3"},
				a.rows(a.shop, `SELECT DISTINCT name FROM dbcontroller.foreign_target ORDER BY 1`))
			a.exec(a.crm, `DELETE FROM customers WHERE id IN (0, 1)`)
			_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 3`)
			a.Settle()
			a.exec(a.shop,
				`UPDATE dbcontroller.foreign_target SET kept_until = NULL; UPDATE invoices SET customer_id = 0`)
			a.exec(a.shop, `UPDATE orders SET customer_id = -1 WHERE note = 'named'`)
			a.Settle()
			a.exec(a.crm, `DELETE FROM customers WHERE id IN (2, 3)`)
			a.Settle()
			require.Equal(t, []string{"among others", "before", "many", "many", "many", "named", "one"},
				a.rows(a.shop, `SELECT note FROM orders ORDER BY 1`), "one named a target that is gone")
			require.Equal(t, 0, a.Count(crm, "holder_entry"))
			require.Empty(t, harness.AuditDatabases(t, a.Pools))
		})
	}
}
