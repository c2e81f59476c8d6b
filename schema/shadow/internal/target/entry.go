package target

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// A holder entry is removed when its deployment says that it has no acting reference to the target, and that
// its acting right has ended. The look is stored with a number before the question. A confirm that comes
// meanwhile takes the number away, and then the answer removes nothing: it may be older than the reference.
// Both lock the target.

var (
	// A target in DELETING needs its entries: they are removed when it is acknowledged.
	leaveLooksSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_uid)
SELECT {look_at_entry}, s.shard, $2, s.uid FROM dbcontroller.shadow s JOIN dbcontroller.holder_entry e ON e.target_id = s.id AND e.deployment_id = $2
WHERE s.uid = ANY ($1) AND s.state = {active}
    AND NOT EXISTS (SELECT FROM dbcontroller.work w WHERE w.action = {look_at_entry} AND w.target_uid = s.uid AND w.deployment_id = $2)`)

	lockLookedSQL = db.Codes(`
SELECT id FROM dbcontroller.shadow s WHERE s.state = {active} AND s.uid = ANY (ARRAY (SELECT w.target_uid FROM dbcontroller.work w WHERE w.seq = ANY ($1) AND w.action = {look_at_entry}))
ORDER BY id FOR NO KEY UPDATE`)

	// The work of targets that are gone, or in DELETING, and of entries that are gone, has ended.
	beginLooksSQL = db.Codes(`
WITH asked AS (
    SELECT DISTINCT ON (s.id) w.seq, s.id, s.uid FROM dbcontroller.work w JOIN dbcontroller.shadow s ON s.uid = w.target_uid
    WHERE w.seq = ANY ($1) AND w.action = {look_at_entry} AND s.id = ANY ($3) ORDER BY s.id, w.seq
), looked AS (
    UPDATE dbcontroller.holder_entry e SET look = nextval('dbcontroller.question') FROM asked
    WHERE e.target_id = asked.id AND e.deployment_id = $2 RETURNING asked.seq, asked.uid, e.look
), ended AS (
    DELETE FROM dbcontroller.work WHERE seq = ANY ($1) AND action = {look_at_entry} AND seq NOT IN (SELECT seq FROM looked)
)
SELECT seq, uid, look FROM looked`)

	removeUnusedSQL = db.Codes(`
DELETE FROM dbcontroller.holder_entry e USING unnest($1::uuid[], $2::bigint[]) AS i (uid, look), dbcontroller.shadow s
WHERE s.uid = i.uid AND s.state = {active} AND e.target_id = s.id AND e.deployment_id = $3 AND e.look = i.look`)

	endLooksSQL = `
UPDATE dbcontroller.holder_entry e SET look = NULL FROM unnest($1::uuid[], $2::bigint[]) AS i (uid, look) JOIN dbcontroller.shadow s ON s.uid = i.uid
WHERE e.target_id = s.id AND e.deployment_id = $3 AND e.look = i.look`
)

// leaveLooks leaves work for the keys of holder entries, and returns the others.
func (s *Keeper) leaveLooks(ctx context.Context, deployment int32,
	keys []peer.BlockadeKey,
) (others []peer.BlockadeKey, err error) {
	var targets []uuid.UUID
	for _, k := range keys {
		if k.Path == peer.EntryPath {
			targets = append(targets, k.TargetUID)
		} else {
			others = append(others, k)
		}
	}
	if len(targets) == 0 {
		return keys, nil
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, leaveLooksSQL, targets, deployment)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look at holder entries: %w", err)
	}
	return others, nil
}

// EntriesToLookAt begins looks at holder entries of a deployment, and removes the pieces of work without one.
func (s *Keeper) EntriesToLookAt(ctx context.Context, of schema.DeploymentID,
	seqs []int64,
) (looks peer.EntryLooks, err error) {
	deployment, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return looks, err
	}
	looks.Own = s.gate.PresentEpoch()
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		locked, err := tx.Query(ctx, lockLookedSQL, seqs)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(locked, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, beginLooksSQL, seqs, deployment, append([]int64{}, ids...))
		if err != nil {
			return err
		}
		looks.Entries, err = pgx.CollectRows(rows, pgx.RowToStructByPos[peer.EntryLook])
		return err
	})
	if err != nil {
		return looks, fmt.Errorf("begin to look at holder entries: %w", err)
	}
	return looks, nil
}

// EntriesLookedAt ends looks by the answers of the holders' deployment in an epoch of its database, and
// removes their work and the entries that are not used. It fails with ErrStaleEpoch, and with
// *UnavailableError in another epoch of this database.
func (s *Keeper) EntriesLookedAt(ctx context.Context, of schema.DeploymentID, looks peer.EntryLooks, there uuid.UUID,
	unused []bool,
) error {
	deployment, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return err
	}
	var seqs, gone, kept []int64
	var all, goneUIDs, keptUIDs []uuid.UUID
	for i, e := range looks.Entries {
		seqs, all = append(seqs, e.Seq), append(all, e.Target)
		if unused[i] {
			gone, goneUIDs = append(gone, e.Look), append(goneUIDs, e.Target)
		} else {
			kept, keptUIDs = append(kept, e.Look), append(keptUIDs, e.Target)
		}
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(lockUIDsSQL, slices.Clone(all))
		s.gate.CheckPeerEpoch(tx, b, deployment, there, looks.Own)
		b.Queue(removeUnusedSQL, goneUIDs, gone, deployment)
		b.Queue(endLooksSQL, keptUIDs, kept, deployment)
		b.Queue(db.DoneSQL, seqs)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("remove holder entries that are not used: %w", err)
	}
	return nil
}
