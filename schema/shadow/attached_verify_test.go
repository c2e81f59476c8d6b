package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// verify returns the differences that a verification finds at a deployment: kind, holder, path.
func (a *attached) verify(deployment string, repair bool) (found []string) {
	a.t.Helper()
	_, err := a.Stores[a.ID(deployment)].Verify.Verify(context.Background(), shadow.Verification{
		Repair: repair, Settle: time.Millisecond,
		Report: func(d shadow.Difference) error {
			require.NotEmpty(a.t, d.Cause())
			require.NotEmpty(a.t, d.Remedy())
			found = append(found, string(d.Kind)+" "+d.Holder.Name+" "+d.Path)
			return nil
		},
	})
	require.NoError(a.t, err)
	return found
}

// A verification finds values of rows that no trigger saw, and has their rights acquired.
func TestVerifyFindsRowsThatNoTriggerSaw(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers SELECT generate_series(1, 5)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) SELECT 'i' || g, g FROM generate_series(1, 3) g`)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) SELECT 'many' || g, 5 FROM generate_series(1, 1500) g`)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('orphan', 99)`)
	a.Settle()
	require.Empty(t, a.verify(shop, false), "an orphan is known, and waits")

	a.exec(a.shop, `SET session_replication_role = replica; INSERT INTO invoices (id, customer_id) VALUES ('new', 4), ('nothing', NULL);
DELETE FROM invoices WHERE id = 'i1'; UPDATE invoices SET customer_id = 4 WHERE id = 'i2'; RESET session_replication_role`)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('seen', 4)`) // it waits to be read
	want := []string{"ROW_MISSED invoices customer_id"}                         // of the value 4
	require.Empty(t, a.verify(shop, false), "a row that was seen has noted the value")
	a.Settle()
	a.exec(a.shop,
		`SET session_replication_role = replica; DELETE FROM invoices WHERE customer_id = 4; RESET session_replication_role`)
	a.returned()
	a.exec(a.shop,
		`SET session_replication_role = replica; INSERT INTO invoices (id, customer_id) VALUES ('new', 4), ('newer', 4); RESET session_replication_role`)
	require.Equal(t, want, a.verify(shop, true))
	a.Settle()
	require.Empty(t, a.verify(shop, false))
	a.exec(a.crm, `DELETE FROM customers WHERE id < 3`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 4`)
	require.Empty(t, a.verify(crm, false))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A verification finds triggers that attach has not made.
func TestVerifyFindsTriggersThatWereChanged(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.attach()
	require.Empty(t, a.verify(shop, false))
	a.exec(a.shop,
		`ALTER TABLE invoices DISABLE TRIGGER dbcontroller_insert; DROP TRIGGER dbcontroller_truncate ON orders`)
	name := a.rows(a.shop, `SELECT p.oid::regprocedure::text FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
WHERE g.tgrelid = 'orders'::regclass AND g.tgname = 'dbcontroller_update'`)[0]
	a.exec(a.shop, `CREATE OR REPLACE FUNCTION `+name+` RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	require.ElementsMatch(t, []string{
		"TRIGGER_DRIFT orders the trigger dbcontroller_truncate is missing",
		"TRIGGER_DRIFT orders the function of the trigger dbcontroller_update was changed",
		"TRIGGER_DRIFT invoices the trigger dbcontroller_insert is disabled",
	}, a.verify(shop, true))
	a.attach()
	require.Empty(t, a.verify(shop, false))
	a.exec(a.shop, `CREATE TABLE archive (id text NOT NULL, customer_id bigint, room text, seat integer) PARTITION BY RANGE (id);
ALTER TABLE archive ATTACH PARTITION invoices FOR VALUES FROM ('a') TO ('z')`)
	require.Equal(t,
		[]string{
			"TRIGGER_DRIFT invoices the table has become a partition, or has one, or a child: statements at the parent do not fire its triggers",
		}, a.verify(shop, false))
}

// The triggers of a table without references are verified, also where no table refers.
func TestVerifyFindsChangedTriggersOfTargets(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.attach()
	// as attach leaves it
	a.exec(a.crm,
		`UPDATE dbcontroller.attachment SET walked = false; ALTER TABLE customers DISABLE TRIGGER dbcontroller_delete`)
	require.Empty(t, a.verify(crm, false))
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- a.Stores[a.ID(crm)].RightRequests.RunRequests(ctx, func() bool { return true }) }()
	require.Eventually(t, func() bool {
		return len(a.rows(a.crm, `SELECT kind FROM dbcontroller.attachment WHERE NOT walked`)) == 0
	}, wait.Limit, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ran)
	require.Equal(t, []string{"TRIGGER_DRIFT customers the trigger dbcontroller_delete is disabled"},
		a.verify(crm, false))
	all, err := attach.All(t.Context(), a.crm)
	require.NoError(t, err)
	for _, at := range all {
		require.Equal(t, "attached", at.State(), at.Kind)
	}
}

// A verification, and attach --status, find changes of a table that its triggers do not survive, and settings
// of their functions.
func TestVerifyFindsTablesThatWereChanged(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.attach()
	drift := func() (found []string) {
		all, err := attach.All(context.Background(), a.connect(shop, ``))
		require.NoError(t, err)
		for _, at := range all {
			found = append(found, at.Drift...)
		}
		return found
	}
	require.Empty(t, a.verify(shop, false))
	require.Empty(t, drift())
	rows := func(sql string) string { return a.rows(a.shop, sql)[0] }
	function := rows(
		`SELECT tgfoid::regprocedure::text FROM pg_trigger WHERE tgrelid = 'orders'::regclass AND tgname = 'dbcontroller_delete'`)
	a.exec(a.shop, `ALTER FUNCTION `+function+` SET search_path = public`)
	require.Equal(t, []string{"TRIGGER_DRIFT orders the function of the trigger dbcontroller_delete was changed"},
		a.verify(shop, false))
	require.Equal(t, []string{"the function of the trigger dbcontroller_delete has other settings"}, drift())
	a.exec(a.shop, `ALTER FUNCTION `+function+` SET search_path = pg_catalog, pg_temp; ALTER FUNCTION `+function+
		` SECURITY INVOKER`)
	require.Equal(t, []string{"the function of the trigger dbcontroller_delete has other settings"}, drift())
	a.attach()
	require.Empty(t, drift())

	for change, undo := range map[string][2]string{
		`ALTER TABLE orders DROP CONSTRAINT orders_pkey`: {
			`ALTER TABLE orders ADD PRIMARY KEY (id)`,
			"no unique index has exactly the columns of the key",
		},
		`CREATE RULE never AS ON DELETE TO orders DO INSTEAD NOTHING`: {
			`DROP RULE never ON orders`,
			"the table has rules, which rewrite statements before triggers see them",
		},
	} {
		a.exec(a.shop, change)
		require.Equal(t, []string{undo[1]}, drift(), change)
		a.exec(a.shop, undo[0])
		require.Empty(t, drift(), undo[0])
	}
	a.exec(a.shop, `ALTER TABLE orders DROP CONSTRAINT orders_pkey`)
	require.Equal(t, []string{"TRIGGER_DRIFT orders no unique index has exactly the columns of the key"},
		a.verify(shop, false))
}
