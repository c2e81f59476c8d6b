package schema

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// renames are the names of one kind in different versions of its service, from the previous names of the
// descriptors. A name has one kind in all versions of a service (Check ensures it), so that messages need no
// version beside a kind.
type renames struct {
	root map[KindID]KindID
	// current has, by root, the names in the version of the model and in the versions that it imports.
	current map[KindID]KindID
}

func newRenames(descriptors []*Descriptor) *renames {
	r := &renames{root: map[KindID]KindID{}, current: map[KindID]KindID{}}
	byService := map[string][]*Descriptor{}
	for _, d := range descriptors {
		byService[d.Service] = append(byService[d.Service], d)
	}
	for service, versions := range byService {
		for _, class := range classes(versions) {
			root := rootOf(class, versions)
			for _, name := range class {
				r.root[KindID{service, name}] = KindID{service, root}
			}
		}
	}
	return r
}

// use makes the kind names of a version the current ones.
func (r *renames) use(d *Descriptor) {
	for _, k := range d.Kinds {
		id := KindID{d.Service, k.Name}
		r.current[r.rootOf(id)] = id
	}
}

func (r *renames) rootOf(id KindID) KindID {
	if root, ok := r.root[id]; ok {
		return root
	}
	return id
}

// classes returns the sets of names of one service that belong to one kind; kinds with one name only are left
// out.
func classes(versions []*Descriptor) [][]string {
	linked := map[string][]string{}
	for _, d := range versions {
		for _, k := range d.Kinds {
			if k.PreviousName != "" && k.PreviousName != k.Name {
				linked[k.Name] = append(linked[k.Name], k.PreviousName)
				linked[k.PreviousName] = append(linked[k.PreviousName], k.Name)
			}
		}
	}
	var out [][]string
	done := map[string]bool{}
	for _, name := range sortedNames(linked) {
		if done[name] {
			continue
		}
		class := reachable(name, linked)
		for _, n := range class {
			done[n] = true
		}
		out = append(out, class)
	}
	return out
}

func sortedNames(m map[string][]string) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func reachable(from string, linked map[string][]string) []string {
	seen := []string{from}
	for i := 0; i < len(seen); i++ {
		for _, next := range linked[seen[i]] {
			if !slices.Contains(seen, next) {
				seen = append(seen, next)
			}
		}
	}
	return seen
}

// rootOf returns the oldest name of a kind: the name, or the previous name, in the earliest version that has
// the kind. Later versions do not change it, so that it can be stored.
func rootOf(class []string, versions []*Descriptor) string {
	ordered := slices.Clone(versions)
	slices.SortFunc(ordered, func(a, b *Descriptor) int { return CompareVersions(a.Version, b.Version) })
	for _, d := range ordered {
		for _, k := range d.Kinds {
			if slices.Contains(class, k.Name) {
				return cmp.Or(k.PreviousName, k.Name)
			}
		}
	}
	return class[0]
}

// CompareVersions orders versions: v1alpha1, v1beta1, v1, v2.
func CompareVersions(a, b string) int {
	parts := func(v string) (major, stage, minor int) {
		stage = 2
		rest := strings.TrimPrefix(v, "v")
		for i, word := range []string{"alpha", "beta"} {
			if before, after, ok := strings.Cut(rest, word); ok {
				rest, stage = before, i
				minor, _ = strconv.Atoi(after)
			}
		}
		major, _ = strconv.Atoi(rest)
		return major, stage, minor
	}
	am, as, an := parts(a)
	bm, bs, bn := parts(b)
	return cmp.Or(cmp.Compare(am, bm), cmp.Compare(as, bs), cmp.Compare(an, bn))
}

// checkNames checks that each name has one kind in all versions of a service.
func checkNames(ps *Problems, descriptors []*Descriptor) {
	byService := map[string][]*Descriptor{}
	var services []string
	for _, d := range descriptors {
		if byService[d.Service] == nil {
			services = append(services, d.Service)
		}
		byService[d.Service] = append(byService[d.Service], d)
	}
	for _, service := range services {
		for _, class := range classes(byService[service]) {
			for _, d := range byService[service] {
				var found []Kind
				for _, k := range d.Kinds {
					if slices.Contains(class, k.Name) {
						found = append(found, k)
					}
				}
				if len(found) > 1 {
					ps.add(found[1].Pos, "give one of them a name that no version used",
						"%s and %s of %s are the same kind, by the previous names in versions of %s", found[0].Name,
						found[1].Name, d.ServiceVersion, service)
				}
			}
		}
	}
}

// Canonical returns the name of a kind in the model's version, or in the version of a service that it
// imports, for the name in any version. A kind that this version does not have keeps its name.
func (m *Model) Canonical(id KindID) KindID {
	if current, ok := m.renames.current[m.renames.rootOf(id)]; ok {
		return current
	}
	return id
}

// Root returns the oldest name of a kind, which is the same for all its names and which no version changes.
func (m *Model) Root(id KindID) KindID { return m.renames.rootOf(id) }

// Renamed returns the current names of renamed kinds of the model's own service, by their other names.
func (m *Model) Renamed() map[string]string {
	out := map[string]string{}
	for id := range m.renames.root {
		if current := m.Canonical(id); id.Service == m.Descriptor.Service && current != id {
			out[id.Kind] = current.Kind
		}
	}
	return out
}

// Fingerprint changes when other references may be derived from a body of the kind: with the paths,
// behaviours and targets of its references, the patterns of the targets, and its parents.
func (k *KindModel) Fingerprint() string {
	h := sha256.New()
	for _, r := range append(slices.Clone(k.references), k.parents...) {
		_, _ = fmt.Fprintf(h, "%s %d\n", r.path, r.behaviour)
		if r.region != "" || r.regionField.text != "" {
			_, _ = fmt.Fprintf(h, "  region %s %s\n", r.region, r.regionField)
		}
		for _, t := range r.targets {
			_, _ = fmt.Fprintf(h, "  %s %s\n", t.id, t.patterns)
			if slices.ContainsFunc(t.patterns, func(p Pattern) bool { return p.regionAt() >= 0 }) {
				_, _ = fmt.Fprintln(h, "  by region")
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// digest changes when a version may treat a write, a read or a reference differently: two descriptors under
// one name are two versions. It begins with the version's name. A field that a later program adds to
// descriptors must not change the digest of descriptors without it, so that both programs compute the same.
func (m *Model) digest() string {
	kinds := slices.Clone(m.kinds)
	slices.SortFunc(kinds, func(a, b *KindModel) int { return cmp.Compare(a.ID.Kind, b.ID.Kind) })
	h := sha256.New()
	for _, k := range kinds {
		_, _ = fmt.Fprintf(h, "%s %q %s %t %t %q %s\n", k.ID.Kind, k.previous, k.patterns, k.Hides, k.Unconstrained,
			k.ReferableBy, k.Fingerprint())
		if len(k.fields) > 0 || k.schema != nil {
			_, _ = fmt.Fprintf(h, "rules %s\n", m.rulesOf(k))
		}
		if len(k.finalizers) > 0 {
			_, _ = fmt.Fprintf(h, "finalizers %s\n", k.finalizersText())
		}
		if kept := k.UntilRemoved(); len(kept) > 0 {
			_, _ = fmt.Fprintf(h, "until removed %q\n", kept)
		}
	}
	return m.Descriptor.Version + " " + hex.EncodeToString(h.Sum(nil)[:16])
}

// rulesOf returns the rules of a kind for bodies, as text.
func (m *Model) rulesOf(k *KindModel) string {
	i := slices.IndexFunc(m.Descriptor.Kinds, func(d Kind) bool { return d.Name == k.ID.Kind })
	d := &m.Descriptor.Kinds[i]
	text := jsonText(d.Schema)
	for _, f := range d.Fields {
		text += fmt.Sprintf(" %s %s %t %t", f.Path, jsonText(f.Default), f.Required, f.Immutable)
	}
	return text
}

// Says reports whether the model is the version, of that name and digest, that runs in a database.
func (m *Model) Says(version, digest string) bool {
	return version == m.Descriptor.Version && digest == m.Digest
}
