// Package catalogue describes the tables of databases as values, guesses the references between them from
// names, types and native keys, and binds declared references to tables. It reads no database.
package catalogue

import (
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// Database is the catalogue of one database.
type Database struct {
	// Label is the name that the user gave it.
	Label string
	// Region is empty for the only database of its service.
	Service, Region string
	// Role is the role that reads.
	Role   string
	Tables []*Table
}

// Table returns a table by its name, or nil.
func (d *Database) Table(name schema.TableName) *Table {
	for _, t := range d.Tables {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// Form is the kind of a relation.
type Form string

// The forms, with the letters of pg_class.relkind.
const (
	Ordinary         Form = "r"
	Partitioned      Form = "p"
	View             Form = "v"
	MaterializedView Form = "m"
	Foreign          Form = "f"
)

// Table is a relation with rows.
type Table struct {
	Name    schema.TableName
	Form    Form
	Columns []Column
	Indexes []Index
	Natives []NativeKey
	// Rows is the estimate of the statistics; negative when there is none.
	Rows int64
	// Partition belongs to a partitioned table; Inherits has an ordinary parent; Inherited has ordinary
	// children.
	Partition, Inherits, Inherited bool
	// RowsHidden: policies of row-level security apply to the role that reads.
	RowsHidden bool
	// Readable: the role has SELECT on the table and USAGE on its schema.
	Readable, SchemaUsable bool
}

// Renamed returns the table under another name; columns, by their present names, have others too.
func (t *Table) Renamed(name schema.TableName, columns map[string]string) *Table {
	of := func(names []string) []string {
		out := slices.Clone(names)
		for i, n := range out {
			if other, ok := columns[n]; ok {
				out[i] = other
			}
		}
		return out
	}
	renamed := *t
	renamed.Name, renamed.Columns, renamed.Indexes, renamed.Natives = name, slices.Clone(t.Columns),
		slices.Clone(t.Indexes), slices.Clone(t.Natives)
	for i, c := range renamed.Columns {
		renamed.Columns[i].Name = of([]string{c.Name})[0]
	}
	for i, index := range renamed.Indexes {
		renamed.Indexes[i].Columns = of(index.Columns)
		for present, other := range columns {
			if notNullPredicate(index.Predicate, present) {
				renamed.Indexes[i].Predicate = other + " IS NOT NULL"
			}
		}
	}
	for i, key := range renamed.Natives {
		renamed.Natives[i].Columns = of(key.Columns)
	}
	return &renamed
}

// Column returns a column by its name, or nil.
func (t *Table) Column(name string) *Column {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return &t.Columns[i]
		}
	}
	return nil
}

// Column is a column of a table.
type Column struct {
	Name      string
	Type      Type
	NotNull   bool
	Generated bool
	// Readable: the role has SELECT on the column, perhaps by the table.
	Readable bool
}

// Index is an index, unique or not.
type Index struct {
	Name string
	// Columns in their order, "" for an expression.
	Columns         []string
	Unique, Primary bool
	Valid           bool
	Immediate       bool   // a unique index that is checked at once
	Method          string // btree, hash, …
	Predicate       string // of a partial index
}

// Key returns the columns of the primary key, or of the first other unique key whose columns cannot be NULL;
// nil without one.
func (t *Table) Key() []string {
	for _, primary := range []bool{true, false} {
		for _, i := range t.Indexes {
			if i.Primary == primary && t.isKey(i) {
				return i.Columns
			}
		}
	}
	return nil
}

func (t *Table) isKey(i Index) bool {
	return i.Unique && i.Valid && i.Predicate == "" && !slices.ContainsFunc(i.Columns, func(name string) bool {
		c := t.Column(name)
		return c == nil || !c.NotNull
	})
}

// InPrimaryKey reports whether a column belongs to the primary key.
func (t *Table) InPrimaryKey(column string) bool {
	return slices.ContainsFunc(t.Indexes, func(i Index) bool { return i.Primary && slices.Contains(i.Columns, column) })
}

// UniqueOn reports whether a unique index has exactly these columns, in any order.
func (t *Table) UniqueOn(columns []string) bool {
	return slices.ContainsFunc(t.Indexes, func(i Index) bool {
		return i.Unique && i.Valid && i.Predicate == "" && sameSet(i.Columns, columns)
	})
}

// CreateIndex returns the statement of an index that finds rows by these columns, without blocking writes.
func (t *Table) CreateIndex(columns []string) string { return createIndex(t, columns) }

// Finds reports whether an index finds the rows with given values of these columns.
func (t *Table) Finds(columns []string) bool {
	return slices.ContainsFunc(t.Indexes, func(i Index) bool {
		switch {
		case !i.Valid || len(i.Columns) < len(columns):
			return false
		case i.Predicate != "" && !slices.ContainsFunc(columns, func(c string) bool {
			return notNullPredicate(i.Predicate, c)
		}):
			return false
		case i.Method == "hash":
			return len(columns) == 1 && i.Columns[0] == columns[0]
		}
		return i.Method == "btree" && sameSet(i.Columns[:len(columns)], columns)
	})
}

// notNullPredicate recognises WHERE column IS NOT NULL: such an index has every row that a reference can
// find.
func notNullPredicate(predicate, column string) bool {
	p := strings.Trim(predicate, "() ")
	return p == column+" IS NOT NULL" || p == schema.QuoteIdentifier(column)+" IS NOT NULL"
}

func sameSet(a, b []string) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}

// NativeKey is a foreign key inside the database.
type NativeKey struct {
	Name       string
	Columns    []string
	Target     schema.TableName
	TargetKey  []string
	OnDelete   string // the letter of pg_constraint.confdeltype
	Deferrable bool
}

// The effects of a native key when its target is deleted.
const (
	NativeCascade    = "c"
	NativeSetNull    = "n"
	NativeSetDefault = "d"
)
