package deletion

import (
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

// The targets of a question that references here name ($1, $2).
const askedTargets = `dbcontroller.foreign_target f JOIN unnest($1::int[], $2::uuid[]) AS i (deployment_id, uid) ON f.deployment_id = i.deployment_id AND f.uid = i.uid`

var leafHoldersSQL = db.Codes(`
SELECT DISTINCT r.holder_id, h.uid
FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id
WHERE r.target_id IN (SELECT f.id FROM ` + askedTargets + `) AND r.behaviour IN ({cascade_delete}, {async_cascade_delete}) ORDER BY r.holder_id LIMIT $3`)

const leafTargetsSQL = `SELECT f.id, f.deployment_id, f.uid FROM ` + askedTargets

type (
	holderRow struct {
		ID  int64
		UID uuid.UUID
	}
	targetRow struct {
		ID         int64
		Deployment int32
		UID        uuid.UUID
	}
)

// readLeaf is read for the commonest question: targets of other deployments whose holders here have no holders here themselves. It takes two
// round trips, since the second one reads what follows from the holders and, beside that, whether they are all. It reports false when
// they are not, unless there are more than the limit: then nothing is read.
func (p *planning) readLeaf(ctx context.Context, options pgx.TxOptions) (complete bool, err error) {
	s, q := p.store, p.question
	if q.Detailed || len(q.Targets) > db.FewRows {
		return false, nil
	}
	p.begin()
	deployments, uids, of := make([]int32, len(q.Targets)), make([]uuid.UUID, len(q.Targets)), map[int32]peer.PlanTarget{}
	for i, t := range q.Targets {
		if t.Deployment == s.Self {
			return false, nil
		}
		if deployments[i], err = s.Names.Deployment(ctx, t.Deployment); err != nil {
			return false, err
		}
		uids[i], of[deployments[i]] = t.UID, t
	}
	tx, err := postgres.BeginTx(ctx, s.Pool, options)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // without effect after the commit
	b := &pgx.Batch{}
	b.Queue(db.GenericPlansSQL)
	targets := read.Queued[targetRow](b, leafTargetsSQL, deployments, uids)
	holders := read.Queued[holderRow](b, leafHoldersSQL, deployments, uids, q.Limit+1)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return false, err
	}
	if len(*holders) > q.Limit {
		*holders, p.plan.Truncated = (*holders)[:q.Limit], true
	}
	for _, t := range *targets {
		p.targets[t.ID] = peer.PlanTarget{Deployment: of[t.Deployment].Deployment, UID: t.UID}
	}
	known := slices.Collect(maps.Keys(p.targets))
	for _, h := range *holders {
		p.take(h.ID, h.UID)
	}
	return p.readLeafMembers(ctx, tx, known, deployments, uids)
}

// readLeafMembers is the second round trip of readLeaf.
func (p *planning) readLeafMembers(ctx context.Context, tx *postgres.Tx, targets []int64, deployments []int32, uids []uuid.UUID) (complete bool, err error) {
	s := p.store
	gone, ids := slices.Clone(uids), append([]int64{}, p.ids...) // no nil, which is no empty array
	for _, id := range ids {
		deployments, gone = append(deployments, s.SelfID), append(gone, p.targets[id].UID)
	}
	all := slices.Concat(targets, ids)
	b := &pgx.Batch{}
	if len(ids) > db.FewRows {
		b.Queue(db.OwnPlansSQL)
	}
	further := read.Queued[holderRow](b, planHoldersSQL, ids, len(ids)+1)
	ownees := read.Queued[owneeRow](b, planOwneesSQL, deployments, gone, 1)
	edges := read.Queued[edgeRow](b, db.OfMany(planViasSQL, len(all)), all, all)
	members := p.queueMembers(b, ids)
	blockers := read.Queued[blockerRow](b, planBlockersSQL, ids, peer.PlanLimit)
	blockades := s.queueBlockades(b, ids, peer.PlanLimit, nil)
	if err := tx.CommitWith(ctx, b); err != nil {
		return false, err
	}
	found := func(h holderRow) bool { _, known := p.targets[h.ID]; return !known }
	if !p.plan.Truncated && (len(*ownees) > 0 || slices.ContainsFunc(*further, found)) {
		return false, nil
	}
	vias := map[int64][]peer.Via{}
	if err := p.addVias(ctx, s.Pool, vias, *edges); err != nil {
		return false, err
	}
	if err := p.addMembers(ctx, s.Pool, ids, *members, vias); err != nil {
		return false, err
	}
	if err := p.addBlockers(ctx, s.Pool, *blockers); err != nil {
		return false, err
	}
	p.obstacle, err = s.obstacleOf(ctx, s.Pool, ids, *blockades)
	return err == nil, err
}
