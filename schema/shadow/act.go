package shadow

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

const (
	selectForeignTargetsSQL = `
SELECT id, uid, kind_id, name FROM dbcontroller.foreign_target WHERE deployment_id = $1 AND uid = ANY ($2)`

	selectLocalTargetsSQL = `SELECT id, uid, kind_id, name FROM dbcontroller.shadow WHERE uid = ANY ($1)`

	// Of each target a few, so that none keeps the others waiting.
	firstHoldersSQL = `
SELECT t, r.holder_id FROM unnest($1::bigint[]) AS t CROSS JOIN LATERAL (
    SELECT holder_id FROM dbcontroller.reference WHERE target_id = t AND behaviour IN (2, 3, 4, 5) LIMIT $2
) AS r LIMIT $3`

	// By key: a batch does not walk over what the batches before it deleted.
	nextHoldersSQL = `
SELECT holder_id FROM dbcontroller.reference
WHERE target_id = $1 AND behaviour = $2 AND holder_id > $3
ORDER BY holder_id LIMIT $4`

	actingOnSQL = `
SELECT target_id, holder_id, field_id, behaviour FROM dbcontroller.reference
WHERE holder_id = ANY ($1) AND target_id = ANY ($2) AND behaviour IN (2, 3, 4, 5)`

	lockForeignTargetsSQL = `SELECT id FROM dbcontroller.foreign_target WHERE id = ANY ($1) ORDER BY id FOR UPDATE`

	removeForeignTargetsSQL = `
DELETE FROM dbcontroller.foreign_target f
WHERE id = ANY ($1) AND NOT EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = f.id)`
)

// actTarget is a deleted resource that holders here refer to.
type actTarget struct {
	id   int64
	uid  uuid.UUID
	kind int32
	name string
}

// Act is ActFor without an end: everything is done when it returns without an error.
func (s *Store) Act(ctx context.Context, from schema.DeploymentID, uids []uuid.UUID) (map[uuid.UUID]error, error) {
	return s.ActFor(ctx, from, uids, math.MaxInt64)
}

// fewHolders is up to how many holders a deletion is small: it is done before those that have more go on.
const fewHolders = 200

// ActFor does what holders in this database have to do for deletions at a deployment: unset and cascade, whatever their
// number, in transactions of Config.BatchSize holders. The deployment can be this one, for what acts later. Doing it
// again has no effect. It answers the uids for which something failed, with the error of each, and with
// schema.ErrUnfinished those that have more than a few holders, when patience has ended; everything else is done when it
// returns without an error.
func (s *Store) ActFor(ctx context.Context, from schema.DeploymentID, uids []uuid.UUID, patience time.Duration) (map[uuid.UUID]error, error) {
	if _, err := s.current(); err != nil {
		return nil, err
	}
	a := &acting{store: s, from: from, targets: map[int64]actTarget{}, failed: map[uuid.UUID]error{}}
	if err := a.load(ctx, s.pool, uids); err != nil {
		return nil, err
	}
	ids := make([]int64, 0, len(a.targets))
	for id := range a.targets {
		ids = append(ids, id)
	}
	many, err := a.few(ctx, ids)
	if err != nil {
		return nil, err
	}
	for i, id := range many {
		share := patience / time.Duration(len(many)-i)
		began := time.Now()
		if err := a.rest(ctx, id, share); err != nil {
			return nil, err
		}
		patience = max(0, patience-time.Since(began))
	}
	if from != s.self {
		return a.failed, s.forget(ctx, ids)
	}
	return a.failed, nil
}

type acting struct {
	store   *Store
	from    schema.DeploymentID
	targets map[int64]actTarget
	failed  map[uuid.UUID]error
}

func (a *acting) load(ctx context.Context, q querier, uids []uuid.UUID) error {
	sql, args := selectLocalTargetsSQL, []any{uids}
	if a.from != a.store.self {
		deployment, err := a.store.names.deployment(ctx, a.from)
		if err != nil {
			return err
		}
		sql, args = selectForeignTargetsSQL, []any{deployment, uids}
	}
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return fmt.Errorf("read targets: %w", err)
	}
	var t actTarget
	_, err = pgx.ForEachRow(rows, []any{&t.id, &t.uid, &t.kind, &t.name}, func() error { a.targets[t.id] = t; return nil })
	if err != nil {
		return fmt.Errorf("read targets: %w", err)
	}
	return nil
}

// few acts upon the targets that have few holders, and upon a few holders of the others, which it answers.
func (a *acting) few(ctx context.Context, ids []int64) (many []int64, err error) {
	size := a.store.cfg.BatchSize
	seen := map[int64]int{}
	for len(ids) > 0 {
		rows, err := a.store.pool.Query(ctx, firstHoldersSQL, ids, fewHolders+1, size)
		if err != nil {
			return nil, fmt.Errorf("read holders: %w", err)
		}
		var target, holder int64
		var holders []int64
		_, err = pgx.ForEachRow(rows, []any{&target, &holder}, func() error {
			seen[target]++
			holders = append(holders, holder)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read holders: %w", err)
		}
		full := len(holders) == size
		slices.Sort(holders)
		if err := a.batch(ctx, ids, slices.Compact(holders)); err != nil {
			return nil, err
		}
		left := ids[:0:0]
		for _, id := range ids {
			switch {
			case a.failed[a.targets[id].uid] != nil: // it is tried again
			case seen[id] > fewHolders:
				many = append(many, id)
			default:
				left = append(left, id)
			}
		}
		if ids = left; !full {
			break // all of their holders were seen
		}
	}
	return many, nil
}

// rest pages through the holders of one target, for as long as patience lasts.
func (a *acting) rest(ctx context.Context, id int64, patience time.Duration) error {
	began := time.Now()
	for _, b := range []schema.Behaviour{schema.CascadeDelete, schema.Unset, schema.AsyncCascadeDelete, schema.AsyncUnset} {
		for after, more := int64(0), true; more; {
			if uid := a.targets[id].uid; time.Since(began) >= patience {
				if a.failed[uid] == nil {
					a.failed[uid] = schema.ErrUnfinished
				}
				return nil
			}
			var err error
			if after, more, err = a.page(ctx, id, b, after); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *acting) page(ctx context.Context, target int64, b schema.Behaviour, after int64) (last int64, more bool, err error) {
	size := a.store.cfg.BatchSize
	rows, err := a.store.pool.Query(ctx, nextHoldersSQL, target, int16(b), after, size)
	if err != nil {
		return after, false, fmt.Errorf("read holders: %w", err)
	}
	holders, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return after, false, fmt.Errorf("read holders: %w", err)
	}
	if len(holders) > 0 {
		after = holders[len(holders)-1]
	}
	return after, len(holders) == size, a.batch(ctx, []int64{target}, holders)
}

// batch runs one transaction. Where a single holder makes it fail, the others go on without it (I20).
func (a *acting) batch(ctx context.Context, targets, holders []int64) error {
	if len(holders) == 0 {
		return nil
	}
	err := a.store.inTx(ctx, allFeeds, func(tx pgx.Tx) error { return a.act(ctx, tx, targets, holders) })
	if err == nil {
		return nil
	}
	if ctx.Err() != nil || notTheHoldersFault(err) || a.store.pool.Ping(ctx) != nil {
		return err // not the holders' fault
	}
	if len(holders) == 1 {
		return a.setAside(ctx, targets, holders[0], err)
	}
	half := len(holders) / 2
	if err := a.batch(ctx, targets, holders[:half]); err != nil {
		return err
	}
	return a.batch(ctx, targets, holders[half:])
}

func (a *acting) setAside(ctx context.Context, targets []int64, holder int64, cause error) error {
	rows, err := a.store.pool.Query(ctx, actingOnSQL, []int64{holder}, targets)
	if err != nil {
		return fmt.Errorf("read references: %w", err)
	}
	edges, err := pgx.CollectRows(rows, scanEdge)
	for _, e := range edges {
		a.failed[a.targets[e.targetID].uid] = cause
	}
	a.store.log.Error("a holder of a deleted resource could not be handled; it is tried again", zap.Int64("holder", holder), zap.Error(cause))
	return err
}

// act handles holders of targets in one transaction: lock them, read again what they still refer to, then what goes
// with them inside this database. What others still block is marked all the same and waits (BLOCKED).
func (a *acting) act(ctx context.Context, tx pgx.Tx, targets, holders []int64) error {
	s := a.store
	locked, err := lockMembers(ctx, tx, holders)
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, actingOnSQL, idsOf(locked), targets)
	if err != nil {
		return fmt.Errorf("read references: %w", err)
	}
	edges, err := pgx.CollectRows(rows, scanEdge)
	if err != nil {
		return fmt.Errorf("read references: %w", err)
	}
	cascades := map[int64]bool{}
	for _, e := range edges {
		cascades[e.holderID] = cascades[e.holderID] || e.behaviour.Cascades()
	}
	var roots []*member
	for _, m := range locked {
		if cascades[m.id] {
			roots = append(roots, m)
		}
	}
	c, err := expand(ctx, tx, roots, s.cfg.MaxLocalCascade)
	if err != nil {
		return err
	}
	var unsets []edge
	for _, e := range edges {
		if e.behaviour.Unsets() && c.members[e.holderID] == nil {
			unsets = append(unsets, e)
		}
	}
	if err := s.unset(ctx, tx, unsets, a.nameOf); err != nil {
		return err
	}
	b, err := readBonds(ctx, tx, c)
	if err != nil {
		return err
	}
	return s.carryOut(ctx, tx, c, decide(c, b))
}

func (a *acting) nameOf(ctx context.Context, tx pgx.Tx, id int64) (schema.FullName, schema.KindID, error) {
	t := a.targets[id]
	kind, err := a.store.names.kindOf(ctx, tx, t.kind)
	return schema.FullName{Deployment: a.from, Name: t.name}, kind, err
}

// forget removes foreign targets that nothing refers to any more: first the lock, which a save that refers to one of
// them holds shared, then the look.
func (s *Store) forget(ctx context.Context, ids []int64) error {
	err := s.inTx(ctx, noFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(lockForeignTargetsSQL, ids)
		b.Queue(removeForeignTargetsSQL, ids)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("forget foreign targets: %w", err)
	}
	return nil
}
