package follow

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"

	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// actOnRows acts upon the rows of tables that name deleted targets, by the tables' own indexes. The rights to
// the targets have ended before: a row that is written afterwards has a note, and its target does not exist.
// So it is done when it has acted upon all rows that one look has found.
func (a *acting) actOnRows(ctx context.Context) error {
	s := a.store
	if err := s.rows.Refresh(ctx, s.Pool, false); err != nil || !s.rows.Refer() {
		return err
	}
	for limit := s.Cfg.Limits.Batch; ; {
		targets, err := a.rowTargets(ctx)
		if err != nil || len(targets) == 0 {
			return err
		}
		found, err := a.referring(ctx, s.Pool, targets, limit)
		if err != nil {
			return err
		}
		places := a.places(found)
		if len(places) == 0 {
			if len(found) < limit {
				return nil
			}
			limit *= 2 // rows that wait in DELETING may hide others
			continue
		}
		left := false
		for p, there := range places {
			changed, err := a.actOnPlace(ctx, targets[p.target], p, there)
			if peer.HaltsAll(err) {
				return err
			}
			more := there.found >= limit || changed < len(there.keys)+len(there.ids)
			switch uid := targets[p.target].UID; {
			case err != nil:
				a.failed[uid] = err
			case changed == 0:
				a.failed[uid] = errLocked
			case more && time.Since(a.began) >= a.patience:
				a.failed[uid] = schema.ErrUnfinished
			}
			left = left || more
		}
		if !left {
			return nil
		}
	}
}

// RowsRefer reports whether rows of tables here may refer.
func (s *Follower) RowsRefer() bool { return s.rows.Refer() }

// referring returns the rows that act: blocking rows do as well when an operator says so.
func (a *acting) referring(ctx context.Context, q db.Querier, targets []rows.Target, limit int) ([]rows.Holder, error) {
	found, err := a.store.rows.Holders(ctx, q, false, targets, limit)
	if err != nil || a.blocking == schema.Block {
		return found, err
	}
	blocking, err := a.store.rows.Holders(ctx, q, true, targets, limit)
	return append(found, blocking...), err
}

// place is a reference of a table that names a target.
type place struct {
	target int
	table  *rows.Table
	// reference is its place in the table.
	reference int
}

// placed are the rows of a place: rows without a resource by their keys, and the resources of the others.
type placed struct {
	found int // with the others
	unset bool
	keys  [][]string
	ids   []int64
}

// places sorts rows by their places. Rows whose resources are in DELETING are done: they go when these are
// removed. Rows of a reference that may dangle stay.
func (a *acting) places(found []rows.Holder) map[place]*placed {
	out, seen := map[place]*placed{}, map[place]int{}
	for _, r := range found {
		behaviour := r.Behaviour
		if behaviour == schema.Block {
			behaviour = a.blocking
		}
		p := place{r.Target, r.Table, r.Reference}
		if seen[p]++; out[p] != nil {
			out[p].found = seen[p]
		}
		if !behaviour.Acts() || r.ID != 0 && r.State != peer.Active {
			continue
		}
		if out[p] == nil {
			out[p] = &placed{unset: behaviour.Unsets()}
		}
		out[p].found = seen[p]
		if r.ID != 0 && behaviour.Cascades() {
			out[p].ids = append(out[p].ids, r.ID)
		} else {
			out[p].keys = append(out[p].keys, r.Key)
		}
	}
	return out
}

// actOnPlace deletes or unsets the rows of a place, and cascades to the rows' resources, if any, as they are
// now.
func (a *acting) actOnPlace(ctx context.Context, target rows.Target, p place, there *placed) (changed int, err error) {
	s, of := a.store, a.rights[target.ID]
	if len(there.ids) > 0 {
		why := plan.Reason{How: peer.Cascaded, Cause: a.cause(of), Via: &plan.Link{
			DeploymentID: a.fromID, UID: of.UID,
			Name: of.Name,
		}}
		err = s.cascade.RowsCascade(ctx, there.ids, why, func(tx pgx.Tx) (map[string]bool, error) {
			still := map[string]bool{}
			found, err := a.referring(ctx, tx, []rows.Target{target}, len(there.ids)+len(there.keys)+s.Cfg.Limits.Batch)
			for _, r := range found {
				if r.Table.KindID == p.table.KindID && r.Reference == p.reference {
					still[r.Name] = true
				}
			}
			return still, err
		})
		if err != nil {
			return 0, err
		}
		changed = len(there.ids)
	}
	n, err := a.removeRows(ctx, target, p.table, p.reference, there.keys, there.unset)
	return changed + n, err
}

// rowTargets returns the targets that have not failed.
func (a *acting) rowTargets(ctx context.Context) ([]rows.Target, error) {
	var ids []int64
	for id, t := range a.rights {
		if a.failed[t.UID] == nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return a.store.rows.Targets(ctx, a.store.Pool, ids)
}

// removeRows deletes, or unsets, rows that name a target by a reference. A row that fails keeps no other one
// back.
func (a *acting) removeRows(ctx context.Context, target rows.Target, t *rows.Table, reference int, keys [][]string,
	unset bool,
) (changed int, err error) {
	var failed error
	if len(keys) == 0 {
		return 0, nil
	}
	places := make([]int64, len(keys)) // in keys
	for i := range places {
		places[i] = int64(i)
	}
	_, err = a.store.Halving(ctx, places, retry.Halves[int64]{
		Run: func(part []int64) error {
			some := make([][]string, len(part))
			for i, place := range part {
				some[i] = keys[place]
			}
			n, err := a.tryRows(ctx, target, t, reference, some, unset)
			changed += n
			return err
		},
		Failed: func(_ int64, err error) error { failed = err; return nil },
		// While rows of the kind wait for a comparison, each other row would fail as the first one did.
		Stop: func() bool { return errors.Is(failed, peer.ErrKindsRecovering) || time.Since(a.began) >= a.patience },
	})
	return changed, errors.Join(err, failed)
}

func (a *acting) tryRows(ctx context.Context, target rows.Target, t *rows.Table, reference int, keys [][]string,
	unset bool,
) (n int, err error) {
	s, of := a.store, a.rights[target.ID]
	err = s.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) error {
		changed, err := t.RemoveReferring(ctx, tx, s.Self, reference, target, keys, unset)
		if n = len(changed); err != nil || n == 0 {
			return err
		}
		if unset {
			s.progress.Add(tx, a.cause(of), cascade.DeletionCounts{Unset: int64(n)})
			return nil
		}
		if err := s.gate.CheckRecovered(ctx, tx, []int32{t.KindID}); err != nil {
			return err
		}
		s.progress.Add(tx, a.cause(of), cascade.DeletionCounts{Found: int64(n), Removed: int64(n)})
		names, uids := make([]string, n), make([]uuid.UUID, n)
		for i, key := range changed {
			names[i], uids[i] = t.NameOf(key), uuid.Must(uuid.NewV7())
		}
		b := &pgx.Batch{}
		cascade.QueueNoteRows(b, t.KindID, s.SelfID, names, uids, plan.Reason{
			How: peer.Cascaded, Cause: a.cause(of),
			Via: &plan.Link{DeploymentID: a.fromID, UID: of.UID, Name: of.Name},
		})
		return tx.SendBatch(ctx, b).Close()
	})
	return n, err
}
