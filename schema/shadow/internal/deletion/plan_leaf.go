package deletion

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

// readLeaf is read for the commonest question: targets of other deployments whose holders here have no
// holders here themselves. One round trip counts holders that concern no other deployment. (It does not count
// rows of tables: where these refer, it is not tried.) A second one reads the members of other holders, and
// whether they are all; false: they are not, or too many to try.
func (p *planning) readLeaf(ctx context.Context, options pgx.TxOptions) (complete bool, err error) {
	s, q := p.store, p.question
	if q.Detailed || len(q.Targets) > db.FewRows || s.rows.Refer() {
		return false, nil
	}
	p.begin()
	deployments, uids, of := make([]int32, len(q.Targets)), make([]uuid.UUID, len(q.Targets)),
		map[int32]schema.DeploymentID{}
	for i, t := range q.Targets {
		if t.Deployment == s.Self {
			return false, nil
		}
		if deployments[i], err = s.Names.Deployment(ctx, t.Deployment); err != nil {
			return false, err
		}
		uids[i], of[deployments[i]] = t.UID, t.Deployment
	}
	b, leaves, concerned, most := &pgx.Batch{}, 0, true, q.Limit
	b.Queue(db.GenericPlansSQL)
	if q.CountLeaves {
		b.Queue(read.CountLeavesSQL, deployments, uids, q.Limit+1, s.SelfID).QueryRow(func(row pgx.Row) error {
			return row.Scan(&leaves, &concerned)
		})
		most = min(most, db.FewRows)
	}
	targets := read.Queued[read.Target](b, read.TargetsSQL, deployments, uids)
	holders := read.Queued[read.Holder](b, read.HoldersOfSQL, deployments, uids, most+1)
	if err := s.Pool.SendBatch(ctx, b).Close(); err != nil || !concerned {
		p.plan.Leaves, p.plan.Truncated, p.obstacle = min(leaves, q.Limit), leaves > q.Limit, &obstacle{}
		return err == nil, err
	}
	var known []int64
	for _, t := range *targets {
		known, p.targets[t.ID] = append(known, t.ID), peer.PlanTarget{Deployment: of[t.Deployment], UID: t.UID}
	}
	for _, h := range *holders {
		p.take(h.ID, h.UID)
	}
	switch {
	case len(p.ids) > q.Limit:
		p.truncate()
	case len(*holders) > most:
		return false, nil // there are more, or other references of these
	}
	tx, err := postgres.BeginTx(ctx, s.Pool, options)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // without effect after the commit
	return p.readLeafMembers(ctx, tx, known, deployments, uids)
}

// readLeafMembers is the second round trip of readLeaf. A holder that has dropped its reference meanwhile is
// none.
func (p *planning) readLeafMembers(ctx context.Context, tx *postgres.Tx, targets []int64, deployments []int32,
	uids []uuid.UUID,
) (complete bool, err error) {
	s := p.store
	gone, ids := slices.Clone(uids), append([]int64{}, p.ids...) // no nil, which is no empty array
	for _, id := range ids {
		deployments, gone = append(deployments, s.SelfID), append(gone, p.targets[id].UID)
	}
	all := slices.Concat(targets, ids)
	b := &pgx.Batch{}
	if len(ids) > db.FewRows {
		b.Queue(db.OwnPlansSQL)
	} else {
		b.Queue(db.GenericPlansSQL)
	}
	further := read.Queued[read.Holder](b, read.HoldersSQL, ids, len(ids)+1)
	ownees := read.Queued[owneeRow](b, planOwneesSQL, deployments, gone, 1)
	edges := read.Queued[edgeRow](b, db.OfMany(planViasSQL, len(all)), all, all)
	members := p.queueMembers(b, ids)
	blockers := read.Queued[blockerRow](b, planBlockersSQL, ids, peer.PlanLimit)
	blockades := s.queueBlockades(b, ids, peer.PlanLimit, excused{})
	if err := tx.CommitWith(ctx, b); err != nil {
		return false, err
	}
	found := func(h read.Holder) bool { _, known := p.targets[h.ID]; return !known }
	if !p.plan.Truncated && (len(*ownees) > 0 || slices.ContainsFunc(*further, found)) {
		return false, nil
	}
	vias := map[int64][]peer.Via{}
	if err := p.addVias(ctx, s.Pool, vias, *edges); err != nil {
		return false, err
	}
	dropped := func(id int64) bool { return len(vias[id]) == 0 }
	*members = slices.DeleteFunc(*members, func(m read.Member) bool { return dropped(m.ID) })
	if err := p.addMembers(ctx, s.Pool, slices.DeleteFunc(ids, dropped), *members, vias); err != nil {
		return false, err
	}
	if err := p.addBlockers(ctx, s.Pool, *blockers); err != nil {
		return false, err
	}
	p.obstacle, err = s.obstacleOf(ctx, s.Pool, p.ids, *blockades)
	return err == nil, err
}
