package attached

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/harness"
)

// After any concurrent operations of the application and the controllers, in any order, and the replacement
// of any database by an earlier copy, every row refers to a row that exists, or is reported; no row is gone
// that nothing deleted; and each controller has the rights that the rows need.
func TestAttachedTablesUnderChaos(t *testing.T) {
	for _, seed := range seeds(t, 3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { playChaos(t, seed, 3, false) })
	}
}

// With strict references no row refers to nothing, not even for a time, unless a database was replaced by an
// earlier copy.
func TestStrictTablesUnderChaos(t *testing.T) {
	for _, seed := range seeds(t, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { playChaos(t, seed, 2, true) })
	}
}

// outcomes that an application has to expect from native keys as well: refusals, and lost races. (And 55006,
// of a key that is used again too early.)
var expected = []string{"23503", "23505", "40001", "40P01", "21000", "55006"}

type chaos struct {
	*world
	r       *rand.Rand
	restore func()
	of      string
	written atomic.Int64 // strict transactions that were repeated, and accepted then
}

func playChaos(t *testing.T, seed uint64, rounds int, strict bool) {
	t.Helper()
	w := newWorld(t, strict)
	c := &chaos{world: w, r: rand.New(rand.NewPCG(seed, 4))}
	for _, d := range deployments {
		w.attach(d)
		w.Capture(w.ID(d))
	}
	for round := range rounds {
		c.round(seed*100 + uint64(round)) //nolint:gosec // small
		if round == 0 && seed%3 > 0 && !strict {
			c.backup()
		}
		if round == rounds-1 && c.restore != nil {
			c.replace()
		}
		c.settle()
		c.check()
	}
	if strict { // at rest, also when a region was away all the time before
		c.exec(crm, `INSERT INTO customers VALUES (1000)`)
		before := c.written.Load()
		err := c.persist(c.apps[shop], transaction{
			at: shop, isolation: "READ COMMITTED",
			statements: []string{`INSERT INTO orders (id, customer_id) VALUES ('new', 1000)`},
		})
		if err != nil || c.written.Load() == before {
			c.wrong("no transaction has acquired a right: %v", err)
		}
	}
}

// backup copies one of the databases.
func (c *chaos) backup() {
	c.t.Helper()
	c.of = deployments[c.r.IntN(3)]
	c.note("backup of %s", c.of)
	_ = c.apps[c.of].Close(context.Background())
	c.restore = c.Backup(c.of)
	c.connect(c.of)
}

// replace restores the copy.
func (c *chaos) replace() {
	c.t.Helper()
	c.note("%s is replaced by its copy", c.of)
	_ = c.apps[c.of].Close(context.Background())
	c.restore()
	c.Recover(c.of)
	c.Expire(c.of) // tentative blockades of the copy, whose confirmations were before
	c.connect(c.of)
}

// round lets two applications and the controllers run beside one another.
func (c *chaos) round(seed uint64) {
	c.t.Helper()
	var users, beside sync.WaitGroup
	over := make(chan struct{})
	beside.Go(func() {
		r := rand.New(rand.NewPCG(seed, 5))
		for {
			select {
			case <-over:
				return
			default:
				c.step(r)
				if r.IntN(30) == 0 {
					c.SetDown(deployments[r.IntN(3)], r.IntN(2) == 0)
				}
			}
		}
	})
	said := make(chan string, 1000)
	for user := range uint64(2) {
		users.Go(func() { c.user(seed, user, said) })
	}
	users.Wait()
	close(over)
	beside.Wait()
	close(said)
	for line := range said {
		c.note("%s", line)
		if strings.HasPrefix(line, "!") {
			c.wrong("%s", line)
		}
	}
}

// user plays transactions over connections of its own.
func (c *chaos) user(seed, user uint64, said chan<- string) {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 100+user))}
	g.n = int(1000 * (1 + user + 2*(seed%100))) //nolint:gosec // small
	conns := map[string]*pgx.Conn{}
	for _, d := range deployments {
		cfg := c.apps[d].Config().Copy()
		cfg.RuntimeParams["search_path"], cfg.RuntimeParams["enable_seqscan"], cfg.RuntimeParams["dbcontroller.reuse_wait"] = "public", "on", "20ms"
		conn, err := pgx.ConnectConfig(context.Background(), cfg)
		if err != nil {
			said <- "! " + err.Error()
			return
		}
		defer func() { _ = conn.Close(context.Background()) }()
		conns[d] = conn
	}
	for range 25 {
		tx := g.transaction()
		err := c.persist(conns[tx.at], tx)
		mark := ""
		if err != nil && !slices.Contains(expected, refusal(err)) {
			mark = "! " // a trigger fails only to refuse
		}
		said <- fmt.Sprintf("%suser %d: %v: %v", mark, user, tx, err)
	}
}

// persist runs a transaction; where rights are lacking, it acquires them and repeats the transaction a few
// times.
func (c *chaos) persist(conn *pgx.Conn, tx transaction) error {
	for try := 0; ; try++ {
		err := c.run(conn, tx, func() {})
		if refusal(err) != "RD001" {
			if err == nil && try > 0 {
				c.written.Add(1)
			}
			return err
		}
		if try == 5 {
			return nil // its region is away
		}
		var pg *pgconn.PgError
		_ = errors.As(err, &pg)
		rights := strings.Split(pg.Detail, "\n")
		ctx := context.Background()
		if _, err := conn.Exec(ctx, `SELECT dbcontroller.acquire($1)`, rights); err != nil {
			return err
		}
		_ = c.Stores[c.ID(tx.at)].RightRequests.AnswerRequests(ctx)
		_, _ = c.Do(c.ID(tx.at), schema.Confirm)
		_ = c.Stores[c.ID(tx.at)].RightRequests.AnswerRequests(ctx)
		if _, err := conn.Exec(ctx, `SELECT dbcontroller.acquired($1, interval '0')`, rights); err != nil &&
			refusal(err) != "RD002" {
			return err
		}
	}
}

const danglingSQL = `
SELECT '//' || $1 || '/' || h.name || ' ' || f.path FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id JOIN dbcontroller.field f ON f.id = r.field_id
WHERE r.dangling`

// check looks at everything at rest.
func (c *chaos) check() {
	c.t.Helper()
	app := func(table string) *pgx.Conn { return c.apps[databaseOf[table]] }
	missing, others := c.notes()
	if len(others) > 0 {
		c.wrong("rows wait without end: %q", others)
	}
	if c.strict && len(missing) > 0 {
		c.wrong("rows of strict tables refer to nothing: %q", missing)
	}
	for _, d := range deployments {
		if n := c.Count(d, "deleting") + c.Count(d, "work"); n > 0 {
			c.wrong("%s has %d resources in DELETING or pieces of work, and nothing keeps them", d, n)
		}
	}
	present := c.bodies(app, func(r reference) []string { return r.columns })
	stored := c.held()
	for name, body := range present {
		if !slices.Contains(missing, name) && same(c.t, map[string]string{name: body},
			map[string]string{name: stored[name]}) != "" {
			c.wrong("%s refers to %s, by its rights to %s, and it is not reported\n%s", name, body, stored[name],
				c.history(name))
		}
	}
	for _, r := range references {
		c.targets(r, missing)
	}
	for _, d := range deployments {
		found, err := c.apps[d].Query(context.Background(), danglingSQL, d)
		require.NoError(c.t, err)
		dangling, err := pgx.CollectRows(found, pgx.RowTo[string])
		require.NoError(c.t, err)
		if len(dangling) > 0 {
			c.wrong("references dangle: %q", dangling)
		}
	}
	if problems := harness.AuditDatabases(c.t, c.Pools); len(problems) > 0 {
		c.wrong("%v", problems)
	}
}

const historySQL = `
SELECT concat_ws(' ', 'change', c.seq, 'state', c.state, 'revision', c.revision, c.uid, c.body) FROM dbcontroller.change c WHERE c.name = $1
UNION ALL
SELECT concat_ws(' ', 'now', 'state', s.state, 'revision', s.revision, s.uid, 'hidden', s.hidden, r.body) FROM dbcontroller.shadow s LEFT JOIN dbcontroller.resource r USING (id) WHERE s.name = $1
UNION ALL
SELECT concat_ws(' ', 'note', c.seq, 'gone', c.gone, c.problem) FROM dbcontroller.deleted_row c WHERE c.name = $1
UNION ALL
SELECT concat_ws(' ', 'value', l.seq, l.path, l.texts, l.problem) FROM dbcontroller.lacking l
UNION ALL
SELECT concat_ws(' ', 'right', f.id, f.name, f.uid, 'acting', f.acting_epoch IS NOT NULL, 'block', f.block_epoch IS NOT NULL) FROM dbcontroller.foreign_target f`

// history returns the changes of a resource, and its state.
func (c *chaos) history(name string) string {
	c.t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(c.t, err)
	found, err := c.apps[full.Deployment.String()].Query(context.Background(), historySQL, full.Name)
	require.NoError(c.t, err)
	lines, err := pgx.CollectRows(found, pgx.RowTo[string])
	require.NoError(c.t, err)
	return strings.Join(lines, "\n")
}

// targets fails for a row whose target does not exist, and that is not reported.
func (c *chaos) targets(r reference, missing []string) {
	c.t.Helper()
	there := map[string]bool{}
	for _, key := range c.keys(r.target, r.key, "") {
		there[key] = true
	}
	where := "num_nulls(" + prefixed("", r.columns) + ") = 0"
	if r.region != "" {
		where += " AND " + r.region + " IS NOT NULL"
	}
	for _, row := range c.keys(r.table, append([]string{"id"}, r.columns...), where) {
		id, key, _ := strings.Cut(row, "|")
		if name := resource(databaseOf[r.table], r.table, []string{id}); !there[key] &&
			!slices.Contains(missing, name) {
			c.wrong("%s refers to %s %s by %s, which does not exist, and is not reported", name, r.target, key, r.name)
		}
	}
}

func (c *chaos) keys(table string, columns []string, where string) []string {
	c.t.Helper()
	sql := fmt.Sprintf("SELECT concat_ws('|', %s) FROM %s WHERE %s", prefixed("", columns), table, aliveIn(table))
	if where != "" {
		sql += " AND " + where
	}
	found, err := c.apps[databaseOf[table]].Query(context.Background(), sql)
	require.NoError(c.t, err)
	keys, err := pgx.CollectRows(found, pgx.RowTo[string])
	require.NoError(c.t, err)
	return keys
}
