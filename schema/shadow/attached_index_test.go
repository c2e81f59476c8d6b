package shadow_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// planned returns the groups of a plan of a customer's deletion, as texts.
func (a *attached) planned(n string) []string {
	a.t.Helper()
	plan, err := a.Stores[a.ID(crm)].PlanDelete(a.t.Context(), "customers/"+n)
	require.NoError(a.t, err)
	require.NoError(a.t, plan.Refusal)
	require.True(a.t, plan.Complete())
	var out []string
	for _, g := range plan.Groups {
		out = append(out, fmt.Sprintf("%v", g))
	}
	return out
}

// referrersOf returns the kinds, names and paths of those in the shop that refer to a resource of the other deployment, page by page.
func (a *attached) referrersOf(name string, limit int) (out []string) {
	a.t.Helper()
	var uid uuid.UUID
	require.NoError(a.t, a.crm.QueryRow(a.t.Context(), `SELECT uid FROM dbcontroller.shadow WHERE name = $1`, name).Scan(&uid))
	req := shadow.ReferrersRequest{Target: schema.FullName{Deployment: a.ID(crm), Name: name}, UID: uid, Limit: limit}
	for {
		page, err := a.Stores[a.ID(shop)].Referrers(a.t.Context(), req)
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
	a.write(`INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (1, 1, 'eu', 'both'), (1, NULL, NULL, 'one'), (2, 1, 'eu', 'unset')`)
	before, referring := a.planned("1"), a.referrersOf("customers/1", 100)
	require.Contains(t, before[1], "Order customer_id CASCADE_DELETE false 2")
	require.Contains(t, before[2], "Order approver_id UNSET true 1")
	a.Settle() // they are stored
	require.Equal(t, before, a.planned("1"))
	require.Equal(t, referring, a.referrersOf("customers/1", 100))
	require.Len(t, referring, 4)
	require.Equal(t, referring, a.referrersOf("customers/1", 1))
}
