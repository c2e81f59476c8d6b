package rows

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// Reference is a reference of an attached table as it is declared now.
type Reference struct {
	Table *Table
	at    int
}

// References returns the references of a table.
func (t *Table) References() (out []Reference) {
	for n := range t.Definition.References {
		out = append(out, Reference{t, n})
	}
	return out
}

// ReferenceOf returns the reference of a kind by its path; false: there is none.
func (s *Rows) ReferenceOf(kindID int32, path string) (Reference, bool) {
	if t := s.Of(kindID); t != nil {
		for _, r := range t.References() {
			if r.Path() == path {
				return r, true
			}
		}
	}
	return Reference{}, false
}

func (r Reference) referring() *referring { return r.Table.referring[r.at] }

// Path of the field.
func (r Reference) Path() string { return r.referring().reference.Path }

// Declared is the reference as the attachment has it.
func (r Reference) Declared() *schema.DefinitionReference { return r.referring().reference }

// Columns is the number of texts of a value.
func (r Reference) Columns() int {
	d := r.referring().reference
	if d.Region == "" {
		return len(d.Columns)
	}
	return len(d.Columns) + 1
}

// Acts reports whether rows whose target does not exist are deleted, or unset.
func (r Reference) Acts() bool { return r.referring().missing != "" }

// Value returns the value with some texts.
func (r Reference) Value(self schema.DeploymentID, texts []string) Value {
	return valueOf(r.referring().reference, self, texts)
}

// Texts is the value as a JSON array.
func (v Value) Texts() string {
	raw, _ := json.Marshal(v.Values)
	return string(raw)
}

// Present reports of each value whether a row has it.
func (r Reference) Present(ctx context.Context, q db.Querier, values []Value) ([]bool, error) {
	if len(values) == 0 {
		return nil, nil
	}
	found, err := q.Query(ctx, r.referring().find, append(columnsOf(values), 1)...)
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", r.Table.Definition.Table, err)
	}
	out := make([]bool, len(values))
	var n int
	var key []string
	if _, err = pgx.ForEachRow(found, []any{&n, &key}, func() error { out[n-1] = true; return nil }); err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", r.Table.Definition.Table, err)
	}
	return out, nil
}

// Count returns the number of rows with each value.
func (r Reference) Count(ctx context.Context, q db.Querier, values []Value) ([]int64, error) {
	out := make([]int64, len(values))
	if len(values) == 0 {
		return out, nil
	}
	found, err := q.Query(ctx, r.referring().each, columnsOf(values)...)
	if err != nil {
		return nil, fmt.Errorf("count rows of %s: %w", r.Table.Definition.Table, err)
	}
	var i int
	var n int64
	if _, err = pgx.ForEachRow(found, []any{&i, &n}, func() error { out[i] = n; return nil }); err != nil {
		return nil, fmt.Errorf("count rows of %s: %w", r.Table.Definition.Table, err)
	}
	return out, nil
}

// columnsOf returns the texts of values, an array for each column, as parameters.
func columnsOf(values []Value) []any {
	columns := make([][]string, len(values[0].Values))
	for _, v := range values {
		for c, text := range v.Values {
			columns[c] = append(columns[c], text)
		}
	}
	args := make([]any, 0, len(columns)+1)
	for _, c := range columns {
		args = append(args, c)
	}
	return args
}

// ActOnMissing deletes, or unsets, at most limit rows with a value, whose target does not exist, unless there
// is a right to it, or a later note than the given one. It returns their names.
func (r Reference) ActOnMissing(ctx context.Context, tx pgx.Tx, v Value, note int64,
	limit int,
) (names []string, err error) {
	d := v.Target.Deployment
	values := append(slices.Clone(v.Values), strconv.Itoa(limit), d.Service, d.Region, v.Target.Kind.Kind,
		v.Target.Name, strconv.FormatInt(note, 10))
	changed, err := change(ctx, tx, r.referring().missing, nil, values)
	if err != nil {
		return nil, fmt.Errorf("act upon rows of %s whose target does not exist: %w", r.Table.Definition.Table,
			r.Table.kept(err))
	}
	for _, key := range changed {
		names = append(names, r.Table.NameOf(key))
	}
	return names, nil
}

const selectMissingSQL = `
SELECT i.n - 1 FROM unnest($1::int[], $2::text[], $3::text[]) WITH ORDINALITY AS i (kind_id, path, texts, n) WHERE EXISTS (
    SELECT FROM dbcontroller.lacking l WHERE l.kind_id = i.kind_id AND l.path = i.path AND md5(l.texts) = md5(to_json(ARRAY(SELECT json_array_elements_text(i.texts::json)))::text) AND l.missing OFFSET 0)`

// Missing reports of each row that names a target whether its value is noted as one whose target does not
// exist: it is asked for again, and has no right.
func (s *Rows) Missing(ctx context.Context, q db.Querier, targets []Target, referrers []Referrer) ([]bool, error) {
	out := make([]bool, len(referrers))
	if len(referrers) == 0 {
		return out, nil
	}
	kinds, paths, texts := make([]int32, len(referrers)), make([]string, len(referrers)), make([]string, len(referrers))
	for i, r := range referrers {
		values, _ := r.Table.referring[r.Reference].values(s.Self, targets[r.Target])
		kinds[i], paths[i], texts[i] = r.Table.KindID, r.Path, Value{Values: values}.Texts()
	}
	found, err := q.Query(ctx, selectMissingSQL, kinds, paths, texts)
	if err != nil {
		return nil, fmt.Errorf("read values without a right: %w", err)
	}
	missing, err := pgx.CollectRows(found, pgx.RowTo[int])
	for _, i := range missing {
		out[i] = true
	}
	return out, err
}
