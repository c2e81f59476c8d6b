package shadow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// A batch takes a time in proportion to its rows: no step of a plan reads a multiple of them, as a nested
// loop of two lists of the batch does. The tables were emptied and analysed before, as by autovacuum; the
// statistics are renewed once they have grown, as RunStatistics does.
func TestTheStepsOfABatchAreLinear(t *testing.T) {
	t.Parallel()
	const n = 200
	p := &plans{}
	p.limit(20 * n)
	b := newPair(t, func(cfg *shadow.Config) {
		cfg.Times.PollInterval = time.Hour
		cfg.Pool = p.pool(t, cfg.Pool.Config())
	})
	west, east := "//"+aWest+"/", "//"+bEast+"/"
	owner := peer.OwnerReference{Owner: schema.FullName{Deployment: b.ID(aWest), Name: "targets/owner"}, Kind: "Target"}
	for round := range 2 {
		p.look(round > 0)
		for _, name := range []string{"root", "cascade", "unset", "async", "guard", "owner"} {
			b.MustPut(west+"targets/"+name, nil)
		}
		b.MustPut(east+"holders/root", nil)
		save := func(deployment, prefix string, content func(i int) body, owners ...peer.OwnerReference) {
			writes := make([]peer.Write, n)
			for i := range writes {
				writes[i] = peer.Write{Name: fmt.Sprint(prefix, i), Body: content(i), Owners: owners}
			}
			_, err := b.Stores[b.ID(deployment)].Write.Save(t.Context(), writes)
			require.NoError(t, err)
			for _, pool := range b.Pools {
				_, err := pool.Exec(t.Context(), `ANALYZE`)
				require.NoError(t, err)
			}
		}
		root := body{"cascade": "holders/root"}
		save(aWest, "targets/root/children/", func(int) body { return nil })
		save(aWest, "targets/own", func(int) body { return body{"next": "targets/root"} })
		save(bEast, "holders/cascade", func(int) body {
			return body{"cascade": west + "targets/cascade", "block": west + "targets/guard"}
		})
		save(bEast, "holders/unset", func(int) body {
			return body{"unset": west + "targets/unset", "block": west + "targets/guard", "near": root}
		})
		save(bEast, "holders/async", func(int) body { return body{"asyncCascade": west + "targets/async"} })
		save(bEast, "holders/owned", func(int) body { return nil }, owner)
		save(bEast, "holders/own", func(i int) body {
			return body{"block": fmt.Sprint(west, "targets/own", i), "near": body{
				"cascade": "holders/root",
				"unset":   fmt.Sprint("holders/cascade", i),
			}}
		})
		save(bEast, "holders/moved", func(i int) body {
			own := fmt.Sprint(west, "targets/own", i)
			return body{"block": own, "unset": own, "near": body{"cascade": fmt.Sprint("holders/own", i)}}
		})
		b.Settle()
		save(bEast, "holders/moved", func(i int) body { // each to the next target
			own := fmt.Sprint(west, "targets/own", (i+1)%n)
			return body{"block": own, "cascade": own, "near": body{"cascade": fmt.Sprint("holders/own", i)}}
		})
		b.Settle()
		// One write, among all these, reads the rows that concern it.
		p.limit(n / 2)
		for _, content := range []body{
			{"block": west + "targets/guard", "unset": west + "targets/own0"},
			{"block": west + "targets/own1"},
		} {
			b.MustPut(east+"holders/one", content)
			b.Settle()
		}
		b.MustDelete(east + "holders/one")
		b.Settle()
		p.limit(20 * n)
		for _, name := range []string{
			west + "targets/cascade", west + "targets/unset", west + "targets/async",
			west + "targets/owner", east + "holders/root", west + "targets/root",
		} {
			b.MustDelete(name)
			b.Settle()
		}
		b.MustDelete(west + "targets/guard")
		for _, pool := range b.Pools {
			_, err := pool.Exec(t.Context(), `VACUUM (TRUNCATE false, ANALYZE)`)
			require.NoError(t, err)
		}
	}
	require.Positive(t, p.seen)
}

// Values without a right are looked up one by one by the index, for any number of them.
func TestValuesWithoutARightAreLinear(t *testing.T) {
	t.Parallel()
	const n = 20_000
	p := &plans{}
	p.limit(2 * n)
	a := &attached{Box: harness.NewBox(t, attachedServices, func(cfg *shadow.Config) {
		cfg.Delegations, cfg.Times.PollInterval, cfg.Pool = true, time.Hour, p.pool(t, cfg.Pool.Config())
	}, crm, shop), t: t}
	a.tables()
	a.attach()
	a.exec(a.shop, fmt.Sprintf(`
INSERT INTO dbcontroller.lacking (kind_id, path, texts, target) SELECT (SELECT kind_id FROM dbcontroller.attachment WHERE kind = 'Order'), 'customer_id', '["' || g || '"]', '//%s/customers/' || g
FROM generate_series(1, %d) g; ANALYZE dbcontroller.lacking`, crm, n))
	p.look(true)
	a.Settle() // no row has them
	p.look(false)
	require.Empty(t, a.noted())
	require.Positive(t, p.seen)
}

// A batch of references to one target, beside many others, is not joined by the target alone.
func TestABatchAtOneTargetIsLinear(t *testing.T) {
	t.Parallel()
	const n = 200
	p := &plans{}
	p.limit(20 * n)
	b := newPair(t, func(cfg *shadow.Config) {
		cfg.Times.PollInterval = time.Hour
		cfg.Pool = p.pool(t, cfg.Pool.Config())
	})
	b.MustPut(target, nil)
	for i := range 10 {
		writes := make([]peer.Write, n)
		for j := range writes {
			at := target
			if i > 0 {
				at = fmt.Sprintf("//%s/targets/other%d-%d", aWest, i, j)
				b.MustPut(at, nil)
			}
			writes[j] = peer.Write{Name: fmt.Sprintf("holders/h%d-%d", i, j), Body: body{"unset": at}}
		}
		_, err := b.Stores[b.ID(bEast)].Write.Save(t.Context(), writes)
		require.NoError(t, err)
	}
	b.Settle()
	for _, pool := range b.Pools {
		_, err := pool.Exec(t.Context(), `VACUUM (ANALYZE)`)
		require.NoError(t, err)
	}
	p.look(true)
	b.MustDelete(target)
	b.Settle()
	require.Positive(t, p.seen)
}

// An answer to the questions of a target's deployment reads the asked references alone, by any statistics:
// autovacuum may have analysed each table at another moment.
func TestAnAnswerReadsTheAskedReferencesByAnyStatistics(t *testing.T) {
	t.Parallel()
	const n = 300
	p := &plans{}
	p.limit(4 * n)
	b := newPair(t, func(cfg *shadow.Config) {
		cfg.Times.PollInterval = time.Hour
		if cfg.Deployment.Service == "b.example.com" {
			cfg.Pool = p.pool(t, cfg.Pool.Config())
		}
	})
	b.MustPut(target, nil)
	statistics := []string{
		`ANALYZE`,
		`UPDATE pg_class SET reltuples = 0, relpages = 1 WHERE relnamespace = 'dbcontroller'::regnamespace AND relkind = 'r'`,
		`UPDATE pg_class SET reltuples = 1000000, relpages = 10000 WHERE oid IN ('dbcontroller.foreign_target'::regclass, 'dbcontroller.shadow'::regclass)`,
		`DELETE FROM pg_statistic WHERE starelid IN ('dbcontroller.reference'::regclass, 'dbcontroller.foreign_target'::regclass)`,
		`ALTER TABLE dbcontroller.reference ALTER target_id SET (n_distinct = -1); ANALYZE dbcontroller.reference`,
	}
	for i, sql := range statistics {
		writes := make([]peer.Write, n)
		for j := range writes {
			writes[j] = peer.Write{Name: fmt.Sprintf("holders/h%d-%d", i, j), Body: body{"block": target}}
		}
		_, err := b.Stores[b.ID(bEast)].Write.Save(t.Context(), writes)
		require.NoError(t, err)
		_, err = b.Pools[b.ID(bEast)].Exec(t.Context(), sql)
		require.NoError(t, err, sql)
		b.Expire(aWest)
		p.look(true)
		require.NoError(t, b.Resolve(b.ID(aWest)))
		p.look(false)
		b.Settle()
	}
	require.Positive(t, p.seen)
}

// plans looks at the plans of all statements of the processes of a test, with the numbers of rows of their
// steps.
type plans struct {
	mu   sync.Mutex
	rows int  // that a step may read; guarded by mu
	on   bool // guarded by mu
	seen int  // guarded by mu
}

func (p *plans) limit(rows int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rows = rows
}

const explainSQL = `
SET ROLE NONE;
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off; SET auto_explain.log_format = json;
SET auto_explain.log_nested_statements = on; SET client_min_messages = log;`

func (p *plans) pool(t *testing.T, cfg *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	if conn, err := pgx.ConnectConfig(t.Context(), cfg.ConnConfig); assert.NoError(t, err) {
		defer func() { _ = conn.Close(context.Background()) }()
		if _, err := conn.Exec(t.Context(), explainSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Skipf("it needs a superuser, and the module auto_explain: %v", err)
		}
	}
	cfg = cfg.Copy()
	connected := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if connected != nil {
			if err := connected(ctx, conn); err != nil {
				return err
			}
		}
		var role string
		if err := conn.QueryRow(ctx, `SELECT current_user`).Scan(&role); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, explainSQL+`SET ROLE `+pgx.Identifier{role}.Sanitize(),
			pgx.QueryExecModeSimpleProtocol)
		return err
	}
	cfg.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { p.hear(t, n.Message) }
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func (p *plans) look(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = on
}

func (p *plans) hear(t *testing.T, message string) {
	_, text, ok := strings.Cut(message, "plan:\n")
	p.mu.Lock()
	defer p.mu.Unlock()
	if !ok || !p.on {
		return
	}
	var plan struct {
		SQL  string   `json:"Query Text"`
		Plan planNode `json:"Plan"`
	}
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		t.Errorf("%v: %s", err, text)
		return
	}
	p.seen++
	p.walk(t, plan.SQL, plan.Plan)
}

type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	CTE      string     `json:"CTE Name"`
	Index    string     `json:"Index Name"`
	Rows     float64    `json:"Actual Rows"`
	Loops    float64    `json:"Actual Loops"`
	Filtered float64    `json:"Rows Removed by Filter"`
	Joined   float64    `json:"Rows Removed by Join Filter"`
	Plans    []planNode `json:"Plans"`
}

func (p *plans) walk(t *testing.T, sql string, n planNode) {
	if read := (n.Rows + n.Filtered + n.Joined) * n.Loops; read > float64(p.rows) {
		t.Errorf("a step of a plan reads %.0f rows, want at most %d: %s %s%s%s in %s", read, p.rows, n.Type, n.Relation,
			n.CTE, n.Index, sql)
	}
	for _, below := range n.Plans {
		p.walk(t, sql, below)
	}
}
