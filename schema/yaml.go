package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// File is the content of a YAML file with one or more documents: service descriptors, regions, deployments,
// rights.
type File struct {
	Services    []*Descriptor
	Regions     []string
	Deployments []Deployment
	Rights      *Rights // nil: the file declares none
}

// ParseFile parses YAML, and checks only the form of the documents. Errors are Problems with file, line and
// path.
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
			d.ps.add(Pos{File: file}, "correct the YAML", "%s", strings.TrimPrefix(err.Error(), "yaml: "))
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

// yamlReader walks over nodes instead of decoding into structs, because only nodes have line numbers.
type yamlReader struct {
	file string
	ps   Problems
	out  *File
	// visited counts nodes, nodes behind aliases each time.
	visited int
	full    bool // there are too many, which was reported
}

type yamlFields map[string]func(n *yaml.Node, path string)

func (d *yamlReader) pos(n *yaml.Node, path string) Pos {
	return Pos{File: d.file, Line: n.Line, Path: path}
}

func (d *yamlReader) document(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if d.has(n, "regions") || d.has(n, "deployments") || d.has(n, "rights") {
		d.mapping(n, "", yamlFields{
			"rights":      d.rights,
			"regions":     func(n *yaml.Node, path string) { d.strings(n, path, &d.out.Regions) },
			"deployments": func(n *yaml.Node, path string) { d.list(n, path, d.deployment) },
		})
		return
	}
	s := &Descriptor{Pos: d.pos(n, "")}
	var defaults Kind
	var kinds *yaml.Node
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
		"defaults": func(n *yaml.Node, path string) { d.mapping(n, path, d.flags(&defaults)) },
		"patterns_dropped": func(n *yaml.Node, path string) {
			if d.scalar(n, path, &s.PatternsDropped); s.PatternsDropped != "keep" && s.PatternsDropped != "refuse" {
				d.ps.add(d.pos(n, path), "write keep, or refuse", "patterns_dropped: %q", clip(s.PatternsDropped))
			}
		},
		"kinds":       func(n *yaml.Node, _ string) { kinds = n }, // defaults can follow them
		"acknowledge": func(n *yaml.Node, path string) { d.list(n, path, d.acknowledgement(s)) },
	})
	if kinds != nil {
		d.list(kinds, "kinds", func(n *yaml.Node, path string) { s.Kinds = append(s.Kinds, d.kind(n, path, defaults)) })
	}
	d.required(n, "", "service", "version")
	d.out.Services = append(d.out.Services, s)
}

// flags are the keys of a kind for which a service can have defaults.
func (d *yamlReader) flags(k *Kind) yamlFields {
	return yamlFields{
		"hide_while_deleting": func(n *yaml.Node, path string) {
			d.decode(n, path, "true or false", &k.HideWhileDeleting)
		},
		"constraints_disabled": func(n *yaml.Node, path string) {
			d.decode(n, path, "true or false", &k.ConstraintsDisabled)
		},
		"referable_by": func(n *yaml.Node, path string) {
			k.ReferableBy = nil
			d.strings(n, path, &k.ReferableBy)
		},
		"delegation": func(n *yaml.Node, path string) {
			var of string
			d.scalar(n, path, &of)
			if k.DelegationNone = of == "none"; of != "none" && of != "all" {
				d.ps.add(d.pos(n, path), "write none, or all (the default)", "%q", of)
			}
		},
		"deletion": func(n *yaml.Node, path string) {
			var of string
			d.scalar(n, path, &of)
			if k.DeletesAtomically = of == "atomic"; of != "atomic" && of != "cascade" {
				d.ps.add(d.pos(n, path), "write atomic, or cascade (the default)", "%q", of)
			}
		},
		"retention": func(n *yaml.Node, path string) {
			var of string
			d.scalar(n, path, &of)
			var err error
			if k.Retention, err = ParseRetention(of); err != nil {
				d.ps.add(d.pos(n, path), "write a time such as 7d, in which a delete can be undone", "%s", err)
			}
		},
	}
}

func (d *yamlReader) acknowledgement(s *Descriptor) func(n *yaml.Node, path string) {
	return func(n *yaml.Node, path string) {
		a := Acknowledgement{Pos: d.pos(n, path)}
		d.mapping(n, path, yamlFields{
			"warning": func(n *yaml.Node, path string) { d.scalar(n, path, &a.Finding) },
			"at":      func(n *yaml.Node, path string) { d.scalar(n, path, &a.At) },
			"reason": func(n *yaml.Node, path string) {
				if d.scalar(n, path, &a.Reason); a.Reason == "" {
					d.ps.add(d.pos(n, path), "add why the finding is intended", "the reason is empty")
				}
			},
		})
		d.required(n, path, "warning", "at", "reason")
		s.Acknowledged = append(s.Acknowledged, a)
	}
}

func (d *yamlReader) kind(n *yaml.Node, path string, k Kind) Kind {
	path = d.named(n, path, "kind")
	k.Pos, k.ReferableBy = d.pos(n, path), slices.Clone(k.ReferableBy)
	fields := d.flags(&k)
	maps.Copy(fields, yamlFields{
		"kind":          func(n *yaml.Node, path string) { d.scalar(n, path, &k.Name) },
		"previous_name": func(n *yaml.Node, path string) { d.scalar(n, path, &k.PreviousName) },
		"patterns":      func(n *yaml.Node, path string) { d.strings(n, path, &k.Patterns) },
		"parents": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) {
				path = d.named(n, path, "kind")
				p := Parent{Pos: d.pos(n, path)}
				d.mapping(n, path, yamlFields{
					"kind":      func(n *yaml.Node, path string) { d.scalar(n, path, &p.Kind) },
					"behaviour": func(n *yaml.Node, path string) { d.behaviour(n, path, &p.Behaviour) },
					"until":     func(n *yaml.Node, path string) { d.until(n, path, &p.UntilRemoved) },
					"region":    func(n *yaml.Node, path string) { d.region(n, path, &p) },
				})
				k.Parents = append(k.Parents, p)
			})
		},
		"references": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) {
				k.References = append(k.References, d.reference(n, path))
			})
		},
		"fields": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) { k.Fields = append(k.Fields, d.rule(n, path)) })
		},
		"finalizers": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) {
				k.Finalizers = append(k.Finalizers, d.finalizer(n, path))
			})
		},
		"schema": func(n *yaml.Node, path string) {
			if value, ok := d.json(n, path).(map[string]any); ok {
				k.Schema = value
			} else {
				d.ps.add(d.pos(n, path), "write a JSON Schema as YAML", "want a mapping, got %s", nodeShape(n))
			}
		},
		"key":  func(n *yaml.Node, path string) { d.strings(n, path, &k.Key) },
		"gone": func(n *yaml.Node, path string) { d.scalar(n, path, &k.Gone) },
		"table": func(n *yaml.Node, path string) {
			var text string
			d.scalar(n, path, &text)
			d.parsed(n, path, func() (err error) { k.Table, err = ParseTableName(text); return err })
		},
	})
	d.mapping(n, path, fields)
	d.required(n, path, "kind")
	return k
}

func (d *yamlReader) finalizer(n *yaml.Node, path string) Finalizer {
	path = d.named(n, path, "name")
	f := Finalizer{Pos: d.pos(n, path)}
	d.mapping(n, path, yamlFields{
		"name":   func(n *yaml.Node, path string) { d.scalar(n, path, &f.Name) },
		"holder": func(n *yaml.Node, path string) { d.scalar(n, path, &f.Holder) },
	})
	d.required(n, path, "name", "holder")
	return f
}

func (d *yamlReader) rule(n *yaml.Node, path string) Field {
	path = d.named(n, path, "path")
	f := Field{Pos: d.pos(n, path)}
	d.mapping(n, path, yamlFields{
		"path": func(n *yaml.Node, path string) { d.scalar(n, path, &f.Path) },
		"default": func(n *yaml.Node, path string) {
			if f.Default = d.json(n, path); f.Default == nil {
				d.ps.add(d.pos(n, path), "write a value", "the default is null, which is no value")
			}
		},
		"required":  func(n *yaml.Node, path string) { d.decode(n, path, "true or false", &f.Required) },
		"immutable": func(n *yaml.Node, path string) { d.decode(n, path, "true or false", &f.Immutable) },
	})
	d.required(n, path, "path")
	return f
}

// json reads a value as JSON would decode it.
func (d *yamlReader) json(n *yaml.Node, path string) any {
	if !d.more(n) {
		return nil
	}
	var value any
	if err := resolved(n).Decode(&value); err != nil {
		d.ps.add(d.pos(n, path), "correct the YAML", "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		return nil
	}
	if _, err := json.Marshal(value); err != nil {
		d.ps.add(d.pos(n, path), "write strings as keys, and numbers that JSON has", "%v", err)
		return nil
	}
	return asJSON(value)
}

func (d *yamlReader) reference(n *yaml.Node, path string) Reference {
	if path = d.named(n, path, "path"); d.has(n, "columns") {
		path = d.namedByColumns(n, path)
	}
	r := Reference{Pos: d.pos(n, path)}
	d.mapping(n, path, yamlFields{
		"path":      func(n *yaml.Node, path string) { d.scalar(n, path, &r.Path) },
		"columns":   func(n *yaml.Node, path string) { d.strings(n, path, &r.Columns) },
		"targets":   func(n *yaml.Node, path string) { d.strings(n, path, &r.Targets) },
		"behaviour": func(n *yaml.Node, path string) { d.behaviour(n, path, &r.Behaviour) },
		"until":     func(n *yaml.Node, path string) { d.until(n, path, &r.UntilRemoved) },
		"region":    func(n *yaml.Node, path string) { d.targetRegion(n, path, &r.Region) },
		"enforce": func(n *yaml.Node, path string) {
			d.oneOf(n, path, (*string)(&r.Enforce), string(EnforceAsync), string(EnforceStrict))
		},
		"missing": func(n *yaml.Node, path string) {
			d.oneOf(n, path, (*string)(&r.Missing), string(MissingReport), string(MissingUnset), string(MissingDelete))
		},
		"none":  func(n *yaml.Node, path string) { d.strings(n, path, &r.None) },
		"when":  func(n *yaml.Node, path string) { d.condition(n, path, &r.When) },
		"unset": func(n *yaml.Node, path string) { d.strings(n, path, &r.Unset) },
		"unset_to": func(n *yaml.Node, path string) {
			var to string
			d.oneOf(n, path, &to, "null", "default")
			r.UnsetToDefault = to == "default"
		},
		"match": func(n *yaml.Node, path string) {
			var how string
			d.oneOf(n, path, &how, "simple", "full")
			r.MatchFull = how == "full"
		},
	})
	return r
}

// condition reads a mapping of one column to a value.
func (d *yamlReader) condition(n *yaml.Node, path string, into *RowCondition) {
	m := resolved(n)
	if m.Kind != yaml.MappingNode || len(m.Content) != 2 {
		d.ps.add(d.pos(n, path), "write when: {owner_type: Customer}", "want one column and its value, got %s",
			nodeShape(n))
		return
	}
	into.Column = m.Content[0].Value
	d.scalar(m.Content[1], path+"."+into.Column, &into.Value)
}

// targetRegion reads the region of the targets: same, a region, or the column with it.
func (d *yamlReader) targetRegion(n *yaml.Node, path string, into *TargetRegion) {
	if resolved(n).Kind == yaml.MappingNode {
		d.mapping(n, path, yamlFields{"column": func(n *yaml.Node, path string) { d.scalar(n, path, &into.Column) }})
		d.required(n, path, "column")
		return
	}
	if d.scalar(n, path, &into.Fixed); into.Fixed == "same" {
		into.Fixed, into.Same = "", true
	}
}

func (d *yamlReader) oneOf(n *yaml.Node, path string, into *string, words ...string) {
	if d.scalar(n, path, into); !slices.Contains(words, *into) {
		d.ps.add(d.pos(n, path), "write "+strings.Join(words, " or "), "%q", clip(*into))
	}
}

// region reads the region of a parent: a region, or the field with it.
func (d *yamlReader) region(n *yaml.Node, path string, p *Parent) {
	if resolved(n).Kind != yaml.MappingNode {
		d.scalar(n, path, &p.Region)
		return
	}
	d.mapping(n, path, yamlFields{"field": func(n *yaml.Node, path string) { d.scalar(n, path, &p.RegionField) }})
	d.required(n, path, "field")
}

func (d *yamlReader) deployment(n *yaml.Node, path string) {
	path = d.named(n, path, "deployment")
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
	if resolved(n).Kind != yaml.MappingNode {
		d.ps.add(d.pos(n, path), "write key: value pairs", "want a mapping, got %s", nodeShape(n))
		return
	}
	for _, f := range d.fields(n, path) {
		read, ok := fields[f.key.Value]
		switch {
		case ok:
			read(f.value, join(path, f.key.Value))
		case path == "" && strings.HasPrefix(f.key.Value, "x-"): // for anchors
		default:
			known := slices.Sorted(maps.Keys(fields))
			d.ps.add(d.pos(f.key, path), "the keys here are "+strings.Join(known, ", "), "unknown key %q",
				clip(f.key.Value))
		}
	}
}

func (d *yamlReader) list(n *yaml.Node, path string, read func(n *yaml.Node, path string)) {
	list := resolved(n)
	if list.Kind != yaml.SequenceNode {
		d.ps.add(d.pos(n, path), "write a list: [a, b], or lines that begin with -", "want a list, got %s",
			nodeShape(n))
		return
	}
	for i, element := range list.Content {
		if !d.more(element) {
			return
		}
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
	if value := resolved(n); value.Kind != yaml.ScalarNode || value.Decode(into) != nil {
		// the line of the text, not of its alias
		d.ps.add(d.pos(value, path), "", "want %s, got %s", want, nodeShape(n))
	}
}

func (d *yamlReader) until(n *yaml.Node, path string, removed *bool) {
	var until string
	d.oneOf(n, path, &until, "removed")
	*removed = until == "removed"
}

func (d *yamlReader) behaviour(n *yaml.Node, path string, into *Behaviour) {
	var text string
	d.scalar(n, path, &text)
	d.parsed(n, path, func() (err error) { *into, err = ParseBehaviour(text); return err })
}

func (d *yamlReader) parsed(n *yaml.Node, path string, parse func() error) {
	if resolved(n).Kind != yaml.ScalarNode {
		return // reported by scalar
	}
	if err := parse(); err != nil {
		d.ps.add(d.pos(resolved(n), path), "", "%v", err)
	}
}

func (d *yamlReader) required(n *yaml.Node, path string, keys ...string) {
	for _, key := range keys {
		if resolved(n).Kind == yaml.MappingNode && !d.has(n, key) {
			d.ps.add(d.pos(n, path), "add "+key+": ...", "key %q is missing", key)
		}
	}
}

func nodeShape(n *yaml.Node) string {
	n = resolved(n)
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
