package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// A row that nothing refers to has no uid. Its deletion has a plan all the same, as its delete is accepted.
func TestAPlanOfARowThatNothingRefersTo(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1, 'c'), (2, 'd'), (3, 'e')`)
	a.exec(a.shop, `INSERT INTO orders (customer_id) VALUES (3)`)
	a.attach()
	a.Settle()
	store := a.Stores[a.ID(crm)]
	plan, err := store.Deletions.PlanDelete(t.Context(), "customers/1")
	require.NoError(t, err)
	require.NoError(t, plan.Refusal)
	require.Equal(t, 1, plan.Removed())
	plan, err = store.Deletions.PlanDelete(t.Context(), "customers/1", "customers/2", "customers/3")
	require.NoError(t, err)
	require.NoError(t, plan.Refusal)
	require.Equal(t, 4, plan.Removed()) // with the order
	found, err := store.Operate.Referrers(t.Context(),
		shadow.ReferrersRequest{Target: schema.FullName{Deployment: a.ID(crm), Name: "customers/1"}, Limit: 10})
	require.NoError(t, err)
	require.Empty(t, found.List)
	for _, name := range []string{"customers/9", "customers/x"} {
		_, err = store.Deletions.PlanDelete(t.Context(), name)
		require.ErrorIs(t, err, peer.ErrNotFound, name)
	}
	a.MustDelete("//" + crm + "/customers/1")
	require.Equal(t, []string{"2", "3"}, a.rows(a.crm, `SELECT id::text FROM customers ORDER BY id`))
}

// Values whose right is not given are outstanding, with the reason.
func TestValuesWithoutARightAreOutstanding(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1, 'c')`)
	a.attach()
	a.SetDown(crm, true)
	a.exec(a.shop, `INSERT INTO orders (customer_id) VALUES (1)`)
	a.Capture(a.ID(shop))
	all, err := a.Stores[a.ID(shop)].Admin.Outstanding(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, []any{"acquire", crm, int64(1)}, []any{all[0].Group, all[0].Deployment, all[0].Count})
	require.NotEmpty(t, all[0].Problem)
	a.SetDown(crm, false)
	a.Settle()
	all, err = a.Stores[a.ID(shop)].Admin.Outstanding(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
}
