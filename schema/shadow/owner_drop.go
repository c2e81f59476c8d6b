package shadow

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// LetGo reports that an owner has dropped a reference to a resource that it owns.
type LetGo struct {
	Owner uuid.UUID
	Ownee uuid.UUID
}

const (
	selectOwnedSQL = `
SELECT DISTINCT ownee_id FROM dbcontroller.owner_reference
WHERE deployment_id = $1 AND uid = ANY ($2) AND ownee_id > $3 ORDER BY ownee_id LIMIT $4`

	// dropTime is about how long one call works before it returns with more to do.
	dropTime = 2 * time.Second
)

// Work to check the owner again: by the time that the message arrives, the owner may refer to the ownee again.
var checkAgainSQL = codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT DISTINCT {check_owners}, s.shard, $1::int, s.id
FROM unnest($2::uuid[], $3::uuid[]) AS i (owner_uid, ownee_uid)
JOIN dbcontroller.shadow s ON s.uid = i.ownee_uid
JOIN dbcontroller.owner_reference o ON o.ownee_id = s.id AND o.deployment_id = $1 AND o.uid = i.owner_uid
WHERE o.flags & $4 <> 0`)

// DropOwners applies the deletion of owners in another deployment to their ownees here: it drops the owner references and deletes
// each ownee that has lost its last owner. Owners in letGo are checked again. It returns the owners of which an ownee could not be
// handled; all others are done; more is true when the call reached its time limit and has to be repeated. It is idempotent. A
// message of an ended epoch fails with ErrStaleEpoch.
func (s *Store) DropOwners(ctx context.Context, from schema.DeploymentID, epoch uuid.UUID, owners []schema.Deletion, letGo []LetGo) (failed []uuid.UUID, more bool, err error) {
	selfEpoch := s.PresentEpoch()
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
			_, err = s.halving(ctx, ownees, halving{
				run: func(part []int64) error {
					return s.inTx(ctx, allFeeds, func(tx pgx.Tx) error {
						b := &pgx.Batch{}
						s.checkPeerEpoch(tx, b, deployment, epoch, selfEpoch)
						if err := tx.SendBatch(ctx, b).Close(); err != nil {
							return err
						}
						return s.changeOwners(ctx, tx, slices.Clone(part), change)
					})
				},
				failed: func(ownee int64, err error) error { // stillOwning returns its owners
					s.log.Warn("changing the owners of a resource failed; it will be retried", zap.Int64("resource", ownee), zap.Error(err))
					return nil
				},
			})
		}
		if err != nil {
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

// stillOwning returns the deleted owners that still have an owner reference here, since its ownee could not be handled.
func (s *Store) stillOwning(ctx context.Context, deployment int32, deleted []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := s.pool.Query(ctx, stillOwningSQL, deployment, deleted)
	if err != nil {
		return nil, fmt.Errorf("read ownees: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

const stillOwningSQL = `SELECT DISTINCT uid FROM dbcontroller.owner_reference WHERE deployment_id = $1 AND uid = ANY ($2)`

var (
	selectDisownedSQL = codes(`
SELECT w.seq, s.id, s.uid, ` + epochNowSQL + `, ` + causeColumnsSQL + `
FROM dbcontroller.meta m, dbcontroller.work w JOIN dbcontroller.shadow s ON s.id = w.target_id
` + causeOfSQL + `
WHERE w.seq = ANY ($1) AND w.deployment_id = $2 AND w.action = {drop_owners}`)

	disownedSQL = codes(`
WITH entries AS (
    DELETE FROM dbcontroller.ownee_entry WHERE owner_id = ANY ($1) AND deployment_id = $2
), done AS (
    DELETE FROM dbcontroller.work WHERE seq = ANY ($3)
)` + lookAgain(`$4`, `dbcontroller.shadow s WHERE s.id = ANY ($1)`))
)

// Disowned are deleted owners whose deletion has to be sent to a deployment with ownees of them.
type Disowned struct {
	// Epoch of the database in which they were read.
	Epoch  uuid.UUID
	Owners []schema.Deletion
	To     int32   // the ownees' deployment
	IDs    []int64 // by owner
	Seqs   []int64 // the pieces of work, also those of owners that are already removed
	Of     []int64 // by piece of work: the id of its owner, 0 when that is already removed
}

// Except returns a copy without the failed owners and their pieces of work.
func (d *Disowned) Except(failed []uuid.UUID) *Disowned {
	out := &Disowned{Epoch: d.Epoch, To: d.To}
	left := map[int64]bool{}
	for i, o := range d.Owners {
		if slices.Contains(failed, o.UID) {
			left[d.IDs[i]] = true
		} else {
			out.Owners, out.IDs = append(out.Owners, o), append(out.IDs, d.IDs[i])
		}
	}
	for i, seq := range d.Seqs {
		if !left[d.Of[i]] {
			out.Seqs, out.Of = append(out.Seqs, seq), append(out.Of, d.Of[i])
		}
	}
	return out
}

// Without returns the pieces of work that are not in told.
func (d *Disowned) Without(told *Disowned) []int64 {
	return slices.DeleteFunc(slices.Clone(d.Seqs), func(seq int64) bool { return slices.Contains(told.Seqs, seq) })
}

// Disowned reads the deleted owners of some pieces of work for an ownees' deployment.
func (s *Store) Disowned(ctx context.Context, to schema.DeploymentID, seqs []int64) (*Disowned, error) {
	deployment, err := s.names.deployment(ctx, to)
	if err != nil {
		return nil, err
	}
	rows, err := s.pool.Query(ctx, selectDisownedSQL, seqs, deployment)
	if err != nil {
		return nil, fmt.Errorf("read deleted owners: %w", err)
	}
	d := &Disowned{To: deployment, Seqs: seqs, Of: make([]int64, len(seqs))}
	var seq, id int64
	var uid uuid.UUID
	var epoch *uuid.UUID
	var cause causeRow
	if _, err := pgx.ForEachRow(rows, append([]any{&seq, &id, &uid, &epoch}, cause.dest()...), func() error {
		if epoch == nil {
			return s.recoveringSelf()
		}
		d.Epoch = *epoch
		d.IDs, d.Owners = append(d.IDs, id), append(d.Owners, schema.Deletion{UID: uid, Cause: cause.cause()})
		d.Of[slices.Index(seqs, seq)] = id
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read deleted owners: %w", err)
	}
	return d, nil
}

// MarkOwneesNotified records that the ownees' deployment has acted upon the deletion of the owners: their ownee entries and pieces of work
// are removed, and each owner is looked at again for removal.
func (s *Store) MarkOwneesNotified(ctx context.Context, d *Disowned) error {
	err := s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
		present, err := s.epochOf(ctx, tx)
		if err == nil && present != d.Epoch && len(d.Owners) > 0 { // a restored database may contain an owner and its ownees again
			err = s.recoveringSelf()
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, disownedSQL, d.IDs, d.To, d.Seqs, s.selfID)
		return err
	})
	if err != nil {
		return fmt.Errorf("record that ownees were dropped: %w", err)
	}
	return nil
}
