package schema

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// rights reads the rights of a file. Grants of several documents are joined.
func (d *yamlReader) rights(n *yaml.Node, path string) {
	if d.out.Rights == nil {
		d.out.Rights = &Rights{Pos: d.pos(n, path)}
	}
	into := d.out.Rights
	d.mapping(n, path, yamlFields{
		"default": func(n *yaml.Node, path string) {
			var text string
			switch d.scalar(n, path, &text); text {
			case "deny":
				into.Deny = true
			case "allow":
				into.Allow = true
			default:
				d.ps.add(d.pos(n, path), "write deny, or allow", "default: %q", clip(text))
			}
		},
		"cascade_needs_delete": func(n *yaml.Node, path string) {
			d.decode(n, path, "true or false", &into.CascadeNeedsDelete)
		},
		"max_removals": func(n *yaml.Node, path string) {
			if d.decode(n, path, "a number", &into.MaxRemovals); into.MaxRemovals < 0 ||
				into.MaxRemovals > MaxRemovals {
				d.ps.add(d.pos(n, path),
					fmt.Sprintf("write a number of resources, at most %d, or leave it out for any number", MaxRemovals),
					"max_removals: %d", into.MaxRemovals)
			}
		},
		"two_operators": func(n *yaml.Node, path string) { d.strings(n, path, &into.TwoOperators) },
		"operators": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) {
				into.Operators = append(into.Operators, d.operator(n, path))
			})
		},
		"quotas": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) { into.Quotas = append(into.Quotas, d.quota(n, path)) })
		},
		"grants": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) { into.Grants = append(into.Grants, d.grant(n, path)) })
		},
	})
}

func (d *yamlReader) grant(n *yaml.Node, path string) AccessGrant {
	g := AccessGrant{Pos: d.pos(n, path)}
	d.mapping(n, path, yamlFields{
		"identity": func(n *yaml.Node, path string) { d.scalar(n, path, &g.Identity) },
		"group":    func(n *yaml.Node, path string) { d.scalar(n, path, &g.Group) },
		"kind":     func(n *yaml.Node, path string) { d.scalar(n, path, &g.Kind) },
		"name":     func(n *yaml.Node, path string) { d.scalar(n, path, &g.Name) },
		"verbs": func(n *yaml.Node, path string) {
			d.list(n, path, func(n *yaml.Node, path string) {
				var verb string
				d.scalar(n, path, &verb)
				g.Verbs = append(g.Verbs, Verb(verb))
			})
		},
	})
	d.required(n, path, "verbs")
	return g
}

func (d *yamlReader) quota(n *yaml.Node, path string) Quota {
	q := Quota{Pos: d.pos(n, path)}
	d.mapping(n, path, yamlFields{
		"holders":   func(n *yaml.Node, path string) { d.scalar(n, path, &q.Holders) },
		"targets":   func(n *yaml.Node, path string) { d.scalar(n, path, &q.Targets) },
		"blocking":  func(n *yaml.Node, path string) { d.decode(n, path, "a number", &q.Blocking) },
		"tentative": func(n *yaml.Node, path string) { d.decode(n, path, "a number", &q.Tentative) },
	})
	d.required(n, path, "holders", "targets")
	return q
}

func (d *yamlReader) operator(n *yaml.Node, path string) Operator {
	o := Operator{Pos: d.pos(n, path)}
	d.mapping(n, path, yamlFields{
		"identity": func(n *yaml.Node, path string) { d.scalar(n, path, &o.Identity) },
		"verbs": func(n *yaml.Node, path string) {
			var texts []string
			d.strings(n, path, &texts)
			for _, text := range texts {
				o.Verbs = append(o.Verbs, Verb(text))
			}
		},
		"deployments": func(n *yaml.Node, path string) { d.strings(n, path, &o.Deployments) },
	})
	d.required(n, path, "identity", "verbs")
	return o
}
