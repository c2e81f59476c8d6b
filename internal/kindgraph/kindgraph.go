// Package kindgraph draws the kinds of services and their references: for Graphviz, and as a picture of its
// own.
package kindgraph

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// Running returns the descriptors of the versions that run, and all of a service of which none runs.
func Running(env *schema.Environment) []*schema.Descriptor {
	runs := func(d *schema.Descriptor) bool {
		return slices.ContainsFunc(env.Deployments, func(at schema.Deployment) bool {
			return at.Service == d.Service && at.Version == d.Version
		})
	}
	return slices.DeleteFunc(slices.Clone(env.Services), func(d *schema.Descriptor) bool {
		return !runs(d) && slices.ContainsFunc(env.Services, func(other *schema.Descriptor) bool {
			return other.Service == d.Service && runs(other)
		})
	})
}

// Graph has kinds in order, and the references between them. Kinds of several versions are one.
type Graph struct {
	Kinds []string `json:"kinds"` // full names
	Edges []Edge   `json:"edges"`
}

// Edge is the references from one kind to another one with the same behaviour.
type Edge struct {
	From      string   `json:"from"` // full names of kinds
	To        string   `json:"to"`
	Behaviour string   `json:"behaviour"`
	Fields    []string `json:"fields"` // paths; Parent for a parent
}

// Parent is in the place of the field for the parent of a kind.
const Parent = "(parent)"

// Of returns the graph of descriptors, with the kinds of other services that they refer to.
func Of(services []*schema.Descriptor) *Graph {
	g := &Graph{}
	for _, d := range services {
		for i := range d.Kinds {
			g.Kinds = append(g.Kinds, d.Service+"/"+d.Kinds[i].Name)
		}
		for i := range d.Kinds {
			k := &d.Kinds[i]
			for _, p := range k.Parents {
				g.add(Edge{d.Service + "/" + k.Name, full(d, p.Kind), p.Behaviour.String(), []string{Parent}})
			}
			for n := range k.References {
				r := &k.References[n]
				for _, target := range r.Targets {
					g.add(Edge{d.Service + "/" + k.Name, full(d, target), r.Behaviour.String(), []string{r.Field()}})
				}
			}
		}
	}
	slices.Sort(g.Kinds)
	g.Kinds = slices.Compact(g.Kinds)
	slices.SortFunc(g.Edges, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Behaviour, b.Behaviour))
	})
	return g
}

// full returns the full name of a kind that a descriptor names.
func full(d *schema.Descriptor, kind string) string {
	if id, err := d.KindID(kind); err == nil {
		return id.String()
	}
	return kind
}

func (g *Graph) add(e Edge) {
	g.Kinds = append(g.Kinds, e.To)
	i := slices.IndexFunc(g.Edges, func(has Edge) bool {
		return has.From == e.From && has.To == e.To && has.Behaviour == e.Behaviour
	})
	if i < 0 {
		g.Edges = append(g.Edges, e)
	} else if has := &g.Edges[i]; !slices.Contains(has.Fields, e.Fields[0]) {
		has.Fields = append(has.Fields, e.Fields...)
	}
}

// colour tells the effect of a deletion of the target: it is refused, the holder goes along, it is changed,
// or stays as it is.
func (e Edge) colour() string {
	switch {
	case e.Behaviour == schema.Block.String():
		return "#b3261e"
	case strings.HasSuffix(e.Behaviour, schema.CascadeDelete.String()):
		return "#1f5fa8"
	case strings.HasSuffix(e.Behaviour, schema.Unset.String()):
		return "#7a5c00"
	}
	return "#6b6b6b"
}

// ofKind returns the service and the name of a kind.
func ofKind(kind string) (service, name string) {
	service, name, _ = strings.Cut(kind, "/")
	return service, name
}

// Dot writes the graph in the language of Graphviz, with a frame for each service.
func (g *Graph) Dot(out io.Writer) error {
	var b strings.Builder
	b.WriteString(
		"digraph kinds {\n  rankdir=RL;\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n  edge [fontname=\"sans-serif\", fontsize=10];\n")
	for i := 0; i < len(g.Kinds); {
		service, _ := ofKind(g.Kinds[i])
		fmt.Fprintf(&b, "  subgraph %s {\n    label=%s;\n", strconv.Quote("cluster_"+service), strconv.Quote(service))
		for ; i < len(g.Kinds); i++ {
			of, name := ofKind(g.Kinds[i])
			if of != service {
				break
			}
			fmt.Fprintf(&b, "    %s [label=%s];\n", strconv.Quote(g.Kinds[i]), strconv.Quote(name))
		}
		b.WriteString("  }\n")
	}
	for _, e := range g.Edges {
		label := strconv.Quote(strings.Join(e.Fields, ", ") + "\n" + e.Behaviour)
		//nolint:misspell // the words of Graphviz
		fmt.Fprintf(&b, "  %s -> %s [label=%s, color=%q, fontcolor=%q];\n", strconv.Quote(e.From), strconv.Quote(e.To),
			label, e.colour(), e.colour())
	}
	b.WriteString("}\n")
	_, err := io.WriteString(out, b.String())
	return err
}
