package shadow_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// newLines is newAttached with lines of orders, which have a native key as well.
func newLines(t *testing.T, native string) *attached {
	t.Helper()
	services := strings.Replace(attachedServices, "  - kind: Letter", `  - kind: Line
    table: public.lines
    key: [id]
    patterns: ["lines/{line}"]
    references:
      - {columns: [order_id], targets: [Order], behaviour: CASCADE_DELETE}
  - kind: Letter`, 1)
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.tables()
	a.exec(a.shop, `CREATE TABLE lines (id bigint PRIMARY KEY, order_id uuid REFERENCES orders `+native+
		`); CREATE INDEX ON lines (order_id)`)
	return a
}

// A cascade from another database takes rows of two tables along between which there is a native key: as an
// application declares it, and as Django does.
func TestACascadeReachesRowsWithNativeKeysBetweenThem(t *testing.T) {
	t.Parallel()
	for _, native := range []string{"", "DEFERRABLE INITIALLY DEFERRED", "ON DELETE CASCADE"} {
		t.Run("key "+native, func(t *testing.T) {
			t.Parallel()
			a := newLines(t, native)
			a.exec(a.crm, `INSERT INTO customers VALUES (1), (2)`)
			a.attach()
			a.exec(a.shop,
				`INSERT INTO orders (customer_id) VALUES (1), (1), (2); INSERT INTO lines SELECT row_number() OVER (), id FROM orders, generate_series(1, 2)`)
			a.Settle()
			a.MustDelete("//" + crm + "/customers/1")
			a.Settle()
			require.Equal(t, []string{"2"}, a.rows(a.crm, `SELECT id::text FROM customers`))
			require.Equal(t, []string{"1 2"},
				a.rows(a.shop, `SELECT (SELECT count(*) FROM orders) || ' ' || (SELECT count(*) FROM lines)`))
			a.MustDelete("//" + shop + "/orders/" + a.rows(a.shop, `SELECT id::text FROM orders`)[0])
			a.Settle()
			require.Equal(t, []string{"0 0"},
				a.rows(a.shop, `SELECT (SELECT count(*) FROM orders) || ' ' || (SELECT count(*) FROM lines)`))
			require.Empty(t, harness.AuditDatabases(t, a.Pools))
		})
	}
}
