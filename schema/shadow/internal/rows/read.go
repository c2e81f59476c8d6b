package rows

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// Declared returns the kind of the model that declares the table as it is attached; nil when none does.
func (t *Table) Declared(model *schema.Model) *schema.KindModel {
	for _, name := range model.KindNames() {
		if kind, err := model.Kind(name); err == nil && kind.Table != nil && t.Definition.Describes(kind) {
			return kind
		}
	}
	return nil
}

// named is a target that a row names by a reference.
type named struct {
	*schema.DefinitionReference
	target Target
}

// named returns the targets that a row with these values names by references.
func (t *Table) named(self schema.DeploymentID, values []*string) (out []named) {
	for i := range t.Definition.References {
		r := &t.Definition.References[i]
		n := len(r.Columns)
		if r.Region != "" {
			n++
		}
		own := values[:n]
		if values = values[n:]; slices.Contains(own, nil) {
			continue
		}
		texts := make([]string, n)
		for j, v := range own {
			texts[j] = *v
		}
		if v := valueOf(r, self, texts); v.Named && !r.NamesNothing(texts) {
			out = append(out, named{r, v.Target})
		}
	}
	return out
}

// Targets returns the full names of the targets that a row with these values names by references, by path.
func (t *Table) Targets(self schema.DeploymentID, values []*string) map[string]string {
	out := map[string]string{}
	for _, n := range t.named(self, values) {
		out[n.Path] = n.target.FullName.String()
	}
	return out
}

// Existing returns the names of rows that exist. It locks nothing.
func (t *Table) Existing(ctx context.Context, q db.Querier, names []string) ([]string, error) {
	values, err := t.Read(ctx, q, names)
	there := make([]string, 0, len(values))
	for name := range values {
		there = append(there, name)
	}
	return there, err
}

// Read returns the values of the reference columns of rows, by name.
func (t *Table) Read(ctx context.Context, q db.Querier, names []string) (map[string][]*string, error) {
	args, at := t.arrays(names)
	out := map[string][]*string{}
	if len(at) == 0 {
		return out, nil
	}
	found, err := q.Query(ctx, t.readSQL, args...)
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", t.Definition.Table, err)
	}
	var n int
	var values []*string
	_, err = pgx.ForEachRow(found, []any{&n, &values}, func() error {
		out[names[at[n-1]]] = slices.Clone(values)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", t.Definition.Table, err)
	}
	return out, nil
}

// Row is a row of a page.
type Row struct {
	Key    []string
	Values []*string
}

// Page returns rows in the order of the key, after a key; nil: from the first row on.
func (t *Table) Page(ctx context.Context, q db.Querier, after []string, limit int) ([]Row, error) {
	sql, args := t.firstPageSQL, []any{limit}
	if after != nil {
		sql = t.nextPageSQL
		for _, part := range after {
			args = append(args, part)
		}
	}
	found, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", t.Definition.Table, err)
	}
	page, err := pgx.CollectRows(found, pgx.RowToStructByPos[Row])
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", t.Definition.Table, err)
	}
	return page, nil
}
