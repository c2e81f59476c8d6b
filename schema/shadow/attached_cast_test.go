package shadow_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// The owner of an enum gives it a cast to text after a column of it was attached: this code does not run in
// the sessions of the controller, which read the region and the condition of a reference in such columns.
func TestACastMadeAfterAttachRunsNoCode_I34(t *testing.T) {
	t.Parallel()
	a := &attached{Box: harness.NewBox(t, strings.ReplaceAll(renamedServices, ", enforce: strict", ""),
		func(cfg *shadow.Config) {
			cfg.Delegations = true
		}, crm, shop), t: t}
	a.crm = a.connect(crm,
		`CREATE TABLE customers (id bigint PRIMARY KEY); INSERT INTO customers (id) SELECT generate_series(1, 2000); GRANT ALL ON customers TO dbcontroller_box_serving`)
	a.shop = a.connect(shop, `CREATE TYPE place AS ENUM ('eu', 'us'); CREATE TYPE payer AS ENUM ('Customer', 'Nobody');
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, region place DEFAULT 'eu', payer_type payer, payer_id bigint, friend_id bigint);
INSERT INTO orders (id, customer_id, payer_type) SELECT g, g, CASE WHEN g % 2 = 0 THEN 'Customer' END::payer FROM generate_series(1001, 1700) AS g;
CREATE INDEX ON orders (customer_id); CREATE INDEX ON orders (payer_type, payer_id); CREATE INDEX ON orders (friend_id); GRANT ALL ON orders TO dbcontroller_box_serving`)
	a.prepare(crm)
	a.prepare(shop)
	a.Settle()
	a.exec(a.shop, `INSERT INTO orders VALUES (1, NULL, 'eu', 'Customer', 3, 4), (2, NULL, 'eu', 'Customer', 3, 5)`)
	a.Settle()
	require.Equal(t, []string{"true"}, a.rows(a.shop, `SELECT walked::text FROM dbcontroller.attachment`),
		"by more than one page, in the order of the region's text")
	a.exec(a.shop, `CREATE TABLE seen (who text); GRANT ALL ON seen TO PUBLIC;
CREATE FUNCTION told(v text) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = public AS $$ BEGIN INSERT INTO public.seen VALUES (session_user || ' ' || current_user); RETURN v; END $$;
CREATE FUNCTION spoken(p payer) RETURNS text LANGUAGE sql AS $$ SELECT public.told(CASE p WHEN 'Customer' THEN 'Customer' ELSE 'Nobody' END) $$;
CREATE FUNCTION spoken(p place) RETURNS text LANGUAGE sql AS $$ SELECT public.told(CASE p WHEN 'eu' THEN 'eu' ELSE 'us' END) $$;
CREATE CAST (payer AS text) WITH FUNCTION spoken(payer); CREATE CAST (place AS text) WITH FUNCTION spoken(place)`)
	a.exec(a.shop,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename <> current_user`)
	a.exec(a.shop, `INSERT INTO orders VALUES (3, 7, 'eu', 'Customer', 3, 6)`)
	a.exec(a.crm, `DELETE FROM customers WHERE id IN (3, 4)`)
	a.Settle()
	require.NotNil(t, a.Get("//shop.example.com/eu/orders/3"))
	_, err := a.Delete("//crm.example.com/eu/customers/7")
	require.ErrorContains(t, err, "orders/3")
	require.Empty(t, a.rows(a.shop, `SELECT DISTINCT 'the cast ran as ' || who FROM seen`))
}

// The owner of an attached table gives it a policy: its code does not run in the sessions of the controller,
// which reads nothing of the table then.
func TestAPolicyMadeAfterAttachRunsNoCode_I34(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(`INSERT INTO invoices (id, customer_id) VALUES ('i', 1)`)
	a.Settle()
	a.exec(a.shop, `CREATE TABLE seen (who text); GRANT ALL ON seen TO PUBLIC;
CREATE FUNCTION told() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.seen VALUES (current_user); RETURN true; END $$;
CREATE POLICY all_rows ON invoices USING (public.told()); ALTER TABLE invoices ENABLE ROW LEVEL SECURITY`)
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, `row-level security policy for table "invoices"`)
	require.Empty(t, a.rows(a.shop, `SELECT 'the policy ran as ' || who FROM seen`))
	a.exec(a.shop, `ALTER TABLE invoices DISABLE ROW LEVEL SECURITY`)
	_, err = a.Delete(customer("1"))
	require.ErrorContains(t, err, "invoices/i")
}
