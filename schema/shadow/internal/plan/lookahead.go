package plan

import (
	"github.com/db-controller/db-controller/schema/peer"
)

// Holders returns the holders of the blockers.
func (w *PlanWalk) Holders() []peer.PlanTarget {
	var out []peer.PlanTarget
	for _, b := range w.InOrder() {
		out = append(out, b.HolderResource())
	}
	return out
}
