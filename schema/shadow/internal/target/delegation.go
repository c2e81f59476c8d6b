package target

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// queueGrants adds to a batch, after the locks of confirmed targets, which of them are granted: a target that
// is ACTIVE, not closing and not frozen, with a holder entry that is not looked at. The entry makes the
// holder's deployment hear of a deletion; it ends the right before it acts.
func (s *Keeper) queueGrants(b *pgx.Batch, locked []int64, holder int32, kinds []int32, granted *[]uuid.UUID) {
	b.Queue(selectGrantedSQL, locked, holder, kinds).Query(func(rows pgx.Rows) (err error) {
		*granted, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		return err
	})
}

var selectGrantedSQL = db.Codes(`
SELECT s.uid FROM dbcontroller.shadow s
JOIN dbcontroller.holder_entry e ON e.target_id = s.id AND e.deployment_id = $2 AND e.look IS NULL
WHERE s.id = ANY ($1) AND s.state = {active} AND s.kind_id = ANY ($3)
    AND NOT EXISTS (SELECT FROM dbcontroller.closing c WHERE c.target_id = s.id AND ` + ClosesSQL + `)
    AND NOT (s.frozen AND EXISTS (SELECT FROM dbcontroller.frozen f WHERE f.target_id = s.id))`)

// delegates reports whether a service gets delegations of resources of a kind.
func (s *Keeper) delegates(kind *schema.KindModel, service string) bool {
	return s.Cfg.Delegations && !kind.DelegationNone && !kind.Unconstrained &&
		referableBy(kind, service, s.Self.Service, false)
}

// delegatedKinds returns the kinds of which a service gets delegations.
func (s *Keeper) delegatedKinds(ctx context.Context, service string) ([]int32, error) {
	v, err := s.Current()
	if err != nil {
		return nil, err
	}
	out := []int32{}
	for _, name := range v.Model.KindNames() {
		kind, err := v.Model.Kind(name)
		if err != nil {
			return nil, err
		}
		if !s.delegates(kind, service) {
			continue
		}
		id, err := s.Names.Kind(ctx, kind.ID)
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

// The turn comes from before the question: if the row gets another one meanwhile, the answer does not fit any
// more.
var selectDelegableSQL = db.Codes(`
SELECT DISTINCT f.id, f.uid, f.turn
FROM dbcontroller.reference r JOIN dbcontroller.foreign_target f ON f.id = r.target_id
WHERE r.attempt = ANY ($1) AND f.deployment_id = $2 AND r.behaviour NOT IN ({block}, {allow_dangling})
    AND NOT (` + db.RightCountsSQL + `) AND ` + db.AllDelegateSQL + `
UNION -- a right that was asked for without a reference
SELECT f.id, f.uid, f.turn FROM dbcontroller.foreign_target f
WHERE f.acting_attempt = ANY ($1) AND f.deployment_id = $2 AND NOT (` + db.RightCountsSQL + `) AND ` + db.AllDelegateSQL)

// Targets with many blocking references from here: they cannot be deleted anyway, so that the right to block
// them delays no delete.
var selectWantedSQL = db.Codes(`
SELECT DISTINCT f.id
FROM dbcontroller.reference r JOIN dbcontroller.foreign_target f ON f.id = r.target_id
WHERE r.attempt = ANY ($1) AND f.deployment_id = $2 AND r.behaviour = {block} AND NOT (` + db.BlockRightCountsSQL + `) AND ` + db.AllDelegateSQL + `
    AND $3 <= (SELECT count(*) FROM (SELECT FROM dbcontroller.reference c WHERE c.target_id = f.id AND c.behaviour = {block} LIMIT $3) AS c)`)

// wanted returns the targets of attempts that this deployment wants the right to block.
func (s *Keeper) wanted(ctx context.Context, deployment int32, attempts []peer.AttemptID) ([]int64, error) {
	if !s.Cfg.Delegations || s.Cfg.Limits.BlockRightFrom <= 0 || len(attempts) == 0 {
		return nil, nil
	}
	rows, err := s.Pool.Query(ctx, selectWantedSQL, attempts, deployment, s.Cfg.Limits.BlockRightFrom)
	if err != nil {
		return nil, fmt.Errorf("read the targets of attempts: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("read the targets of attempts: %w", err)
	}
	return out, nil
}

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
	// After the locks, and after the version's lock: a process without rights that joins meanwhile is
	// visible, or waits. A lost right that a statement still shares is not replaced.
	takeRightsSQL = `
UPDATE dbcontroller.foreign_target f SET acting_epoch = @epoch, acting_own = @own, latest = nextval('dbcontroller.object_id')
FROM unnest(@ids::bigint[], @turns::bigint[]) AS i (id, turn)
WHERE f.id = i.id AND f.turn = i.turn AND ` + db.AllDelegateSQL + `
    AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = f.deployment_id)
    AND (f.acting_epoch IS NULL OR f.id IN (SELECT a.id FROM dbcontroller.foreign_target a WHERE a.id = ANY (@ids) AND a.acting_epoch IS NOT NULL FOR UPDATE SKIP LOCKED))`
)

// takeDelegations ends the work of confirms and takes the granted rights, in one transaction, for the rows
// that have the turn from before the question. The epoch of this database is the one in which the question
// was read, not the present one: if they differ, the right counts for nothing.
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
		b.Queue(db.LockGrantsSQL, ids)
		b.Queue(takeRightsSQL, db.Named{"ids": ids, "turns": turns, "epoch": m.Confirmed.Epoch, "own": m.Epoch})
		b.Queue(db.DoneSQL, m.Seqs)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("take delegations: %w", err)
	}
	if len(ids) > 0 {
		s.WakeAsked()
	}
	return nil
}

const (
	hasRightsSQL = `SELECT EXISTS (SELECT FROM dbcontroller.foreign_target WHERE deployment_id = $1 AND (acting_epoch IS NOT NULL OR block_epoch IS NOT NULL))`

	lockRightsOfSQL = `
SELECT id FROM dbcontroller.foreign_target WHERE deployment_id = $1 AND (acting_epoch IS NOT NULL OR block_epoch IS NOT NULL) ORDER BY id FOR UPDATE`

	endRightsOfSQL = `
UPDATE dbcontroller.foreign_target
SET acting_epoch = NULL, acting_own = NULL, block_epoch = NULL, block_own = NULL, turn = nextval('dbcontroller.object_id')
WHERE deployment_id = $1 AND (acting_epoch IS NOT NULL OR block_epoch IS NOT NULL)`
)

// DecommissionedBy ends all rights to refer to targets of a deployment that refuses this one, because an
// operator has decommissioned it there: no deletion would end them. Such a deployment refuses every call, so
// a right that an answer in flight still grants ends with the next call.
func (s *Keeper) DecommissionedBy(ctx context.Context, by schema.DeploymentID) error {
	deployment, err := s.Names.Deployment(ctx, by)
	if err != nil {
		return err
	}
	var has bool
	if err := s.Pool.QueryRow(ctx, hasRightsSQL, deployment).Scan(&has); err != nil || !has {
		return err
	}
	if err := s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(lockRightsOfSQL, deployment) // which writes under a right share
		b.Queue(endRightsOfSQL, deployment)
		return tx.SendBatch(ctx, b).Close()
	}); err != nil {
		return fmt.Errorf("end the delegations of %s: %w", by, err)
	}
	s.Log.Warn("this deployment was decommissioned elsewhere: it refers to nothing there any more",
		zap.Stringer("at", by), requestid.Field(ctx))
	return nil
}

// Delegations are the rights between this deployment and another one.
type Delegations struct {
	Deployment schema.DeploymentID
	// ActingHeld is the number of targets there to which this deployment may refer by acting references
	// without asking.
	ActingHeld int64
	// BlockHeld is the number of targets there that this deployment may block without asking.
	BlockHeld int64
}

const selectDelegationsSQL = `
SELECT d.service, d.region, count(*) FILTER (WHERE ` + db.RightCountsSQL + `), count(*) FILTER (WHERE ` + db.BlockRightCountsSQL + `)
FROM dbcontroller.foreign_target f JOIN dbcontroller.deployment d ON d.id = f.deployment_id
WHERE (` + db.RightCountsSQL + ` OR ` + db.BlockRightCountsSQL + `) AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id)
GROUP BY 1, 2 ORDER BY 1, 2`

// Delegations counts the rights that count now, by deployment.
func (s *Keeper) Delegations(ctx context.Context) ([]Delegations, error) {
	rows, err := s.Pool.Query(ctx, selectDelegationsSQL)
	if err != nil {
		return nil, fmt.Errorf("count delegations: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Delegations, err error) {
		return d, row.Scan(&d.Deployment.Service, &d.Deployment.Region, &d.ActingHeld, &d.BlockHeld)
	})
	if err != nil {
		return nil, fmt.Errorf("count delegations: %w", err)
	}
	return out, nil
}
