package owner

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

const selectOwnedSQL = `
SELECT DISTINCT ownee_id FROM dbcontroller.owner_reference
WHERE ownee_id > $1 AND deployment_id = $3 AND uid = ANY ($4) ORDER BY ownee_id LIMIT $2`

// Work to check the owner again: by the time that the message arrives, the owner may refer to the ownee
// again.
var checkAgainSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT DISTINCT {check_owners}, s.shard, $1::int, s.id
FROM unnest($2::uuid[], $3::uuid[]) AS i (owner_uid, ownee_uid)
JOIN dbcontroller.shadow s ON s.uid = i.ownee_uid
JOIN dbcontroller.owner_reference o ON o.ownee_id = s.id AND o.deployment_id = $1 AND o.uid = i.owner_uid
WHERE o.flags & $4 <> 0`)

// DropOwners applies the deletion of owners in another deployment to their ownees here: it drops the owner
// references and deletes each ownee that has lost its last owner. Owners in releases are checked again. It
// returns the owners of which an ownee could not be handled; all others are done; more is true when the call
// reached its time limit and has to be repeated. It is idempotent. A message of an ended epoch fails with
// ErrStaleEpoch.
func (s *Owners) DropOwners(ctx context.Context, from schema.DeploymentID, epoch uuid.UUID, owners []schema.Deletion,
	releases []peer.OwnerRelease,
) (failed []uuid.UUID, more bool, err error) {
	selfEpoch := s.gate.PresentEpoch()
	deployment, err := s.Names.Deployment(ctx, from)
	if err != nil {
		return nil, false, err
	}
	if err := s.checkAgain(ctx, deployment, releases); err != nil || len(owners) == 0 {
		return nil, false, err
	}
	if _, err := s.Current(); err != nil {
		return nil, false, err
	}
	d := newOwnerDrop(deployment, owners)
	d.admit = func(tx pgx.Tx, b *pgx.Batch) { s.gate.CheckPeerEpoch(tx, b, deployment, epoch, selfEpoch) }
	if more, err := s.dropOwners(ctx, d); more || err != nil {
		return nil, more, err
	}
	failed, err = s.stillOwning(ctx, deployment, d.deleted)
	return failed, false, err
}

// checkAgain creates work that checks owners again which let go of their ownees.
func (s *Owners) checkAgain(ctx context.Context, deployment int32, releases []peer.OwnerRelease) error {
	if len(releases) == 0 {
		return nil
	}
	var by, ownees []uuid.UUID
	for _, l := range releases {
		by, ownees = append(by, l.Owner), append(ownees, l.Ownee)
	}
	err := s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, checkAgainSQL, deployment, by, ownees, peer.FlagRequires)
		return err
	})
	if err != nil {
		return fmt.Errorf("ask again about owners: %w", err)
	}
	return nil
}

// ownerDrop is a deployment's message about deleted owners.
type ownerDrop struct {
	deployment int32 // of the owners
	deleted    []uuid.UUID
	change     cascade.OwnerChange
	admit      func(tx pgx.Tx, b *pgx.Batch) // queues the checks of the epochs
}

func newOwnerDrop(deployment int32, owners []schema.Deletion) *ownerDrop {
	causes := make(map[uuid.UUID]*schema.Cause, len(owners))
	deleted := make([]uuid.UUID, len(owners))
	for i, o := range owners {
		deleted[i], causes[o.UID] = o.UID, o.Cause
	}
	return &ownerDrop{deployment: deployment, deleted: deleted, change: cascade.OwnerChange{
		Causes: causes,
		Lost: func(r prepare.OwnerRow) bool {
			_, gone := causes[r.UID]
			return gone && r.DeploymentID == deployment
		},
	}}
}

// dropOwners drops the owner references to deleted owners, in a pass over their ownees; more is true when its
// time was over.
func (s *Owners) dropOwners(ctx context.Context, d *ownerDrop) (more bool, err error) {
	run := func(part []int64) error {
		return s.InTx(ctx, db.AllFeeds, func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			d.admit(tx, b)
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return err
			}
			return s.cascade.ChangeOwners(ctx, tx, slices.Clone(part), d.change)
		})
	}
	failed := func(ownee int64, err error) { // stillOwning returns its owners
		s.Log.Warn("changing the owners of a resource failed; it will be retried", zap.Int64("resource", ownee),
			zap.Error(err), requestid.Field(ctx))
	}
	more, err = s.pass(ctx, passKey{d.deployment, messageOf(d.deleted)}, selectOwnedSQL, []any{d.deployment, d.deleted},
		run, failed)
	if err != nil {
		return false, fmt.Errorf("drop owners: %w", err)
	}
	return more, nil
}

// messageOf identifies the message that some owners were deleted; it is repeated while there is more to do.
func messageOf(deleted []uuid.UUID) string {
	h := sha256.New()
	for _, uid := range deleted {
		h.Write(uid[:])
	}
	return string(h.Sum(nil))
}

// stillOwning returns the deleted owners that still have an owner reference here, since its ownee could not
// be handled.
func (s *Owners) stillOwning(ctx context.Context, deployment int32, deleted []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := s.Pool.Query(ctx, stillOwningSQL, deployment, deleted)
	if err != nil {
		return nil, fmt.Errorf("read ownees: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

const stillOwningSQL = `SELECT DISTINCT uid FROM dbcontroller.owner_reference WHERE deployment_id = $1 AND uid = ANY ($2)`

var (
	selectDisownedSQL = db.Codes(`
SELECT w.seq, s.id, s.uid, ` + gate.EpochNowSQL + `, ` + read.CauseColumnsSQL + `
FROM dbcontroller.meta m, dbcontroller.work w JOIN dbcontroller.shadow s ON s.id = w.target_id
` + read.CauseOfSQL + `
WHERE w.seq = ANY ($1) AND w.deployment_id = $2 AND w.action = {drop_owners}`)

	disownedSQL = db.Codes(`
WITH entries AS (
    DELETE FROM dbcontroller.ownee_entry WHERE owner_id = ANY ($1) AND deployment_id = $2
), done AS (
    DELETE FROM dbcontroller.work WHERE seq = ANY ($3)
)` + db.LookAgain(`$4`, `dbcontroller.shadow s WHERE s.id = ANY ($1)`))
)

// Disowned reads the deleted owners of some pieces of work for an ownees' deployment.
func (s *Owners) Disowned(ctx context.Context, to schema.DeploymentID, seqs []int64) (*peer.Disowned, error) {
	deployment, err := s.Names.Deployment(ctx, to)
	if err != nil {
		return nil, err
	}
	rows, err := s.Pool.Query(ctx, selectDisownedSQL, seqs, deployment)
	if err != nil {
		return nil, fmt.Errorf("read deleted owners: %w", err)
	}
	d := &peer.Disowned{To: deployment, Seqs: seqs, Of: make([]int64, len(seqs))}
	var seq, id int64
	var uid uuid.UUID
	var epoch *uuid.UUID
	var cause read.CauseRow
	if _, err := pgx.ForEachRow(rows, append([]any{&seq, &id, &uid, &epoch}, cause.Dest()...), func() error {
		if epoch == nil {
			return s.gate.RecoveringSelf()
		}
		d.Epoch = *epoch
		d.IDs, d.Owners = append(d.IDs, id), append(d.Owners, schema.Deletion{UID: uid, Cause: cause.Cause()})
		d.Of[slices.Index(seqs, seq)] = id
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read deleted owners: %w", err)
	}
	return d, nil
}

// MarkOwneesNotified records that the ownees' deployment has acted upon the deletion of the owners: their
// ownee entries and pieces of work are removed, and each owner is looked at again for removal.
func (s *Owners) MarkOwneesNotified(ctx context.Context, d *peer.Disowned) error {
	err := s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		present, err := s.gate.EpochOf(ctx, tx)
		// a restored database may contain an owner and its ownees again
		if err == nil && present != d.Epoch && len(d.Owners) > 0 {
			err = s.gate.RecoveringSelf()
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, disownedSQL, d.IDs, d.To, d.Seqs, s.SelfID)
		return err
	})
	if err != nil {
		return fmt.Errorf("record that ownees were dropped: %w", err)
	}
	return nil
}
