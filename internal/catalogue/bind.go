package catalogue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// Reference is a declared reference of one holder's database, bound to its tables.
type Reference struct {
	Database *Database
	Table    *Table
	Kind     schema.KindID
	// Key are the columns that name a row of the holder.
	Key     []string
	Columns []string
	// None are the values of its one column that name nothing.
	None []string
	// When: other rows name nothing; zero: all do.
	When schema.RowCondition
	// Region is the column with the region of the target, "" without one.
	Region    string
	Behaviour schema.Behaviour
	// Targets are the keys to which a value may refer; one of them must have it.
	Targets []Target
	// Unscanned is the reason for which the reference cannot be scanned, "" if it can.
	Unscanned string
	// Why is the reason of a guess.
	Why    string
	Advice []Advice
}

// Target is a key of a table in one database.
type Target struct {
	Database *Database
	Table    *Table
	Kind     schema.KindID
	Key      []string
	// Region to which it belongs; "" takes values of any region.
	Region  string
	Matches []Match // one for each column
}

// Within reports whether all targets are in the holder's database.
func (r *Reference) Within() bool {
	return len(r.Targets) > 0 && !slices.ContainsFunc(r.Targets, func(t Target) bool {
		return t.Database != r.Database
	})
}

// Advice is an observation about a reference, with a statement that helps where there is one.
type Advice struct {
	Text string
	SQL  string
	// Finding: the advice asks for action.
	Finding bool
}

type binder struct {
	databases []*Database
	kinds     map[schema.KindID]*schema.Kind
	ps        schema.Problems
	out       []*Reference
}

// Bind binds the references of descriptors to the tables of databases. Of several versions of a service it
// takes the last. The error is schema.Problems for tables and columns that do not exist.
func Bind(descriptors []*schema.Descriptor, databases []*Database) ([]*Reference, error) {
	b := &binder{databases: databases, kinds: map[schema.KindID]*schema.Kind{}}
	last := map[string]*schema.Descriptor{}
	for _, d := range descriptors {
		last[d.Service] = d
	}
	for _, d := range last {
		for i := range d.Kinds {
			b.kinds[schema.KindID{Service: d.Service, Kind: d.Kinds[i].Name}] = &d.Kinds[i]
		}
	}
	for _, db := range databases {
		d := last[db.Service]
		if d == nil {
			continue
		}
		for i := range d.Kinds {
			if d.Kinds[i].Table != (schema.TableName{}) {
				b.kind(db, &d.Kinds[i])
			}
		}
	}
	if len(b.ps) > 0 {
		return nil, b.ps
	}
	return b.out, nil
}

func (b *binder) problem(pos schema.Pos, remedy, format string, args ...any) {
	b.ps = append(b.ps, schema.Problem{Pos: pos, Message: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (b *binder) kind(db *Database, k *schema.Kind) {
	t := db.Table(k.Table)
	if t == nil {
		b.problem(k.Pos, "correct the name; it is written as in the catalogue, in its upper and lower case",
			"database %s has no table %s", db.Label, k.Table)
		return
	}
	ok := b.columns(db, t, k.Pos, "key", k.Key)
	for i := range k.References {
		r := &k.References[i]
		columns := r.Columns
		if r.Region.Column != "" {
			columns = append(slices.Clone(columns), r.Region.Column)
		}
		if r.When.Column != "" {
			columns = append(slices.Clone(columns), r.When.Column)
		}
		if b.columns(db, t, r.Pos, "columns", columns) && ok {
			b.reference(db, t, k, r)
		}
	}
}

func (b *binder) columns(db *Database, t *Table, pos schema.Pos, what string, columns []string) bool {
	ok := true
	for _, name := range columns {
		if t.Column(name) == nil {
			have := make([]string, len(t.Columns))
			for i, c := range t.Columns {
				have[i] = c.Name
			}
			b.problem(pos, "its columns are "+strings.Join(have, ", "), "%s: table %s of database %s has no column %q",
				what, t.Name, db.Label, name)
			ok = false
		}
	}
	return ok
}

func (b *binder) reference(db *Database, t *Table, k *schema.Kind, r *schema.Reference) {
	out := &Reference{
		Database: db, Table: t, Kind: schema.KindID{Service: db.Service, Kind: k.Name}, Key: k.Key, Columns: r.Columns,
		None: r.None, When: r.When, Region: r.Region.Column, Behaviour: r.Behaviour,
	}
	for _, name := range r.Targets {
		b.target(out, r, name)
	}
	if out.Unscanned == "" && len(out.Targets) == 0 {
		out.Unscanned = "no --dsn for the database of its target"
	}
	out.advise(r)
	b.out = append(b.out, out)
}

// target adds the keys of one target kind in all databases to which values may refer.
func (b *binder) target(out *Reference, r *schema.Reference, name string) {
	id := schema.KindID{Service: out.Database.Service, Kind: name}
	if strings.Contains(name, "/") {
		id, _ = schema.ParseKindID(name) // checked with the file
	}
	k := b.kinds[id]
	switch {
	case k == nil:
		out.Unscanned = fmt.Sprintf("the file does not describe %s", id)
		return
	case k.Table == (schema.TableName{}):
		out.Unscanned = fmt.Sprintf("%s has no table: its resources have bodies", id)
		return
	}
	databases := 0
	for _, db := range b.databases {
		if db.Service != id.Service {
			continue
		}
		databases++
		if r.Region.Column == "" && !sameRegion(out.Database, db, r.Region.Fixed) {
			continue
		}
		t := db.Table(k.Table)
		if t == nil {
			continue // a problem of its kind
		}
		target := Target{Database: db, Table: t, Kind: id, Key: k.Key}
		if r.Region.Column != "" {
			target.Region = db.Region
		}
		if reason := target.match(out); reason != "" {
			out.Unscanned = reason
			return
		}
		out.Targets = append(out.Targets, target)
	}
	if databases == 0 {
		out.Unscanned = fmt.Sprintf("no --dsn for %s", id.Service)
	}
}

// sameRegion reports whether target can have the targets of holder's rows: a database without a region has
// the rows of all regions.
func sameRegion(holder, target *Database, fixed string) bool {
	want := fixed
	if want == "" {
		want = holder.Region
	}
	return target.Region == "" || want == "" || target.Region == want
}

func (t *Target) match(r *Reference) (reason string) {
	for i, name := range t.Key {
		key := t.Table.Column(name)
		if key == nil || i >= len(r.Columns) {
			return fmt.Sprintf("the key of %s has no column for each of its own", t.Table.Name)
		}
		c := r.Table.Column(r.Columns[i])
		m, ok := Compare(c.Type, key.Type)
		if !ok {
			return fmt.Sprintf("%s has the type %s, and %s.%s has %s: their values cannot be compared", c.Name, c.Type,
				t.Table.Name, name, key.Type)
		}
		t.Matches = append(t.Matches, m)
	}
	return ""
}
