package schema

import "slices"

// Kinds finds the kinds of names, in all described versions of all services.
type Kinds struct {
	renames  *renames
	services map[string][]describedKind
	names    map[string][]string
}

type describedKind struct {
	version  string
	root     KindID
	patterns []Pattern
}

// NewKinds compiles descriptors.
func NewKinds(descriptors []*Descriptor) *Kinds {
	k := &Kinds{renames: newRenames(descriptors), services: map[string][]describedKind{}, names: map[string][]string{}}
	for _, d := range descriptors {
		for _, kind := range d.Kinds {
			k.names[d.Service] = append(k.names[d.Service], kind.Name)
			k.services[d.Service] = append(k.services[d.Service], describedKind{
				version: d.Version, root: k.Root(KindID{d.Service, kind.Name}),
				patterns: compilePatterns(kind.Patterns),
			})
		}
	}
	return k
}

// Root returns the oldest name of a kind, which is the same for all its names.
func (k *Kinds) Root(id KindID) KindID { return k.renames.rootOf(id) }

// Of returns the oldest names of the kinds whose patterns match a relative name: kinds of the version or,
// when none matches, kinds of the other versions, under which resources may be stored.
func (k *Kinds) Of(service, version, name string) []KindID {
	var running, other []KindID
	for _, kind := range k.services[service] {
		if !slices.ContainsFunc(kind.patterns, func(p Pattern) bool { return p.Match(name) }) {
			continue
		}
		if kind.version == version {
			running = append(running, kind.root)
		} else {
			other = append(other, kind.root)
		}
	}
	if len(running) > 0 {
		return running
	}
	return other
}

// Knows reports whether a version of the service has a kind of this name; true for a service without a
// descriptor.
func (k *Kinds) Knows(id KindID) bool {
	described := k.services[id.Service]
	root := k.Root(id)
	return len(described) == 0 || slices.ContainsFunc(described, func(d describedKind) bool { return d.root == root })
}

// Names returns the names of all kinds of a service, in all versions.
func (k *Kinds) Names(service string) []string { return k.names[service] }
