package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// bulk runs statements about very many rows in a session of their own, beside the same ones without triggers.
type bulk struct {
	*attached
	conn *pgx.Conn
}

// peak returns the most memory that the server has used for the session, in MB; 0 where it cannot be read.
func (b *bulk) peak() int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.conn.PgConn().PID()))
	if err != nil || !strings.HasPrefix(string(raw), "Name:\tpostgres") {
		return 0
	}
	var file, shared, kb int
	for line := range strings.Lines(string(raw)) {
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &kb)
		_, _ = fmt.Sscanf(line, "RssFile: %d kB", &file)
		_, _ = fmt.Sscanf(line, "RssShmem: %d kB", &shared)
	}
	return (kb - file - shared) / 1024
}

// run runs a statement, and returns its processor time, and its error.
func (b *bulk) run(sql string) (time.Duration, *pgconn.PgError) {
	b.t.Helper()
	before := computed(b.t, b.conn)
	_, err := b.conn.Exec(context.Background(), sql)
	var pg *pgconn.PgError
	if err != nil {
		require.True(b.t, errors.As(err, &pg), "%v", err)
	}
	return computed(b.t, b.conn) - before, pg
}

// Statements about 100,000 rows, strict and async, also refused ones, take a bounded multiple of the
// processor time of the same ones without triggers, and no more memory. DBCONTROLLER_TEST_ROWS is their
// number.
func TestStatementsAboutVeryManyRows(t *testing.T) {
	if testing.Short() {
		t.Skip("fills tables")
	}
	t.Parallel()
	n, err := strconv.Atoi(os.Getenv("DBCONTROLLER_TEST_ROWS"))
	if err != nil {
		n = 20_000
	}
	a := newStrict(t)
	a.exec(a.shop, `CREATE TABLE plain (LIKE orders INCLUDING ALL)`)
	var rights []string
	for i := range 9 {
		rights = append(rights, "ACT "+customer(strconv.Itoa(i+1)))
	}
	a.acquire(rights)
	a.exec(a.shop, `UPDATE dbcontroller.foreign_target SET kept_until = now() + interval '50 s'`)

	b := &bulk{a, a.connect(shop, ``)}
	bounded := func(sql string, wrong string) {
		t.Helper()
		plain, pg := b.run(strings.ReplaceAll(sql, "orders", "plain"))
		require.Nil(t, pg)
		took, pg := b.run(sql)
		if wrong == "" {
			require.Nil(t, pg, sql)
		} else {
			require.NotNil(t, pg, sql)
			require.Equal(t, wrong, pg.Code, pg.Message)
		}
		t.Logf("%s: %s, without triggers %s", sql, took.Round(time.Millisecond), plain.Round(time.Millisecond))
		require.Less(t, took, 12*plain, sql)
	}
	nothing := func() { // is stored of rows
		t.Helper()
		require.Equal(t, []string{"0"},
			a.rows(b.conn,
				`SELECT (count(*) + (SELECT count(*) FROM dbcontroller.work))::text FROM dbcontroller.lacking`))
	}
	b.exec(b.conn, `BEGIN`)
	bounded(fmt.Sprintf(`INSERT INTO orders (customer_id, note) SELECT 1 + g %% 9, 'n' FROM generate_series(1, %d) g`,
		n), "")
	nothing()
	bounded(`UPDATE orders SET customer_id = 1 + customer_id % 9`, "")
	nothing()
	bounded(`UPDATE orders SET note = 'm'`, "")
	nothing()
	b.exec(b.conn, `SAVEPOINT refused`)
	bounded(`UPDATE orders SET customer_id = 1000 + mod(hashtext(id::text), 900)`, "RD001")
	b.exec(b.conn, `ROLLBACK TO refused`)
	nothing()
	bounded(`DELETE FROM orders`, "")
	nothing()
	b.exec(b.conn, `ROLLBACK`)
	if mb := b.peak(); mb > 0 {
		t.Logf("%d MB", mb)
		require.Less(t, mb, 64+n*2/1000)
	}

	// Targets: none of them is refused, then all but a few, which are blocked.
	c := &bulk{a, a.connect(crm, `CREATE TABLE plain (LIKE customers INCLUDING ALL)`)}
	a.exec(a.shop, `INSERT INTO orders (customer_id) VALUES (1)`)
	a.exec(a.crm, `INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
SELECT gen_random_uuid(), kind_id, 1, 1, 1, 1, 'customers/' || g FROM dbcontroller.attachment, generate_series(1001, 1003) g WHERE kind = 'Customer';
INSERT INTO dbcontroller.blockade (target_id, holder_uid, attempt, field_id, deployment_id, holder_kind_id, behaviour, holder_name)
SELECT s.id, gen_random_uuid(), gen_random_uuid(), 1, d.id, 1, 1, 'invoices/x' FROM dbcontroller.shadow s, dbcontroller.deployment d WHERE s.name = 'customers/1002' AND d.service = 'shop.example.com'`)
	for _, table := range []string{"customers", "plain"} {
		c.exec(c.conn, fmt.Sprintf(`INSERT INTO %s SELECT g, 'many' FROM generate_series(1001, 1000 + %d) g`, table, n))
	}
	c.exec(c.conn, `BEGIN`)
	for _, sql := range []string{
		`DELETE FROM customers WHERE name = 'many'`,
		`UPDATE customers SET id = -id WHERE name = 'many'`,
	} {
		c.exec(c.conn, `SAVEPOINT refused`)
		plain, pg := c.run(strings.ReplaceAll(sql, "customers", "plain"))
		require.Nil(t, pg)
		took, pg := c.run(sql)
		require.NotNil(t, pg, sql)
		require.Equal(t, "23503", pg.Code, pg.Message)
		require.Contains(t, pg.Detail, "invoices/x")
		require.Less(t, took, 12*plain, sql)
		c.exec(c.conn, `ROLLBACK TO refused`)
		took, pg = c.run(strings.Replace(sql, "WHERE", "WHERE id > 1003 AND", 1))
		require.Nil(t, pg, sql)
		require.Less(t, took, 12*plain, sql)
		c.exec(c.conn, `ROLLBACK TO refused`)
	}
	c.exec(c.conn, `ROLLBACK`)
	if mb := c.peak(); mb > 0 {
		t.Logf("%d MB", mb)
		require.Less(t, mb, 64+n*2/1000)
	}
}
