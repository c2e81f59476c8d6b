package rows

import (
	"fmt"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// Table is an attached table, with the statements on its rows. The statements consist of quoted identifiers and types of the
// definition; values are parameters. A row is found by the texts of its key columns, one array each.
type Table struct {
	KindID int32
	// Kind is its name when the table was attached.
	Kind       string
	Definition schema.Definition
	// Filled is the key of the last row that the first reading has passed; Complete: it has passed all.
	Filled   []string
	Complete bool

	readSQL, shareSQL, lockSQL, deleteSQL string
	firstPageSQL, nextPageSQL             string
	unsetSQL                              map[string]string // by path
}

func newTable(kindID int32, kind string, d schema.Definition) *Table {
	t := &Table{KindID: kindID, Kind: kind, Definition: d, unsetSQL: map[string]string{}}
	from := fmt.Sprintf("FROM %s JOIN %s AS t ON %s", t.keys(), d.Table.SQL(), t.sameKey())
	order := " ORDER BY " + t.columns("t.")
	t.readSQL = fmt.Sprintf("SELECT i.n, %s %s", t.values(), from)
	t.shareSQL = fmt.Sprintf("SELECT i.n %s%s FOR KEY SHARE OF t", from, order)
	t.lockSQL = fmt.Sprintf("SELECT i.n %s%s FOR UPDATE OF t", from, order)
	t.deleteSQL = fmt.Sprintf("DELETE FROM %s AS t USING %s WHERE %s", d.Table.SQL(), t.keys(), t.sameKey())
	page := fmt.Sprintf("SELECT %s, %s FROM %s AS t", t.keyTexts(), t.values(), d.Table.SQL())
	t.firstPageSQL = page + order + " LIMIT $1"
	t.nextPageSQL = fmt.Sprintf("%s WHERE (%s) > (%s)%s LIMIT $1", page, t.columns("t."), t.parameters(2), order)
	for _, r := range d.References {
		sets := make([]string, len(r.Columns))
		for i, c := range r.Columns {
			sets[i] = schema.QuoteIdentifier(c) + " = NULL"
		}
		t.unsetSQL[r.Path] = fmt.Sprintf("UPDATE %s AS t SET %s FROM %s WHERE %s", d.Table.SQL(), strings.Join(sets, ", "), t.keys(), t.sameKey())
	}
	return t
}

// Declared returns the kind of the model that declares the table as it is attached; nil when none does.
func (t *Table) Declared(model *schema.Model) *schema.KindModel {
	for _, name := range model.KindNames() {
		if kind, err := model.Kind(name); err == nil && kind.Table != nil && t.Definition.Describes(kind) {
			return kind
		}
	}
	return nil
}

// keys returns the parameters, an array of texts for each key column, as the relation i (k1, k2, …, n).
func (t *Table) keys() string {
	var arrays, names []string
	for i := range t.Definition.Key {
		arrays, names = append(arrays, fmt.Sprintf("$%d::text[]", i+1)), append(names, fmt.Sprintf("k%d", i+1))
	}
	return fmt.Sprintf("unnest(%s) WITH ORDINALITY AS i (%s, n)", strings.Join(arrays, ", "), strings.Join(names, ", "))
}

func (t *Table) sameKey() string {
	same := make([]string, len(t.Definition.Key))
	for i, c := range t.Definition.Key {
		same[i] = fmt.Sprintf("t.%s = i.k%d::%s", schema.QuoteIdentifier(c.Name), i+1, c.Type)
	}
	return strings.Join(same, " AND ")
}

func (t *Table) columns(prefix string) string {
	names := make([]string, len(t.Definition.Key))
	for i, c := range t.Definition.Key {
		names[i] = prefix + schema.QuoteIdentifier(c.Name)
	}
	return strings.Join(names, ", ")
}

func (t *Table) parameters(first int) string {
	casts := make([]string, len(t.Definition.Key))
	for i, c := range t.Definition.Key {
		casts[i] = fmt.Sprintf("$%d::text::%s", first+i, c.Type)
	}
	return strings.Join(casts, ", ")
}

func (t *Table) keyTexts() string {
	texts := make([]string, len(t.Definition.Key))
	for i, c := range t.Definition.Key {
		texts[i] = fmt.Sprintf("t.%s::text", schema.QuoteIdentifier(c.Name))
	}
	return "ARRAY[" + strings.Join(texts, ", ") + "]"
}

// values returns the columns of all references as one array: of each reference its columns, then its region column if it has one.
func (t *Table) values() string {
	var texts []string
	for _, r := range t.Definition.References {
		for _, c := range r.Columns {
			texts = append(texts, fmt.Sprintf("t.%s::text", schema.QuoteIdentifier(c)))
		}
		if r.Region != "" {
			texts = append(texts, fmt.Sprintf("t.%s::text", schema.QuoteIdentifier(r.Region)))
		}
	}
	return "ARRAY[" + strings.Join(texts, ", ") + "]::text[]"
}

// Body returns the body of a row with these values: the full name of the target for each reference.
func (t *Table) Body(self schema.DeploymentID, kind *schema.KindModel, values []*string) (map[string]any, error) {
	body := map[string]any{}
	for i, r := range t.Definition.References {
		own := values[:len(r.Columns)]
		values = values[len(r.Columns):]
		var region *string
		if r.Region != "" {
			region, values = values[0], values[1:]
		}
		target, err := kind.Table.References[i].Target(self, own, region)
		if err != nil {
			return nil, err
		}
		if target != "" {
			body[r.Path] = target
		}
	}
	return body, nil
}
