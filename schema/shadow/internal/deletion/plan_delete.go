package deletion

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

// PlanDelete returns the effects of a delete in all deployments, as of now. Like Plan it changes only blockades. Its default
// deadline is four times Config.Times.DeleteTimeout. It fails with ErrNotFound, ErrDeleting or *InvalidError.
func (s *Deleter) PlanDelete(ctx context.Context, name string) (*plan.DeletePlan, error) {
	v := s.Version.Load()
	kindID, err := s.gate.KindOfName(ctx, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := peer.WithDefaultTimeout(ctx, 4*s.Cfg.Times.DeleteTimeout) // it holds no locks: only the caller waits
	defer cancel()
	var root int64
	var state peer.State
	p := &planning{store: s}
	for again := true; ; again = false {
		err = pgx.BeginTxFunc(ctx, s.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			p.plan = &peer.Plan{}
			if err := tx.QueryRow(ctx, selectPlanRootSQL, kindID, name).Scan(&root, &state); err != nil {
				return err
			}
			if err := p.members(ctx, tx, []int64{root}, nil); err != nil {
				return err
			}
			p.obstacle, err = s.obstacle(ctx, tx, []int64{root}, peer.PlanLimit, nil)
			return err
		})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil, s.gate.Judged(ctx, s.Pool, v, fmt.Errorf("%s: %w", name, peer.ErrNotFound))
		case err != nil:
			return nil, fmt.Errorf("plan a deletion: %w", err)
		case state != peer.Active:
			return nil, fmt.Errorf("%s: %w", name, peer.ErrDeleting)
		}
		asked := s.askAll(ctx, p.obstacle.blockades, peer.RecallLooks)
		if asked.moved && again {
			continue
		}
		asked.doubt()
		p.plan.Blockers = append(p.plan.Blockers, asked.blockers()...)
		return plan.NewWalk(s.Self, s.Peers, true).Complete(ctx, name, p.plan, asked.unasked)
	}
}

const selectPlanRootSQL = `SELECT id, state FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2 AND NOT hidden`
