package schema

import (
	"fmt"
	"slices"
)

// withoutParent finds patterns that lie below a pattern of another kind that is not a parent: when that resource is deleted,
// the ones below it stay, and the other findings do not consider such a cascade.
func withoutParent(descriptors []*Descriptor) []Finding {
	var out []Finding
	for _, d := range descriptors {
		for i := range d.Kinds {
			k := &d.Kinds[i]
			if k.ConstraintsDisabled {
				continue
			}
			for _, pattern := range k.Patterns {
				above, kinds := nearestAbove(d, pattern, descriptors)
				if len(kinds) == 0 || slices.ContainsFunc(kinds, func(id KindID) bool { return hasParent(d, k, id) }) {
					continue
				}
				pos := k.Pos
				pos.Path = join(pos.Path, "patterns["+pattern+"]")
				name := shortKind(d, kinds[0])
				out = append(out, Finding{Level: Warning, ID: PatternWithoutParent, Of: d.ServiceVersion, Problem: Problem{
					Pos:     pos,
					Message: fmt.Sprintf("%s lies below %s of %s, which is not a parent of %s: the lower resource stays when the upper one is deleted, and can be created without it", pattern, above, name, k.Name),
					Remedy:  fmt.Sprintf("add parents: [{kind: %s, behaviour: CASCADE_DELETE}], or BLOCK", name),
				}})
			}
		}
	}
	return out
}

// nearestAbove returns the longest pattern, of the service or of an imported one, below which a pattern lies, and the kinds
// with that pattern.
func nearestAbove(d *Descriptor, pattern string, descriptors []*Descriptor) (above string, kinds []KindID) {
	longest := 0
	for _, of := range descriptors {
		visible := of == d || slices.ContainsFunc(d.Imports, func(imp Import) bool { return imp.ServiceVersion == of.ServiceVersion })
		if !visible {
			continue
		}
		for _, k := range of.Kinds {
			for _, text := range k.Patterns {
				p, err := ParsePattern(text)
				if err != nil || k.ConstraintsDisabled || p.prefixOf(pattern) == "" || len(p.segments) < longest {
					continue
				}
				if len(p.segments) > longest {
					longest, above, kinds = len(p.segments), text, nil
				}
				kinds = append(kinds, KindID{Service: of.Service, Kind: k.Name})
			}
		}
	}
	return above, kinds
}

func hasParent(d *Descriptor, k *Kind, id KindID) bool {
	return slices.ContainsFunc(k.Parents, func(p Parent) bool {
		parent, err := d.kindID(p.Kind)
		return err == nil && parent == id
	})
}

func shortKind(d *Descriptor, id KindID) string {
	if id.Service == d.Service {
		return id.Kind
	}
	return id.String()
}
