package scan

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/internal/scan/report"
	"github.com/db-controller/db-controller/schema"
)

// most bounds the rows that a walk follows.
const most = 20_000

// walk follows a delete of one row through the references between databases, as if all of them cascaded, and
// through native keys as they are declared.
type walk struct {
	s       *scanner
	out     report.Cascade
	visited map[*catalogue.Table]map[string]bool
	total   int
	began   time.Time
}

// reached are rows of a table that the delete reaches, by the columns of their key.
type reached struct {
	db    *database
	table *catalogue.Table
	key   []string
	rows  [][]string
}

// edge is a reference to a table, ours or a native key.
type edge struct {
	db      *database
	table   *catalogue.Table
	columns []string // in the order of the target's key
	key     []string // that names rows of the table, nil without one
	effect  report.Effect
	reason  string
	ref     *reference // nil for a native key
}

// found reports whether the rows are found without reading a large table.
func (e *edge) found() bool {
	return e.table.Finds(e.columns) || e.table.Rows >= 0 && e.table.Rows <= small
}

// counted describes the rows that no index finds: for the first level the pass has counted them.
func (w *walk) counted(from reached, e edge, step *report.Step) {
	if e.ref != nil && e.ref.fan != nil && len(from.rows) == 1 {
		if n := e.ref.fan.count(encode(from.rows[0])); n > 0 {
			step.Rows, step.Reason = int64(n), e.reason+"; not followed further: no index finds the rows"
			return
		}
	}
	step.Effect, step.Reason = report.Unknown, "not counted: no index finds the rows"
}

// cascades walks from the target with the most holders of each table that other databases refer to.
func (s *scanner) cascades(ctx context.Context) []report.Cascade {
	type start struct {
		target *catalogue.Target
		db     *database
		value  string
		n      uint32
	}
	var starts []*start
	for _, r := range s.refs {
		if r.Within() || r.fan == nil {
			continue
		}
		for i := range r.Targets {
			t := &r.Targets[i]
			at := slices.IndexFunc(starts, func(x *start) bool { return x.target.Table == t.Table })
			if at < 0 {
				at = len(starts)
				starts = append(starts, &start{target: t, db: r.targets[i]})
			}
			for _, leader := range r.fan.leaders() {
				if leader.n <= starts[at].n || len(r.Targets) > 1 &&
					!s.has(ctx, r.targets[i], t, decode(leader.value, len(t.Key))) {
					continue
				}
				starts[at].value, starts[at].n = leader.value, leader.n
				break
			}
		}
	}
	out := []report.Cascade{}
	for _, x := range starts {
		if x.n == 0 || ctx.Err() != nil {
			continue
		}
		w := &walk{s: s, began: time.Now(), visited: map[*catalogue.Table]map[string]bool{}}
		key := decode(x.value, len(x.target.Key))
		w.out = report.Cascade{
			Target: place(x.target.Database, x.target.Table, x.target.Key), Key: key,
			Steps: []report.Step{},
		}
		w.follow(ctx, reached{db: x.db, table: x.target.Table, key: x.target.Key, rows: [][]string{key}}, 1)
		out = append(out, w.out)
	}
	return out
}

func (s *scanner) has(ctx context.Context, db *database, t *catalogue.Target, value []string) bool {
	found, err := db.existing(ctx, t, [][]string{value})
	return err == nil && found[0]
}

// follow reports the holders of rows, level by level.
func (w *walk) follow(ctx context.Context, from reached, level int) {
	for next := []reached{from}; len(next) > 0; level++ {
		var below []reached
		for _, r := range next {
			for _, e := range w.s.edges(r) {
				if got := w.step(ctx, r, e, level); len(got.rows) > 0 {
					below = append(below, got)
				}
			}
		}
		next = below
	}
}

// edges are the references to the key of a table.
func (s *scanner) edges(to reached) (out []edge) {
	for _, r := range s.refs {
		if !slices.ContainsFunc(r.Targets, func(t catalogue.Target) bool {
			return t.Table == to.table && slices.Equal(t.Key, to.key)
		}) {
			continue
		}
		e := edge{
			db: s.of(r.Database), table: r.Table, columns: r.Columns, key: r.Key, effect: report.Deleted,
			reason: "if the reference cascaded", ref: r,
		}
		if r.Within() {
			e.effect, e.reason = report.Left, "no key holds the reference"
		}
		if !native(r.Reference) {
			out = append(out, e)
		}
	}
	for _, t := range to.db.catalogue.Tables {
		for _, n := range t.Natives {
			columns := inOrder(n, to.key)
			if n.Target != to.table.Name || columns == nil {
				continue
			}
			e := edge{
				db: to.db, table: t, columns: columns, key: t.Key(), effect: report.Refuses,
				reason: "native key " + n.Name,
			}
			switch n.OnDelete {
			case catalogue.NativeCascade:
				e.effect = report.Deleted
			case catalogue.NativeSetNull, catalogue.NativeSetDefault:
				e.effect = report.Changed
			}
			out = append(out, e)
		}
	}
	return out
}

func native(r *catalogue.Reference) bool {
	return r.Within() && slices.ContainsFunc(r.Table.Natives, func(n catalogue.NativeKey) bool {
		return n.Target == r.Targets[0].Table.Name && inOrder(n, r.Targets[0].Key) != nil &&
			len(n.Columns) == len(r.Columns) && slices.Contains(n.Columns, r.Columns[0])
	})
}

// inOrder returns the columns of a native key in the order of the target's key, nil when it refers to another
// key.
func inOrder(n catalogue.NativeKey, key []string) []string {
	out := make([]string, len(key))
	if len(n.TargetKey) != len(key) {
		return nil
	}
	for i, name := range key {
		at := slices.Index(n.TargetKey, name)
		if at < 0 {
			return nil
		}
		out[i] = n.Columns[at]
	}
	return out
}

// step counts the holders by one reference, and returns those to follow.
func (w *walk) step(ctx context.Context, from reached, e edge, level int) (out reached) {
	step := report.Step{
		Level: level, Place: place(e.db.catalogue, e.table, e.columns), Effect: e.effect,
		Reason: e.reason,
	}
	if unreadable := slices.ContainsFunc(slices.Concat(e.columns, e.key), func(c string) bool {
		return !e.table.Column(c).Readable
	}); unreadable {
		step.Effect, step.Reason = report.Unknown, "the role may not read the table"
	} else if !e.found() {
		w.counted(from, e, &step)
		w.out.Steps = append(w.out.Steps, step)
		return reached{}
	}
	if step.Effect == report.Unknown {
		w.out.Steps = append(w.out.Steps, step)
		return reached{}
	}
	rows, more, err := w.holders(ctx, from, e)
	if err != nil {
		step.Effect, step.Reason = report.Unknown, "not counted: "+err.Error()
		w.out.Steps = append(w.out.Steps, step)
		return reached{}
	}
	if step.Rows, step.More = int64(len(rows)), more; len(rows) == 0 {
		return reached{}
	}
	w.out.Steps = append(w.out.Steps, step)
	if e.effect != report.Deleted || e.key == nil {
		return reached{}
	}
	return reached{db: e.db, table: e.table, key: e.key, rows: rows}
}

// holders returns the keys of the rows that refer to the given ones and that the walk has not seen.
func (w *walk) holders(ctx context.Context, from reached, e edge) (out [][]string, more bool, err error) {
	matches := make([]catalogue.Match, len(e.columns))
	for i, name := range e.columns {
		var ok bool
		if matches[i], ok = catalogue.Compare(from.table.Column(from.key[i]).Type, e.table.Column(name).Type); !ok {
			return nil, false, fmt.Errorf("the types cannot be compared")
		}
	}
	selected := []string{"''"}
	for _, name := range e.key {
		selected = append(selected, "t."+schema.QuoteIdentifier(name)+"::text")
	}
	query := strings.Replace(keysSQL(len(e.columns), matching(e.columns, matches, 0)), "SELECT k.n FROM ",
		"SELECT "+strings.Join(selected, ", ")+" FROM "+e.table.Name.SQL()+" t, ", 1)
	seen := w.visited[e.table]
	if seen == nil {
		seen = map[string]bool{}
		w.visited[e.table] = seen
	}
	asked, _ := valid(matches, from.rows)
	for chunk := range slices.Chunk(asked, batchRows) {
		if w.total >= most {
			return out, true, nil
		}
		rows, err := w.page(ctx, e, query+fmt.Sprintf(" LIMIT %d", most-w.total), columnsOf(chunk, len(e.columns)))
		if err != nil {
			return out, false, err
		}
		w.total += len(rows)
		if err := e.db.pace(ctx, w.began, int64(w.total)); err != nil {
			return out, false, err
		}
		for _, row := range rows {
			if key := encode(row[1:]); len(e.key) == 0 || !seen[key] {
				seen[key] = true
				out = append(out, row[1:])
			}
		}
	}
	return out, w.total >= most, nil
}

func (w *walk) page(ctx context.Context, e edge, query string, arrays []any) (out [][]string, err error) {
	err = e.db.ask(ctx, e.table.Finds(e.columns), func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, query, arrays...)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]string, error) {
			values := make([]string, len(e.key)+1)
			into := make([]any, len(values))
			for i := range values {
				into[i] = &values[i]
			}
			return values, row.Scan(into...)
		})
		return err
	})
	return out, err
}

func place(db *catalogue.Database, t *catalogue.Table, columns []string) report.Place {
	return report.Place{Database: db.Label, Table: t.Name.String(), Columns: columns}
}
