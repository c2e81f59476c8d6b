package plan

import (
	"github.com/db-controller/db-controller/schema"
)

// beyond are the counts of a deployment whose answers left members or unsets out.
type beyond struct {
	counts  map[countKey]int
	holders int // different ones that cascade
	unsets  bool
}

type countKey struct {
	path      string
	behaviour schema.Behaviour
}

// addBeyond raises the numbers of groups by the resources that the walk did not visit, and marks the numbers
// that may be greater. A count is of one path and behaviour: it is left out where such groups have several
// kinds. A number is never too great: a deployment's groups of deleted resources get no more than its
// different holders.
func (w *Walk) addBeyond(groups []Group) {
	visited := map[schema.DeploymentID]int{}
	for _, m := range w.order {
		if !m.first {
			visited[m.at.Deployment]++
		}
	}
	for i := range groups {
		g := &groups[i]
		b := w.beyond[g.Deployment]
		g.AtLeast = i > 0 && (w.Truncated || g.Unset && b != nil && b.unsets)
		if b == nil || i == 0 {
			continue
		}
		more := b.counts[countKey{g.Path, g.Behaviour}] - counted(groups, g)
		if !g.Unset {
			more = min(more, b.holders-visited[g.Deployment])
		}
		if more > 0 {
			g.Count += more
			visited[g.Deployment] += more
		}
	}
}

// counted returns the number in all groups of a group's path and behaviour in its deployment, or the greatest
// one if they have several kinds.
func counted(groups []Group, of *Group) (sum int) {
	const all = int(^uint(0) >> 1)
	for _, g := range groups {
		if g.Deployment != of.Deployment || g.Path != of.Path || g.Behaviour != of.Behaviour || g.Unset != of.Unset {
			continue
		}
		if g.Kind != of.Kind {
			return all
		}
		sum += g.Count
	}
	return sum
}
