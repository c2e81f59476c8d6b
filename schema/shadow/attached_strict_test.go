package shadow_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// newStrict is newAttached with strict references, in deployments that give rights.
func newStrict(t *testing.T) *attached {
	t.Helper()
	services := strings.ReplaceAll(attachedServices, "region: eu, behaviour:",
		"region: eu, enforce: strict, behaviour:")
	services = strings.ReplaceAll(services, "region: {column: approver_region}, behaviour:",
		"region: {column: approver_region}, enforce: strict, behaviour:")
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.tables()
	a.exec(a.crm,
		`INSERT INTO customers SELECT g, 'c' FROM generate_series(1, 9) g; INSERT INTO seats VALUES ('a,b', 1)`)
	a.attach()
	return a
}

// lacks runs a statement that fails because rights are lacking, and returns the targets.
func (a *attached) lacks(sql string) []string {
	a.t.Helper()
	_, err := a.shop.Exec(context.Background(), sql)
	var pg *pgconn.PgError
	require.True(a.t, errors.As(err, &pg), "%v", err)
	require.Equal(a.t, "RD001", pg.Code, pg.Message)
	return strings.Split(pg.Detail, "\n")
}

// acquire asks for the rights to refer to targets, again when a busy machine answers later than a statement
// waits.
func (a *attached) acquire(targets []string) {
	a.t.Helper()
	var err error
	for end := time.Now().Add(wait.Limit); time.Now().Before(end); {
		a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, targets)
		for range 3 {
			a.AnswerRequests(shop)
			a.Settle()
		}
		_, err = a.shop.Exec(context.Background(), `SELECT dbcontroller.acquired($1, interval '0')`, targets)
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "RD002" {
			break
		}
	}
	require.NoError(a.t, err)
}

// write runs a statement as an application does.
func (a *attached) write(sql string) {
	a.t.Helper()
	a.acquire(a.lacks(sql))
	a.exec(a.shop, sql)
}

func customer(n string) string { return "//" + crm + "/customers/" + n }

// A first reference is refused with the targets in DETAIL, and written after they were acquired. From its
// commit on, before the row is read by the controller, it counts: it blocks, or is cascaded and unset.
func TestStrictReferencesCountFromTheirCommit(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	require.Equal(t, []string{"BLOCK " + customer("1"), "BLOCK //" + crm + "/seats/a%5C,b,1"},
		a.lacks(`INSERT INTO invoices VALUES ('i', 1, 'a,b', 1)`))
	order := `INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (2, 3, 'eu', 'x')`
	a.acquire(a.lacks(order))
	a.write(`INSERT INTO invoices VALUES ('i', 1, 'a,b', 1)`)
	a.exec(a.shop, order)
	require.Zero(t, a.Count(shop, "reference"), "nothing is read yet")

	// The rows count before they are read: a delete in plain SQL is refused, one through the API names them,
	// and a deletion reaches them.
	refused := a.refused(a.crm, `DELETE FROM customers WHERE id = 1`)
	require.Contains(t, refused.Detail, "//"+shop+" (rows written under its right)")
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, "invoices/i")
	a.exec(a.crm, `DELETE FROM customers WHERE id IN (2, 3)`)
	a.Capture(a.ID(crm))
	done, err := a.Act(a.ID(shop), a.ID(crm))
	require.NoError(t, err)
	require.NotZero(t, done)
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))
	_ = a.lacks(`INSERT INTO orders (customer_id) VALUES (2)`)
	a.Settle()
	require.Zero(t, a.Count(crm, "deleting"))

	// A write under a right calls no other deployment.
	a.SetDown(crm, true)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) SELECT 'n' || g, 1 FROM generate_series(1, 50) g`)
	a.exec(a.shop, `UPDATE invoices SET id = id || 'x' WHERE id LIKE 'n%'; DELETE FROM invoices WHERE id = 'i'`)
	a.Settle()
	require.Zero(t, a.Count(shop, "reference"), "nothing is stored")
	require.Empty(t, a.rows(a.shop, `SELECT problem FROM dbcontroller.deleted_row`))
	a.SetDown(crm, false)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 1`)
	_, err = a.Delete(customer("1"))
	require.ErrorContains(t, err, "invoices/n")
	a.exec(a.shop, `DELETE FROM invoices`)
	a.returned()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// returned waits until rights that nothing uses are returned, as if the time for their use was over.
func (a *attached) returned() {
	a.t.Helper()
	a.exec(a.shop, `UPDATE dbcontroller.foreign_target SET kept_until = now()`)
	a.Settle()
	_, err := a.Stores[a.ID(shop)].Admin.Tidy(context.Background())
	require.NoError(a.t, err)
	a.Settle()
}

// The requests of rights for a silent deployment, as many as a look takes, delay none for another one.
func TestRequestsForASilentDeploymentDelayNoOthers_I20(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	asked, silent := make(chan schema.DeploymentID, 10_000), make(chan struct{})
	a.OnEstablish = func(to schema.DeploymentID, _ peer.AttemptID, _ []peer.EstablishReference) error {
		asked <- to
		if to != a.ID(crm) {
			<-silent
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = a.Stores[a.ID(shop)].RightRequests.RunRequests(ctx, func() bool { return true }) })
	defer running.Wait()
	defer cancel()
	defer close(silent)

	a.exec(a.shop,
		`SELECT dbcontroller.acquire(array_agg('BLOCK //crm.example.com/mars/customers/' || n)) FROM generate_series(1, 600) n`)
	require.Equal(t, "crm.example.com/mars", (<-asked).String())
	a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, []string{"BLOCK " + customer("1")})
	select {
	case to := <-asked:
		require.Equal(t, a.ID(crm), to, "mars is asked by one call at a time")
	case <-time.After(6 * time.Second):
		t.Fatal("the other deployment is not asked")
	}
}

// A target that does not exist is refused for good, and one whose region is dark is refused for now.
func TestStrictReferencesToNothingAreRefused(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	missing := a.lacks(`INSERT INTO orders (customer_id) VALUES (77)`)
	a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, missing)
	a.AnswerRequests(shop)
	_, err := a.shop.Exec(ctx, `SELECT dbcontroller.acquired($1, interval '0')`, missing)
	var pg *pgconn.PgError
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Equal(t, "23503", pg.Code, pg.Message)
	require.Contains(t, pg.Message, "does not exist")
	_ = a.lacks(`INSERT INTO orders (customer_id) VALUES (77)`)

	a.SetDown(crm, true)
	a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, []string{"BLOCK " + customer("5")})
	a.AnswerRequests(shop)
	_, err = a.shop.Exec(ctx, `SELECT dbcontroller.acquired($1, interval '0')`, []string{"BLOCK " + customer("5")})
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Equal(t, "RD002", pg.Code, pg.Message)
	a.SetDown(crm, false)
	a.exec(a.shop, `UPDATE dbcontroller.right_request SET asked_at = asked_at - interval '2 s'`)

	// Rights that are not used are returned.
	a.acquire([]string{"BLOCK " + customer("5")})
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 5`)
	a.returned()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 5`)
	a.Settle()
	_ = a.lacks(`INSERT INTO orders (customer_id) VALUES (5)`)
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A target is created after a question was answered in vain, and before the answer is stored: a later asker
// gets the right.
func TestAnAnswerIsForEarlierQuestionsAlone(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	late := []string{"BLOCK " + customer("77")}
	a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, late)
	a.OnEstablish = func(to schema.DeploymentID, attempt peer.AttemptID, refs []peer.EstablishReference) error {
		a.OnEstablish = nil
		_, err := a.Stores[to].Targets.Establish(ctx, a.ID(shop), attempt, refs)
		a.exec(a.crm, `INSERT INTO customers VALUES (77, 'late')`)
		a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, late)
		require.Error(t, err)
		return err
	}
	a.AnswerRequests(shop)
	_, err := a.shop.Exec(ctx, `SELECT dbcontroller.acquired($1, interval '0')`, late)
	var pg *pgconn.PgError
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Equal(t, "RD002", pg.Code, "the answer %q is for the first question", pg.Message)
	a.acquire(late)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('i', 77)`)
}

// A transaction that holds a right delays its end; at REPEATABLE READ one with an older snapshot fails with
// 40001.
func TestTheEndOfARightWaitsForStrictWrites(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	a.write(`INSERT INTO orders (customer_id, note) VALUES (4, 'one')`)
	a.Settle()
	older, err := pgx.ConnectConfig(ctx, a.shop.Config())
	require.NoError(t, err)
	defer func() { _ = older.Close(ctx) }()
	snapshot, err := older.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	_, err = snapshot.Exec(ctx, `SELECT FROM public.orders`)
	require.NoError(t, err)
	tx, err := a.shop.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `INSERT INTO orders (customer_id, note) VALUES (4, 'two')`)
	require.NoError(t, err)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 4`)
	a.Capture(a.ID(crm))
	done, err := a.Act(a.ID(shop), a.ID(crm))
	require.NoError(t, err)
	require.Zero(t, done, "the right is used by a transaction")
	require.NoError(t, tx.Commit(ctx))

	a.Settle()
	_, err = snapshot.Exec(ctx, `INSERT INTO public.orders (customer_id, note) VALUES (4, 'three')`)
	var pg *pgconn.PgError
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Equal(t, "40001", pg.Code, pg.Message)
	require.NoError(t, snapshot.Rollback(ctx))
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// Rights of before a failover do not count; rights that rows need are acquired again.
func TestStrictRowsSurviveAFailover(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	require.NoError(t, a.crm.Close(ctx))
	restore := a.Backup(crm) // without the rights
	a.write(`INSERT INTO orders (customer_id, note) VALUES (4, 'one')`)
	a.write(`INSERT INTO invoices (id, customer_id) VALUES ('i', 6)`)
	restore()
	a.Recover(crm)
	a.crm = a.connect(crm, ``)
	a.Settle()
	a.again()
	a.again()
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 6`)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 4`)
	a.Settle()
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// References that cannot be strict are refused with the reason, and a process without rights does not join.
func TestStrictIsRefusedInWords(t *testing.T) {
	t.Parallel()
	services := strings.ReplaceAll(attachedServices, "region: eu, behaviour:",
		"region: eu, enforce: strict, behaviour:")
	services = strings.Replace(services, "  - kind: Customer\n", "  - kind: Customer\n    delegation: none\n", 1)
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.tables()
	a.exec(a.shop, `ALTER TABLE invoices ALTER COLUMN seat TYPE numeric`)
	require.NoError(t, joins(a.Box, shop, shadow.Config{}))
	plans, err := attach.Prepare(t.Context(), a.shop, a.Stores[a.ID(shop)].Model(), true)
	require.NoError(t, err)
	var said []string
	for _, p := range plans {
		for _, f := range p.Findings {
			said = append(said, f.Text)
		}
	}
	text := strings.Join(said, "\n")
	require.Contains(t, text, "customer_id: crm.example.com/Customer gives no right to refer to it without asking")
	require.Contains(t, text, "seat is of type numeric; the columns of a reference are of")
	require.Contains(t, text, "1 processes of the deployment cannot serve references of rows")
	a.exec(a.shop,
		`DELETE FROM dbcontroller.member; INSERT INTO dbcontroller.attachment (kind_id, kind, definition, checksum, ready) VALUES (1, 'X', '{"references": []}', '', true)`)
	require.ErrorContains(t, joins(a.Box, shop, shadow.Config{}), "attached tables here have references")
	require.NoError(t, joins(a.Box, shop, shadow.Config{Delegations: true}))
}

// A transaction that took a right before a failover of the target's database is waited for; its references
// are compared.
func TestAFailoverWaitsForStrictTransactions(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	require.NoError(t, a.crm.Close(ctx))
	restore := a.Backup(crm) // without the rights
	a.acquire([]string{"ACT " + customer("4")})
	older, err := pgx.ConnectConfig(ctx, a.shop.Config())
	require.NoError(t, err)
	defer func() { _ = older.Close(ctx) }()
	snapshot, err := older.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	_, err = snapshot.Exec(ctx, `SELECT FROM public.orders`)
	require.NoError(t, err)
	tx, err := a.shop.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `INSERT INTO orders (customer_id, note) VALUES (4, 'one')`)
	require.NoError(t, err)
	restore()
	a.Recover(crm)
	a.crm = a.connect(crm, ``)
	a.Settle()
	waits := `SELECT unconfirmed::text FROM dbcontroller.deployment WHERE service = 'shop.example.com'`
	require.Equal(t, []string{"true"}, a.rows(a.crm, waits),
		"a transaction may write under a right that the restore has lost")

	require.NoError(t, tx.Commit(ctx))
	a.Settle()
	a.again()
	a.again()
	require.Equal(t, []string{"false"}, a.rows(a.crm, waits))
	_, err = snapshot.Exec(ctx, `INSERT INTO public.orders (customer_id, note) VALUES (4, 'two')`)
	var pg *pgconn.PgError
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Equal(t, "40001", pg.Code, pg.Message)
	require.NoError(t, snapshot.Rollback(ctx))
	a.exec(a.crm, `DELETE FROM customers WHERE id = 4`)
	a.Settle()
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// No open transaction keeps a right away: neither a user of the other right to the same target, nor the
// transaction that needs both.
func TestARightIsGrantedBesideTransactionsThatUseTheOther(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	for i, first := range []struct{ uses, needs, sql string }{
		{"ACT ", "BLOCK ", `INSERT INTO orders (customer_id, note) VALUES (4, 'one')`},
		{"BLOCK ", "ACT ", `INSERT INTO invoices (id, customer_id) VALUES ('i', 5)`},
	} {
		target := customer(strconv.Itoa(4 + i))
		a.acquire([]string{first.uses + target})
		other := a.connect(shop, `BEGIN`)
		a.exec(other, first.sql)
		// nor other transactions' rights
		a.acquire([]string{
			first.needs + target, "ACT " + customer(strconv.Itoa(6+i)),
			"BLOCK " + customer(strconv.Itoa(8+i)),
		})
		a.exec(other, `INSERT INTO invoices (id, customer_id) VALUES ('both' || $1, $1::text::int)`, strconv.Itoa(4+i))
		a.exec(other, `INSERT INTO orders (customer_id, note) VALUES ($1, 'both')`, 4+i)
		a.exec(other, `COMMIT`)
	}
	a.Settle()
	require.Equal(t, []string{"3", "3"},
		a.rows(a.shop, `SELECT count(*)::text FROM orders UNION ALL SELECT count(*)::text FROM invoices`))
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 4`)
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A statement that ends all rights of a deployment waits for the statements that use them.
func TestTheEndOfAllRightsWaitsForStrictWrites(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(a *attached) error{
		"decommissioned there": func(a *attached) error {
			return a.Stores[a.ID(shop)].Targets.DecommissionedBy(context.Background(), a.ID(crm))
		},
		"a process without delegations joins": func(a *attached) error { return joins(a.Box, shop, shadow.Config{}) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			a := newStrict(t)
			a.acquire([]string{"ACT " + customer("4")})
			writer := a.connect(shop, `BEGIN`)
			a.exec(writer, `INSERT INTO orders (customer_id, note) VALUES (4, 'one')`)
			a.exec(a.shop, `UPDATE dbcontroller.attachment SET ready = false`) // its table is detached
			ended := make(chan error, 1)
			go func() { ended <- end(a) }()
			require.Eventually(t, func() bool {
				return a.rows(a.shop,
					`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'`)[0] == "1"
			}, wait.Limit, 10*time.Millisecond)
			a.exec(writer, `COMMIT`)
			require.NoError(t, <-ended)
			require.Equal(t, []string{"0"},
				a.rows(a.shop, `SELECT count(*)::text FROM dbcontroller.foreign_target WHERE acting_epoch IS NOT NULL`))
		})
	}
}

// A request is not answered with a right that is about to end: the statement would be refused again at once.
func TestARightThatEndsIsAcquiredAnew(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	order := `INSERT INTO orders (customer_id, note) VALUES (4, 'one')`
	a.acquire(a.lacks(order))
	// its process died
	a.exec(a.shop,
		`INSERT INTO dbcontroller.ending SELECT id, now() + interval '10 s' FROM dbcontroller.foreign_target`)
	a.write(order)
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// Any SQL takes rights, and gives them back: statements that insert and update at once, COPY, a savepoint,
// native cascades, prepared transactions, and transactions that name the same targets in another order.
func TestStrictTablesTakeAnySQL(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	a.exec(a.shop, `CREATE TABLE carts (id int PRIMARY KEY); INSERT INTO carts VALUES (1), (2);
ALTER TABLE invoices ADD cart int REFERENCES carts ON DELETE CASCADE ON UPDATE CASCADE`)
	for sql, lacking := range map[string]string{
		`INSERT INTO invoices (id, customer_id) VALUES ('i', NULL), ('i2', 1) ON CONFLICT (id) DO UPDATE SET customer_id = 2`:                                       "1",
		`MERGE INTO invoices i USING (VALUES ('m', 3)) AS n (id, customer) ON i.id = n.id WHEN NOT MATCHED THEN INSERT (id, customer_id) VALUES (n.id, n.customer)`: "3",
		`WITH one AS (INSERT INTO invoices (id, customer_id) VALUES ('c', 4) RETURNING id) SELECT FROM one`:                                                         "4",
	} {
		require.Equal(t, []string{"BLOCK " + customer(lacking)}, a.lacks(sql), sql)
	}
	copied := func() error {
		_, err := a.shop.CopyFrom(ctx, pgx.Identifier{"invoices"}, []string{"id", "customer_id"},
			pgx.CopyFromRows([][]any{{"p", int64(5)}, {"q", int64(5)}}))
		return err
	}
	require.ErrorContains(t, copied(), "1 right is lacking")
	a.acquire([]string{"BLOCK " + customer("1"), "BLOCK " + customer("2"), "BLOCK " + customer("5")})
	require.NoError(t, copied())

	// After an error the rest of the transaction goes on from a savepoint.
	a.exec(a.shop,
		`INSERT INTO invoices (id, customer_id, cart) VALUES ('i', 1, 1); INSERT INTO invoices (id, customer_id) VALUES ('i', 1) ON CONFLICT (id) DO UPDATE SET customer_id = 2`)
	tx, err := a.shop.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `INSERT INTO invoices (id, customer_id) VALUES ('s', 1)`)
	require.NoError(t, err)
	inner, err := tx.Begin(ctx)
	require.NoError(t, err)
	_, err = inner.Exec(ctx, `INSERT INTO invoices (id, customer_id) VALUES ('none', 9)`)
	require.Error(t, err)
	require.NoError(t, inner.Rollback(ctx))
	require.NoError(t, tx.Commit(ctx))

	// Rights are shared: no order of statements deadlocks.
	other := a.connect(shop, ``)
	one, err := a.shop.Begin(ctx)
	require.NoError(t, err)
	two, err := other.Begin(ctx)
	require.NoError(t, err)
	for i, step := range []pgx.Tx{one, two, one, two} {
		_, err = step.Exec(ctx, `INSERT INTO invoices (id, customer_id) VALUES ($1, $2)`, "d"+strconv.Itoa(i),
			[]int{1, 2, 2, 1}[i])
		require.NoError(t, err)
	}
	require.NoError(t, one.Commit(ctx))
	require.NoError(t, two.Commit(ctx))
	a.Settle()
	require.Equal(t, []string{"8"}, a.rows(a.shop, `SELECT count(*)::text FROM invoices WHERE customer_id IS NOT NULL`),
		"two copied ones, i, s, and four")
	require.Zero(t, a.Count(shop, "reference"))

	// The key of a native parent changes, and then it goes, with the invoice.
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
	a.exec(a.shop, `UPDATE carts SET id = 7 WHERE id = 1; DELETE FROM carts WHERE id = 7`)
	a.exec(a.shop, `DELETE FROM invoices WHERE id LIKE 'd%'`)
	a.Settle()
	a.returned()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 2`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 1`)

	// A prepared transaction holds the right until it is decided, for any time, and its rows count from its
	// commit.
	a.acquire([]string{"ACT " + customer("6")})
	a.exec(a.shop, `BEGIN; INSERT INTO orders (customer_id, note) VALUES (6, 'prepared'); PREPARE TRANSACTION 'strict'`)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 6`)
	a.Capture(a.ID(crm))
	done, err := a.Act(a.ID(shop), a.ID(crm))
	require.NoError(t, err)
	require.Zero(t, done, "the right is used by a prepared transaction")
	a.exec(a.shop, `COMMIT PREPARED 'strict'`)
	a.Settle()
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))

	a.exec(a.shop, `TRUNCATE invoices`)
	a.Settle()
	a.returned()
	a.exec(a.crm, `DELETE FROM customers`)
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// Requests of rights are bounded, and an error about very many targets names the remedy.
func TestRequestsOfRightsAreBounded(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	_, err := a.shop.Exec(ctx, `INSERT INTO orders (customer_id) SELECT generate_series(1, 3000)`)
	var pg *pgconn.PgError
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Equal(t, "RD001", pg.Code)
	require.Contains(t, pg.Message, "3000 rights are lacking")
	require.Len(t, strings.Split(pg.Detail, "\n"), 1000)
	require.Contains(t, pg.Hint, "at most 1000 new targets in one transaction")

	a.exec(a.shop,
		`INSERT INTO dbcontroller.right_request (target, answered, asked_by) SELECT 'BLOCK ' || g, true, session_user FROM generate_series(1, 100000) g`)
	_, err = a.shop.Exec(ctx, `SELECT dbcontroller.acquire('{BLOCK //crm.example.com/eu/customers/1}')`)
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Equal(t, "RD002", pg.Code, pg.Message)
	a.exec(a.shop, `UPDATE dbcontroller.right_request SET asked_at = now() - interval '6 min'`)
	a.AnswerRequests(shop)
	a.acquire([]string{"BLOCK " + customer("1")})

	_, err = a.shop.Exec(ctx, `SELECT dbcontroller.acquire(ARRAY[repeat('a', 200000)])`)
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Equal(t, "54000", pg.Code, "a look would read thousands of such names into memory")
	a.exec(a.shop,
		`INSERT INTO dbcontroller.right_request (target, answered, asked_by) SELECT 'BLOCK ' || g, true, 'another' FROM generate_series(1, 60000) g`)
	a.exec(a.shop, `SELECT dbcontroller.acquire('{BLOCK //crm.example.com/eu/customers/2}')`)
	a.exec(a.shop, `UPDATE dbcontroller.right_request SET asked_by = session_user`)
	_, err = a.shop.Exec(ctx, `SELECT dbcontroller.acquire('{BLOCK //crm.example.com/eu/customers/3}')`)
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Equal(t, "RD002", pg.Code, "one role leaves places for others")
}

// A table full of requests, for one deployment or for very many that are made up, costs a look little, and
// leaves no names behind.
func TestVeryManyRequestsCostALookLittle_I20_I21(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	store, ctx := a.Stores[a.ID(shop)], context.Background()
	require.NoError(t, store.Gate.Recover(ctx, a.Environment()))
	a.exec(a.shop,
		`INSERT INTO dbcontroller.right_request (target, asked_by) SELECT 'BLOCK //crm.example.com/mars-' || g || '/customers/1', 'app' FROM generate_series(1, 2000) g`)
	before := numbered(t, a.Box, shop)
	a.AnswerRequests(shop)
	a.AnswerRequests(shop)
	require.Equal(t, before, numbered(t, a.Box, shop))
	var problem string
	require.NoError(t,
		a.shop.QueryRow(ctx, `SELECT problem FROM dbcontroller.right_request WHERE target LIKE '%mars-1999/%'`).
			Scan(&problem))
	require.Contains(t, problem, "not in the environment")

	a.exec(a.shop,
		`INSERT INTO dbcontroller.right_request (target, asked_by) SELECT 'BLOCK //crm.example.com/mars/customers/' || g, 'app' FROM generate_series(1, 50000) g`)
	read := func() (blocks int) {
		var plan []byte
		require.NoError(t, a.Pools[a.ID(shop)].QueryRow(ctx, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+
			shadow.SelectRequestsSQL, "8s", 500, 5000, 1000).Scan(&plan))
		var parsed []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
				Temp int `json:"Temp Written Blocks"`
			}
		}
		require.NoError(t, json.Unmarshal(plan, &parsed))
		require.Zero(t, parsed[0].Plan.Temp, "sorted on disk")
		return parsed[0].Plan.Hit + parsed[0].Plan.Read
	}
	require.Less(t, read(), 1500, "blocks, of 500 rows and the index")
}
