package operate

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
)

// NewGraph returns the command graph.
func NewGraph() *cobra.Command {
	cmd := cli.NewDeploymentCommand("graph [SERVICE|SERVICE@VERSION]...", "Draw the kinds and their references: -o dot for Graphviz, or -o svg for a browser",
		"  db-controller graph -o svg > kinds.svg\n  db-controller graph devices.example.com | dot -Tpng > kinds.png", cobra.ArbitraryArgs,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			env, err := currentEnvironment(cmd, c)
			if err != nil {
				return err
			}
			services, err := selectServices(env, args)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				services = running(env, services)
			}
			g := graphOf(services)
			if cli.PrinterOf(cmd).Format == "svg" {
				return g.svg(cmd.OutOrStdout())
			}
			return g.dot(cmd.OutOrStdout())
		})
	cmd.Long = `Draw the kinds and their references.

An arrow goes from the kind that refers to the kind that it refers to. By default the graph has the versions that run, and all versions of a service of which none runs.`
	cli.OutputIn(cmd, "dot", "svg")
	return cmd
}

// running returns the descriptors of the versions that run, and all of a service of which none runs.
func running(env *schema.Environment, services []*schema.Descriptor) []*schema.Descriptor {
	runs := func(d *schema.Descriptor) bool { return len(regionsOf(env, d.ServiceVersion)) > 0 }
	return slices.DeleteFunc(services, func(d *schema.Descriptor) bool {
		return !runs(d) && slices.ContainsFunc(services, func(other *schema.Descriptor) bool { return other.Service == d.Service && runs(other) })
	})
}

// kindGraph has kinds in order, and the references between them. Kinds of several versions are one.
type kindGraph struct {
	kinds []string // full names
	edges []kindEdge
}

// kindEdge is the references from one kind to another one with the same behaviour.
type kindEdge struct {
	from, to  string
	behaviour string
	fields    []string
}

// graphOf returns the graph of descriptors, with the kinds of other services that they refer to.
func graphOf(services []*schema.Descriptor) *kindGraph {
	g := &kindGraph{}
	for _, d := range services {
		for i := range d.Kinds {
			g.kinds = append(g.kinds, d.Service+"/"+d.Kinds[i].Name)
		}
		for _, r := range referencesOf(d, nil) {
			for _, target := range r.Targets {
				g.add(kindEdge{r.Holder, target, r.Behaviour, []string{cmp.Or(r.Field, "(parent)")}})
			}
		}
	}
	slices.Sort(g.kinds)
	g.kinds = slices.Compact(g.kinds)
	slices.SortFunc(g.edges, func(a, b kindEdge) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.behaviour, b.behaviour))
	})
	return g
}

func (g *kindGraph) add(e kindEdge) {
	g.kinds = append(g.kinds, e.to)
	i := slices.IndexFunc(g.edges, func(has kindEdge) bool { return has.from == e.from && has.to == e.to && has.behaviour == e.behaviour })
	if i < 0 {
		g.edges = append(g.edges, e)
	} else if has := &g.edges[i]; !slices.Contains(has.fields, e.fields[0]) {
		has.fields = append(has.fields, e.fields...)
	}
}

// colour tells the effect of a deletion of the target: it is refused, the holder goes along, it is changed, or stays as it is.
func (e kindEdge) colour() string {
	switch {
	case e.behaviour == schema.Block.String():
		return "#b3261e"
	case strings.HasSuffix(e.behaviour, schema.CascadeDelete.String()):
		return "#1f5fa8"
	case strings.HasSuffix(e.behaviour, schema.Unset.String()):
		return "#7a5c00"
	}
	return "#6b6b6b"
}

// ofKind returns the service and the name of a kind.
func ofKind(kind string) (service, name string) {
	service, name, _ = strings.Cut(kind, "/")
	return service, name
}

// dot writes the graph in the language of Graphviz, with a frame for each service.
func (g *kindGraph) dot(out io.Writer) error {
	var b strings.Builder
	b.WriteString("digraph kinds {\n  rankdir=RL;\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n  edge [fontname=\"sans-serif\", fontsize=10];\n")
	for i := 0; i < len(g.kinds); {
		service, _ := ofKind(g.kinds[i])
		fmt.Fprintf(&b, "  subgraph %s {\n    label=%s;\n", strconv.Quote("cluster_"+service), strconv.Quote(service))
		for ; i < len(g.kinds); i++ {
			of, name := ofKind(g.kinds[i])
			if of != service {
				break
			}
			fmt.Fprintf(&b, "    %s [label=%s];\n", strconv.Quote(g.kinds[i]), strconv.Quote(name))
		}
		b.WriteString("  }\n")
	}
	for _, e := range g.edges {
		fmt.Fprintf(&b, "  %s -> %s [label=%s, color=%q, fontcolor=%q];\n", strconv.Quote(e.from), strconv.Quote(e.to), strconv.Quote(strings.Join(e.fields, ", ")+"\n"+e.behaviour), e.colour(), e.colour()) //nolint:misspell // the words of Graphviz
	}
	b.WriteString("}\n")
	_, err := io.WriteString(out, b.String())
	return err
}
