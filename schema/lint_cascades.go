package schema

import (
	"fmt"
	"slices"
	"strings"
)

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
		out = append(out, Finding{Level: Warning, ID: BlockedCascade, Of: block.holder.ServiceVersion, Problem: Problem{
			Pos: block.pos,
			Message: fmt.Sprintf("%s.%s blocks %s, which is deleted with %s, while %s is not: such a delete is refused, or waits as BLOCKED",
				block.holder.kind, block.path, shortName(block.holder, block.target), strings.Join(taken, " and "), block.holder.kind),
			Remedy: "leave it if that is what you want; else let " + block.holder.kind + " go as well, or unset the field",
		}})
	}
	return out
}

// cycles finds rings of kinds that a cascade comes back to.
func (g *kindGraph) cycles() []Finding {
	var out []Finding
	edges := g.edgesThat(Behaviour.Cascades)
	for _, ring := range g.rings(edges) {
		out = append(out, ringFinding(Warning, CascadeCycle, ring, "cascades form a cycle: "+ringText(ring)+": deleting one may take along everything of these kinds",
			"leave it if that is what you want; else break it with another behaviour"))
	}
	for _, e := range withinKind(edges) {
		out = append(out, ringFinding(Note, CascadeWithinKind, []kindEdge{e},
			fmt.Sprintf("%s.%s cascades within its own kind: deleting one takes along all that hang on it, level by level", e.holder.kind, e.path), ""))
	}
	return out
}

// blockCycles finds kinds whose resources can block one another, so that none of them can be deleted before one lets go.
// Of one kind two resources are enough; one that refers to itself blocks nothing.
func (g *kindGraph) blockCycles() []Finding {
	var out []Finding
	edges := g.edgesThat(func(b Behaviour) bool { return b == Block })
	const remedy = "leave it if that is what you want; else let one of them unset or cascade"
	for _, ring := range g.rings(edges) {
		out = append(out, ringFinding(Warning, BlockCycle, ring, "blockers form a cycle: "+ringText(ring)+": resources that refer to one another so cannot be deleted before one lets go", remedy))
	}
	for _, e := range withinKind(edges) {
		out = append(out, ringFinding(Warning, BlockWithinKind, []kindEdge{e},
			fmt.Sprintf("%s.%s blocks within its own kind: two that refer to one another cannot be deleted before one lets go", e.holder.kind, e.path), remedy))
	}
	return out
}

func ringFinding(level Level, id string, ring []kindEdge, message, remedy string) Finding {
	return Finding{Level: level, ID: id, Of: ring[0].holder.ServiceVersion, Problem: Problem{Pos: ring[0].pos, Message: message, Remedy: remedy}}
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
			out = append(out, Finding{Level: Note, ID: ActsLater, Of: d.ServiceVersion, Problem: Problem{
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
				out = append(out, Finding{Level: Note, ID: ReferencesIgnored, Of: d.ServiceVersion, Problem: Problem{Pos: k.Pos, Message: "constraints of " + k.Name + " are disabled: its references are not looked at"}})
			}
		}
	}
	return out
}
