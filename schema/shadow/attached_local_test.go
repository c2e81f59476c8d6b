package shadow_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const localServices = `
service: shop.example.com
version: v1
kinds:
  - kind: Customer
    table: public.customers
    key: [id]
    patterns: ["customers/{customer}"]
  - kind: Plan
    patterns: ["plans/{plan}"]
    references:
      - {path: customer, targets: [Customer], behaviour: CASCADE_DELETE}
  - kind: Visit
    table: public.visits
    key: [id]
    patterns: ["visits/{visit}"]
    references:
      - {columns: [customer_id], targets: [Customer], enforce: async, behaviour: CASCADE_DELETE}
      - {columns: [host_id], targets: [Customer], enforce: async, behaviour: BLOCK}
      - {columns: [plan], targets: [Plan], enforce: async, behaviour: UNSET}
`

// Rows refer to resources of their own deployment as to resources of others: it gives itself the right.
func TestRowsReferToTheirOwnDeployment(t *testing.T) {
	t.Parallel()
	for _, enforce := range []string{"async", "strict"} {
		t.Run(enforce, func(t *testing.T) {
			t.Parallel()
			a := &attached{Box: harness.NewBox(t, strings.ReplaceAll(localServices, "async", enforce),
				func(cfg *shadow.Config) {
					cfg.Delegations = true
				}, shop), t: t}
			a.shop = a.connect(shop, `
CREATE TABLE customers (id bigint PRIMARY KEY, name text);
CREATE TABLE visits (id bigint PRIMARY KEY, customer_id bigint, host_id bigint, plan text);
CREATE INDEX ON visits (customer_id); CREATE INDEX ON visits (host_id); CREATE INDEX ON visits (plan);
INSERT INTO customers SELECT generate_series(1, 4);
`)
			a.attachTo(shop)
			a.MustPut("//"+shop+"/plans/p", harness.Body{"customer": "customers/3"})
			for _, sql := range []string{
				`INSERT INTO visits VALUES (1, 1, 2, 'p')`,
				`INSERT INTO visits VALUES (2, 3, NULL, NULL)`, `INSERT INTO visits VALUES (3, 4, NULL, 'p')`,
			} {
				if enforce == "strict" {
					a.acquire(a.lacks(sql))
				}
				a.exec(a.shop, sql)
				a.Settle()
			}
			require.Empty(t, a.noted())
			require.Equal(t, 1, a.Count(shop, "reference"), "that of the body")

			a.Renew(shop) // the rights of the epoch before do not count
			for range 3 {
				a.Capture(a.ID(shop))
				a.Settle()
			}
			require.Equal(t, []string{"5"},
				a.rows(a.shop,
					`SELECT (count(acting_own) + count(block_own))::text FROM dbcontroller.foreign_target, dbcontroller.meta m WHERE acting_own = m.epoch OR block_own = m.epoch`))
			require.Empty(t, a.noted())
			require.Empty(t, a.verify(shop, false))

			refused := a.refused(a.shop, `DELETE FROM customers WHERE id = 2`)
			require.Contains(t, refused.Detail, "//"+shop+" (rows written under its right)")
			_, err := a.Delete("//" + shop + "/customers/2")
			require.ErrorContains(t, err, "visits/1 (host_id)")
			// with its visit, and the plan, which two visits have
			_, err = a.Stores[a.ID(shop)].Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "customers/3"})
			require.NoError(t, err)
			a.Settle()
			require.Equal(t, []string{"1", "3"},
				a.rows(a.shop, `SELECT id::text FROM visits WHERE plan IS NULL ORDER BY 1`))
			require.Nil(t, a.Get("//"+shop+"/plans/p"))
			a.exec(a.shop, `DELETE FROM customers WHERE id = 4`)
			a.Settle()
			require.Equal(t, []string{"1"}, a.rows(a.shop, `SELECT id::text FROM visits`))
			a.exec(a.shop, `DELETE FROM visits`)
			a.returned()
			a.exec(a.shop, `DELETE FROM customers`)
			a.Settle()
			require.Zero(t, a.Count(shop, "deleting"))
			require.Zero(t, a.Count(shop, "foreign_target"))
			require.Empty(t, a.verify(shop, false))
			require.Empty(t, harness.AuditDatabases(t, a.Pools))
		})
	}
}
