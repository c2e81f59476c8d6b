package plan

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// Group summarises resources of one kind in one deployment that are removed, or lose a value, because of the
// same parent group by the same path and behaviour.
type Group struct {
	Parent     int // index of the parent group; -1 for the resources that a delete names
	Deployment schema.DeploymentID
	Kind       string
	Path       string
	Behaviour  schema.Behaviour
	Unset      bool
	Count      int
	AtLeast    bool     // there may be more
	Names      []string // relative names of the resources that the plan visited
	Finalizers []string // they stay in DELETING until the holders of these have cleaned up
}

// DeletePlan lists the effects of a delete in all deployments.
type DeletePlan struct {
	// Refusal is the error that the delete would fail with now; nil when it would be accepted.
	Refusal error
	// Groups are ordered parents first; the first ones are the resources that the delete names.
	Groups   []Group
	Blockers []PlannedBlocker
	// Unasked are the deployments that could not be asked, with the reason.
	Unasked []peer.Unasked
	// Truncated: the walk stopped at PlanLimit.
	Truncated bool
	// Uncounted: the references beyond PlanLimit could not be counted.
	Uncounted bool
	// Retention is the longest of the kinds of the named resources; 0: none.
	Retention time.Duration
}

// Complete reports whether a plan without a refusal has asked every deployment, and has counted the
// references beyond its limit.
func (p *DeletePlan) Complete() bool { return len(p.Unasked) == 0 && !p.Uncounted }

// Removed is the number of resources that the delete removes; with Truncated there may be more.
func (p *DeletePlan) Removed() (n int) {
	for _, g := range p.Groups {
		if !g.Unset {
			n += g.Count
		}
	}
	return n
}

// PlannedBlocker is a holder that blocks a resource of the deletion.
type PlannedBlocker struct {
	Holder peer.Holder
	// Undecided: it is not known yet whether the holder blocks, since its write has not committed or aborted,
	// or (with Unknown set) since an unanswered deployment decides whether the deletion removes the holder as
	// well.
	Undecided, Unknown bool
	// Unanswered: the holder's deployment did not answer whether the reference still exists; until it has,
	// the holder blocks.
	Unanswered bool
	// Refuses: it refuses the whole delete; otherwise only the blocked resource waits as BLOCKED.
	Refuses bool
}

// Groups summarises the resources that a walk found as a tree.
func (w *Walk) Groups() []Group {
	type key struct {
		parent     int
		deployment schema.DeploymentID
		kind, path string
		behaviour  schema.Behaviour
		unset      bool
	}
	var groups []Group
	at := map[key]int{}
	groupOf := map[peer.PlanTarget]int{}
	put := func(d schema.DeploymentID, kind, name string, via peer.Via, unset bool) int {
		k := key{-1, d, kind, via.Path, via.Behaviour, unset}
		if !via.IsZero() {
			k.parent = groupOf[via.Target]
			if p := groups[k.parent]; p.Deployment == d && p.Kind == kind && p.Path == via.Path && !unset {
				// Descendants of one kind by one path form one group at any depth.
				k = key{p.Parent, d, kind, via.Path, via.Behaviour, false}
			}
		}
		i, ok := at[k]
		if !ok {
			i = len(groups)
			at[k] = i
			groups = append(groups, Group{
				Parent: k.parent, Deployment: d, Kind: kind, Path: via.Path,
				Behaviour: via.Behaviour, Unset: unset,
			})
		}
		g := &groups[i]
		g.Count++
		g.Names = append(g.Names, name)
		return i
	}
	for _, m := range w.order {
		i := put(m.at.Deployment, m.Kind, m.Name, m.via, false)
		groupOf[m.at], groups[i].Finalizers = i, m.Finalizers
	}
	unsets := slices.Collect(maps.Values(w.unsets))
	slices.SortFunc(unsets, func(a, b walkedUnset) int {
		return cmp.Or(cmp.Compare(groupOf[a.Via.Target], groupOf[b.Via.Target]), peer.CompareDeployments(a.deployment,
			b.deployment),
			strings.Compare(a.Kind, b.Kind), strings.Compare(a.Via.Path, b.Via.Path), strings.Compare(a.Name, b.Name),
			compareTargets(a.Via.Target, b.Via.Target))
	})
	for _, u := range unsets {
		if !w.Goes(peer.PlanTarget{Deployment: u.deployment, UID: u.UID}) {
			put(u.deployment, u.Kind, u.Name, u.Via, true)
		}
	}
	w.addBeyond(groups)
	return groups
}

// Complete asks for the plan of the roots of a deletion, which are all of the first level, at the deployments
// behind them.
func (w *Walk) Complete(ctx context.Context, name string, root *peer.Plan,
	unasked []peer.Unasked,
) (*DeletePlan, error) {
	w.Begin(root.Members)
	for _, b := range root.Blockers {
		w.Block(b)
	}
	// The walk asks its own deployment like any other.
	for _, m := range root.Members {
		w.Follow(w.self, peer.PlanTarget{Deployment: w.self, UID: m.UID})
	}
	if err := w.Run(ctx); err != nil {
		return nil, err
	}
	if err := w.Judge(ctx, nil); err != nil {
		return nil, err
	}
	w.Unasked = peer.SortUnasked(append(w.Unasked, unasked...))
	out := &DeletePlan{
		Refusal: w.Refusal(name), Unasked: w.Unasked, Truncated: w.Truncated, Uncounted: w.Uncounted,
		Groups: w.Groups(),
	}
	for _, b := range w.InOrder() {
		if w.Goes(b.HolderResource()) {
			continue
		}
		unknown := w.Unknown[b.HolderResource()] && !b.Undecided
		out.Blockers = append(out.Blockers, PlannedBlocker{
			Holder: b.Holder, Undecided: b.Undecided || unknown, Unknown: unknown, Unanswered: b.Unreachable,
			Refuses: w.Refuses(b),
		})
	}
	return out, nil
}
