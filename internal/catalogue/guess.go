package catalogue

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// least is the score of the weakest guess that is made.
const least = 60

// Guess is a declaration that was guessed from catalogues.
type Guess struct {
	Descriptors []*schema.Descriptor
	// Why has the reason of each reference, by FieldID.
	Why map[FieldID]string
	// Notes are columns that look like references and are none of the declaration, in words.
	Notes []string
}

// FieldID names a reference of a declaration.
type FieldID struct{ Service, Kind, Field string }

// place is a table of a service.
type place struct {
	db    *Database
	table *Table
}

func (p place) String() string { return p.db.Label + " " + p.table.Name.String() }

type candidate struct {
	place
	key     []string
	columns []string
	score   int
	why     string
}

type guesser struct {
	tables []place
	out    *Guess
	found  map[*Table][]candidate // by holder
	forms  map[*Table][]form      // of each table, which each column is compared with
	spelt  map[string][]string    // the words of each name
	// Indices of tables by the last words of their forms, and by the names of their keys in lower case.
	byWord, byKey map[string][]int
	byNamedKey    map[string][]int // byKey of keys that are named after their table: hostid
	unmatched     []unmatched
	noted         []*Column // columns with a note of their own
	// lent are the tables whose primary key is a reference: host_inventory (hostid).
	lent map[*Table]bool
	// byLetters are the tables by the words of their forms without a sign between them: mediatype.
	byLetters map[string][]int
}

// maxUnmatched is the number of columns that a note lists.
const maxUnmatched = 50

// idWords are the words of keys in the names of columns that are references in all likelihood.
var idWords = []string{"id", "uuid", "guid", "uid", "fk", "ref"}

// form is a name under which columns may refer to a table, with the score of a column that does.
type form struct {
	words []string
	score int
}

// words is the function of that name, once for each name: each column is compared with each table.
func (g *guesser) words(name string) []string {
	w, ok := g.spelt[name]
	if !ok {
		w = words(name)
		g.spelt[name] = w
	}
	return w
}

// GuessReferences guesses references between the tables of all databases, inside one database where there is
// no native key. The first database of a service stands for all of its regions.
func GuessReferences(databases []*Database) *Guess {
	g := &guesser{
		out: &Guess{Why: map[FieldID]string{}}, found: map[*Table][]candidate{}, forms: map[*Table][]form{},
		spelt: map[string][]string{}, byWord: map[string][]int{}, byKey: map[string][]int{},
		byLetters: map[string][]int{}, byNamedKey: map[string][]int{}, lent: map[*Table]bool{},
	}
	seen := map[string]bool{}
	for _, db := range databases {
		if seen[db.Service] {
			continue
		}
		seen[db.Service] = true
		prefixes := db.prefixes()
		for _, t := range db.Tables {
			if t.Partition || t.Inherits {
				continue // its parent stands for it
			}
			g.add(place{db, t}, prefixes)
		}
	}
	for _, keys := range []bool{true, false} { // keys that refer first: their tables do not own the name of the key
		for _, holder := range g.tables {
			if holder.table.stores() {
				g.singles(holder, keys)
			}
		}
	}
	for _, holder := range g.tables {
		if !holder.table.stores() {
			continue
		}
		g.composites(holder)
	}
	g.noteUnmatched()
	g.declare(databases)
	return g.out
}

// unmatched is a column that is named as a reference, and fits no table.
type unmatched struct {
	holder place
	column *Column
}

// noteUnmatched lists the columns that fit no table, alone or with others.
func (g *guesser) noteUnmatched() {
	var names []string
	for _, u := range g.unmatched {
		if !slices.ContainsFunc(g.found[u.holder.table], func(c candidate) bool {
			return slices.Contains(c.columns, u.column.Name)
		}) {
			names = append(names, u.holder.String()+" ("+u.column.Name+")")
		}
	}
	if len(names) == 0 {
		return
	}
	more := ""
	if n := len(names) - maxUnmatched; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	g.note("named as references are, and no table fits: %s%s; declare those that are references",
		strings.Join(names[:min(len(names), maxUnmatched)], ", "), more)
}

// add adds a table to the tables that columns are compared with.
func (g *guesser) add(p place, prefixes map[string]bool) {
	i := len(g.tables)
	g.tables = append(g.tables, p)
	g.forms[p.table] = formsOf(p, prefixes)
	for _, f := range g.forms[p.table] {
		if len(f.words) > 0 {
			last := f.words[len(f.words)-1]
			g.byWord[last] = append(g.byWord[last], i)
			if letters := strings.Join(f.words, ""); letters != last {
				g.byLetters[letters] = append(g.byLetters[letters], i)
			}
			if w := f.words; len(w) > 1 && slices.Contains(lookups, last) { // colour_types, for a column colour
				g.byWord[w[len(w)-2]] = append(g.byWord[w[len(w)-2]], i)
			}
		}
	}
	for _, key := range singleKeys(p.table) {
		name := strings.ToLower(key.Name)
		g.byKey[name] = append(g.byKey[name], i)
		if g.saysMore(name) {
			g.byNamedKey[name] = append(g.byNamedKey[name], i)
		}
	}
}

// near returns the tables to which a column may refer by its name: one of its words ends a form of the table,
// or the table has a key of its name. It leaves out the tables that no rule of candidates takes.
func (g *guesser) near(column string) (out []place) {
	lower := strings.ToLower(column)
	found := slices.Clone(g.byKey[lower])
	for i := range lower {
		if lower[i] == '_' {
			found = append(found, g.byNamedKey[lower[i+1:]]...)
			found = append(found, g.byNamedKey[lower[:i]]...)
		}
	}
	found = append(found, g.byNamedKey[strings.TrimRight(lower, "0123456789")]...)
	for _, word := range g.words(column) {
		found = append(found, g.byWord[singular(word)]...)
		found = append(found, g.byWord[word]...)
		if base := strings.TrimSuffix(word, "id"); base != word && base != "" {
			found = append(found, g.byWord[singular(base)]...)
			found = append(found, g.byLetters[singular(base)]...)
		}
	}
	found = append(found, g.byLetters[strings.Join(g.words(column), "")]...)
	slices.Sort(found)
	for _, i := range slices.Compact(found) {
		out = append(out, g.tables[i])
	}
	return out
}

func (g *guesser) note(format string, args ...any) {
	g.out.Notes = append(g.out.Notes, fmt.Sprintf(format, args...))
}

// singles guesses the references of single columns: of the columns that are the whole primary key, or of all
// others.
func (g *guesser) singles(holder place, keys bool) {
	for i := range holder.table.Columns {
		c := &holder.table.Columns[i]
		if keys != slices.Equal(holder.table.Key(), []string{c.Name}) {
			continue
		}
		if slices.ContainsFunc(holder.table.Natives, func(n NativeKey) bool {
			return slices.Contains(n.Columns, c.Name)
		}) {
			continue // PostgreSQL holds it, or the columns with it
		}
		if of, ok := polymorphic(holder.table, c); ok {
			g.note(
				"%s (%s): %s names the table, so the column refers to several; not guessed: declare a reference for each, with when: {%[3]s: VALUE}", holder, c.Name, of)
			continue
		}
		base, word := stem(c.Name)
		if len(base) == 0 || slices.Contains(keyWords, c.Name) {
			continue
		}
		var all []candidate
		for _, target := range g.near(c.Name) {
			all = append(all, g.candidates(holder, c, base, word, target)...)
		}
		best, ok := g.best(holder, c, all)
		if len(all) == 0 || len(base) == 1 && ok && !slices.Equal(noun(best.table.Name.Name), base) {
			if role, is := g.byRoleOf(holder, c, base, word); is && (len(all) == 0 || role.table == holder.table) {
				best, ok = role, true
			}
		}
		switch {
		case ok:
			g.found[holder.table] = append(g.found[holder.table], best)
			g.lent[holder.table] = g.lent[holder.table] || keys
		case len(all) == 0 && !slices.Contains(holder.table.Key(), c.Name) && slices.Contains(idWords, word) &&
			!slices.Contains(g.noted, c):
			g.unmatched = append(g.unmatched, unmatched{holder, c})
		}
	}
}

// polymorphic recognises commentable_id beside commentable_type, and object_id beside content_type_id.
func polymorphic(t *Table, c *Column) (string, bool) {
	base, key := stem(c.Name)
	if key == "" {
		return "", false
	}
	for _, other := range t.Columns {
		w := words(other.Name)
		if len(w) > 1 && w[len(w)-1] == "type" && slices.Equal(noun(strings.Join(w[:len(w)-1], "_")), base) {
			return other.Name, true
		}
		if other.Name == "content_type_id" && slices.Equal(base, []string{"object"}) {
			return other.Name, true
		}
	}
	return "", false
}

// candidates are the keys of one table to which a column may refer, whose name has the words base and the
// word of a key.
func (g *guesser) candidates(holder place, c *Column, base []string, word string, target place) (out []candidate) {
	alone := slices.Equal(holder.table.Key(), []string{c.Name})
	own := 0 // the score of the holder's own name, for a column of its key
	if slices.Contains(holder.table.Key(), c.Name) {
		own, _ = named(base, word, g.forms[holder.table])
	}
	if own > 0 && (alone || holder.table == target.table) || alone && holder.table == target.table {
		return nil
	}
	forms := g.forms[target.table]
	within := hasPrefix(g.words(holder.table.Name.Name), noun(target.table.Name.Name)) // order_lines within orders
	family := holder.db == target.db && common(g.words(holder.table.Name.Name), g.words(target.table.Name.Name)) > 0
	if family && holder.table != target.table {
		forms = slices.Concat(forms, relative(g.words(holder.table.Name.Name), noun(target.table.Name.Name)))
	}
	for _, key := range singleKeys(target.table) {
		score, why := 0, ""
		if g.fits(word, key, target.table) || strings.EqualFold(c.Name, key.Name) && g.saysMore(key.Name) {
			score, why = named(base, word, forms)
			if full := noun(target.table.Name.Name); score < 72 && word != "" && family && len(full) > len(base) &&
				hasSuffix(full, base) {
				score, why = 72, "the table's name ends with it"
				if within {
					score, why = 96, "the holder's name begins with that of the table"
				}
			}
			if word == "" && g.saysMore(key.Name) && len(base) > 0 {
				score = 0 // the keys of this database are named: actionid refers to actions, action does not
			}
		}
		if holder.table == target.table && !slices.ContainsFunc(forms, func(f form) bool {
			return len(base) > len(f.words)
		}) {
			continue // a column of the table's own name
		}
		if len(base) > 0 && word == "" && score < 75 && holder.table != target.table &&
			g.isLookup(c.Name, key, target.table) {
			score, why = 75, "the table lists the values"
		}
		if primary := slices.Equal(target.table.Key(), []string{key.Name}); primary && g.saysMore(key.Name) && !alone &&
			!g.lent[target.table] {
			switch {
			case strings.EqualFold(c.Name, key.Name) && score < byKey:
				if score, why = byKey, "it has the name of the key"; abbreviates(target.table.Name.Name, base) {
					score++
				}
			case endsWithKey(c.Name, key.Name) && score < least && abbreviates(target.table.Name.Name,
				base[len(base)-1:]):
				score, why = 81, "it has the name of the key after a role"
			case endsWithKey(c.Name, key.Name) && score > 0:
				score, why = max(score, 90), "it has the name of the key after a role"
			case endsWithKey(c.Name, key.Name):
				score, why = 80, "it has the name of the key after a role"
			case beginsWithKey(c.Name, key.Name) && score < 80:
				score, why = 80, "it has the name of the key before a role"
			}
		}
		if s, w := g.namedBefore(c.Name, key.Name, "key", forms); s >= 95 && s > score {
			score, why = s, w // product_sku
		}
		if score < least || score <= own && holder.table != target.table || alone && score < 95 {
			continue
		}
		match, ok := Compare(c.Type, key.Type)
		switch {
		case !ok && score >= 95:
			g.noted = append(g.noted, c)
			g.note(
				"%s (%s) looks like a reference to %s (%s), but a value of type %s cannot be compared with one of type %s", holder, c.Name, target, key.Name, c.Type, key.Type)
			continue
		case !ok:
			continue
		case c.Type.class() != key.Type.class():
			score -= 30
			why += ", " + match.Differ
		}
		if score >= least {
			out = append(out, candidate{
				place: target, key: []string{key.Name}, columns: []string{c.Name},
				score: score, why: why,
			})
		}
	}
	return out
}

// singleKeys are the columns of a table that are unique alone, the primary key first.
func singleKeys(t *Table) (out []*Column) {
	primary := t.Key()
	if len(primary) == 1 {
		out = append(out, t.Column(primary[0]))
	}
	for _, i := range t.Indexes {
		if len(i.Columns) == 1 && i.Unique && i.Valid && i.Predicate == "" {
			if c := t.Column(i.Columns[0]); c != nil && !slices.Contains(out, c) {
				out = append(out, c)
			}
		}
	}
	return out
}

// fits reports whether a column with this key word can mean this key: user_id the primary key, user_uuid and
// country_code the unique key of that name.
func (g *guesser) fits(word string, key *Column, t *Table) bool {
	primary := slices.Equal(t.Key(), []string{key.Name})
	w := g.words(key.Name)
	last := w[len(w)-1]
	switch word {
	case "code", "number", "no":
		return last == word || word == "no" && last == "number" || word == "number" && last == "no"
	case "key":
		return primary && last == word
	case "uuid", "guid":
		return primary && key.Type.class() == identifier || last == "uuid" || last == "guid"
	}
	return primary
}

// formsOf returns the names under which columns may refer to a table; prefixes are the words that begin many
// names of its database.
func formsOf(target place, prefixes map[string]bool) []form {
	full := noun(target.table.Name.Name)
	label, namespace := noun(target.db.Label), words(target.table.Name.Schema)
	forms := []form{{full, 100}, {slices.Concat(namespace, full), 100}, {slices.Concat(label, full), 100}}
	for _, prefix := range [][]string{label, words(target.db.Label), namespace} {
		if len(prefix) > 0 && len(full) > len(prefix) && slices.Equal(noun(strings.Join(full[:len(prefix)], "_")),
			noun(strings.Join(prefix, "_"))) {
			forms = append(forms, form{full[len(prefix):], 95})
		}
	}
	if len(full) > 1 {
		score := 75
		if prefixes[words(target.table.Name.Name)[0]] || singular(full[0]) == full[1] {
			score = 95
		}
		forms = append(forms, form{full[1:], score}) // the prefix of an application: accounts_user
	}
	return forms
}

// lookups end the names of tables that list the values of a column.
var lookups = []string{"type", "kind", "state", "status", "category", "code"}

// isLookup reports whether a table lists the values of a column without the word of a key: state for
// lease_state (state), colour for colour_types.
func (g *guesser) isLookup(column string, key *Column, t *Table) bool {
	w, full := g.words(column), noun(t.Name.Name)
	if strings.EqualFold(column, key.Name) {
		return len(full) <= len(w)+1 && (hasSuffix(full, w) || len(w) > 1 && full[len(full)-1] == w[len(w)-1] &&
			slices.Contains(lookups, w[len(w)-1]))
	}
	return len(full) == len(w)+1 && slices.Equal(full[:len(w)], w) && slices.Contains(lookups, full[len(full)-1])
}

// namedBefore scores the words of a column's name before the words of a key's name.
func (g *guesser) namedBefore(column, key, word string, forms []form) (score int, why string) {
	base := slices.Clone(before(g.words(column), g.words(key)))
	if len(base) == 0 {
		return 0, ""
	}
	base[len(base)-1] = singular(base[len(base)-1])
	return named(base, word, forms)
}

// named scores the names: a column customer_id and a table customers.
func named(base []string, word string, forms []form) (score int, why string) {
	for _, f := range forms {
		if len(f.words) == 0 {
			continue
		}
		s := 0
		switch {
		case slices.Equal(base, f.words) && word == "":
			s = f.score - 25
		case slices.Equal(base, f.words), word != "" && len(base) == 1 && len(f.words) > 1 &&
			base[0] == strings.Join(f.words, ""):
			// mediatypeid
			s = f.score
		case word != "" && hasSuffix(base, f.words) && len(strings.Join(f.words, "")) > 2:
			s = f.score - 30
		}
		if s > score {
			score, why = s, "it is named after the table"
			if len(base) > len(f.words) {
				why = "its name ends with that of the table"
			}
		}
	}
	return score, why
}

// prefixes returns the words that begin the names of many tables of a database, such as an application's
// name.
func (d *Database) prefixes() map[string]bool {
	counts, out := map[string]int{}, map[string]bool{}
	for _, t := range d.Tables {
		if w := words(t.Name.Name); len(w) > 1 {
			counts[w[0]]++
		}
	}
	for word, n := range counts {
		out[word] = n > 1 && n*2 >= len(d.Tables)
	}
	return out
}

// best chooses the best candidate: at equal scores one in the same database, else one in the same schema,
// else none.
func (g *guesser) best(holder place, c *Column, all []candidate) (candidate, bool) {
	if len(all) == 0 {
		return candidate{}, false
	}
	of := g.words(holder.table.Name.Name)
	near := func(x candidate) int {
		switch {
		case x.db == holder.db && x.table.Name.Schema == holder.table.Name.Schema:
			return 2 + common(of, g.words(x.table.Name.Name))
		case x.db == holder.db:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(near(b), near(a)))
	})
	if len(all) > 1 && all[0].score == all[1].score && near(all[0]) == near(all[1]) && all[0].table != all[1].table {
		g.note("%s (%s) may refer to %s or to %s: declare one of them", holder, c.Name, all[0].place, all[1].place)
		return candidate{}, false
	}
	return all[0], true
}

// composites guesses the references to keys of several columns.
func (g *guesser) composites(holder place) {
	for _, target := range g.tables {
		key := target.table.Key()
		if len(key) < 2 || holder.table == target.table {
			continue
		}
		columns, why := g.composite(holder, target, key)
		native := slices.ContainsFunc(holder.table.Natives, func(n NativeKey) bool {
			return !slices.ContainsFunc(columns, func(c string) bool { return !slices.Contains(n.Columns, c) })
		})
		if columns == nil || native || sameSet(columns, holder.table.Key()) && !strings.Contains(why, "named after") {
			continue
		}
		g.found[holder.table] = append(g.found[holder.table], candidate{
			place: target, key: key, columns: columns,
			score: 90, why: why,
		})
	}
}

// composite finds a column for each column of a key: of the same name, or of that name after the name of the
// table; at least one is named after the table, or all have the names of the key and say more than id.
func (g *guesser) composite(from, target place, key []string) (columns []string, why string) {
	holder, after := from.table, false
	for _, name := range key {
		k := target.table.Column(name)
		i := slices.IndexFunc(holder.Columns, func(c Column) bool {
			score, _ := g.namedBefore(c.Name, name, "id", g.forms[target.table])
			return score >= 95 && alike(c, *k)
		})
		if i < 0 {
			i = slices.IndexFunc(holder.Columns, func(c Column) bool {
				return strings.EqualFold(c.Name, name) && !slices.Contains(keyWords, strings.ToLower(name)) &&
					alike(c, *k)
			})
		} else {
			after = true
		}
		if i < 0 {
			return nil, ""
		}
		columns = append(columns, holder.Columns[i].Name)
	}
	distinct := slices.Clone(columns)
	slices.Sort(distinct)
	switch {
	case len(slices.Compact(distinct)) < len(key):
		return nil, ""
	case after:
		return columns, "the columns are named after the table and its key"
	case (holder.Key() == nil || !sameSet(columns, holder.Key())) && !hasPrefix(words(holder.Name.Name),
		noun(target.table.Name.Name)):
		g.note("%s (%s) has columns with the names of the key of %s: declare the reference if it is one", from,
			strings.Join(columns, ", "), target)
		return nil, ""
	case holder.Key() == nil || !sameSet(columns, holder.Key()):
		return columns, "the columns have the names of the key"
	}
	return nil, ""
}

// before returns the words without those at the end; nil when they do not end with them.
func before(all, end []string) []string {
	if len(all) <= len(end) || !hasSuffix(all, end) {
		return nil
	}
	return all[:len(all)-len(end)]
}

func alike(holder, key Column) bool {
	_, ok := Compare(holder.Type, key.Type)
	return ok && holder.Type.class() == key.Type.class()
}
