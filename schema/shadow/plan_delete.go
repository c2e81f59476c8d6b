package shadow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
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
	// Unasked are deployments that could not be asked, and Truncated tells that there is more than was walked over.
	Unasked   []schema.DeploymentID
	Truncated bool
}

// PlannedBlocker is who blocks what; it refuses the delete unless it goes too, or only lets a part of it wait.
type PlannedBlocker struct {
	Holder    Holder
	Target    schema.FullName
	Undecided bool
	Refuses   bool
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
	p := &planning{store: s, plan: &Plan{}, via: map[int64]Via{}}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	for again := true; ; again = false {
		err = pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error {
			p.plan = &Plan{}
			if err := tx.QueryRow(ctx, selectPlanRootSQL, kindID, name).Scan(&root, &state); err != nil {
				return err
			}
			if err := p.members(ctx, tx, []int64{root}); err != nil {
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
		blockers, moved := s.planAsked(ctx, p.obstacle, true)
		if moved && again {
			continue
		}
		p.plan.Blockers = append(p.plan.Blockers, blockers...)
		break
	}
	w := newWalk(s)
	w.takePlan(s.self, p.plan)
	// What follows in this database is asked for like what follows elsewhere.
	w.ask[s.self] = append(w.ask[s.self], PlanTarget{s.self, p.plan.Members[0].UID})
	if err := w.run(ctx, true); err != nil {
		return nil, err
	}
	holders := make([]PlanTarget, len(w.blockers))
	for i, b := range w.blockers {
		holders[i] = b.holder()
	}
	if err := w.judge(ctx, holders); err != nil {
		return nil, err
	}
	refusal := w.refusal(name)
	if refusal == nil {
		refusal = w.undecided(s.self, name)
	}
	out := &DeletePlan{Refusal: refusal, Unasked: w.unasked, Truncated: w.truncated, Groups: w.groups()}
	for _, b := range w.blockers {
		planned := PlannedBlocker{Holder: b.Holder, Target: schema.FullName{Deployment: b.deployment, Name: b.Target}, Undecided: b.Undecided || w.unknown[b.holder()], Refuses: w.refuses(b)}
		if !slices.Contains(out.Blockers, planned) && !w.going[b.holder()] {
			out.Blockers = append(out.Blockers, planned)
		}
	}
	slices.SortFunc(out.Blockers, func(a, b PlannedBlocker) int {
		return strings.Compare(a.Holder.Name.String()+a.Holder.Path, b.Holder.Name.String()+b.Holder.Path)
	})
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
		if via.Target.UID != uuid.Nil {
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
	for _, m := range w.members {
		groupOf[PlanTarget{m.deployment, m.UID}] = put(m.deployment, m.Kind, m.Name, m.Via, false)
	}
	for _, u := range w.unsets {
		if !w.going[PlanTarget{u.deployment, u.UID}] {
			put(u.deployment, u.Kind, u.Name, u.Via, true)
		}
	}
	return groups
}

// undecided is the error of a delete that cannot ask what became of a blockade in its own database.
func (w *walked) undecided(self schema.DeploymentID, name string) error {
	e := &UnavailableError{Err: errors.New("it did not answer what became of its references")}
	for _, b := range w.blockers {
		if b.deployment == self && b.Undecided && b.Unreachable && w.refuses(b) {
			e.Deployments = append(e.Deployments, b.Holder.Name.Deployment)
		}
	}
	if len(e.Deployments) == 0 {
		return nil
	}
	e.Deployments = schema.SortedDeployments(e.Deployments)
	return fmt.Errorf("%s may be referred to by resources that cannot be asked: %w", name, e)
}
