package schema

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxYAMLNodes bounds the nodes of a file with its aliases expanded: a short file can have very many.
const maxYAMLNodes = 1_000_000

// yamlField is a key of a mapping with its value.
type yamlField struct{ key, value *yaml.Node }

// resolved returns the node behind an alias.
func resolved(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// more reports whether a further node may be visited; the first node beyond the limit adds a problem.
func (d *yamlReader) more(n *yaml.Node) bool {
	d.visited++
	if d.visited < maxYAMLNodes {
		return true
	}
	if !d.full {
		d.ps.add(d.pos(n, ""), "use fewer aliases", "more than %d values, with all aliases expanded", maxYAMLNodes)
	}
	d.full = true
	return false
}

// fields returns the fields of a mapping: its own, then the fields of its merge keys (<<) that it lacks.
func (d *yamlReader) fields(n *yaml.Node, path string) []yamlField {
	return d.merge(nil, resolved(n), path, nil)
}

// merge appends the fields of a mapping that are not in have; within are the mappings into which it is
// merged.
func (d *yamlReader) merge(have []yamlField, n *yaml.Node, path string, within []*yaml.Node) []yamlField {
	if slices.Contains(within, n) {
		d.ps.add(d.pos(n, path), "remove its alias from it", "a mapping is merged into itself")
		return have
	}
	var merges []*yaml.Node
	explicit := len(have)
	for i := 0; i+1 < len(n.Content) && d.more(n.Content[i]); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		same := func(f yamlField) bool { return f.key.Value == key.Value }
		switch {
		case key.Tag == "!!merge":
			merges = append(merges, value)
		case slices.ContainsFunc(have[explicit:], same):
			d.ps.add(d.pos(key, path), "keep one of them", "key %q is used twice", clip(key.Value))
		case !slices.ContainsFunc(have, same):
			have = append(have, yamlField{key, value})
		}
	}
	for _, value := range merges {
		mappings := []*yaml.Node{value}
		if list := resolved(value); list.Kind == yaml.SequenceNode {
			mappings = list.Content
		}
		for _, m := range mappings {
			if m = resolved(m); m.Kind != yaml.MappingNode {
				d.ps.add(d.pos(m, path), "merge a mapping: <<: *anchor", "want a mapping, got %s", nodeShape(m))
				continue
			}
			have = d.merge(have, m, path, append(slices.Clip(within), n))
		}
	}
	return have
}

// field returns the value of a key, or nil. It reports no problems: mapping does when it reads all keys.
func (d *yamlReader) field(n *yaml.Node, key string) *yaml.Node {
	if n = resolved(n); n.Kind != yaml.MappingNode {
		return nil
	}
	silent := &yamlReader{visited: d.visited}
	fields := silent.fields(n, "")
	d.visited = silent.visited
	if i := slices.IndexFunc(fields, func(f yamlField) bool { return f.key.Value == key }); i >= 0 {
		return fields[i].value
	}
	return nil
}

func (d *yamlReader) has(n *yaml.Node, key string) bool { return d.field(n, key) != nil }

// namedByColumns replaces the index at the end of a path by the columns of the reference.
func (d *yamlReader) namedByColumns(n *yaml.Node, path string) string {
	var columns []string
	for _, c := range resolved(d.field(n, "columns")).Content {
		columns = append(columns, resolved(c).Value)
	}
	if i := strings.LastIndexByte(path, '['); i >= 0 && len(columns) > 0 {
		return path[:i] + "[" + clip(strings.Join(columns, ",")) + "]"
	}
	return path
}

// named replaces the index at the end of a path by the name of the element.
func (d *yamlReader) named(n *yaml.Node, path, key string) string {
	if name := d.field(n, key); name != nil && resolved(name).Value != "" {
		return path[:strings.LastIndexByte(path, '[')] + "[" + clip(resolved(name).Value) + "]"
	}
	return path
}
