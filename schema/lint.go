package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Level is how much a finding of Lint matters.
type Level string

// A Warning is something that can get stuck, or take more along than one may think; a Note is good to know.
const (
	Warning Level = "warning"
	Note    Level = "note"
)

// Finding is something that can be so, and may not be what was meant.
type Finding struct {
	Level Level
	Problem
}

func (f Finding) String() string {
	where, rest := f.Pos.String(), f.Problem
	rest.Pos = Pos{}
	return strings.TrimSpace(where + " " + string(f.Level) + ": " + rest.String())
}

// Lint names what descriptors that pass Check may not have meant: deletions that somebody from outside can keep from
// ending, cascades that come back to where they began, and references that act later than they say, since holder and
// target are in different databases.
func Lint(descriptors []*Descriptor) []Finding {
	g := newKindGraph(descriptors)
	findings := slices.Concat(g.stuck(), g.cycles(), g.later(descriptors), ignored(descriptors))
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Level, a.Level), cmp.Compare(a.Pos.File, b.Pos.File), cmp.Compare(a.Pos.Line, b.Pos.Line))
	})
	return findings
}

// kindNode is a kind of one version of a service.
type kindNode struct {
	ServiceVersion
	kind string
}

func (n kindNode) String() string { return n.Service + "/" + n.kind }

// kindEdge is a reference between kinds.
type kindEdge struct {
	holder, target kindNode
	path           string
	behaviour      Behaviour
	pos            Pos
}

type kindGraph struct {
	nodes []kindNode
	edges []kindEdge
	// goes are the kinds that cascade with a kind, at once or by and by; itself only when a cascade comes back to it.
	goes map[kindNode]map[kindNode]bool
}

func newKindGraph(descriptors []*Descriptor) *kindGraph {
	g := &kindGraph{goes: map[kindNode]map[kindNode]bool{}}
	for _, d := range descriptors {
		for _, k := range d.Kinds {
			holder := kindNode{d.ServiceVersion, k.Name}
			g.nodes = append(g.nodes, holder)
			if k.ConstraintsDisabled {
				continue
			}
			add := func(target, path string, b Behaviour, pos Pos) {
				id, err := d.kindID(target)
				if err != nil {
					return
				}
				version := d.ServiceVersion
				for _, imp := range d.Imports {
					if imp.Service == id.Service {
						version = imp.ServiceVersion
					}
				}
				g.edges = append(g.edges, kindEdge{holder, kindNode{version, id.Kind}, path, b, pos})
			}
			for _, p := range k.Parents {
				add(p.Kind, ParentPath, p.Behaviour, p.Pos)
			}
			for _, r := range k.References {
				for _, target := range r.Targets {
					add(target, r.Path, r.Behaviour, r.Pos)
				}
			}
		}
	}
	for _, n := range g.nodes {
		g.goes[n] = g.goesWith(n)
	}
	return g
}

func (g *kindGraph) goesWith(n kindNode) map[kindNode]bool {
	seen := map[kindNode]bool{}
	for frontier := []kindNode{n}; len(frontier) > 0; {
		var next []kindNode
		for _, e := range g.edges {
			if e.behaviour.Cascades() && slices.Contains(frontier, e.target) && !seen[e.holder] {
				seen[e.holder] = true
				next = append(next, e.holder)
			}
		}
		frontier = next
	}
	return seen
}

// stuck finds A takes C along, D blocks C, and D does not go with A.
func (g *kindGraph) stuck() []Finding {
	var out []Finding
	for _, block := range g.edges {
		if block.behaviour != Block {
			continue
		}
		var taken []string
		for _, e := range g.edges {
			with := e.target
			if e.holder != block.target || !e.behaviour.Cascades() || with == block.holder || g.goes[with][block.holder] {
				continue
			}
			if name := shortName(block.holder, with); !slices.Contains(taken, name) {
				taken = append(taken, name)
			}
		}
		if len(taken) == 0 {
			continue
		}
		out = append(out, Finding{Warning, Problem{
			Pos: block.pos,
			Message: fmt.Sprintf("%s.%s blocks %s, which is deleted with %s, while %s is not: such a delete is refused, or waits as BLOCKED",
				block.holder.kind, block.path, shortName(block.holder, block.target), strings.Join(taken, " and "), block.holder.kind),
			Remedy: "leave it if that is what you want; else let " + block.holder.kind + " go as well, or unset the field",
		}})
	}
	return out
}

func shortName(from, n kindNode) string {
	if from.Service == n.Service {
		return n.kind
	}
	return n.String()
}

// cycles finds kinds that a cascade comes back to, each ring once.
func (g *kindGraph) cycles() []Finding {
	var out []Finding
	told := map[kindNode]bool{}
	for _, n := range g.nodes {
		if !g.goes[n][n] || told[n] {
			continue
		}
		ring := g.ring(n)
		for _, other := range g.nodes { // everything that goes with n and takes n along
			if g.goes[n][other] && g.goes[other][n] {
				told[other] = true
			}
		}
		f := Finding{Warning, Problem{
			Pos:     ring[0].pos,
			Message: "cascades form a cycle: " + ringText(n, ring) + ": deleting one may take along everything of these kinds",
			Remedy:  "leave it if that is what you want; else break it with another behaviour",
		}}
		if len(ring) == 1 {
			f.Level = Note
			f.Message = fmt.Sprintf("%s.%s cascades within its own kind: deleting one takes along all that hang on it, level by level", n.kind, ring[0].path)
			f.Remedy = ""
		}
		out = append(out, f)
	}
	return out
}

// ring is the shortest way of cascades from n back to it.
func (g *kindGraph) ring(n kindNode) []kindEdge {
	ways := [][]kindEdge{nil}
	seen := map[kindNode]bool{}
	for len(ways) > 0 {
		way := ways[0]
		ways = ways[1:]
		at := n
		if len(way) > 0 {
			at = way[len(way)-1].holder
		}
		for _, e := range g.edges {
			if !e.behaviour.Cascades() || e.target != at || seen[e.holder] {
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

func ringText(n kindNode, ring []kindEdge) string {
	text := n.kind
	for _, e := range ring {
		text += " <- " + shortName(n, e.holder) + "." + e.path
	}
	return text
}

// later names, once a version, the references that say that they act in the target's transaction and cannot.
func (g *kindGraph) later(descriptors []*Descriptor) []Finding {
	var out []Finding
	for _, d := range descriptors {
		var names []string
		for _, e := range g.edges {
			name := e.holder.kind + "." + e.path
			if e.holder.ServiceVersion == d.ServiceVersion && e.target.Service != d.Service && e.behaviour.Acts() && !e.behaviour.Later() && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			out = append(out, Finding{Note, Problem{
				Pos:     d.Pos,
				Message: fmt.Sprintf("%s: UNSET and CASCADE_DELETE act after the target's transaction where the target is in another database: %s", d.ServiceVersion, strings.Join(names, ", ")),
			}})
		}
	}
	return out
}

func ignored(descriptors []*Descriptor) []Finding {
	var out []Finding
	for _, d := range descriptors {
		for _, k := range d.Kinds {
			if k.ConstraintsDisabled && len(k.References)+len(k.Parents) > 0 {
				out = append(out, Finding{Note, Problem{Pos: k.Pos, Message: "constraints of " + k.Name + " are disabled: its references are not looked at"}})
			}
		}
	}
	return out
}
