package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// stuck finds kinds A, C and D: deleting A cascades to C, D blocks C, and deleting A does not cascade to D.
func (g *kindGraph) stuck() []Finding {
	var out []Finding
	for _, block := range g.edges {
		if block.behaviour != schema.Block {
			continue
		}
		var taken []string
		for _, e := range g.edges {
			with := e.target
			if e.holder != block.target || !e.behaviour.Cascades() || with == block.holder ||
				g.goes[with][block.holder] {
				continue
			}
			if name := shortName(block.holder, with); !slices.Contains(taken, name) {
				taken = append(taken, name)
			}
		}
		if len(taken) == 0 {
			continue
		}
		out = append(out, Finding{
			Level: Warning, ID: BlockedCascade, Of: block.holder.ServiceVersion,
			Problem: schema.Problem{
				Pos: block.pos,
				Message: fmt.Sprintf(
					"%s.%s blocks %s, which is deleted with %s, and %s is not deleted with it: such a delete is refused, or waits as BLOCKED",
					block.holder.kind, block.path, shortName(block.holder, block.target), strings.Join(taken, " and "),
					block.holder.kind),
				Remedy: "acknowledge it if it is intended; otherwise let " + block.holder.kind +
					" be deleted as well, or use UNSET",
			},
		})
	}
	return out
}

// cycles finds cycles of cascading references.
func (g *kindGraph) cycles() []Finding {
	var out []Finding
	edges := g.edgesThat(schema.Behaviour.Cascades)
	const remedy = "acknowledge it if it is intended; otherwise use another behaviour in one of them"
	for _, ring := range g.rings(edges) {
		out = append(out, ringFinding(Warning, CascadeCycle, ring, "cascades form a cycle: "+ringText(ring)+
			": deleting one resource can delete all resources of these kinds", remedy))
	}
	for _, ring := range g.overVersions(edges) {
		out = append(out, ringFinding(Warning, CascadeCycle, ring,
			fmt.Sprintf(
				"cascades form a cycle where %s run beside one another: %s: deleting one resource can delete all resources of these kinds", versionsText(ring), ringText(ring)), remedy))
	}
	for _, e := range withinKind(edges) {
		out = append(out, ringFinding(Note, CascadeWithinKind, []kindEdge{e},
			fmt.Sprintf(
				"%s.%s cascades within its own kind: deleting one resource deletes all that refer to it, directly or not, level by level", e.holder.kind, e.path), ""))
	}
	return out
}

// blockCycles finds cycles of blocking references: none of the resources in such a cycle can be deleted
// before one of the references is removed. Within one kind two resources are enough; a resource that refers
// to itself blocks nothing.
func (g *kindGraph) blockCycles() []Finding {
	var out []Finding
	edges := g.edgesThat(func(b schema.Behaviour) bool { return b == schema.Block })
	const remedy = "acknowledge it if it is intended; otherwise use UNSET or CASCADE_DELETE in one of them"
	for _, ring := range g.rings(edges) {
		out = append(out, ringFinding(Warning, BlockCycle, ring, "blockers form a cycle: "+ringText(ring)+
			": resources in such a cycle cannot be deleted before one of the references is removed"+together(ring),
			remedy))
	}
	for _, ring := range g.overVersions(edges) {
		out = append(out, ringFinding(Warning, BlockCycle, ring,
			fmt.Sprintf(
				"blockers form a cycle where %s run beside one another: %s: resources in such a cycle cannot be deleted before one of the references is removed",
				versionsText(ring), ringText(ring))+together(ring), remedy))
	}
	for _, e := range withinKind(edges) {
		ring := []kindEdge{e}
		out = append(out, ringFinding(Warning, BlockWithinKind, ring,
			fmt.Sprintf(
				"%s.%s blocks within its own kind: two resources that refer to one another cannot be deleted before one of the references is removed", e.holder.kind, e.path)+together(ring), remedy))
	}
	return out
}

// together is the end of a message about a cycle of blockers: a deletion of all of its resources excuses the
// blockers, but each resource waits for the holder that keeps it.
func together(ring []kindEdge) string {
	if slices.ContainsFunc(ring, func(e kindEdge) bool { return !e.untilRemoved }) {
		return ""
	}
	return ". With until: removed a deletion of all of them does not end either: each waits in DELETING for another one"
}

func ringFinding(level Level, id string, ring []kindEdge, message, remedy string) Finding {
	return Finding{Level: level, ID: id, Of: ring[0].holder.ServiceVersion, Problem: schema.Problem{
		Pos:     ring[0].pos,
		Message: message, Remedy: remedy,
	}}
}

// later returns for each version one finding with the references whose behaviour acts in the target's
// transaction, which is not possible between databases.
func (g *kindGraph) later(descriptors []*schema.Descriptor) []Finding {
	var out []Finding
	for _, d := range descriptors {
		var names []string
		for _, e := range g.edges {
			name := e.holder.kind + "." + e.path
			if e.holder.ServiceVersion == d.ServiceVersion && e.target.Service != d.Service && e.behaviour.Acts() &&
				!e.behaviour.Later() && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			out = append(out, Finding{Level: Note, ID: ActsLater, Of: d.ServiceVersion, Problem: schema.Problem{
				Pos: d.Pos,
				Message: fmt.Sprintf(
					"%s: UNSET and CASCADE_DELETE act after the target's transaction where the target is in another database: %s", d.ServiceVersion, strings.Join(names, ", ")),
			}})
		}
	}
	return out
}

// ignored finds references and parents of kinds without constraints.
func ignored(descriptors []*schema.Descriptor) []Finding {
	var out []Finding
	for _, d := range descriptors {
		for _, k := range d.Kinds {
			if k.ConstraintsDisabled && len(k.References)+len(k.Parents) > 0 {
				out = append(out, Finding{
					Level: Note, ID: ReferencesIgnored, Of: d.ServiceVersion,
					Problem: schema.Problem{Pos: k.Pos, Message: "constraints of " + k.Name +
						" are disabled: its references and parents have no effect"},
				})
			}
		}
	}
	return out
}
