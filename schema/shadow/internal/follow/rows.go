package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
	"github.com/db-controller/db-controller/schema/shadow/internal/progress"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// actOnRows acts upon the rows of strict tables that name deleted targets by the tables' own indexes: those whose references are not stored, or not yet. The rights
// to the targets have ended before, so that a look that finds no row is the last one.
func (a *acting) actOnRows(ctx context.Context) error {
	s := a.store
	if a.from == s.Self || !s.rows.Strict() {
		return nil
	}
	for {
		targets, err := a.rowTargets(ctx)
		if err != nil || len(targets) == 0 {
			return err
		}
		found, err := s.rows.Referring(ctx, s.Pool, false, targets, s.Cfg.Limits.Batch)
		if err != nil || len(found) == 0 {
			return err
		}
		type place struct {
			target int
			table  *rows.Table
			path   string
		}
		byPlace := map[place][][]string{}
		for _, r := range found {
			p := place{r.Target, r.Table, r.Path}
			byPlace[p] = append(byPlace[p], r.Key)
		}
		for p, keys := range byPlace {
			switch changed, err := a.removeRows(ctx, targets[p.target], p.table, p.path, keys); {
			case err != nil:
				a.failed[a.targets[targets[p.target].ID].UID] = err
			case changed == 0:
				a.failed[a.targets[targets[p.target].ID].UID] = errLocked
			case time.Since(a.began) >= a.patience:
				a.failed[a.targets[targets[p.target].ID].UID] = schema.ErrUnfinished
			}
		}
	}
}

// rowTargets returns the targets that have not failed.
func (a *acting) rowTargets(ctx context.Context) ([]rows.Target, error) {
	var ids []int64
	for id, t := range a.targets {
		if a.failed[t.UID] == nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return a.store.rows.Targets(ctx, a.store.Pool, ids)
}

var errNotDeclared = errors.New("the version that runs does not declare its table as it is attached: attach it again")

// removeRows deletes, or unsets, rows that name a target by a reference. A row that fails keeps no other one back.
func (a *acting) removeRows(ctx context.Context, target rows.Target, t *rows.Table, path string, keys [][]string) (changed int, err error) {
	v, err := a.store.Current()
	if err != nil {
		return 0, err
	}
	kind := t.Declared(v.Model)
	if kind == nil {
		return 0, fmt.Errorf("%s: %w", t.Definition.Table, errNotDeclared)
	}
	unset := false
	for _, r := range kind.Table.References {
		if r.Path == path {
			unset = r.Behaviour.Unsets()
		}
	}
	var failed error
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
			n, err := a.tryRows(ctx, target, t, path, some, unset)
			changed += n
			return err
		},
		Failed: func(_ int64, err error) error { failed = err; return nil },
		Stop:   func() bool { return time.Since(a.began) >= a.patience },
	})
	return changed, errors.Join(err, failed)
}

func (a *acting) tryRows(ctx context.Context, target rows.Target, t *rows.Table, path string, keys [][]string, unset bool) (n int, err error) {
	s, of := a.store, a.targets[target.ID]
	err = s.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) error {
		changed, err := t.RemoveReferring(ctx, tx, s.Self, path, target, keys, unset)
		if n = len(changed); err != nil || n == 0 {
			return err
		}
		if unset {
			s.progress.Add(tx, a.cause(of), progress.Counts{Unset: int64(n)})
			return nil
		}
		s.progress.Add(tx, a.cause(of), progress.Counts{Found: int64(n), Removed: int64(n)})
		names, uids := make([]string, n), make([]uuid.UUID, n)
		for i, key := range changed {
			names[i], uids[i] = t.NameOf(key), uuid.Must(uuid.NewV7())
		}
		b := &pgx.Batch{}
		cascade.QueueNoteRows(b, t.KindID, s.SelfID, names, uids, plan.Reason{How: peer.Cascaded, Cause: a.cause(of), Via: &plan.Link{DeploymentID: a.fromID, UID: of.UID, Name: of.Name}})
		return tx.SendBatch(ctx, b).Close()
	})
	return n, err
}
