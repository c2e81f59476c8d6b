package target

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// queueGrants adds to a batch, after the locks of confirmed targets, which of them are granted: a target that is ACTIVE and not
// closing, with a holder entry. The entry makes the holder's deployment hear of a deletion; it ends the right before it acts.
func (s *Keeper) queueGrants(b *pgx.Batch, locked []int64, holder int32, granted *[]uuid.UUID) {
	b.Queue(selectGrantedSQL, locked, holder).Query(func(rows pgx.Rows) (err error) {
		*granted, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		return err
	})
}

var selectGrantedSQL = db.Codes(`
SELECT s.uid FROM dbcontroller.shadow s
JOIN dbcontroller.holder_entry e ON e.target_id = s.id AND e.deployment_id = $2
WHERE s.id = ANY ($1) AND s.state = {active}
    AND NOT EXISTS (SELECT FROM dbcontroller.closing c WHERE c.target_id = s.id AND ` + ClosesSQL + `)`)

// knowsRightsSQL is true when every process of the deployment ends its rights before it acts upon a deletion.
const knowsRightsSQL = `NOT EXISTS (SELECT FROM dbcontroller.member WHERE NOT delegates)`

// The turn comes from before the question: if the row gets another one meanwhile, the answer does not fit any more.
var selectDelegableSQL = db.Codes(`
SELECT DISTINCT f.id, f.uid, f.turn
FROM dbcontroller.reference r JOIN dbcontroller.foreign_target f ON f.id = r.target_id
WHERE r.attempt = ANY ($1) AND f.deployment_id = $2 AND r.behaviour NOT IN ({block}, {allow_dangling})
    AND NOT (` + db.RightCountsSQL + `) AND ` + knowsRightsSQL)

// delegable returns the targets of attempts whose delegation this deployment lacks.
func (s *Keeper) delegable(ctx context.Context, deployment int32, attempts []peer.AttemptID) ([]peer.Delegable, error) {
	if !s.Cfg.Delegations || len(attempts) == 0 {
		return nil, nil
	}
	rows, err := s.Pool.Query(ctx, selectDelegableSQL, attempts, deployment)
	if err != nil {
		return nil, fmt.Errorf("read the targets of attempts: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[peer.Delegable])
	if err != nil {
		return nil, fmt.Errorf("read the targets of attempts: %w", err)
	}
	return out, nil
}

const (
	lockDelegableSQL = `SELECT id FROM dbcontroller.foreign_target WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`

	// After the locks, and after the version's lock: a process without rights that joins meanwhile is visible, or waits.
	takeRightsSQL = `
UPDATE dbcontroller.foreign_target f SET acting_epoch = @epoch, acting_own = @own
FROM unnest(@ids::bigint[], @turns::bigint[]) AS i (id, turn)
WHERE f.id = i.id AND f.turn = i.turn AND ` + knowsRightsSQL
)

// takeDelegations ends the work of confirms and takes the rights that were granted, in one transaction: of those rows that have
// the turn from before the question. The epoch of this database is the one in which the question was read, not the present one:
// if they differ, the right counts for nothing.
func (s *Keeper) takeDelegations(ctx context.Context, m *peer.Messages) error {
	var ids, turns []int64
	for _, d := range m.Delegable {
		if slices.Contains(m.Confirmed.Delegated, d.UID) {
			ids, turns = append(ids, d.ID), append(turns, d.Turn)
		}
	}
	err := s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(gate.ShareVersionSQL, gate.VersionLock)
		b.Queue(lockDelegableSQL, ids)
		b.Queue(takeRightsSQL, db.Named{"ids": ids, "turns": turns, "epoch": m.Confirmed.Epoch, "own": m.Epoch})
		b.Queue(db.DoneSQL, m.Seqs)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("take delegations: %w", err)
	}
	return nil
}
