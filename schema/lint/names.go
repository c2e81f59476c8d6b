package lint

import (
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/schema"
)

// withoutParent finds patterns that lie below a pattern of another kind that is not a parent: when that
// resource is deleted, the ones below it stay, and the other findings do not consider such a cascade.
func withoutParent(descriptors []*schema.Descriptor) []Finding {
	var out []Finding
	for _, d := range descriptors {
		for i := range d.Kinds {
			k := &d.Kinds[i]
			if k.ConstraintsDisabled {
				continue
			}
			for _, pattern := range k.Patterns {
				above, kinds := nearestAbove(d, pattern, descriptors)
				if len(kinds) == 0 || slices.ContainsFunc(kinds, func(id schema.KindID) bool {
					return hasParent(d, k, id)
				}) {
					continue
				}
				pos := k.Pos
				pos.Path = pos.Path + ".patterns[" + pattern + "]"
				name := shortKind(d, kinds[0])
				out = append(out, Finding{
					Level: Warning, ID: PatternWithoutParent, Of: d.ServiceVersion,
					Problem: schema.Problem{
						Pos: pos,
						Message: fmt.Sprintf(
							"%s lies below %s of %s, which is not a parent of %s: the lower resource stays when the upper one is deleted, and can be created without it", pattern, above, name, k.Name),
						Remedy: fmt.Sprintf("add parents: [{kind: %s, behaviour: CASCADE_DELETE}], or BLOCK", name),
					},
				})
			}
		}
	}
	return out
}

// nearestAbove returns the longest pattern, of the service or of an imported one, below which a pattern lies,
// and the kinds with that pattern.
func nearestAbove(d *schema.Descriptor, pattern string,
	descriptors []*schema.Descriptor,
) (above string, kinds []schema.KindID) {
	longest := 0
	for _, of := range descriptors {
		visible := of == d || slices.ContainsFunc(d.Imports, func(imp schema.Import) bool {
			return imp.ServiceVersion == of.ServiceVersion
		})
		if !visible {
			continue
		}
		for _, k := range of.Kinds {
			for _, text := range k.Patterns {
				p, err := schema.ParsePattern(text)
				if err != nil || k.ConstraintsDisabled || p.PrefixOf(pattern) == "" || len(p.Segments) < longest {
					continue
				}
				if len(p.Segments) > longest {
					longest, above, kinds = len(p.Segments), text, nil
				}
				kinds = append(kinds, schema.KindID{Service: of.Service, Kind: k.Name})
			}
		}
	}
	return above, kinds
}

func hasParent(d *schema.Descriptor, k *schema.Kind, id schema.KindID) bool {
	return slices.ContainsFunc(k.Parents, func(p schema.Parent) bool {
		parent, err := d.KindID(p.Kind)
		return err == nil && parent == id
	})
}

func shortKind(d *schema.Descriptor, id schema.KindID) string {
	if id.Service == d.Service {
		return id.Kind
	}
	return id.String()
}
