package schema

import (
	"fmt"
	"slices"
	"strings"
)

// TableName names a table as the catalogue has it: nothing is folded to lower case.
type TableName struct {
	Schema, Name string
}

// ParseTableName parses schema.table, or table alone, which lies in the schema public. A part that contains a
// dot or a quote is written in double quotes, as in SQL: public."odd.name".
func ParseTableName(s string) (TableName, error) {
	first, rest, err := identifier(s)
	if err != nil {
		return TableName{}, fmt.Errorf("table %q: %w", clip(s), err)
	}
	if rest == "" {
		return TableName{Schema: "public", Name: first}, nil
	}
	second, rest, err := identifier(rest[1:])
	if err == nil && rest != "" {
		err = fmt.Errorf("want schema.table")
	}
	if err != nil {
		return TableName{}, fmt.Errorf("table %q: %w", clip(s), err)
	}
	return TableName{Schema: first, Name: second}, nil
}

// identifier reads one identifier, quoted or not, and returns the text from the next dot on.
func identifier(s string) (name, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		i := strings.IndexByte(s, '.')
		if i < 0 {
			i = len(s)
		}
		if name = s[:i]; name == "" || strings.Contains(name, `"`) {
			return "", "", fmt.Errorf(`want schema.table, such as public.invoices or public."odd.name"`)
		}
		return name, s[i:], nil
	}
	for i := 1; i < len(s); i++ {
		if s[i] != '"' {
			name += s[i : i+1]
			continue
		}
		if i+1 < len(s) && s[i+1] == '"' {
			name += `"`
			i++
			continue
		}
		if rest = s[i+1:]; name == "" || rest != "" && rest[0] != '.' {
			break
		}
		return name, rest, nil
	}
	return "", "", fmt.Errorf("a quoted identifier is empty or does not end")
}

// String returns the form that ParseTableName reads.
func (t TableName) String() string {
	write := func(s string) string {
		if strings.ContainsAny(s, `."`) {
			return QuoteIdentifier(s)
		}
		return s
	}
	return write(t.Schema) + "." + write(t.Name)
}

// SQL returns the quoted name for a statement.
func (t TableName) SQL() string { return QuoteIdentifier(t.Schema) + "." + QuoteIdentifier(t.Name) }

// QuoteIdentifier quotes a name for SQL.
func QuoteIdentifier(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// QuoteLiteral quotes a text for SQL. Sessions read it alike, whatever their settings: backslashes are doubled in
// an E'…' literal.
func QuoteLiteral(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) {
		return "E'" + strings.ReplaceAll(s, `\`, `\\`) + "'"
	}
	return "'" + s + "'"
}

// Enforcement is the time at which a reference of a table is checked.
type Enforcement string

// EnforceAsync checks a new target after the commit; EnforceStrict before it, and the first write that names
// a target is repeated.
const (
	EnforceAsync  Enforcement = "async"
	EnforceStrict Enforcement = "strict"
)

// Missing is the effect on a row whose target turns out to be missing, for references that are enforced
// asynchronously.
type Missing string

// The effects: the row is reported, its columns become NULL, or it is deleted.
const (
	MissingReport Missing = "report"
	MissingUnset  Missing = "unset"
	MissingDelete Missing = "delete"
)

// TargetRegion is the region of the targets of a table's reference: the holder's region when it is zero.
type TargetRegion struct {
	Fixed  string // a region
	Column string // a column of the holder's table with the region
	Same   bool   // the holder's region is declared; undeclared, attach asks if the targets' service has several
}

// checkTable checks the declarations of a kind about its table.
func checkTable(ps *Problems, k *Kind) {
	if k.Table == (TableName{}) {
		if len(k.Key) > 0 {
			ps.add(k.Pos, "add table: schema.name, or remove key", "kind %s has a key and no table", k.Name)
		}
		if k.Gone != "" {
			ps.add(k.Pos, "add table: schema.name, or remove gone", "gone is for a kind with a table, and %s has none",
				k.Name)
		}
		return
	}
	if len(k.Key) == 0 {
		ps.add(k.Pos, "add key: [id], the columns of the primary key or of another unique key",
			"kind %s has a table and no key", k.Name)
	}
	checkColumns(ps, k.Pos, "key", k.Key)
	for i := range k.References {
		if r := &k.References[i]; k.Gone != "" && (slices.Contains(r.Columns, k.Gone) || r.Region.Column == k.Gone ||
			r.When.Column == k.Gone) {
			ps.add(r.Pos, "name another column", "gone: %s is a column that refers", clip(k.Gone))
		}
	}
	if slices.Contains(k.Key, k.Gone) {
		ps.add(k.Pos, "name the column that says that the row is deleted, such as deleted_at",
			"gone: %s is a column of the key", clip(k.Gone))
	}
	if len(k.Patterns) == 1 {
		if p, err := ParsePattern(k.Patterns[0]); err == nil && len(p.Segments) != 2 {
			ps.add(k.Pos, "write one collection and one variable, such as invoices/{invoice}",
				"the key of a row is one id of its name, and pattern %s has %d", p, len(p.Segments)/2)
		}
	} else if len(k.Patterns) > 1 {
		ps.add(k.Pos, "keep one of them", "kind %s has a table and %d patterns: a row has one name", k.Name,
			len(k.Patterns))
	}
	if len(k.Parents) > 0 {
		ps.add(k.Parents[0].Pos, "declare the columns as a reference",
			"kind %s has a table: its names do not lie below those of a parent", k.Name)
	}
}

func checkColumns(ps *Problems, pos Pos, what string, columns []string) {
	seen := map[string]bool{}
	for _, c := range columns {
		if c == "" || seen[c] {
			ps.add(pos, "name each column once", "%s: column %q is empty or listed twice", what, clip(c))
		}
		seen[c] = true
	}
}

// checkTableReference checks a reference as one of columns, or as one of a field of bodies; targets are the
// kinds that exist.
func checkTableReference(ps *Problems, k *Kind, r *Reference, targets []*Kind) {
	if k.Table == (TableName{}) {
		if len(r.Columns) > 0 || r.Region != (TargetRegion{}) || r.Enforce != "" || r.Missing != "" ||
			len(r.None) > 0 || r.When != (RowCondition{}) || len(r.Unset) > 0 || r.UnsetToDefault || r.MatchFull {
			ps.add(r.Pos, "add table and key to the kind, or use path alone",
				"columns, region, enforce, missing, none, when, unset, unset_to and match are for kinds with a table")
		}
		return
	}
	if r.Path != "" {
		ps.add(r.Pos, "use columns: [name]", "kind %s has a table: its references are columns, not paths", k.Name)
	}
	if len(r.Columns) == 0 {
		ps.add(r.Pos, "add columns: [customer_id], in the order of the target's key", "the reference has no columns")
	}
	checkColumns(ps, r.Pos, "columns", r.Columns)
	if len(r.None) > 0 && len(r.Columns) != 1 {
		ps.add(r.Pos, "write NULL into one of the columns instead",
			"none is for a reference of one column, and this one has %d", len(r.Columns))
	}
	for _, none := range r.None {
		if !isLiteral(none) {
			ps.add(r.Pos, "write NULL instead", "none: %q is too long, or has a line break", clip(none))
		}
	}
	checkCondition(ps, r)
	checkUnset(ps, r)
	if r.Region.Fixed != "" {
		if err := CheckRegion(r.Region.Fixed); err != nil {
			ps.add(r.Pos, "", "%v", err)
		}
	}
	for _, t := range targets {
		if want := len(t.Key); want > 0 && len(r.Columns) > 0 && want != len(r.Columns) {
			ps.add(r.Pos, "name one column for each: "+strings.Join(t.Key, ", "),
				"the key of %s has %d columns, and the reference has %d", t.Name, want, len(r.Columns))
		}
	}
}

// checkUnset checks the columns that UNSET sets, and MATCH FULL.
func checkUnset(ps *Problems, r *Reference) {
	checkColumns(ps, r.Pos, "unset", r.Unset)
	for _, c := range r.Unset {
		if !slices.Contains(r.Columns, c) {
			ps.add(r.Pos, "name some of the columns that refer", "unset: %s is none of the columns", clip(c))
		}
	}
	unsets := r.Behaviour.Unsets() || r.Missing == MissingUnset
	switch {
	case (len(r.Unset) > 0 || r.UnsetToDefault) && !unsets:
		ps.add(r.Pos, "declare behaviour: UNSET, or remove them",
			"unset and unset_to are for references that are unset")
	case r.UnsetToDefault && r.Missing == MissingUnset:
		ps.add(r.Pos, "declare missing: report or delete",
			"missing: unset would set rows to a default that may be missing too, again and again")
	case r.UnsetToDefault && r.Enforce == EnforceStrict:
		ps.add(r.Pos, "declare enforce: async",
			"unset_to: default needs the right to refer to the default, which the deletion of another resource cannot wait for")
	case r.MatchFull && len(r.Unset) > 0 && len(r.Unset) < len(r.Columns):
		ps.add(r.Pos, "unset all columns",
			"match: full allows no row with NULL in some of the columns, and unset names %d of %d", len(r.Unset),
			len(r.Columns))
	}
}

// isLiteral reports whether a text can be a literal in triggers.
func isLiteral(text string) bool {
	return len(text) <= MaxNameBytes && !strings.ContainsAny(text, "\x00\n\r")
}

func checkCondition(ps *Problems, r *Reference) {
	switch {
	case r.When == (RowCondition{}):
	case r.When.Column == "" || r.When.Value == "":
		ps.add(r.Pos, "write when: {owner_type: Customer}", "when: the column or the value is empty")
	case slices.Contains(r.Columns, r.When.Column) || r.When.Column == r.Region.Column:
		ps.add(r.Pos, "name the column that says which kind the others name", "when: %s is a column that refers",
			clip(r.When.Column))
	case !isLiteral(r.When.Value):
		ps.add(r.Pos, "give the rows a shorter value, without a line break",
			"when: %q is too long, or has a line break", clip(r.When.Value))
	}
}

// checkTables checks that each table belongs to one kind of the version.
func checkTables(ps *Problems, d *Descriptor) {
	seen := map[TableName]string{}
	for i := range d.Kinds {
		k := &d.Kinds[i]
		if k.Table == (TableName{}) {
			continue
		}
		if other, ok := seen[k.Table]; ok {
			ps.add(k.Pos, "keep one of them", "table %s belongs to %s and to %s", k.Table, other, k.Name)
		}
		seen[k.Table] = k.Name
	}
}
