package shadow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// LetGo says that an owner does not refer any more to a resource that it owns.
type LetGo struct {
	Owner uuid.UUID
	Ownee uuid.UUID
}

const (
	selectOwnedSQL = `
SELECT DISTINCT ownee_id FROM dbcontroller.owner_reference
WHERE deployment_id = $1 AND uid = ANY ($2) AND ownee_id > $3 ORDER BY ownee_id LIMIT $4`

	// A piece of work that asks again: by the time that the message comes, the owner may refer to it once more.
	checkAgainSQL = `
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT DISTINCT 4, s.shard, $1::int, s.id
FROM unnest($2::uuid[], $3::uuid[]) AS i (owner_uid, ownee_uid)
JOIN dbcontroller.shadow s ON s.uid = i.ownee_uid
JOIN dbcontroller.owner_reference o ON o.ownee_id = s.id AND o.deployment_id = $1 AND o.uid = i.owner_uid
WHERE o.flags & $4 <> 0`

	// dropTime is about how long one call works before it answers that there is more.
	dropTime = 2 * time.Second
)

// DropOwners does what the deletion of owners at a deployment asks of their ownees here: the owner references go, and
// what has lost its last owner is deleted. Owners that let go are asked about again. It tells when there is more to do.
// Doing it again has no effect; what was said in an epoch that has ended fails with ErrOldEpoch. Owners of which an ownee could not be handled are answered; the others are done.
func (s *Store) DropOwners(ctx context.Context, from schema.DeploymentID, epoch uuid.UUID, owners []schema.Deletion, letGo []LetGo) (failed []uuid.UUID, more bool, err error) {
	own := s.PresentEpoch()
	deployment, err := s.names.deployment(ctx, from)
	if err != nil {
		return nil, false, err
	}
	if len(letGo) > 0 {
		var by, ownees []uuid.UUID
		for _, l := range letGo {
			by, ownees = append(by, l.Owner), append(ownees, l.Ownee)
		}
		err := s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, checkAgainSQL, deployment, by, ownees, flagRequires)
			return err
		})
		if err != nil {
			return nil, false, fmt.Errorf("ask again about owners: %w", err)
		}
	}
	if len(owners) == 0 {
		return nil, false, nil
	}
	if _, err := s.current(); err != nil {
		return nil, false, err
	}
	causes := make(map[uuid.UUID]*schema.Cause, len(owners))
	deleted := make([]uuid.UUID, len(owners))
	for i, o := range owners {
		deleted[i], causes[o.UID] = o.UID, o.Cause
	}
	change := ownerChange{causes: causes, lost: func(r ownerRow) bool {
		_, gone := causes[r.uid]
		return gone && r.deploymentID == deployment
	}}
	began := time.Now()
	for after := int64(0); ; {
		rows, err := s.pool.Query(ctx, selectOwnedSQL, deployment, deleted, after, s.cfg.BatchSize)
		if err != nil {
			return nil, false, fmt.Errorf("read ownees: %w", err)
		}
		ownees, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return nil, false, fmt.Errorf("read ownees: %w", err)
		}
		if len(ownees) > 0 {
			err = s.halving(ctx, ownees, func(part []int64) error {
				return s.inTx(ctx, allFeeds, func(tx pgx.Tx) error {
					b := &pgx.Batch{}
					s.ofPresentEpoch(tx, b, deployment, epoch, own)
					if err := tx.SendBatch(ctx, b).Close(); err != nil {
						return err
					}
					return s.changeOwners(ctx, tx, slices.Clone(part), change)
				})
			})
		}
		if err != nil && (ctx.Err() != nil || notTheHoldersFault(err) || s.pool.Ping(ctx) != nil) {
			return nil, false, err
		}
		if len(ownees) < s.cfg.BatchSize {
			break
		}
		if after = ownees[len(ownees)-1]; time.Since(began) > dropTime {
			return nil, true, nil
		}
	}
	failed, err = s.stillOwning(ctx, deployment, deleted)
	return failed, false, err
}

// stillOwning gives the owners that some resource here has all the same: it could not be handled.
func (s *Store) stillOwning(ctx context.Context, deployment int32, deleted []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := s.pool.Query(ctx, stillOwningSQL, deployment, deleted)
	if err != nil {
		return nil, fmt.Errorf("read ownees: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

const stillOwningSQL = `SELECT DISTINCT uid FROM dbcontroller.owner_reference WHERE deployment_id = $1 AND uid = ANY ($2)`

// halving runs a transaction over resources. Where a single one makes it fail, the others go on without it (I20); the
// errors are answered together.
func (s *Store) halving(ctx context.Context, ids []int64, run func(part []int64) error) error {
	err := run(ids)
	if err == nil || ctx.Err() != nil || notTheHoldersFault(err) || s.pool.Ping(ctx) != nil {
		return err
	}
	if len(ids) == 1 {
		s.log.Warn("a resource could not be handled; it is tried again", zap.Int64("resource", ids[0]), zap.Error(err))
		return fmt.Errorf("a resource could not be handled: %w", err)
	}
	half := len(ids) / 2
	return errors.Join(s.halving(ctx, ids[:half], run), s.halving(ctx, ids[half:], run))
}

const (
	selectDisownedSQL = `
SELECT w.seq, s.id, s.uid, ` + epochNowSQL + `, ` + causeColumnsSQL + `
FROM dbcontroller.meta m, dbcontroller.work w JOIN dbcontroller.shadow s ON s.id = w.target_id
` + causeOfSQL + `
WHERE w.seq = ANY ($1) AND w.deployment_id = $2 AND w.action = 5`

	disownedSQL = `
WITH entries AS (
    DELETE FROM dbcontroller.ownee_entry WHERE owner_id = ANY ($1) AND deployment_id = $2
), done AS (
    DELETE FROM dbcontroller.work WHERE seq = ANY ($3)
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT 3, shard, $4::int, id FROM dbcontroller.shadow WHERE id = ANY ($1)`
)

// Disowned are owners that are deleted, whose ownees' deployment has to be told.
type Disowned struct {
	// Epoch of the database in which they were read.
	Epoch  uuid.UUID
	Owners []schema.Deletion
	to     int32
	ids    []int64
	seqs   []int64 // of the owners, and of those that are gone
	of     []int64 // the owner of each piece, 0 when it is gone
}

// Except leaves out owners that cannot be finished yet.
func (d *Disowned) Except(failed []uuid.UUID) *Disowned {
	out := &Disowned{Epoch: d.Epoch, to: d.to}
	left := map[int64]bool{}
	for i, o := range d.Owners {
		if slices.Contains(failed, o.UID) {
			left[d.ids[i]] = true
		} else {
			out.Owners, out.ids = append(out.Owners, o), append(out.ids, d.ids[i])
		}
	}
	for i, seq := range d.seqs {
		if !left[d.of[i]] {
			out.seqs, out.of = append(out.seqs, seq), append(out.of, d.of[i])
		}
	}
	return out
}

// Without are the pieces of work that another one, of fewer owners, has not.
func (d *Disowned) Without(told *Disowned) []int64 {
	return slices.DeleteFunc(slices.Clone(d.seqs), func(seq int64) bool { return slices.Contains(told.seqs, seq) })
}

// Disowned reads which deleted owners some work for an ownees' deployment is about.
func (s *Store) Disowned(ctx context.Context, to schema.DeploymentID, seqs []int64) (*Disowned, error) {
	deployment, err := s.names.deployment(ctx, to)
	if err != nil {
		return nil, err
	}
	rows, err := s.pool.Query(ctx, selectDisownedSQL, seqs, deployment)
	if err != nil {
		return nil, fmt.Errorf("read deleted owners: %w", err)
	}
	d := &Disowned{to: deployment, seqs: seqs, of: make([]int64, len(seqs))}
	var seq, id int64
	var uid uuid.UUID
	var epoch *uuid.UUID
	var cause causeRow
	if _, err := pgx.ForEachRow(rows, append([]any{&seq, &id, &uid, &epoch}, cause.dest()...), func() error {
		if epoch == nil {
			return s.recoveringSelf()
		}
		d.Epoch = *epoch
		d.ids, d.Owners = append(d.ids, id), append(d.Owners, schema.Deletion{UID: uid, Cause: cause.cause()})
		d.of[slices.Index(seqs, seq)] = id
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read deleted owners: %w", err)
	}
	return d, nil
}

// OwneesTold says that the ownees' deployment has acted upon the deletion of the owners, which may go now.
func (s *Store) OwneesTold(ctx context.Context, d *Disowned) error {
	err := s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
		present, err := s.epochOf(ctx, tx)
		if err == nil && present != d.Epoch && len(d.Owners) > 0 { // an owner may be there again, and what it owns
			err = s.recoveringSelf()
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, disownedSQL, d.ids, d.to, d.seqs, s.selfID)
		return err
	})
	if err != nil {
		return fmt.Errorf("note that ownees were told: %w", err)
	}
	return nil
}
