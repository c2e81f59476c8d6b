package shadow

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// PlanDelete returns the effects of a delete in all deployments, as of now. Like Plan it changes only blockades. Its default
// deadline is four times Config.DeleteTimeout. It fails with ErrNotFound, ErrDeleting or *InvalidError.
func (s *Store) PlanDelete(ctx context.Context, name string) (*DeletePlan, error) {
	kindID, err := s.kindOfName(ctx, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := withDefaultTimeout(ctx, 4*s.cfg.DeleteTimeout) // it holds no locks: only the caller waits
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

// planFrom completes a plan whose first level is the root of the deletion.
func (s *Store) planFrom(ctx context.Context, name string, root *Plan, unasked []Unasked) (*DeletePlan, error) {
	w := newWalk(s.self, s.peers, true)
	w.begin(root.Members)
	for _, b := range root.Blockers {
		w.block(b)
	}
	// The walk asks its own deployment like any other.
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
