package catalogue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

func (r *Reference) add(finding bool, sql, format string, args ...any) {
	a := Advice{Text: fmt.Sprintf(format, args...), SQL: sql, Finding: finding}
	if !slices.Contains(r.Advice, a) {
		r.Advice = append(r.Advice, a)
	}
}

// advise adds the observations that the catalogue alone allows.
func (r *Reference) advise(declared *schema.Reference) {
	r.adviseRelation(r.Database, r.Table, "holder", append(slices.Clone(r.Columns), r.Key...))
	for _, t := range r.Targets {
		r.adviseRelation(t.Database, t.Table, "target", t.Key)
		for i, m := range t.Matches {
			if m.Differ != "" {
				r.add(true, "", "the types differ: %s, %s.%s", m.Differ, t.Table.Name, t.Key[i])
			}
		}
		if !t.Table.UniqueOn(t.Key) && t.Table.stores() {
			r.add(true, "", "%s %s has no unique key (%s), so that a value can refer to several rows", t.Database.Label,
				t.Table.Name, strings.Join(t.Key, ", "))
		}
	}
	if r.Table.stores() && !r.Table.Finds(r.Columns) {
		r.add(true, createIndex(r.Table, r.Columns),
			"no index on %s (%s) finds the holders of a target: each delete would read the whole table", r.Table.Name,
			strings.Join(r.Columns, ", "))
	}
	r.adviseColumns(declared)
	if r.Within() && len(r.Targets) == 1 {
		r.adviseNative(r.Targets[0])
	}
}

// stores reports whether the relation has rows and indexes of its own.
func (t *Table) stores() bool { return t.Form == Ordinary || t.Form == Partitioned }

func (r *Reference) adviseRelation(db *Database, t *Table, role string, columns []string) {
	name := db.Label + " " + t.Name.String()
	switch t.Form {
	case View, MaterializedView:
		r.add(role == "holder", "",
			"%s is a view: it can be scanned, and a trigger on it would see no writes; attach the table behind it",
			name)
	case Foreign:
		r.add(role == "holder", "",
			"%s is a foreign table: its rows are read through its server, and attach needs the table there", name)
	case Partitioned:
		r.add(false, "", "%s is partitioned: its partitions are read through it", name)
	case Ordinary:
		if t.Inherited {
			r.add(false, "",
				"%s has tables that inherit from it: their rows are read as its own, and native keys and unique keys do not cover them", name)
		}
		if t.Inherits && !t.Partition {
			r.add(false, "", "%s inherits from another table", name)
		}
	}
	if t.Partition {
		r.add(false, "", "%s is a partition: rows of the other partitions are not read", name)
	}
	if t.RowsHidden {
		r.add(true, "",
			"row-level security hides rows of %s from this role: hidden rows are not counted, and a hidden target counts as missing; scan as a role with BYPASSRLS", name)
	}
	if grant := missingGrant(db, t, columns); grant != "" {
		r.Unscanned = fmt.Sprintf("the role may not read %s", name)
		r.add(true, grant, "the role may not read %s", name)
	}
}

func missingGrant(db *Database, t *Table, columns []string) string {
	var grants, missing []string
	if !t.SchemaUsable {
		grants = append(grants, "GRANT USAGE ON SCHEMA "+schema.QuoteIdentifier(t.Name.Schema)+" TO "+
			schema.QuoteIdentifier(db.Role)+";")
	}
	for _, name := range columns {
		if c := t.Column(name); c != nil && !c.Readable && !slices.Contains(missing, schema.QuoteIdentifier(name)) {
			missing = append(missing, schema.QuoteIdentifier(name))
		}
	}
	if len(missing) > 0 {
		grants = append(grants, "GRANT SELECT ("+strings.Join(missing, ", ")+") ON "+t.Name.SQL()+" TO "+
			schema.QuoteIdentifier(db.Role)+";")
	}
	return strings.Join(grants, " ")
}

func (r *Reference) adviseColumns(declared *schema.Reference) {
	for _, name := range r.Columns {
		c := r.Table.Column(name)
		if c.Generated {
			r.add(false, "", "%s is a generated column: it changes with other columns, and cannot be unset", name)
		}
		unsets := declared.Behaviour.Unsets() || declared.Missing == schema.MissingUnset
		if unsets && (c.NotNull || c.Generated) && len(r.Columns) == 1 {
			r.add(true, "", "%s cannot be unset: it is NOT NULL or generated", name)
		}
	}
	if len(r.Columns) > 1 && slices.ContainsFunc(r.Columns, func(name string) bool {
		return !r.Table.Column(name).NotNull
	}) {
		r.add(false, "", "a row with NULL in one of the columns refers to nothing (MATCH SIMPLE)")
	}
}

// adviseNative says that PostgreSQL itself holds references inside one database, and better.
func (r *Reference) adviseNative(t Target) {
	for _, n := range r.Table.Natives {
		if sameSet(n.Columns, r.Columns) && n.Target == t.Table.Name {
			r.add(false, "", "the native key %s holds it already: no declaration is needed", n.Name)
			return
		}
	}
	if !r.Table.stores() || !t.Table.stores() || !t.Table.UniqueOn(t.Key) {
		return
	}
	name := constraintName(r.Table, r.Columns)
	table, columns, key := r.Table.Name.SQL(), quoted(r.Columns), quoted(t.Key)
	r.add(true, fmt.Sprintf(
		"ALTER TABLE %s ADD CONSTRAINT %s FOREIGN KEY (%s) REFERENCES %s (%s) NOT VALID; ALTER TABLE %s VALIDATE CONSTRAINT %s;",
		table, name, columns, t.Table.Name.SQL(), key, table, name),
		"both tables are in one database: a native key is better than a reference of ours")
}

// constraintName returns a name within the 63 bytes of an identifier.
func constraintName(t *Table, columns []string) string {
	const suffix = "_fkey"
	name := t.Name.Name + "_" + strings.Join(columns, "_")
	if limit := 63 - len(suffix); len(name) > limit {
		name = strings.ToValidUTF8(name[:limit], "")
	}
	return schema.QuoteIdentifier(name + suffix)
}

func createIndex(t *Table, columns []string) string {
	if t.Form == Partitioned {
		return fmt.Sprintf(
			"CREATE INDEX ON %s (%s); -- locks writes; or CONCURRENTLY on each partition, then on the table",
			t.Name.SQL(), quoted(columns))
	}
	// PostgreSQL finds a name that is free.
	return fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s);", t.Name.SQL(), quoted(columns))
}

func quoted(columns []string) string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = schema.QuoteIdentifier(c)
	}
	return strings.Join(out, ", ")
}
