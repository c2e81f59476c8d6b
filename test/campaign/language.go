// Package campaign plays random operations against deployments as real processes, over their public API and
// under faults of every kind, and compares them with an oracle: one PostgreSQL with native foreign keys, and
// a model of owners. At rest both have to be equal.
//
// A campaign of a seed has a World (processes, databases, faulty lines), a Player (operations and their known
// outcomes), an Oracle (the expected state), a Nemesis (faults and their repair) and Watchers (the state that
// watches deliver).
package campaign

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// services are two services in two regions. Roots refer to nothing; Chains only cascade and unset; Blockers
// block, and no cascade removes them; Nodes have all fields; nothing refers to Leaves. Chains and Leaves have
// a finalizer. v2 renames the kinds.
var services = versions("a.example.com", "", "") + "---\n" + versions("b.example.com", "imports: [a.example.com@v1]\n", "a.example.com/") + `---
regions: [east, west]
deployments:
  - { deployment: a.example.com/east, version: v1 }
  - { deployment: a.example.com/west, version: v1 }
  - { deployment: b.example.com/east, version: v1 }
  - { deployment: b.example.com/west, version: v1 }
`

func versions(service, imports, of string) string {
	of1 := func(kinds ...string) string { // targets in the same service and in the imported one
		var out []string
		for _, k := range kinds {
			out = append(out, k)
			if of != "" {
				out = append(out, of+strings.TrimSuffix(k, "2"))
			}
		}
		return "[" + strings.Join(out, ", ") + "]"
	}
	version := func(v, suffix, previous string) string {
		kind := func(name, collection string) string {
			s := fmt.Sprintf("  - kind: %s%s\n    patterns: [\"%s/{id}\"]\n", name, suffix, collection)
			if previous != "" {
				s += "    previous_name: " + name + "\n"
			}
			return s
		}
		root, chain, node := "Root"+suffix, "Chain"+suffix, "Node"+suffix
		refs := func(lines ...string) string { return "    references:\n" + strings.Join(lines, "") }
		ref := func(path, targets, behaviour string) string {
			return fmt.Sprintf("      - { path: %s, targets: %s, behaviour: %s }\n", path, targets, behaviour)
		}
		all, cleaned := of1(node), fmt.Sprintf("    finalizers: [{ name: %s, holder: %s }]\n", finalizer,
			cleanerIdentity)
		return fmt.Sprintf("service: %s\nversion: %s\n%skinds:\n", service, v, imports) +
			kind("Root", "roots") +
			kind("Chain", "chains") + cleaned + refs(
			ref("c1", of1(root, chain), "CASCADE_DELETE"), ref("c2", of1(root, chain), "ASYNC_CASCADE_DELETE"),
			ref("u1", of1(root, chain), "UNSET"), ref("u2", of1(root, chain), "ASYNC_UNSET"),
			ref("ul.*", of1(root, chain), "UNSET")) +
			kind("Blocker", "blockers") + refs(
			ref("b1", of1(root), "BLOCK"), ref("bl.*", of1(root), "BLOCK"), ref("u1", of1(root, chain), "UNSET")) +
			kind("Node", "nodes") + refs(
			ref("b1", all, "BLOCK"), ref("bl.*", all, "BLOCK"), ref("c1", all, "CASCADE_DELETE"),
			ref("c2", all, "ASYNC_CASCADE_DELETE"),
			ref("u1", all, "UNSET"), ref("u2", all, "ASYNC_UNSET"), ref("ul.*", all, "UNSET"),
			ref("d", all, "ALLOW_DANGLING")) +
			kind("Leaf", "leaves") + cleaned + refs(
			ref("b1", all, "BLOCK, until: removed"), ref("c1", all, "CASCADE_DELETE"), ref("u1", all, "UNSET"),
			ref("ul.*", all, "UNSET"))
	}
	return version("v1", "", "") + "---\n" + version("v2", "2", "yes")
}

// kind is a kind for the generator: the fields of its resources, and their targets.
type kind struct {
	collection string
	fields     []string // scalars and lists
	targets    []string // collections
	leaf       bool     // nothing refers to it
}

// language is the schema of a campaign.
type language struct {
	kinds  []kind
	owners bool
	// exact: nothing is ever blocked, so that the state has to equal the state under native keys exactly.
	exact bool
}

var (
	exact = language{exact: true, kinds: []kind{
		{collection: "roots"},
		{collection: "chains", fields: []string{"c1", "c2", "u1", "u2", "ul"}, targets: []string{"roots", "chains"}},
		{collection: "blockers", fields: []string{"b1", "bl"}, targets: []string{"roots"}, leaf: true},
	}}
	full = language{owners: true, kinds: []kind{
		{
			collection: "nodes", fields: []string{"b1", "bl", "c1", "c2", "u1", "u2", "ul", "d"},
			targets: []string{"nodes"},
		},
		{collection: "leaves", fields: []string{"b1", "c1", "u1", "ul"}, targets: []string{"nodes"}, leaf: true},
	}}
)

var deployments = []schema.DeploymentID{
	{Service: "a.example.com", Region: "east"},
	{Service: "a.example.com", Region: "west"},
	{Service: "b.example.com", Region: "east"},
	{Service: "b.example.com", Region: "west"},
}

// behaviours of fields, by name.
var behaviours = map[string]schema.Behaviour{
	"b1": schema.Block, "bl": schema.Block, "c1": schema.CascadeDelete, "c2": schema.AsyncCascadeDelete,
	"u1": schema.Unset, "u2": schema.AsyncUnset, "ul": schema.Unset, "d": schema.AllowDangling,
}

// likely is the percentage of resources with a field of a behaviour: few that block, since otherwise hardly
// any delete succeeds.
var likely = map[schema.Behaviour]int{
	schema.Block: 14, schema.CascadeDelete: 50, schema.AsyncCascadeDelete: 20, schema.Unset: 45, schema.AsyncUnset: 30,
	schema.AllowDangling: 20,
}

func isList(field string) bool { return strings.HasSuffix(field, "l") }

// Content is the body of a resource: the payload, and by field the sorted full names of its targets.
type Content struct {
	Payload string
	Refs    map[string][]string
	Owners  []string // full name and uid, sorted
}

func (c Content) clone() Content {
	out := Content{Payload: c.Payload, Refs: map[string][]string{}, Owners: slices.Clone(c.Owners)}
	for f, v := range c.Refs {
		out.Refs[f] = slices.Clone(v)
	}
	return out
}

// without returns the content without references to a name by fields for which drop is true.
func (c Content) without(name string, drop func(field string) bool) Content {
	out := c.clone()
	for f, values := range out.Refs {
		if drop(f) {
			if out.Refs[f] = slices.DeleteFunc(values, func(v string) bool {
				return v == name
			}); len(out.Refs[f]) == 0 {
				delete(out.Refs, f)
			}
		}
	}
	return out
}

func (c Content) targets() []string {
	set := map[string]bool{}
	for _, values := range c.Refs {
		for _, v := range values {
			set[v] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// body returns the content as a user writes it.
func (c Content) body() map[string]any {
	out := map[string]any{"payload": c.Payload}
	for f, values := range c.Refs {
		if !isList(f) {
			out[f] = values[0]
			continue
		}
		list := make([]any, len(values))
		for i, v := range values {
			list[i] = v
		}
		out[f] = list
	}
	return out
}

// contentOf parses a body.
func contentOf(body map[string]any) Content {
	c := Content{Refs: map[string][]string{}}
	for f, v := range body {
		switch v := v.(type) {
		case string:
			if f == "payload" {
				c.Payload = v
			} else {
				c.Refs[f] = []string{v}
			}
		case []any:
			var values []string
			for _, x := range v {
				values = append(values, x.(string))
			}
			if slices.Sort(values); len(values) > 0 {
				c.Refs[f] = values
			}
		}
	}
	return c
}

// generator generates operations.
type generator struct {
	*rand.Rand
	language
	names   []string            // full names
	of      map[string]kind     // by name
	targets map[string][]string // by name: its possible targets
	n       int
}

func newGenerator(r *rand.Rand, l language, each int) *generator {
	g := &generator{Rand: r, language: l, of: map[string]kind{}, targets: map[string][]string{}}
	for _, d := range deployments {
		for _, k := range l.kinds {
			for i := range each {
				name := fmt.Sprintf("//%s/%s/%d", d, k.collection, i)
				g.names, g.of[name] = append(g.names, name), k
			}
		}
	}
	for name, k := range g.of {
		for _, t := range g.names {
			if slices.Contains(k.targets, g.of[t].collection) && t != name &&
				(strings.HasPrefix(name, "//b.") || strings.HasPrefix(t, "//a.")) {
				g.targets[name] = append(g.targets[name], t)
			}
		}
	}
	return g
}

// has reports whether a resource can refer to another by a field.
func (g *generator) has(name, field, target string) bool {
	return slices.Contains(g.of[name].fields, field) && slices.Contains(g.targets[name], target)
}

func (g *generator) name() string { return g.names[g.IntN(len(g.names))] }

// content returns a random body, mostly with existing targets.
func (g *generator) content(name string, there func(string) bool) Content {
	g.n++
	c := Content{Payload: fmt.Sprintf("p%d", g.n), Refs: map[string][]string{}}
	targets := g.targets[name]
	for _, f := range g.of[name].fields {
		if len(targets) == 0 || g.IntN(100) >= likely[behaviours[f]] {
			continue
		}
		for range 1 + g.IntN(2) {
			t := targets[g.IntN(len(targets))]
			if !there(t) && g.IntN(12) > 0 || slices.Contains(c.Refs[f], t) {
				continue
			}
			if c.Refs[f] = append(c.Refs[f], t); !isList(f) {
				break
			}
		}
		slices.Sort(c.Refs[f])
		if len(c.Refs[f]) == 0 {
			delete(c.Refs, f)
		}
	}
	return c
}
