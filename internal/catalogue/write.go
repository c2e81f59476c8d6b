package catalogue

import (
	"bytes"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/db-controller/db-controller/schema"
)

// Between returns the part of a declaration that lies between databases: without the references that native
// keys serve better, and without the kinds that nothing refers to any more. Services that refer to one
// another get two versions, since imports of versions form no cycles: v1 has the kinds, and v2 the references
// too.
func Between(descriptors []*schema.Descriptor) []*schema.Descriptor {
	var out []*schema.Descriptor
	for _, d := range descriptors {
		one := *d
		one.Kinds = nil
		for _, k := range d.Kinds {
			k.References = slices.DeleteFunc(slices.Clone(k.References), func(r schema.Reference) bool {
				return !strings.Contains(r.Targets[0], "/")
			})
			one.Kinds = append(one.Kinds, k)
		}
		out = append(out, &one)
	}
	for _, d := range out {
		d.Kinds = slices.DeleteFunc(d.Kinds, func(k schema.Kind) bool {
			return len(k.References) == 0 && !slices.ContainsFunc(out, func(other *schema.Descriptor) bool {
				return refersTo(other, d.Service+"/"+k.Name)
			})
		})
	}
	out = slices.DeleteFunc(out, func(d *schema.Descriptor) bool { return len(d.Kinds) == 0 })
	return split(out)
}

func refersTo(d *schema.Descriptor, target string) bool {
	return slices.ContainsFunc(d.Kinds, func(k schema.Kind) bool {
		return slices.ContainsFunc(k.References, func(r schema.Reference) bool {
			return slices.Contains(r.Targets, target)
		})
	})
}

// split gives a service whose imports lead back to it a second version.
func split(descriptors []*schema.Descriptor) []*schema.Descriptor {
	var out []*schema.Descriptor
	for _, d := range descriptors {
		if !reaches(descriptors, d, d.Service, map[string]bool{}) {
			out = append(out, d)
			continue
		}
		first, second := *d, *d
		first.Imports, first.Kinds = nil, nil
		for _, k := range d.Kinds {
			k.References = nil
			first.Kinds = append(first.Kinds, k)
		}
		second.Version = "v2"
		out = append(out, &first, &second)
	}
	return out
}

func reaches(all []*schema.Descriptor, from *schema.Descriptor, service string, seen map[string]bool) bool {
	for _, imp := range from.Imports {
		if imp.Service == service {
			return true
		}
		if seen[imp.Service] {
			continue
		}
		seen[imp.Service] = true
		i := slices.IndexFunc(all, func(d *schema.Descriptor) bool { return d.Service == imp.Service })
		if i >= 0 && reaches(all, all[i], service, seen) {
			return true
		}
	}
	return false
}

// YAML writes descriptors as a file, with the comment that why returns for a reference.
func YAML(head string, descriptors []*schema.Descriptor, why func(FieldID) string) ([]byte, error) {
	var b bytes.Buffer
	for _, line := range strings.Split(strings.TrimSpace(head), "\n") {
		b.WriteString(strings.TrimSpace("# "+line) + "\n")
	}
	if len(descriptors) == 0 { // the encoder fails at the end of no document
		return b.Bytes(), nil
	}
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	for _, d := range descriptors {
		comment := func(kind string, r *schema.Reference) string { return why(FieldID{d.Service, kind, r.Field()}) }
		if err := encoder.Encode(d.Document(comment)); err != nil {
			return nil, err
		}
	}
	err := encoder.Close()
	return b.Bytes(), err
}
