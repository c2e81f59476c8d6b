package shadow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// maxSamples is how many names stand for a group.
const maxSamples = 3

// PlanGroup are resources of one kind in one deployment that follow those of another group in the same way.
type PlanGroup struct {
	Parent     int // index of the group that these follow; -1 for the resource itself
	Deployment schema.DeploymentID
	Kind       string
	Path       string
	Behaviour  schema.Behaviour
	Unset      bool
	Count      int
	Samples    []string // full names
}

// DeletePlan is what a delete would do, in all deployments.
type DeletePlan struct {
	// Refusal is the error that the delete would fail with now; nil when it would be accepted.
	Refusal error
	// Groups come after the one that they follow; the first is the resource itself.
	Groups   []PlanGroup
	Blockers []PlannedBlocker
	// Unasked are deployments that could not be asked, and why; Truncated says that there is more than was walked over.
	Unasked   []Unasked
	Truncated bool
}

// PlannedBlocker is who blocks what; it refuses the delete, or only lets a part of it wait.
type PlannedBlocker struct {
	Holder Holder
	// Undecided: nobody can say yet whether it is in the way. Of these it is Unknown whether they go as well, since a deployment
	// does not answer; the others may only be about to refer.
	Undecided, Unknown bool
	// Unanswered: its deployment did not answer whether it still refers; until it has, it does.
	Unanswered bool
	Refuses    bool
}

// PlanDelete walks over what a delete would do, in all deployments, and changes nothing.
func (s *Store) PlanDelete(ctx context.Context, name string) (*DeletePlan, error) {
	kindID, err := s.kindOfName(ctx, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := withDefaultTimeout(ctx, 4*s.cfg.DeleteTimeout) // nothing waits for it but who reads it
	defer cancel()
	var root int64
	var state State
	p := &planning{store: s}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	for again := true; ; again = false {
		err = pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error {
			p.plan = &Plan{}
			if err := tx.QueryRow(ctx, selectPlanRootSQL, kindID, name).Scan(&root, &state); err != nil {
				return err
			}
			if err := p.members(ctx, tx, []int64{root}, nil); err != nil {
				return err
			}
			if err := p.blockers(ctx, tx, []int64{root}); err != nil {
				return err
			}
			p.obstacle, err = s.obstacle(ctx, tx, []int64{root}, PlanLimit, nil)
			return err
		})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil, fmt.Errorf("%s: %w", name, ErrNotFound)
		case err != nil:
			return nil, fmt.Errorf("plan a deletion: %w", err)
		case state != Active:
			return nil, fmt.Errorf("%s: %w", name, ErrDeleting)
		}
		asked := s.askAll(ctx, p.obstacle.blockades)
		if asked.moved && again {
			continue
		}
		p.plan.Blockers = append(p.plan.Blockers, asked.blockers()...)
		return s.planFrom(ctx, name, p.plan, asked.unasked)
	}
}

// planFrom walks over a deletion, starting with its root alone.
func (s *Store) planFrom(ctx context.Context, name string, root *Plan, unasked []Unasked) (*DeletePlan, error) {
	w := newWalk(s, true)
	w.begin(root.Members)
	for _, b := range root.Blockers {
		w.block(b)
	}
	// What follows in this database is asked for like what follows elsewhere.
	w.follow(s.self, PlanTarget{s.self, root.Members[0].UID})
	if err := w.run(ctx); err != nil {
		return nil, err
	}
	if err := w.judge(ctx, w.holders()); err != nil {
		return nil, err
	}
	w.unasked = sortUnasked(append(w.unasked, unasked...))
	out := &DeletePlan{Refusal: w.refusal(name), Unasked: w.unasked, Truncated: w.truncated, Groups: w.groups()}
	for _, b := range w.inOrder() {
		if w.goes(b.holder()) {
			continue
		}
		unknown := w.unknown[b.holder()] && !b.Undecided
		out.Blockers = append(out.Blockers, PlannedBlocker{
			Holder: b.Holder, Undecided: b.Undecided || unknown, Unknown: unknown, Unanswered: b.Unreachable, Refuses: w.refuses(b),
		})
	}
	return out, nil
}

const selectPlanRootSQL = `SELECT id, state FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2 AND NOT hidden`

// groups puts what a walk found into a tree.
func (w *walked) groups() []PlanGroup {
	type key struct {
		parent     int
		deployment schema.DeploymentID
		kind, path string
		behaviour  schema.Behaviour
		unset      bool
	}
	var groups []PlanGroup
	at := map[key]int{}
	groupOf := map[PlanTarget]int{}
	put := func(d schema.DeploymentID, kind, name string, via Via, unset bool) int {
		k := key{-1, d, kind, via.Path, via.Behaviour, unset}
		if !via.isZero() {
			k.parent = groupOf[via.Target]
			if p := groups[k.parent]; p.Deployment == d && p.Kind == kind && p.Path == via.Path && !unset {
				// A tree of one kind, level below level, is one group.
				k = key{p.Parent, d, kind, via.Path, via.Behaviour, false}
			}
		}
		i, ok := at[k]
		if !ok {
			i = len(groups)
			at[k] = i
			groups = append(groups, PlanGroup{Parent: k.parent, Deployment: d, Kind: kind, Path: via.Path, Behaviour: via.Behaviour, Unset: unset})
		}
		g := &groups[i]
		if g.Count++; len(g.Samples) < maxSamples {
			g.Samples = append(g.Samples, schema.FullName{Deployment: d, Name: name}.String())
		}
		return i
	}
	for _, m := range w.order {
		groupOf[m.at] = put(m.at.Deployment, m.Kind, m.Name, m.via, false)
	}
	unsets := slices.Collect(maps.Values(w.unsets))
	slices.SortFunc(unsets, func(a, b walkedUnset) int {
		return cmp.Or(cmp.Compare(groupOf[a.Via.Target], groupOf[b.Via.Target]), compareDeployments(a.deployment, b.deployment),
			strings.Compare(a.Kind, b.Kind), strings.Compare(a.Via.Path, b.Via.Path), strings.Compare(a.Name, b.Name), compareTargets(a.Via.Target, b.Via.Target))
	})
	for _, u := range unsets {
		if !w.goes(PlanTarget{u.deployment, u.UID}) {
			put(u.deployment, u.Kind, u.Name, u.Via, true)
		}
	}
	return groups
}
