package deletion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

// PlanDelete returns the effects of a delete of some resources together in all deployments, as of now. Like
// Plan it changes only blockades. Its default deadline is four times Config.Times.DeleteTimeout. It fails
// with ErrNotFound, ErrDeleting or *InvalidError.
func (s *Deleter) PlanDelete(ctx context.Context, names ...string) (*plan.DeletePlan, error) {
	v, d, reqs := s.Version.Load(), &deletion{}, make([]DeleteRequest, len(names))
	for i, name := range names {
		reqs[i].Name = name
	}
	if err := s.want(ctx, d, reqs); err != nil {
		return nil, err
	}
	ctx, cancel := peer.WithDefaultTimeout(ctx, 4*s.Cfg.Times.DeleteTimeout) // it holds no locks: only the caller waits
	defer cancel()
	p := &planning{store: s}
	for again := true; ; again = false {
		err := pgx.BeginTxFunc(ctx, s.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
			func(tx pgx.Tx) error {
				p.plan = &peer.Plan{}
				roots, alone, err := s.planRoots(ctx, tx, d)
				if err != nil {
					return err
				}
				if err := p.members(ctx, tx, roots, nil); err != nil {
					return err
				}
				p.plan.Members = append(p.plan.Members, alone...)
				p.obstacle, err = s.obstacle(ctx, tx, roots, peer.PlanLimit, excused{})
				return err
			})
		switch {
		case errors.Is(err, peer.ErrNotFound):
			return nil, s.gate.Judged(ctx, s.Pool, v, err)
		case errors.Is(err, peer.ErrDeleting):
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("plan a deletion: %w", err)
		}
		asked := s.askAll(ctx, p.obstacle.blockades, peer.RecallLooks)
		if asked.moved && again {
			continue
		}
		asked.doubt()
		p.plan.Blockers = append(p.plan.Blockers, asked.blockers()...)
		found, err := plan.NewWalk(s.Self, s.Peers, true).Complete(ctx, d.name(), p.plan, asked.unasked)
		if err == nil {
			found.Refusal, found.Retention = d.ofSeveral(found.Refusal), d.retention
		}
		if err == nil && found.Refusal == nil {
			most := limit(cmp.Or(peer.PersonFrom(ctx).MaxRemovals, anyNumber))
			found.Refusal = most.allows(found.Removed(), found.Truncated)
		}
		return found, err
	}
}

var selectPlanRootsSQL = db.Codes(`SELECT s.id, s.kind_id, s.name, s.state FROM ` + namedSQL +
	` WHERE s.state = {active} OR NOT s.hidden`)

// planRoots returns the ids of the resources, and those that are rows of attached tables and have no id:
// nothing refers to them. It fails with ErrNotFound for the first one that does not exist, and with
// ErrDeleting if none is ACTIVE: resources in DELETING have no part in the delete.
func (s *Deleter) planRoots(ctx context.Context, q db.Querier,
	d *deletion,
) (ids []int64, alone []peer.PlanMember, err error) {
	kinds, names := d.keys()
	all, err := q.Query(ctx, selectPlanRootsSQL, kinds, names)
	if err != nil {
		return nil, nil, err
	}
	found, err := pgx.CollectRows(all, func(row pgx.CollectableRow) (m plan.Member, err error) {
		return m, row.Scan(&m.ID, &m.Kind, &m.Name, &m.State)
	})
	if err != nil {
		return nil, nil, err
	}
	var marked error
	for _, w := range d.wanted {
		i := slices.IndexFunc(found, func(m plan.Member) bool { return m.Kind == w.kindID && m.Name == w.Name })
		switch {
		case i < 0:
			row, err := s.rowAlone(ctx, q, w)
			if err != nil {
				return nil, nil, err
			}
			alone = append(alone, row)
		case found[i].State != peer.Active:
			marked = fmt.Errorf("%s: %w", w.Name, peer.ErrDeleting)
		default:
			ids = append(ids, found[i].ID)
		}
	}
	if len(ids)+len(alone) == 0 {
		return nil, nil, marked
	}
	return ids, alone, nil
}

// rowAlone returns the row of an attached table that has no uid yet. Within the plan it has one of its own.
func (s *Deleter) rowAlone(ctx context.Context, q db.Querier, w *wanted) (m peer.PlanMember, err error) {
	t := s.rows.Of(w.kindID)
	if t == nil {
		return m, fmt.Errorf("%s: %w", w.Name, peer.ErrNotFound)
	}
	there, err := t.Existing(ctx, q, []string{w.Name})
	if err == nil && len(there) == 0 {
		err = fmt.Errorf("%s: %w", w.Name, peer.ErrNotFound)
	}
	if err != nil {
		return m, err
	}
	kind, err := s.Names.KindOf(ctx, q, w.kindID)
	return peer.PlanMember{UID: uuid.NewSHA1(uuid.Nil, []byte(w.Name)), Name: w.Name, Kind: kind.Kind}, err
}
