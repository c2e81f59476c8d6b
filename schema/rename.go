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

// renames knows the names that versions of services give to one kind, by what they say of previous names. A name stands
// for one kind in all versions of a service (Check sees to it), so that a message needs no version beside it.
type renames struct {
	root map[KindID]KindID
	// now has the names of the versions that a model is of, or imports, by root.
	now map[KindID]KindID
}

func newRenames(descriptors []*Descriptor) *renames {
	r := &renames{root: map[KindID]KindID{}, now: map[KindID]KindID{}}
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

// use takes the names of a version for those that the model speaks.
func (r *renames) use(d *Descriptor) {
	for _, k := range d.Kinds {
		id := KindID{d.Service, k.Name}
		r.now[r.rootOf(id)] = id
	}
}

func (r *renames) rootOf(id KindID) KindID {
	if root, ok := r.root[id]; ok {
		return root
	}
	return id
}

// classes are the names of one service that stand for one kind, where there are several.
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

// rootOf is the oldest name of a kind: that of the earliest version that has it, or what that version calls its previous
// name. Later versions do not change it, so that it can be stored.
func rootOf(class []string, versions []*Descriptor) string {
	ordered := slices.Clone(versions)
	slices.SortFunc(ordered, func(a, b *Descriptor) int { return compareVersions(a.Version, b.Version) })
	for _, d := range ordered {
		for _, k := range d.Kinds {
			if slices.Contains(class, k.Name) {
				return cmp.Or(k.PreviousName, k.Name)
			}
		}
	}
	return class[0]
}

// compareVersions puts v1alpha1 before v1beta1, that before v1, and that before v2.
func compareVersions(a, b string) int {
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

// checkNames makes sure that each name stands for one kind in all versions of a service.
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
					ps.add(found[1].Pos, "give one of them a name that no version used", "%s and %s of %s are one kind, by what versions of %s say of previous names", found[0].Name, found[1].Name, d.ServiceVersion, service)
				}
			}
		}
	}
}

// Canonical gives the name that the model's version, or the version of a service that it imports, has for a kind which
// another version of the service may call otherwise. A kind that the version does not have keeps the name it came with.
func (m *Model) Canonical(id KindID) KindID {
	if now, ok := m.renames.now[m.renames.rootOf(id)]; ok {
		return now
	}
	return id
}

// Root gives the oldest name of a kind, which all its names have in common and no version changes.
func (m *Model) Root(id KindID) KindID { return m.renames.rootOf(id) }

// Renamed gives the kinds of the model's own service that it has another name for, by their other names.
func (m *Model) Renamed() map[string]string {
	out := map[string]string{}
	for id := range m.renames.root {
		if now := m.Canonical(id); id.Service == m.Descriptor.Service && now != id {
			out[id.Kind] = now.Kind
		}
	}
	return out
}

// Fingerprint changes when the references that would be derived from a body of the kind may be others: their paths,
// behaviours, targets, the targets' patterns, the parents.
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

// digest changes when a write, a read or a reference may be judged otherwise by a version: two descriptions under one name
// are two versions. It begins with the version's name. What a later program adds to descriptors must leave it as it is where
// that is not used, so that two programs agree on it.
func (m *Model) digest() string {
	kinds := slices.Clone(m.kinds)
	slices.SortFunc(kinds, func(a, b *KindModel) int { return cmp.Compare(a.ID.Kind, b.ID.Kind) })
	h := sha256.New()
	for _, k := range kinds {
		_, _ = fmt.Fprintf(h, "%s %q %s %t %t %q %s\n", k.ID.Kind, k.previous, k.patterns, k.Hides, k.Unconstrained, k.ReferableBy, k.Fingerprint())
	}
	return m.Descriptor.Version + " " + hex.EncodeToString(h.Sum(nil)[:16])
}

// Says reports whether a database in which a version of that name and digest runs goes by what the model says. A digest
// that is of another version was left behind by a program that knew none: then the name decides.
func (m *Model) Says(version, digest string) bool {
	return version == m.Descriptor.Version && (digest == m.Digest || !strings.HasPrefix(digest, version+" "))
}
