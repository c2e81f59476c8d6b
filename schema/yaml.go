package schema

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// File is what a YAML file of one or more documents says: service descriptors, regions, deployments.
type File struct {
	Services    []*Descriptor
	Regions     []string
	Deployments []Deployment
}

// ParseFile reads YAML. It checks the form only; errors are Problems with file, line and path.
func ParseFile(file string, r io.Reader) (*File, error) {
	d := &yamlReader{file: file, out: &File{}}
	decoder := yaml.NewDecoder(r)
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			d.ps.add(Pos{File: file}, "mend the YAML", "%s", strings.TrimPrefix(err.Error(), "yaml: "))
			break
		}
		if len(document.Content) > 0 {
			d.document(document.Content[0])
		}
	}
	if err := d.ps.or(); err != nil {
		return nil, err
	}
	return d.out, nil
}

// yamlReader walks the nodes itself, since only nodes know their lines.
type yamlReader struct {
	file string
	ps   Problems
	out  *File
}

type yamlFields map[string]func(n *yaml.Node, path string)

func (d *yamlReader) pos(n *yaml.Node, path string) Pos {
	return Pos{File: d.file, Line: n.Line, Path: path}
}

func (d *yamlReader) document(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind == yaml.MappingNode && (hasKey(n, "regions") || hasKey(n, "deployments")) {
		d.mapping(n, "", yamlFields{
			"regions":     func(n *yaml.Node, path string) { d.strings(n, path, &d.out.Regions) },
			"deployments": func(n *yaml.Node, path string) { d.list(n, path, d.deployment) },
		})
		return
	}
	s := &Descriptor{Pos: d.pos(n, "")}
	d.mapping(n, "", yamlFields{
		"service": func(n *yaml.Node, path string) { d.scalar(n, path, &s.Service) },
		"version": func(n *yaml.Node, path string) { d.scalar(n, path, &s.Version) },
		"imports": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) {
				var text string
				d.scalar(n, path, &text)
				d.parsed(n, path, func() error {
					v, err := ParseServiceVersion(text)
					s.Imports = append(s.Imports, Import{ServiceVersion: v, Pos: d.pos(n, path)})
					return err
				})
			})
		},
		"kinds": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) { s.Kinds = append(s.Kinds, d.kind(n, path)) })
		},
	})
	d.required(n, "", "service", "version")
	d.out.Services = append(d.out.Services, s)
}

func (d *yamlReader) kind(n *yaml.Node, path string) Kind {
	path = named(n, path, "kind")
	k := Kind{Pos: d.pos(n, path)}
	d.mapping(n, path, yamlFields{
		"kind":                 func(n *yaml.Node, path string) { d.scalar(n, path, &k.Name) },
		"previous_name":        func(n *yaml.Node, path string) { d.scalar(n, path, &k.PreviousName) },
		"patterns":             func(n *yaml.Node, path string) { d.strings(n, path, &k.Patterns) },
		"hide_while_deleting":  func(n *yaml.Node, path string) { d.decode(n, path, "true or false", &k.HideWhileDeleting) },
		"constraints_disabled": func(n *yaml.Node, path string) { d.decode(n, path, "true or false", &k.ConstraintsDisabled) },
		"referable_by":         func(n *yaml.Node, path string) { d.strings(n, path, &k.ReferableBy) },
		"parents": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) {
				path = named(n, path, "kind")
				p := Parent{Pos: d.pos(n, path)}
				d.mapping(n, path, yamlFields{
					"kind":      func(n *yaml.Node, path string) { d.scalar(n, path, &p.Kind) },
					"behaviour": func(n *yaml.Node, path string) { d.behaviour(n, path, &p.Behaviour) },
				})
				k.Parents = append(k.Parents, p)
			})
		},
		"references": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) {
				path = named(n, path, "path")
				r := Reference{Pos: d.pos(n, path)}
				d.mapping(n, path, yamlFields{
					"path":      func(n *yaml.Node, path string) { d.scalar(n, path, &r.Path) },
					"targets":   func(n *yaml.Node, path string) { d.strings(n, path, &r.Targets) },
					"behaviour": func(n *yaml.Node, path string) { d.behaviour(n, path, &r.Behaviour) },
				})
				k.References = append(k.References, r)
			})
		},
	})
	d.required(n, path, "kind")
	return k
}

func (d *yamlReader) deployment(n *yaml.Node, path string) {
	path = named(n, path, "deployment")
	dep := Deployment{Pos: d.pos(n, path)}
	d.mapping(n, path, yamlFields{
		"deployment": func(n *yaml.Node, path string) {
			var text string
			d.scalar(n, path, &text)
			d.parsed(n, path, func() (err error) { dep.DeploymentID, err = ParseDeploymentID(text); return err })
		},
		"version":  func(n *yaml.Node, path string) { d.scalar(n, path, &dep.Version) },
		"address":  func(n *yaml.Node, path string) { d.scalar(n, path, &dep.Address) },
		"disabled": func(n *yaml.Node, path string) { d.decode(n, path, "true or false", &dep.Disabled) },
	})
	d.required(n, path, "deployment", "version")
	d.out.Deployments = append(d.out.Deployments, dep)
}

func (d *yamlReader) mapping(n *yaml.Node, path string, fields yamlFields) {
	if n.Kind != yaml.MappingNode {
		d.ps.add(d.pos(n, path), "write key: value pairs", "want a mapping, got %s", nodeShape(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := fields[key.Value]
		switch {
		case !ok:
			known := make([]string, 0, len(fields))
			for f := range fields {
				known = append(known, f)
			}
			slices.Sort(known)
			d.ps.add(d.pos(key, path), "known here are "+strings.Join(known, ", "), "unknown key %q", clip(key.Value))
		case seen[key.Value]:
			d.ps.add(d.pos(key, path), "keep one of them", "key %q stands twice", key.Value)
		default:
			seen[key.Value] = true
			read(value, join(path, key.Value))
		}
	}
}

func (d *yamlReader) list(n *yaml.Node, path string, read func(n *yaml.Node, path string)) {
	if n.Kind != yaml.SequenceNode {
		d.ps.add(d.pos(n, path), "write a list: [a, b], or lines that begin with -", "want a list, got %s", nodeShape(n))
		return
	}
	for i, element := range n.Content {
		read(element, fmt.Sprintf("%s[%d]", path, i))
	}
}

func (d *yamlReader) strings(n *yaml.Node, path string, into *[]string) {
	d.list(n, path, func(n *yaml.Node, path string) {
		var s string
		d.scalar(n, path, &s)
		*into = append(*into, s)
	})
}

func (d *yamlReader) scalar(n *yaml.Node, path string, into *string) {
	d.decode(n, path, "a string", into)
}

func (d *yamlReader) decode(n *yaml.Node, path, want string, into any) {
	if n.Kind != yaml.ScalarNode || n.Decode(into) != nil {
		d.ps.add(d.pos(n, path), "", "want %s, got %s", want, nodeShape(n))
	}
}

func (d *yamlReader) behaviour(n *yaml.Node, path string, into *Behaviour) {
	var text string
	d.scalar(n, path, &text)
	d.parsed(n, path, func() (err error) { *into, err = ParseBehaviour(text); return err })
}

func (d *yamlReader) parsed(n *yaml.Node, path string, parse func() error) {
	if n.Kind != yaml.ScalarNode {
		return // reported as not a string
	}
	if err := parse(); err != nil {
		d.ps.add(d.pos(n, path), "", "%v", err)
	}
}

func (d *yamlReader) required(n *yaml.Node, path string, keys ...string) {
	for _, key := range keys {
		if n.Kind == yaml.MappingNode && !hasKey(n, key) {
			d.ps.add(d.pos(n, path), "add "+key+": ...", "key %q is missing", key)
		}
	}
}

func hasKey(n *yaml.Node, key string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

// named replaces the index at the end of a path by the name that a person gave the element.
func named(n *yaml.Node, path, key string) string {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key && n.Content[i+1].Value != "" {
			return path[:strings.LastIndexByte(path, '[')] + "[" + clip(n.Content[i+1].Value) + "]"
		}
	}
	return path
}

func nodeShape(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "nothing"
		}
		return fmt.Sprintf("%q", clip(n.Value))
	default:
		return "an alias"
	}
}
