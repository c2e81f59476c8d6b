package lint

import (
	"cmp"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// kindNode is a kind of one version of a service.
type kindNode struct {
	schema.ServiceVersion
	kind string
}

func (n kindNode) String() string { return n.Service + "/" + n.kind }

// kindEdge is a reference between kinds.
type kindEdge struct {
	holder, target kindNode
	path           string
	behaviour      schema.Behaviour
	untilRemoved   bool
	pos            schema.Pos
}

type kindGraph struct {
	nodes []kindNode
	edges []kindEdge
	// goes are, for each kind, the kinds that its deletion cascades to, directly or not; itself only in a
	// cycle.
	goes map[kindNode]map[kindNode]bool
}

func newKindGraph(descriptors []*schema.Descriptor) *kindGraph {
	g := &kindGraph{goes: map[kindNode]map[kindNode]bool{}}
	for _, d := range descriptors {
		for _, k := range d.Kinds {
			holder := kindNode{d.ServiceVersion, k.Name}
			g.nodes = append(g.nodes, holder)
			if k.ConstraintsDisabled {
				continue
			}
			add := func(target, path string, b schema.Behaviour, untilRemoved bool, pos schema.Pos) {
				id, err := d.KindID(target)
				if err != nil {
					return
				}
				version := d.ServiceVersion
				for _, imp := range d.Imports {
					if imp.Service == id.Service {
						version = imp.ServiceVersion
					}
				}
				g.edges = append(g.edges, kindEdge{holder, kindNode{version, id.Kind}, path, b, untilRemoved, pos})
			}
			for _, p := range k.Parents {
				add(p.Kind, schema.ParentPath, p.Behaviour, p.UntilRemoved, p.Pos)
			}
			for _, r := range k.References {
				for _, target := range r.Targets {
					add(target, r.Field(), r.Behaviour, r.UntilRemoved, r.Pos)
				}
			}
		}
	}
	cascades := g.edgesThat(schema.Behaviour.Cascades)
	for _, n := range g.nodes {
		g.goes[n] = holdersOf(n, cascades)
	}
	return g
}

// holdersOf returns the kinds from which edges lead to a kind, directly or not.
func holdersOf(n kindNode, edges []kindEdge) map[kindNode]bool {
	seen := map[kindNode]bool{}
	for frontier := []kindNode{n}; len(frontier) > 0; {
		var next []kindNode
		for _, e := range edges {
			if slices.Contains(frontier, e.target) && !seen[e.holder] {
				seen[e.holder] = true
				next = append(next, e.holder)
			}
		}
		frontier = next
	}
	return seen
}

func shortName(from, n kindNode) string {
	if from.Service == n.Service {
		return n.kind
	}
	return n.String()
}

// inOrder returns the kinds by their names, so that a ring is reported in the same way with any order of the
// files.
func (g *kindGraph) inOrder() []kindNode {
	return slices.SortedFunc(slices.Values(g.nodes), func(a, b kindNode) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), schema.CompareVersions(a.Version, b.Version),
			cmp.Compare(a.kind, b.kind))
	})
}

func (g *kindGraph) edgesThat(are func(schema.Behaviour) bool) (out []kindEdge) {
	for _, e := range g.edges {
		if are(e.behaviour) {
			out = append(out, e)
		}
	}
	sortEdges(out)
	return out
}

func sortEdges(edges []kindEdge) {
	slices.SortStableFunc(edges, func(a, b kindEdge) int {
		return cmp.Or(cmp.Compare(a.holder.String(), b.holder.String()), cmp.Compare(a.path, b.path))
	})
}

// rings returns one ring for each set of kinds that form cycles. Edges from a kind to itself are left out.
func (g *kindGraph) rings(edges []kindEdge) (out [][]kindEdge) {
	edges = slices.DeleteFunc(slices.Clone(edges), func(e kindEdge) bool { return e.holder == e.target })
	reported := map[kindNode]bool{}
	for _, n := range g.inOrder() {
		if reported[n] {
			continue
		}
		ring := ringFrom(n, edges)
		if ring == nil {
			continue
		}
		for holder := range holdersOf(n, edges) {
			reported[holder] = reported[holder] || holdersOf(holder, edges)[n]
		}
		out = append(out, ring)
	}
	return out
}

// overVersions returns the rings of edges that close only where a service runs another version than the
// imported one, as it may.
func (g *kindGraph) overVersions(edges []kindEdge) (out [][]kindEdge) {
	within := map[string]bool{}
	for _, n := range g.nodes {
		if holdersOf(n, edges)[n] {
			within[n.String()] = true
		}
	}
	known := func(e kindEdge) bool { return within[e.holder.String()] && within[e.target.String()] }
	all := slices.Clone(edges)
	for _, e := range edges {
		for _, n := range g.nodes {
			if n != e.target && n.Service != e.holder.Service && n.String() == e.target.String() {
				e.target = n
				all = append(all, e)
			}
		}
	}
	for _, ring := range g.rings(all) {
		if !slices.ContainsFunc(ring, known) {
			out = append(out, ring)
		}
	}
	return out
}

func withinKind(edges []kindEdge) []kindEdge {
	return slices.DeleteFunc(slices.Clone(edges), func(e kindEdge) bool { return e.holder != e.target })
}

// ringFrom returns the shortest way from n over its holders back to n, or nil.
func ringFrom(n kindNode, edges []kindEdge) []kindEdge {
	ways := [][]kindEdge{nil}
	seen := map[kindNode]bool{}
	for len(ways) > 0 {
		way := ways[0]
		ways = ways[1:]
		at := n
		if len(way) > 0 {
			at = way[len(way)-1].holder
		}
		for _, e := range edges {
			if e.target != at || seen[e.holder] {
				continue
			}
			next := append(slices.Clone(way), e)
			if e.holder == n {
				return next
			}
			seen[e.holder] = true
			ways = append(ways, next)
		}
	}
	return nil
}

// versionsText names the versions in which the kinds of a ring refer to one another.
func versionsText(ring []kindEdge) string {
	var versions []string
	for _, e := range ring {
		if v := e.holder.ServiceVersion.String(); !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
	}
	slices.Sort(versions)
	return strings.Join(versions, " and ")
}

func ringText(ring []kindEdge) string {
	n := ring[0].target
	text := n.kind
	for _, e := range ring {
		text += " <- " + shortName(n, e.holder) + "." + e.path
	}
	return text
}
