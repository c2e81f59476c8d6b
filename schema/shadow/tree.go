package shadow

import (
	"cmp"
	"slices"
	"strings"
)

// follows is a member and a reason for which it goes, seen from what goes first.
type follows struct {
	member *walkedMember
	via    Via
}

// settle gives every member its place, and of its reasons the one that stands for all: the shortest way from what the
// deletion begins with, by cascades where there is such a way, and else by way of owners too. So the tree is one of what
// there is, and not of who answered first.
func (w *walked) settle() {
	w.order = nil
	children := map[PlanTarget][]follows{}
	begin := map[*walkedMember]place{}
	for _, m := range w.members {
		m.placed, m.certain, m.via = false, false, Via{}
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

// place is where a member may come: the number of what it follows, and how.
type place struct {
	parent int
	via    Via
}

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.parent, o.parent), strings.Compare(p.via.Path, o.via.Path), cmp.Compare(p.via.Behaviour, o.via.Behaviour))
}

// spread places what follows those that have a place, level by level.
func (w *walked) spread(children map[PlanTarget][]follows, certain bool) {
	for from := 0; from < len(w.order); {
		found := map[*walkedMember]place{}
		for i, m := range w.order[from:] {
			for _, f := range children[m.at] {
				at := place{from + i, f.via}
				if f.member.placed || certain && f.via.Path == OwnerPath {
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

// put appends members in their order.
func (w *walked) put(found map[*walkedMember]place, certain bool) {
	level := make([]*walkedMember, 0, len(found))
	for m := range found {
		level = append(level, m)
	}
	slices.SortFunc(level, func(a, b *walkedMember) int {
		return cmp.Or(found[a].compare(found[b]), compareDeployments(a.at.Deployment, b.at.Deployment),
			strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name), compareTargets(a.at, b.at))
	})
	for _, m := range level {
		m.placed, m.certain, m.via = true, certain, found[m].via
	}
	w.order = append(w.order, level...)
}
