package attached

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// world is three deployments whose tables are attached.
type world struct {
	*harness.Box
	t       testing.TB
	apps    map[string]*pgx.Conn // of the application
	strict  bool                 // all references are strict
	journal []string
}

func newWorld(t testing.TB, strict bool) *world {
	t.Helper()
	declared := services
	if strict {
		declared = strings.ReplaceAll(services, "behaviour:", "enforce: strict, behaviour:")
	}
	w := &world{Box: harness.NewBox(t, declared, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, deployments...), t: t, apps: map[string]*pgx.Conn{}, strict: strict}
	for _, d := range deployments {
		w.connect(d)
		w.exec(d, tables[d])
		w.exec(d, `GRANT ALL ON ALL TABLES IN SCHEMA public TO dbcontroller_box_serving`)
	}
	return w
}

// connect opens the application's connection, again after its database was replaced.
func (w *world) connect(d string) {
	w.t.Helper()
	ctx := context.Background()
	conn, err := pgx.ConnectConfig(ctx, w.Pools[w.ID(d)].Config().ConnConfig)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close(ctx) })
	w.apps[d] = conn
	w.exec(d, `SET search_path = public; SET enable_seqscan = on; SET dbcontroller.reuse_wait = '20ms'`)
}

func (w *world) exec(d, sql string) {
	w.t.Helper()
	_, err := w.apps[d].Exec(context.Background(), sql)
	require.NoError(w.t, err, sql)
}

// attach attaches the tables of a database.
func (w *world) attach(d string) {
	w.t.Helper()
	ctx := context.Background()
	plans, err := attach.Prepare(ctx, w.apps[d], w.Stores[w.ID(d)].Model(), false)
	require.NoError(w.t, err)
	for _, p := range plans {
		require.False(w.t, p.Refused(), "%v", p.Findings)
		require.NoError(w.t, attach.Apply(ctx, w.apps[d], p, func(error) {}))
		require.NoError(w.t, attach.Confirm(ctx, w.apps[d], p))
	}
}

func (w *world) note(format string, args ...any) {
	w.journal = append(w.journal, fmt.Sprintf(format, args...))
}

// wrong fails the campaign.
func (w *world) wrong(format string, args ...any) {
	w.t.Helper()
	require.FailNow(w.t, fmt.Sprintf(format, args...), "the last steps:\n%s",
		strings.Join(w.journal[max(0, len(w.journal)-80):], "\n"))
}

// refusal returns the SQLSTATE of an error of PostgreSQL, or "".
func refusal(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// run runs a transaction of the application. pause runs between its statements.
func (w *world) run(conn *pgx.Conn, t transaction, pause func()) error {
	ctx := context.Background()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(strings.ToLower(t.isolation))})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for _, sql := range t.statements {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
		pause()
	}
	return tx.Commit(ctx)
}

// insist runs a transaction as the application of strict tables does: it acquires the rights that are
// lacking, and repeats it.
func (w *world) insist(at string, run func() error) error {
	w.t.Helper()
	for range 20 {
		err := run()
		if refusal(err) != "RD001" {
			return err
		}
		var pg *pgconn.PgError
		_ = errors.As(err, &pg)
		if err := w.acquire(at, strings.Split(pg.Detail, "\n")); err != nil {
			return err
		}
	}
	w.wrong("rights are lacking again and again")
	return nil
}

func (w *world) acquire(at string, rights []string) (err error) {
	w.t.Helper()
	ctx := context.Background()
	for try := range 8 {
		_, err = w.apps[at].Exec(ctx, `SELECT dbcontroller.acquire($1)`, rights)
		require.NoError(w.t, err)
		w.AnswerRequests(at)
		_, _ = w.Do(w.ID(at), schema.Confirm)
		w.AnswerRequests(at)
		if _, err = w.apps[at].Exec(ctx, `SELECT dbcontroller.acquired($1, interval '0')`,
			rights); refusal(err) != "RD002" {
			return err
		}
		// its region is away, or a deletion is under way
		if w.exec(at, `UPDATE dbcontroller.right_request SET asked_at = asked_at - interval '2 s'`); try > 0 {
			w.settle()
		}
	}
	return err
}

// step does one step of some deployment; it may fail, and is then repeated.
func (w *world) step(r *rand.Rand) {
	at, other := w.ID(deployments[r.IntN(3)]), w.ID(deployments[r.IntN(3)])
	switch r.IntN(5) {
	case 0, 1:
		_, _ = w.Stores[at].DeletedRows.DeleteRows(context.Background())
		_, _ = w.Stores[at].RightRequests.AcquireForRows(context.Background())
	case 2:
		_, _ = w.Do(at, []schema.Action{schema.Confirm, schema.Release, schema.Finalise}[r.IntN(3)])
	case 3:
		_ = w.Resolve(at)
	default:
		if at != other {
			_, _ = w.Act(at, other)
		}
	}
}

// crash gives a deployment another process; the memory of the first one is lost.
func (w *world) crash(d string) {
	w.t.Helper()
	w.Stores[w.ID(d)] = w.SecondProcess(d, shadow.Config{Delegations: true})
}

// settle does everything, and tries rows again whose targets are missing.
func (w *world) settle() {
	w.t.Helper()
	for _, d := range deployments {
		w.SetDown(d, false)
	}
	w.Settle()
	for _, d := range deployments { // end the time for which unused rights are kept
		w.exec(d, `UPDATE dbcontroller.foreign_target SET kept_until = NULL`)
		_, err := w.Stores[w.ID(d)].Admin.Tidy(context.Background())
		require.NoError(w.t, err)
	}
	for range 3 { // a value whose target is being deleted is refused for that reason, and then because it is missing
		w.Settle()
		w.expireUncommitted()
		w.Settle()
		for _, d := range deployments {
			w.exec(d, `UPDATE dbcontroller.deleted_row SET due = now(), tries = 0`)
			w.exec(d, `UPDATE dbcontroller.lacking SET due = now(), tries = 0`)
			w.Capture(w.ID(d))
		}
	}
	w.Settle()
	w.expireUncommitted()
	w.Settle()
}

// expireUncommitted lets the time of tentative blockades pass whose attempts have not committed: one release
// covers the newest ten attempts of a write that is repeated, and a database that was replaced by its copy
// has lost its attempts. Such blockades wait until they expire.
func (w *world) expireUncommitted() {
	w.t.Helper()
	ctx := context.Background()
	committed := []uuid.UUID{}
	for _, d := range deployments {
		found, err := w.apps[d].Query(ctx, `SELECT id FROM dbcontroller.attempt WHERE committed`)
		require.NoError(w.t, err)
		more, err := pgx.CollectRows(found, pgx.RowTo[uuid.UUID])
		require.NoError(w.t, err)
		committed = append(committed, more...)
	}
	for _, pool := range w.Pools {
		_, err := pool.Exec(ctx,
			`UPDATE dbcontroller.blockade SET expires_at = now() WHERE expires_at IS NOT NULL AND attempt <> ALL ($1)`,
			committed)
		require.NoError(w.t, err)
	}
}

const heldSQL = `
SELECT CASE WHEN b.block THEN 'BLOCK' ELSE 'ACT' END || ' //' || d.service || '/' || d.region || '/' || f.name
FROM dbcontroller.foreign_target f JOIN dbcontroller.deployment d ON d.id = f.deployment_id CROSS JOIN dbcontroller.meta m CROSS JOIN (VALUES (true), (false)) AS b (block)
WHERE CASE WHEN b.block THEN f.block_own = m.epoch AND f.block_epoch = COALESCE(d.epoch, f.block_epoch) ELSE f.acting_own = m.epoch AND f.acting_epoch = COALESCE(d.epoch, f.acting_epoch) END`

// held returns the bodies that rows have by the rights to their targets: without the references that have
// none. Nothing is stored of rows.
func (w *world) held() map[string]string {
	w.t.Helper()
	for _, d := range deployments {
		require.Zero(w.t, w.Count(d, "reference"))
	}
	rights := map[string]map[string]bool{}
	for _, d := range deployments {
		found, err := w.apps[d].Query(context.Background(), heldSQL)
		require.NoError(w.t, err)
		all, err := pgx.CollectRows(found, pgx.RowTo[string])
		require.NoError(w.t, err)
		rights[d] = map[string]bool{}
		for _, right := range all {
			rights[d][right] = true
		}
	}
	out := map[string]string{}
	for name, raw := range w.bodies(func(table string) *pgx.Conn {
		return w.apps[databaseOf[table]]
	}, func(r reference) []string { return r.columns }) {
		body := map[string]string{}
		require.NoError(w.t, json.Unmarshal([]byte(raw), &body))
		for _, r := range references {
			right := map[bool]string{true: "BLOCK ", false: "ACT "}[r.action == "NO ACTION"] + body[r.name]
			if strings.HasPrefix(name, "//"+databaseOf[r.table]+"/"+r.table+"/") &&
				!rights[databaseOf[r.table]][right] {
				delete(body, r.name)
			}
		}
		if len(body) > 0 {
			text, err := json.Marshal(body)
			require.NoError(w.t, err)
			out[name] = string(text)
		}
	}
	return out
}

func resource(service, collection string, key []string) string {
	if len(key) > 1 {
		parts := make([]string, len(key))
		for i, k := range key {
			parts[i] = strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(k)
		}
		key = []string{strings.Join(parts, ",")}
	}
	return "//" + service + "/" + collection + "/" + schema.EscapeID(key[0])
}

// bodies returns the bodies that the controllers should have of rows: values reads the columns of a reference
// that count.
func (w *world) bodies(conn func(table string) *pgx.Conn, values func(reference) []string) map[string]string {
	w.t.Helper()
	bodies := map[string]map[string]any{}
	for _, r := range references {
		sql := fmt.Sprintf(`SELECT id::text, ARRAY[%s] FROM %s WHERE %s AND num_nulls(%s) = 0`,
			prefixed("", casts(values(r))), r.table, aliveIn(r.table), prefixed("", values(r)))
		if r.region != "" {
			sql += " AND " + r.region + " IS NOT NULL"
		}
		found, err := conn(r.table).Query(context.Background(), sql)
		require.NoError(w.t, err)
		var id string
		var key []string
		_, err = pgx.ForEachRow(found, []any{&id, &key}, func() error {
			name := resource(databaseOf[r.table], r.table, []string{id})
			if bodies[name] == nil {
				bodies[name] = map[string]any{}
			}
			bodies[name][r.name] = resource(r.service, r.kind, key)
			return nil
		})
		require.NoError(w.t, err)
	}
	out := map[string]string{}
	for name, body := range bodies {
		raw, err := json.Marshal(body)
		require.NoError(w.t, err)
		out[name] = string(raw)
	}
	return out
}

func casts(columns []string) []string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = c + "::text"
	}
	return out
}

// same compares bodies; the text of jsonb has other spaces and orders.
func same(t testing.TB, want, got map[string]string) string {
	t.Helper()
	for _, name := range append(keysOf(want), keysOf(got)...) {
		var a, b map[string]any
		_ = json.Unmarshal([]byte(want[name]), &a)
		_ = json.Unmarshal([]byte(got[name]), &b)
		if !maps.Equal(a, b) {
			return fmt.Sprintf("%s refers to %v, and its resource to %v", name, a, b)
		}
	}
	return ""
}

func keysOf(m map[string]string) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

// notes returns the rows whose target does not exist, and the deleted rows and values that wait otherwise,
// with their problems.
func (w *world) notes() (missing, others []string) {
	w.t.Helper()
	ctx := context.Background()
	for _, d := range deployments {
		found, err := w.apps[d].Query(ctx, `
SELECT coalesce(name, '*') || ': ' || coalesce(problem, '') FROM dbcontroller.deleted_row
UNION ALL SELECT path || ' ' || texts || ': ' || coalesce(problem, '') FROM dbcontroller.lacking WHERE NOT missing`)
		require.NoError(w.t, err)
		more, err := pgx.CollectRows(found, pgx.RowTo[string])
		require.NoError(w.t, err)
		others = append(others, more...)
	}
	for _, r := range references {
		values := casts(r.columns)
		if r.region != "" {
			values = append(values, r.region)
		}
		found, err := w.apps[databaseOf[r.table]].Query(ctx, fmt.Sprintf(`SELECT id::text FROM %s WHERE %s AND EXISTS (
    SELECT FROM dbcontroller.lacking l JOIN dbcontroller.attachment a USING (kind_id)
    WHERE l.missing AND l.path = $1 AND a.definition -> 'table' ->> 'Name' = $2 AND l.texts = to_json(ARRAY[%s])::text)`, r.table, aliveIn(r.table), prefixed("", values)), r.name, r.table)
		require.NoError(w.t, err)
		ids, err := pgx.CollectRows(found, pgx.RowTo[string])
		require.NoError(w.t, err)
		for _, id := range ids {
			missing = append(missing, resource(databaseOf[r.table], r.table, []string{id}))
		}
	}
	return missing, others
}
