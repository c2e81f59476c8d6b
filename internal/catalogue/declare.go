package catalogue

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// declare writes the guesses as descriptors: a kind for each table that refers or is referred to.
func (g *guesser) declare(databases []*Database) {
	kinds := map[*Table]*schema.Kind{}
	byService := map[string]*schema.Descriptor{}
	for _, holder := range g.tables {
		found := g.found[holder.table]
		if len(found) > 0 && holder.table.Key() == nil {
			g.note(
				"%s refers to %s (%s), but has neither a primary key nor another unique key without NULLs, which names its rows; not scanned",
				holder, found[0].place, strings.Join(found[0].columns, ", "))
			delete(g.found, holder.table)
		}
	}
	wanted := g.keys()
	for _, p := range g.tables {
		if wanted[p.table] == nil {
			continue
		}
		d := byService[p.db.Service]
		if d == nil {
			d = &schema.Descriptor{ServiceVersion: schema.ServiceVersion{Service: p.db.Service, Version: "v1"}}
			byService[p.db.Service] = d
			g.out.Descriptors = append(g.out.Descriptors, d)
		}
		name, collection := kindName(p, d)
		d.Kinds = append(d.Kinds, schema.Kind{
			Name: name, Table: p.table.Name, Key: wanted[p.table],
			Patterns: []string{collection + "/{" + strings.ToLower(name[:1]) + name[1:] + "}"},
		})
	}
	for _, d := range g.out.Descriptors { // kinds no longer move
		for i := range d.Kinds {
			for _, p := range g.tables {
				if p.db.Service == d.Service && p.table.Name == d.Kinds[i].Table {
					kinds[p.table] = &d.Kinds[i]
				}
			}
		}
	}
	for _, holder := range g.tables {
		for _, c := range g.found[holder.table] {
			if !slices.Equal(kinds[c.table].Key, c.key) {
				g.note("%s (%s) refers to %s by %s, and others by another key: a kind has one key; not scanned", holder,
					strings.Join(c.columns, ", "), c.place, strings.Join(c.key, ", "))
				continue
			}
			g.reference(holder, kinds[holder.table], c, kinds[c.table], databases)
		}
	}
	g.imports(byService)
	slices.SortFunc(g.out.Descriptors, func(a, b *schema.Descriptor) int { return cmp.Compare(a.Service, b.Service) })
}

// keys chooses the key of each table: that to which others refer, the primary key first.
func (g *guesser) keys() map[*Table][]string {
	out := map[*Table][]string{}
	for _, found := range g.found {
		for _, c := range found {
			if out[c.table] == nil || slices.Equal(c.key, c.table.Key()) {
				out[c.table] = c.key
			}
		}
	}
	for holder, found := range g.found {
		if len(found) > 0 && out[holder] == nil {
			out[holder] = holder.Key()
		}
	}
	return out
}

func (g *guesser) reference(holder place, k *schema.Kind, c candidate, target *schema.Kind, databases []*Database) {
	r := schema.Reference{
		Columns: c.columns, Behaviour: schema.Block, Enforce: schema.EnforceAsync,
		Missing: schema.MissingReport,
	}
	r.Targets = []string{c.db.Service + "/" + target.Name}
	if c.db.Service == holder.db.Service {
		r.Targets = []string{target.Name}
	} else if regions(databases, c.db.Service) > 1 {
		r.Region.Column = regionColumn(holder.table, c.columns[0])
	}
	k.References = append(k.References, r)
	g.out.Why[FieldID{holder.db.Service, k.Name, r.Field()}] = c.why
}

func regions(databases []*Database, service string) (n int) {
	for _, db := range databases {
		if db.Service == service {
			n++
		}
	}
	return n
}

// regionColumn finds customer_region for customer_id; "" means the holder's own region.
func regionColumn(t *Table, column string) string {
	base, _ := stem(column)
	for _, c := range t.Columns {
		w := words(c.Name)
		if c.Type.class() == text && len(w) > 1 && w[len(w)-1] == "region" &&
			slices.Equal(noun(strings.Join(w[:len(w)-1], "_")), base) {
			return c.Name
		}
	}
	return ""
}

func (g *guesser) imports(byService map[string]*schema.Descriptor) {
	for _, d := range byService {
		needed := map[string]bool{}
		for _, k := range d.Kinds {
			for _, r := range k.References {
				if service, _, ok := strings.Cut(r.Targets[0], "/"); ok && service != d.Service {
					needed[service] = true
				}
			}
		}
		for service := range needed {
			d.Imports = append(d.Imports, schema.Import{ServiceVersion: byService[service].ServiceVersion})
		}
		slices.SortFunc(d.Imports, func(a, b schema.Import) int { return cmp.Compare(a.Service, b.Service) })
	}
}

// kindName names the kind of a table, and the collection of its names: without the prefix of the application
// where that is clear.
func kindName(p place, d *schema.Descriptor) (kind, collection string) {
	full := ascii(noun(p.table.Name.Name))
	options := [][]string{full, slices.Concat(ascii(words(p.table.Name.Schema)), full)}
	if label := noun(p.db.Label); len(full) > len(label) &&
		slices.Equal(noun(strings.Join(full[:len(label)], "_")), label) {
		options = append([][]string{full[len(label):]}, options...)
	} else if len(full) > 1 && (p.db.prefixes()[words(p.table.Name.Name)[0]] || singular(full[0]) == full[1]) {
		options = append([][]string{ascii(full[1:])}, options...)
	}
	for n := 2; ; n++ {
		for _, w := range options {
			kind = clip(camel(w))
			w = slices.Clone(w)
			w[len(w)-1] = plural(w[len(w)-1])
			collection = camel(w)
			collection = clip(strings.ToLower(collection[:1]) + collection[1:])
			taken := slices.ContainsFunc(d.Kinds, func(k schema.Kind) bool {
				return k.Name == kind || strings.HasPrefix(k.Patterns[0], collection+"/")
			})
			if !taken && schema.CheckKind(kind) == nil {
				return kind, collection
			}
		}
		last := options[len(options)-1]
		options = [][]string{append(slices.Clone(last), "n"+strconv.Itoa(n))}
	}
}

func clip(s string) string { return s[:min(len(s), 50)] }
