package shadow_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// planned returns the groups of a plan of a customer's deletion, as texts.
func (a *attached) planned(n string) []string {
	a.t.Helper()
	plan, err := a.Stores[a.ID(crm)].Deletions.PlanDelete(a.t.Context(), "customers/"+n)
	require.NoError(a.t, err)
	require.NoError(a.t, plan.Refusal)
	require.True(a.t, plan.Complete())
	var out []string
	for _, g := range plan.Groups {
		out = append(out, fmt.Sprintf("%v", g))
	}
	return out
}

// referrersOf returns the kinds, names and paths of the shop's resources that refer to a resource of the
// other deployment, page by page.
func (a *attached) referrersOf(name string, limit int) (out []string) {
	a.t.Helper()
	var uid uuid.UUID
	require.NoError(a.t, a.crm.QueryRow(a.t.Context(), `SELECT uid FROM dbcontroller.shadow WHERE name = $1`,
		name).Scan(&uid))
	req := shadow.ReferrersRequest{Target: schema.FullName{Deployment: a.ID(crm), Name: name}, UID: uid, Limit: limit}
	for {
		page, err := a.Stores[a.ID(shop)].Operate.Referrers(a.t.Context(), req)
		require.NoError(a.t, err)
		require.LessOrEqual(a.t, len(page.List), limit)
		for _, r := range page.List {
			out = append(out, r.Kind+" "+r.Name+" "+r.Path)
		}
		if req.Token = page.Next; req.Token == "" {
			slices.Sort(out)
			return out
		}
	}
}

// Rows of strict tables stand in plans and among referrers whether they are stored or not.
func TestRowsOfStrictTablesArePlanned(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(
		`INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (1, 1, 'eu', 'both'), (1, NULL, NULL, 'one'), (2, 1, 'eu', 'unset')`)
	before, referring := a.planned("1"), a.referrersOf("customers/1", 100)
	require.Contains(t, before[1], "Order customer_id CASCADE_DELETE false 2")
	require.Contains(t, before[2], "Order approver_id UNSET true 1")
	a.Settle() // they are stored
	require.Equal(t, before, a.planned("1"))
	require.Equal(t, referring, a.referrersOf("customers/1", 100))
	require.Len(t, referring, 4)
	require.Equal(t, referring, a.referrersOf("customers/1", 1))
}

// The trace of a strict table's row has the targets that take the row along.
func TestARowOfAStrictTableIsTraced(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(`INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (1, 2, 'eu', 'x')`)
	var uid, customer uuid.UUID
	require.NoError(t, a.shop.QueryRow(t.Context(), `
INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
SELECT gen_random_uuid(), a.kind_id, 1, 1, 1, 1, 'orders/' || o.id FROM orders o, dbcontroller.attachment a WHERE a.kind = 'Order' RETURNING uid`).Scan(&uid))
	require.NoError(t,
		a.shop.QueryRow(t.Context(), `SELECT uid FROM dbcontroller.foreign_target WHERE name = 'customers/1'`).
			Scan(&customer))
	traces, err := a.Stores[a.ID(shop)].Deletions.Trace(t.Context(), []uuid.UUID{uid})
	require.NoError(t, err)
	require.Equal(t, []peer.PlanTarget{{Deployment: a.ID(crm), UID: customer}}, traces[uid].Cascades,
		"the approver's deletion does not")
}

// A plan of more rows than it names counts them.
func TestManyRowsOfStrictTablesAreCounted(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.acquire([]string{"ACT " + customer("1")})
	a.exec(a.shop, `INSERT INTO orders (customer_id) SELECT 1 FROM generate_series(1, 12000)`)
	a.exec(a.shop, `INSERT INTO orders (approver_id, approver_region) SELECT 1, 'eu' FROM generate_series(1, 11000)`)
	plan := a.planned("1")
	require.Contains(t, plan[1], "Order customer_id CASCADE_DELETE false 12000 true")
	require.Contains(t, plan[2], "Order approver_id UNSET true 11000")
}

// The rows of strict tables are read from the table: one by its key, and all in the order of the key, page by
// page, with filters.
func TestRowsOfStrictTablesAreRead(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx, store := t.Context(), a.Stores[a.ID(shop)]
	_, err := store.Read.Get(ctx, "invoices/i1")
	require.ErrorIs(t, err, peer.ErrNotFound)
	a.write(
		`INSERT INTO invoices SELECT 'i' || g, 1 + g % 2, CASE WHEN g = 3 THEN 'a,b' END, CASE WHEN g = 3 THEN 1 END FROM generate_series(1, 700) g`)
	got, err := store.Read.Get(ctx, "invoices/i3")
	require.NoError(t, err)
	require.Equal(t, peer.Active, got.State)
	require.JSONEq(t, `{"customer_id": "`+customer("2")+`", "room__seat": "//`+crm+`/seats/a%5C,b,1"}`,
		string(got.Body))
	explained, err := store.Operate.Explain(ctx, "invoices/i3")
	require.NoError(t, err)
	require.Empty(t, explained.Reasons)

	list := func(req shadow.ListRequest) (names []string) {
		for {
			page, next, err := store.Read.List(ctx, req)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page), req.Limit)
			for _, r := range page {
				require.Equal(t, "Invoice", r.Kind)
				names = append(names, r.Name)
			}
			if req.Token = next; next == "" {
				return names
			}
		}
	}
	all := list(shadow.ListRequest{Kind: "Invoice", Limit: 300})
	require.Len(t, all, 700)
	require.True(t, slices.IsSorted(all))
	require.Equal(t, all, list(shadow.ListRequest{Limit: 1000}))
	require.Len(t, list(shadow.ListRequest{Kind: "Invoice", Limit: 100, Filter: `body.customer_id = "` + customer("1") +
		`"`}), 350)
	require.Equal(t, []string{"invoices/i3"},
		list(shadow.ListRequest{Kind: "Invoice", Limit: 10, Filter: `body.room__seat:*`}))
	require.Len(t,
		list(shadow.ListRequest{
			Kind: "Invoice", Limit: 10,
			Within: grant.Within{"Invoice": {{From: "invoices/i70", Below: "invoices/i71"}}},
		}), 2)

	for _, err := range []error{
		store.Read.WatchResources(ctx, "Invoice", "", "", nil),
		func() error {
			_, _, err := store.Read.List(ctx, shadow.ListRequest{Kind: "Invoice", Limit: 1, OrderBy: "name"})
			return err
		}(),
	} {
		require.ErrorAs(t, err, new(*peer.InvalidError))
		require.ErrorContains(t, err, "the rows of Invoice are in an attached table, of which nothing is stored")
	}

	// One that the API deletes goes with its row, and its right is returned.
	a.exec(a.shop, `DELETE FROM invoices WHERE id NOT IN ('i1', 'i3')`)
	a.MustDelete("//" + shop + "/invoices/i3")
	a.MustDelete("//" + shop + "/invoices/i1")
	a.Settle()
	require.Empty(t, a.rows(a.shop, `SELECT id FROM invoices`))
	a.returned()
	a.exec(a.crm, `DELETE FROM customers WHERE id IN (1, 2); DELETE FROM seats`)
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}
