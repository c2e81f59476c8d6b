package plan

import (
	"cmp"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema/peer"
)

// follows is a member with one of its reasons, indexed by the target of the reason.
type follows struct {
	member *walkedMember
	via    peer.Via
}

// settle builds the tree of members: it chooses for each member the reason on the shortest path from the root of the deletion, by
// cascades alone where there is such a path, otherwise also by owners. So the tree depends on the references alone, and not on the
// order of answers.
func (w *PlanWalk) settle() {
	w.order = nil
	children := map[peer.PlanTarget][]follows{}
	begin := map[*walkedMember]place{}
	for _, m := range w.members {
		m.placed, m.certain, m.via = false, false, peer.Via{}
		if m.first {
			begin[m] = place{}
		}
		for _, via := range m.Vias {
			children[via.Target] = append(children[via.Target], follows{m, via})
		}
	}
	w.put(begin, true)
	w.spread(children, true)
	w.spread(children, false)
}

// place is a possible position of a member: the index of its parent in walked.order, and the reason.
type place struct {
	parent int
	via    peer.Via
}

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.parent, o.parent), strings.Compare(p.via.Path, o.via.Path), cmp.Compare(p.via.Behaviour, o.via.Behaviour))
}

// spread places the children of placed members, level by level. With certain it follows cascades only.
func (w *PlanWalk) spread(children map[peer.PlanTarget][]follows, certain bool) {
	for from := 0; from < len(w.order); {
		found := map[*walkedMember]place{}
		for i, m := range w.order[from:] {
			for _, f := range children[m.at] {
				at := place{from + i, f.via}
				if f.member.placed || certain && f.via.Path == peer.OwnerPath {
					continue
				}
				if before, ok := found[f.member]; !ok || at.compare(before) < 0 {
					found[f.member] = at
				}
			}
		}
		from = len(w.order)
		w.put(found, certain)
	}
}

// put appends the members of one level, sorted.
func (w *PlanWalk) put(found map[*walkedMember]place, certain bool) {
	level := make([]*walkedMember, 0, len(found))
	for m := range found {
		level = append(level, m)
	}
	slices.SortFunc(level, func(a, b *walkedMember) int {
		return cmp.Or(found[a].compare(found[b]), peer.CompareDeployments(a.at.Deployment, b.at.Deployment),
			strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name), compareTargets(a.at, b.at))
	})
	for _, m := range level {
		m.placed, m.certain, m.via = true, certain, found[m].via
	}
	w.order = append(w.order, level...)
}
