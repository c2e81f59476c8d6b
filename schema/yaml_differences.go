package schema

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Differences compares two documents of YAML, and returns a line for each value that differs, such as
// kinds[Device].references[spec.account].behaviour: BLOCK → CASCADE_DELETE.
func Differences(before, after *yaml.Node) (lines []string) {
	old, now := yamlValues(before), yamlValues(after)
	for _, v := range now {
		i := slices.IndexFunc(old, func(o yamlValue) bool { return o.path == v.path })
		switch {
		case i < 0:
			lines = append(lines, v.path+": "+v.text+" (added)")
		case old[i].text != v.text:
			lines = append(lines, v.path+": "+old[i].text+" → "+v.text)
		}
	}
	for _, o := range old {
		if !slices.ContainsFunc(now, func(v yamlValue) bool { return o.path == v.path }) {
			lines = append(lines, o.path+": "+o.text+" (removed)")
		}
	}
	return lines
}

// yamlValue is a scalar, or a list of scalars, of a document.
type yamlValue struct{ path, text string }

func yamlValues(n *yaml.Node) (out []yamlValue) {
	var walk func(path string, n *yaml.Node)
	walk = func(path string, n *yaml.Node) {
		switch {
		case n.Kind == yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				walk(join(path, n.Content[i].Value), n.Content[i+1])
			}
		case n.Kind == yaml.SequenceNode && slices.ContainsFunc(n.Content, func(e *yaml.Node) bool {
			return e.Kind == yaml.MappingNode
		}):
			for _, e := range n.Content {
				walk(path+"["+yamlName(e)+"]", e)
			}
		case n.Kind == yaml.SequenceNode:
			texts := make([]string, len(n.Content))
			for i, e := range n.Content {
				texts[i] = e.Value
			}
			out = append(out, yamlValue{path, "[" + strings.Join(texts, ", ") + "]"})
		default:
			out = append(out, yamlValue{path, n.Value})
		}
	}
	walk("", n)
	return out
}

// yamlName returns the text that names an element of a list: its first value.
func yamlName(n *yaml.Node) string {
	if len(n.Content) < 2 {
		return ""
	}
	name := n.Content[1].Value
	for _, e := range n.Content[1].Content { // columns
		name = strings.Trim(name+","+e.Value, ",")
	}
	return name
}
