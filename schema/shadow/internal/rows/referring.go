package rows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// A row of an attached table refers because it is there: nothing is stored of it, and the index of the
// referring columns finds the rows that name a target.

// Target is a resource, of this or another deployment, of a kind by its oldest name.
type Target struct {
	ID  int64 // of foreign_target
	UID uuid.UUID
	schema.FullName
	Kind schema.KindID
}

// laterSQL finds a later target with the name of f: a target that was removed and made again, or that a
// restore has brought back.
const laterSQL = `SELECT FROM dbcontroller.foreign_target g WHERE g.deployment_id = f.deployment_id AND g.name = f.name AND g.kind_id = f.kind_id AND g.latest > f.latest`

const targetColumns = `
SELECT f.id, f.uid, d.service, d.region, f.name, k.service, k.kind FROM dbcontroller.foreign_target f
JOIN dbcontroller.deployment d ON d.id = f.deployment_id JOIN dbcontroller.kind k ON k.id = f.kind_id
WHERE NOT EXISTS (` + laterSQL + `)`

const (
	selectTargetsSQL   = targetColumns + ` AND f.id = ANY ($1)`
	selectTargetsOfSQL = targetColumns +
		` AND (f.uid, f.deployment_id) IN (SELECT u, d FROM unnest($1::uuid[], $2::int[]) AS i (u, d))`
)

// Targets returns the targets of some rows of foreign_target that rows of tables may name: of several with
// one name, the last one.
func (s *Rows) Targets(ctx context.Context, q db.Querier, ids []int64) ([]Target, error) {
	return scanTargets(q.Query(ctx, selectTargetsSQL, ids))
}

// TargetsOf is Targets, by the numbers of deployments and the uids.
func (s *Rows) TargetsOf(ctx context.Context, q db.Querier, deployments []int32, uids []uuid.UUID) ([]Target, error) {
	return scanTargets(q.Query(ctx, selectTargetsOfSQL, uids, deployments))
}

func scanTargets(found pgx.Rows, err error) ([]Target, error) {
	if err != nil {
		return nil, fmt.Errorf("read targets: %w", err)
	}
	var t Target
	var out []Target
	_, err = pgx.ForEachRow(found, []any{
		&t.ID, &t.UID, &t.Deployment.Service, &t.Deployment.Region, &t.Name,
		&t.Kind.Service, &t.Kind.Kind,
	}, func() error {
		out = append(out, t)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read targets: %w", err)
	}
	return out, nil
}

// Referrer is a row that names a target.
type Referrer struct {
	Target    int // its index in the question
	Table     *Table
	Reference int // the place of the reference in the table
	Path      string
	Behaviour schema.Behaviour
	Key       []string // the texts of the key columns
	Name      string   // of the resource; cut, if it can be none
}

// referring are the statements about the rows that name targets by one reference.
type referring struct {
	reference *schema.DefinitionReference
	find      string // the arrays of the values, with the region if a column has it, and a limit for each target
	count     string // the arrays of the values: the number of rows
	each      string // the same, of each value
	page      string // the values of one target, then a limit; next: then the key of the row before
	next      string
	// Statements of change. The functions in them are of one snapshot with the rows. removes, or unsets,
	// rows: the values, a limit, and service, region, kind and name of a target to which there is no right,
	// and the note; empty: they are kept
	missing string
	remove  string // the keys; the values of one target, then its row of foreign_target: rows that have changed stay
	unset   string
	left    string // the rows that remove or unset should have changed
}

func newReferring(t *Table, r *schema.DefinitionReference) *referring {
	table := t.view()
	values, types := slices.Clone(r.Columns), slices.Clone(r.Types)
	if r.Region != "" {
		values, types = append(values, r.Region), append(types, "text")
	}
	var arrays, names []string
	for i := range values {
		arrays, names = append(arrays, fmt.Sprintf("$%d::text[]", i+1)), append(names, fmt.Sprintf("v%d", i+1))
	}
	// A row t names a target with these values. By the type, for the index; by a collation, a text can be
	// equal to another one.
	named := func(value func(i int) string) string {
		var conditions []string
		for i, c := range values {
			column, v := "t."+schema.QuoteIdentifier(c), value(i)
			region := r.Region != "" && i == len(values)-1
			if !region {
				conditions = append(conditions, fmt.Sprintf("%s = %s::%s", column, v, schema.CastType(types[i])))
			}
			if region || schema.Textual(types[i]) {
				conditions = append(conditions, fmt.Sprintf(`(%s) COLLATE "C" = %s`, t.text("t.", c), v))
			}
		}
		return strings.Join(append(conditions, t.condition(r, "t.")...), " AND ")
	}
	parameter := func(first int) func(i int) string {
		return func(i int) string { return fmt.Sprintf("$%d::text", first+i) }
	}
	out := &referring{reference: r}
	out.find = fmt.Sprintf(
		"SELECT i.n, t.key FROM unnest(%s) WITH ORDINALITY AS i (%s, n) CROSS JOIN LATERAL (SELECT %s AS key FROM %s AS t WHERE %s LIMIT $%d) AS t",
		strings.Join(arrays, ", "), strings.Join(names, ", "), t.keyTexts(), table, named(func(i int) string {
			return "i." + names[i]
		}), len(values)+1)
	out.count = fmt.Sprintf("SELECT count(*) FROM unnest(%s) AS i (%s) JOIN %s AS t ON %s",
		strings.Join(arrays, ", "), strings.Join(names, ", "), table, named(func(i int) string {
			return "i." + names[i]
		}))
	out.each = fmt.Sprintf(
		"SELECT i.n - 1, (SELECT count(*) FROM %s AS t WHERE %s) FROM unnest(%s) WITH ORDINALITY AS i (%s, n)",
		table, named(func(i int) string {
			return "i." + names[i]
		}), strings.Join(arrays, ", "), strings.Join(names, ", "))
	page := fmt.Sprintf("SELECT %s FROM %s AS t WHERE %s", t.keyTexts(), table, named(parameter(1)))
	order := fmt.Sprintf(" ORDER BY %s LIMIT $%d", t.columns("t."), len(values)+1)
	out.page, out.next = page+order, fmt.Sprintf("%s AND (%s) > (%s)%s", page, t.columns("t."),
		t.parameters(len(values)+2), order)
	given := func(i int) string { return fmt.Sprintf("($2::text[])[%d]", i+1) }
	where := fmt.Sprintf(" %s WHERE %s AND %s AND (SELECT dbcontroller.is_gone(%s::bigint))", t.changed(), t.sameKey(),
		named(given), given(len(values)))
	returning := fmt.Sprintf(" RETURNING %s", t.keyTexts())
	out.remove = t.deletion() + where + returning
	out.left = fmt.Sprintf("SELECT %s FROM %s AS t JOIN%s LIMIT 1", t.keyTexts(), table,
		strings.Replace(where, " WHERE ", " ON ", 1))
	sets := func(value string) string {
		var sets []string
		for _, c := range r.UnsetColumns() {
			sets = append(sets, schema.QuoteIdentifier(c)+" = "+value)
		}
		return strings.Join(sets, ", ")
	}
	to := "NULL"
	if r.ToDefault {
		to = "DEFAULT"
	}
	out.unset = fmt.Sprintf("UPDATE %s AS t SET %s FROM%s%s", table, sets(to), where, returning)
	n := len(values)
	without := fmt.Sprintf(
		"(SELECT %s FROM %s AS t WHERE %s LIMIT %s::bigint) AS k WHERE (%s) = (%s) AND %s AND (SELECT dbcontroller.is_missing(%s, %s, %s, %s, %s::bigint))",
		t.columns("t."), table, named(given), given(n), t.columns("t."), t.columns("k."), named(given), given(n+1),
		given(n+2), given(n+3), given(n+4), given(n+5))
	switch r.Missing {
	case schema.MissingDelete:
		out.missing = t.deletion() + " " + without + returning
	case schema.MissingUnset:
		out.missing = fmt.Sprintf("UPDATE %s AS t SET %s FROM %s%s", table, sets("NULL"), without, returning)
	case schema.MissingReport: // they stay
	}
	return out
}

// values returns the texts of the columns that name a target, with its region if a column has it; false: no
// row can name it.
func (r *referring) values(self schema.DeploymentID, t Target) ([]string, bool) {
	of := r.reference.Target
	if of.Kind != t.Kind || of.Kind.Service != t.Deployment.Service {
		return nil, false
	}
	values, ok := r.reference.Values(t.Name)
	if r.reference.Region != "" {
		return append(values, t.Deployment.Region), ok
	}
	region := of.Region
	if region == "" {
		region = self.Region
	}
	return values, ok && region == t.Deployment.Region
}

// Referring returns rows that name targets by references, blocking ones or acting ones, at most limit for
// each target and reference. It locks nothing. A table whose rows a policy hides is an error.
func (s *Rows) Referring(ctx context.Context, q db.Querier, blocking bool, targets []Target,
	limit int,
) (out []Referrer, err error) {
	for _, t := range s.holders() {
		for n, r := range t.referring {
			if r.reference.Blocks() != blocking {
				continue
			}
			found, err := t.find(ctx, q, s.Self, n, targets, limit)
			if err != nil {
				return nil, err
			}
			out = append(out, found...)
		}
	}
	return out, nil
}

// Refer reports whether rows of an attached table may refer.
func (s *Rows) Refer() bool { return len(s.holders()) > 0 }

// Unwalked reports whether a table waits for its first walk. One without references is not verified before.
func (s *Rows) Unwalked() bool {
	for _, t := range s.Tables() {
		if !t.Walked {
			return true
		}
	}
	return false
}

// holders returns the tables with references.
func (s *Rows) holders() (out []*Table) {
	for _, t := range s.Tables() {
		if len(t.referring) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// arrays returns the values of the columns that name targets, as parameters, and the places of those targets
// that a row can name.
func (r *referring) arrays(self schema.DeploymentID, targets []Target) (args []any, at []int) {
	var columns [][]string
	for i, target := range targets {
		values, ok := r.values(self, target)
		if !ok {
			continue
		}
		if columns == nil {
			columns = make([][]string, len(values))
		}
		at = append(at, i)
		for c, v := range values {
			columns[c] = append(columns[c], v)
		}
	}
	for _, c := range columns {
		args = append(args, c)
	}
	return args, at
}

// Count is the number of rows that name targets by one reference.
type Count struct {
	Path      string
	Behaviour schema.Behaviour
	Rows      int
}

// Counts counts the rows that name targets by each reference that acts.
func (s *Rows) Counts(ctx context.Context, q db.Querier, targets []Target) (out []Count, err error) {
	for _, t := range s.holders() {
		for _, r := range t.referring {
			args, at := r.arrays(s.Self, targets)
			if len(at) == 0 || !r.reference.Behaviour.Acts() {
				continue
			}
			c := Count{Path: r.reference.Path, Behaviour: r.reference.Behaviour}
			found, err := q.Query(ctx, r.count, args...)
			if err == nil {
				c.Rows, err = pgx.CollectExactlyOneRow(found, pgx.RowTo[int])
			}
			if err != nil {
				return nil, fmt.Errorf("count rows of %s: %w", t.Definition.Table, err)
			}
			if c.Rows > 0 {
				out = append(out, c)
			}
		}
	}
	return out, nil
}

func (t *Table) find(ctx context.Context, q db.Querier, self schema.DeploymentID, reference int, targets []Target,
	limit int,
) (out []Referrer, err error) {
	r := t.referring[reference]
	args, at := r.arrays(self, targets)
	if len(at) == 0 {
		return nil, nil
	}
	found, err := q.Query(ctx, r.find, append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", t.Definition.Table, err)
	}
	var n int
	var key []string
	_, err = pgx.ForEachRow(found, []any{&n, &key}, func() error {
		out = append(out, t.referrer(reference, at[n-1], slices.Clone(key)))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", t.Definition.Table, err)
	}
	return out, nil
}

func (t *Table) referrer(reference, target int, key []string) Referrer {
	r := t.referring[reference].reference
	return Referrer{
		Target: target, Table: t, Reference: reference, Path: r.Path, Behaviour: r.Behaviour, Key: key,
		Name: t.NameOf(key),
	}
}

// mostOfName is the number of characters of a key that is shown when it can be no name.
const mostOfName = 80

// NameOf returns the name of the row with a key, also of a key that can be no name.
func (t *Table) NameOf(key []string) string {
	name, err := t.Definition.RowName(key)
	if err == nil {
		return name
	}
	text := []rune(t.Definition.Collection + "/" + strings.Join(key, ","))
	return string(text[:min(len(text), mostOfName)])
}

// RemoveReferring deletes rows of one table that still name a target by a reference; unset: it sets the
// columns to NULL instead. The rights to the target have ended; nothing is done beside a later target of the
// same name. It returns the keys of the rows that it changed. The triggers and native keys of the table act
// as for any statement.
func (t *Table) RemoveReferring(ctx context.Context, tx pgx.Tx, self schema.DeploymentID, reference int, target Target,
	keys [][]string, unset bool,
) ([][]string, error) {
	if reference >= len(t.referring) { // the attachment has changed since the rows were found
		return nil, nil
	}
	r := t.referring[reference]
	values, ok := r.values(self, target)
	if !ok || len(keys) == 0 {
		return nil, nil
	}
	columns := make([][]string, len(t.Definition.Key))
	for _, key := range keys {
		for c := range columns {
			columns[c] = append(columns[c], key[c])
		}
	}
	sql, what := r.remove, "delete rows of"
	if unset {
		sql, what = r.unset, "unset "+r.reference.Path+" in"
	}
	values = append(values, strconv.FormatInt(target.ID, 10))
	changed, err := change(ctx, tx, sql, columns, values)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", what, t.Definition.Table, t.kept(err))
	}
	// A trigger or a rule of the application may have kept rows, in silence.
	rows, err := tx.Query(ctx, r.left, columns, values)
	if err != nil {
		return nil, err
	}
	left, err := pgx.CollectRows(rows, pgx.RowTo[[]string])
	if err == nil && len(left) > 0 {
		err = &peer.KeptError{Table: t.Definition.Table.String(), Text: t.NameOf(left[0]) +
			" is there after the statement"}
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", what, t.Definition.Table, err)
	}
	return changed, nil
}

// Value is a distinct value of the columns of a reference: the texts of the columns, with the region if a
// column has it.
type Value struct {
	Values []string
	Target Target
	Named  bool // false: nothing could have such a name
}

// Walk calls fn with the distinct values of each reference that name targets at a deployment, by pages in the
// order of the index.
func (s *Rows) Walk(ctx context.Context, at schema.DeploymentID, fn func(r Reference, page []Value) error) error {
	for _, t := range s.holders() {
		for _, r := range t.References() {
			d := r.referring().reference
			if d.Target.Kind.Service != at.Service || d.Region == "" &&
				cmp.Or(d.Target.Region, s.Self.Region) != at.Region {
				continue
			}
			err := s.WalkValues(ctx, r, func(page []Value) error {
				page = slices.DeleteFunc(page, func(v Value) bool { return !v.Named || v.Target.Deployment != at })
				if len(page) == 0 {
					return nil
				}
				return fn(r, page)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// walkPage is the number of distinct values of a page.
const walkPage = 500

// WalkValues calls fn with the distinct values of a reference, by pages in the order of the index.
func (s *Rows) WalkValues(ctx context.Context, of Reference, fn func([]Value) error) error {
	r, t := of.referring().reference, of.Table
	first, next := t.walkSQL(*r)
	var after []string
	for {
		sql, args := first, []any{walkPage}
		if after != nil {
			sql = next
			for _, v := range after {
				args = append(args, v)
			}
		}
		found, err := s.Pool.Query(ctx, sql, args...)
		if err != nil {
			return fmt.Errorf("read the values of %s in %s: %w", r.Path, t.Definition.Table, err)
		}
		page, err := pgx.CollectRows(found, pgx.RowTo[[]string])
		if err != nil {
			return fmt.Errorf("read the values of %s in %s: %w", r.Path, t.Definition.Table, err)
		}
		values := make([]Value, len(page))
		for i, texts := range page {
			values[i] = valueOf(r, s.Self, texts)
		}
		if len(values) > 0 {
			if err := fn(values); err != nil {
				return err
			}
		}
		if len(page) < walkPage {
			return nil
		}
		after = page[len(page)-1]
	}
}

func valueOf(r *schema.DefinitionReference, self schema.DeploymentID, texts []string) Value {
	v := Value{Values: texts, Target: Target{Kind: r.Target.Kind}}
	v.Target.Deployment = schema.DeploymentID{
		Service: r.Target.Kind.Service,
		Region:  cmp.Or(r.Target.Region, self.Region),
	}
	if r.Region != "" {
		v.Target.Deployment.Region = texts[len(r.Columns)]
	}
	v.Target.Name, v.Named = r.TargetName(texts[:len(r.Columns)])
	if _, err := schema.ParseFullName(v.Target.FullName.String()); err != nil {
		v.Named = false
	}
	return v
}

// walkSQL returns the statements for the first page and for the next ones: each distinct value is found by
// the index behind the one before.
func (t *Table) walkSQL(r schema.DefinitionReference) (first, next string) {
	columns, types := slices.Clone(r.Columns), slices.Clone(r.Types)
	if r.Region != "" {
		columns, types = append(columns, r.Region), append(types, "text")
	}
	var list, values, texts, present, before, after []string
	for _, none := range r.None {
		present = append(present, fmt.Sprintf(`%s::text COLLATE "C" <> '%s'`, schema.QuoteIdentifier(r.Columns[0]),
			strings.ReplaceAll(none, "'", "''")))
	}
	present = append(present, t.condition(&r, "")...)
	for i, c := range columns {
		name := schema.QuoteIdentifier(c)
		value := name
		if slices.Contains(t.enums, c) { // of an order that texts do not have
			value = t.text("", c)
		}
		list, values, texts, present = append(list, value+" AS "+name), append(values, value),
			append(texts, "v."+name+"::text"), append(present, name+" IS NOT NULL")
		before, after = append(before, "v."+name),
			append(after, fmt.Sprintf("$%d::text::%s", i+2, schema.CastType(types[i])))
	}
	order := strings.Join(values, ", ")
	one := func(condition string) string {
		return fmt.Sprintf("SELECT %s FROM %s WHERE %s AND %s ORDER BY %s LIMIT 1", strings.Join(list, ", "), t.view(),
			condition, strings.Join(present, " AND "), order)
	}
	behind := func(values []string) string { return fmt.Sprintf("(%s) > (%s)", order, strings.Join(values, ", ")) }
	whole := func(condition string) string {
		return fmt.Sprintf(
			"WITH RECURSIVE v AS ((%s) UNION ALL SELECT n.* FROM v CROSS JOIN LATERAL (%s) AS n) SELECT ARRAY[%s]::text[] FROM v LIMIT $1",
			one(condition), one(behind(before)), strings.Join(texts, ", "))
	}
	return whole("true"), whole(behind(after))
}
