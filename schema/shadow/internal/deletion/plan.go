package deletion

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

var (
	planViasSQL = db.Codes(`
SELECT holder_id, target_id, field_id, behaviour FROM dbcontroller.reference
WHERE holder_id = ANY ($1) AND target_id = ANY ($2) AND behaviour IN ({cascade_delete}, {async_cascade_delete})`)

	// Ownees that lose all owners, at least one of them without unset_on_delete; with the owner of the
	// smallest uid.
	planOwneesSQL = db.Codes(`
WITH gone AS (
    SELECT DISTINCT * FROM unnest($1::int[], $2::uuid[]) AS gone (deployment_id, uid)
), o AS (
    SELECT o.ownee_id, (array_agg(o.deployment_id ORDER BY o.uid))[1] AS deployment_id, (array_agg(o.uid ORDER BY o.uid))[1] AS uid
    FROM gone CROSS JOIN LATERAL (SELECT * FROM dbcontroller.owner_reference o WHERE o.deployment_id = gone.deployment_id AND o.uid = gone.uid OFFSET 0) AS o
    GROUP BY o.ownee_id
    HAVING bool_or(o.flags & {unset_on_delete} = 0)
        AND count(*) = (SELECT count(*) FROM dbcontroller.owner_reference a WHERE a.ownee_id = o.ownee_id)
)
SELECT o.ownee_id, o.deployment_id, o.uid, s.uid FROM o JOIN dbcontroller.shadow s ON s.id = o.ownee_id
ORDER BY o.ownee_id LIMIT $3`)

	planBlockersSQL = db.Codes(`
SELECT h.uid, h.name, r.field_id, t.uid, t.name
FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id JOIN dbcontroller.shadow t ON t.id = r.target_id
WHERE r.target_id = ANY ($1) AND r.behaviour = {block} AND h.state = {active} AND NOT r.holder_id = ANY ($1) ORDER BY r.target_id, r.holder_id, r.field_id LIMIT $2`)

	planUnsetsSQL = db.Codes(`
SELECT h.uid, h.kind_id, h.name, r.field_id, r.behaviour, r.target_id
FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id
WHERE r.target_id = ANY ($1) AND r.behaviour IN ({unset}, {async_unset}) AND NOT r.holder_id = ANY ($2) ORDER BY h.name, r.field_id, r.target_id LIMIT $3`)
)

// Rows of planViasSQL, planOwneesSQL and planBlockersSQL.
type edgeRow struct {
	Holder, Target int64
	Field          int32
	Behaviour      schema.Behaviour
}

type owneeRow struct {
	ID         int64
	Deployment int32
	Owner, UID uuid.UUID
}

type blockerRow struct {
	UID       uuid.UUID
	Name      string
	Field     int32
	TargetUID uuid.UUID
	Target    string
}

// Plan returns the effects here of a deletion of targets. The only rows it changes are blockades: as a delete
// would, it asks about the blockades in the way and removes released ones. Undecided blockades are left out
// unless the question is Detailed, since they may be released before the cascade arrives.
func (s *Deleter) Plan(ctx context.Context, q peer.PlanQuestion) (*peer.Plan, error) {
	p := &planning{store: s, question: q}
	if err := p.leaveOutUnknown(ctx); err != nil {
		return nil, err
	}
	if q.Freeze != nil {
		return p.freeze(ctx)
	}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	for again := true; ; again = false {
		complete, err := p.readLeaf(ctx, options)
		if err == nil && !complete {
			err = pgx.BeginTxFunc(ctx, s.Pool, options, func(tx pgx.Tx) error { return p.read(ctx, tx) })
		}
		if err != nil {
			return nil, fmt.Errorf("plan a deletion: %w", err)
		}
		blockers, moved := s.planAsked(ctx, p.obstacle, q.Detailed)
		if moved && again {
			continue
		}
		p.plan.Blockers = append(p.plan.Blockers, blockers...)
		if q.Detailed && (p.plan.Truncated || p.plan.MoreUnsets) {
			p.count(ctx)
		}
		return p.plan, nil
	}
}

// leaveOutUnknown drops the targets of deployments that have no number here: nothing here refers to them. It
// loads the numbers of the others, since the transaction must not ask for a second connection.
func (p *planning) leaveOutUnknown(ctx context.Context) error {
	names := p.store.Names
	unknown := func(t peer.PlanTarget) bool {
		_, known := names.KnownDeployment(t.Deployment)
		return !known
	}
	if !slices.ContainsFunc(p.question.Targets, unknown) {
		return nil
	}
	if err := names.Load(ctx); err != nil {
		return err
	}
	p.question.Targets = slices.DeleteFunc(slices.Clone(p.question.Targets), unknown)
	return nil
}

// planAsked asks the holders' deployments about blockades and returns the blockades that are held or could
// not be resolved. The second result reports whether blockades were removed, so that the plan has to be read
// again.
func (s *Deleter) planAsked(ctx context.Context, o *obstacle, detailed bool) ([]peer.PlanBlocker, bool) {
	asked := s.askAll(ctx, o.blockades, peer.RecallLooks)
	blockers := asked.blockers()
	if !detailed {
		blockers = slices.DeleteFunc(blockers, func(b peer.PlanBlocker) bool { return b.Undecided })
	}
	return blockers, asked.moved
}

// planning is a plan under way, in one transaction.
type planning struct {
	store    *Deleter
	question peer.PlanQuestion
	plan     *peer.Plan
	obstacle *obstacle
	// ids are the members in the order in which they were found.
	ids []int64
	// owners has, for each collected ownee, its owner.
	owners map[int64]peer.Via
	// targets are the members and the targets of the question, by id in this database.
	targets map[int64]peer.PlanTarget
	// reasons are all reasons of the members, after read.
	reasons map[int64][]peer.Via
	rows    planRows
}

func (p *planning) begin() {
	p.plan, p.ids, p.owners, p.targets = &peer.Plan{}, nil, map[int64]peer.Via{}, map[int64]peer.PlanTarget{}
	p.rows = planRows{vias: map[int64][]peer.Via{}}
}

func (p *planning) read(ctx context.Context, tx pgx.Tx) error {
	p.begin()
	if err := p.closure(ctx, tx); err != nil {
		return err
	}
	if p.found() > p.question.Limit {
		p.truncate()
	}
	vias, err := p.vias(ctx, tx)
	if err != nil {
		return err
	}
	p.reasons = vias
	ids := slices.Sorted(maps.Keys(vias)) // also local targets of the question: there may be further reasons for them
	if err := p.members(ctx, tx, ids, vias); err != nil {
		return err
	}
	p.addRows()
	if p.question.Detailed {
		if err = p.unsets(ctx, tx); err != nil {
			return err
		}
	}
	p.obstacle, err = p.store.obstacle(ctx, tx, p.ids, peer.PlanLimit, excused{})
	return err
}

// truncate drops the members above the limit.
func (p *planning) truncate() {
	most := min(len(p.ids), p.question.Limit)
	for _, id := range p.ids[most:] {
		delete(p.targets, id)
	}
	p.ids, p.plan.Truncated = p.ids[:most], true
	p.rows.truncate(p.question.Limit - most)
}

// found is the number of members that were found.
func (p *planning) found() int { return len(p.ids) + len(p.rows.members) }

// closure finds the members: cascading holders, level by level, in the transaction of the delete or
// asynchronously, and ownees that lose all owners.
func (p *planning) closure(ctx context.Context, tx pgx.Tx) error {
	byDeployment := map[schema.DeploymentID][]uuid.UUID{}
	for _, t := range p.question.Targets {
		byDeployment[t.Deployment] = append(byDeployment[t.Deployment], t.UID)
	}
	var frontier []int64
	for d, uids := range byDeployment {
		targets, err := p.store.follow.Targets(ctx, tx, d, uids)
		if err != nil {
			return err
		}
		for id, t := range targets {
			p.targets[id] = peer.PlanTarget{Deployment: d, UID: t.UID}
			frontier = append(frontier, id)
		}
	}
	rows, err := p.rowHolders(ctx, tx)
	if err != nil {
		return err
	}
	frontier = append(frontier, rows...)
	for {
		for len(frontier) > 0 && p.found() <= p.question.Limit {
			var err error
			if frontier, err = p.holders(ctx, tx, frontier); err != nil {
				return err
			}
		}
		if p.found() > p.question.Limit {
			return nil
		}
		var err error
		if frontier, err = p.ownees(ctx, tx); err != nil || len(frontier) == 0 {
			return err
		}
	}
}

func (p *planning) take(id int64, uid uuid.UUID) bool {
	if _, seen := p.targets[id]; seen {
		return false
	}
	p.targets[id] = peer.PlanTarget{Deployment: p.store.Self, UID: uid}
	p.ids = append(p.ids, id)
	return true
}

func (p *planning) holders(ctx context.Context, tx pgx.Tx, of []int64) (next []int64, err error) {
	// Enough rows for one member above the limit, which sets Truncated, even if all targets of the question
	// are found again.
	named := len(p.targets) - len(p.ids)
	rows, err := tx.Query(ctx, read.HoldersSQL, of, named+p.question.Limit+1)
	if err != nil {
		return nil, err
	}
	var id int64
	var uid uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&id, &uid}, func() error {
		if p.take(id, uid) {
			next = append(next, id)
		}
		return nil
	})
	return next, err
}

func (p *planning) ownees(ctx context.Context, tx pgx.Tx) (next []int64, err error) {
	var deployments []int32
	var uids []uuid.UUID
	gone := slices.Clone(p.question.Targets)
	for _, id := range p.ids {
		gone = append(gone, p.targets[id])
	}
	for _, t := range gone {
		id, ok := p.store.Names.KnownDeployment(t.Deployment)
		if !ok {
			continue // no owner reference here names the deployment
		}
		deployments, uids = append(deployments, id), append(uids, t.UID)
	}
	rows, err := tx.Query(ctx, planOwneesSQL, deployments, uids, len(p.targets)+p.question.Limit+1)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[owneeRow])
	if err != nil {
		return nil, err
	}
	for _, o := range found {
		d, err := p.store.Names.DeploymentOf(ctx, tx, o.Deployment)
		if err != nil {
			return nil, err
		}
		p.owners[o.ID] = peer.Via{Target: peer.PlanTarget{Deployment: d, UID: o.Owner}, Path: peer.OwnerPath}
		if p.take(o.ID, o.UID) {
			next = append(next, o.ID)
		}
	}
	return next, nil
}

// vias returns all reasons for which resources here are removed, by id. A complete list makes the plan
// independent of the order in which deployments answer.
func (p *planning) vias(ctx context.Context, tx pgx.Tx) (map[int64][]peer.Via, error) {
	vias := map[int64][]peer.Via{}
	for id, owner := range p.owners {
		if _, goes := p.targets[id]; goes { // members above the limit were removed from targets
			vias[id] = append(vias[id], owner)
		}
	}
	for id, through := range p.rows.vias {
		if _, goes := p.targets[id]; goes {
			vias[id] = append(vias[id], through...)
		}
	}
	targets := slices.Collect(maps.Keys(p.targets))
	b := &pgx.Batch{}
	edges := read.Queued[edgeRow](b, db.OfMany(planViasSQL, len(targets)), targets, targets)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, err
	}
	return vias, p.addVias(ctx, tx, vias, *edges)
}

func (p *planning) addVias(ctx context.Context, q db.Querier, vias map[int64][]peer.Via, edges []edgeRow) error {
	for _, e := range edges {
		path, err := p.store.Names.FieldOf(ctx, q, e.Field)
		if err != nil {
			return err
		}
		vias[e.Holder] = append(vias[e.Holder], peer.Via{
			Target: p.targets[e.Target], Path: path,
			Behaviour: e.Behaviour,
		})
	}
	return nil
}

// members adds the ACTIVE resources with some ids to the plan, and the local holders that block them.
func (p *planning) members(ctx context.Context, tx pgx.Tx, ids []int64, vias map[int64][]peer.Via) error {
	b := &pgx.Batch{}
	members, blockers := p.queueMembers(b, ids), read.Queued[blockerRow](b, planBlockersSQL, ids, peer.PlanLimit)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	if err := p.addMembers(ctx, tx, ids, *members, vias); err != nil {
		return err
	}
	return p.addBlockers(ctx, tx, *blockers)
}

func (p *planning) queueMembers(b *pgx.Batch, ids []int64) *[]read.Member {
	if p.question.Compact {
		return read.Queued[read.Member](b, read.ConcernedSQL, ids)
	}
	return read.Queued[read.Member](b, read.MembersSQL, ids)
}

// addMembers adds the members that queueMembers has found, and in a compact plan all others as leaves.
func (p *planning) addMembers(ctx context.Context, q db.Querier, ids []int64, found []read.Member,
	vias map[int64][]peer.Via,
) error {
	if p.question.Compact {
		concerned := map[int64]bool{}
		for _, m := range found {
			concerned[m.ID] = true
		}
		for _, id := range ids {
			if !concerned[id] {
				p.plan.Members = append(p.plan.Members, peer.PlanMember{UID: p.targets[id].UID, Vias: vias[id]})
			}
		}
	}
	return p.add(ctx, q, slices.DeleteFunc(found, func(m read.Member) bool { return !m.Active }), vias)
}

// addBlockers adds the local holders that block members to the plan.
func (p *planning) addBlockers(ctx context.Context, q db.Querier, found []blockerRow) error {
	for _, b := range found {
		path, err := p.store.Names.FieldOf(ctx, q, b.Field)
		if err != nil {
			return err
		}
		p.plan.Blockers = append(p.plan.Blockers, peer.PlanBlocker{
			Holder: peer.Holder{Name: p.store.full(b.Name), Path: path, Target: p.store.full(b.Target)},
			UID:    b.UID, TargetUID: b.TargetUID,
		})
	}
	return nil
}

func (p *planning) unsets(ctx context.Context, tx pgx.Tx) error {
	type unset struct {
		UID       uuid.UUID
		Kind      int32
		Name      string
		Field     int32
		Behaviour schema.Behaviour
		Target    int64
	}
	var of []int64
	for id := range p.targets {
		of = append(of, id)
	}
	p.plan.Unsets = p.rows.unsets
	if len(p.plan.Unsets) > p.question.Limit {
		p.plan.Unsets, p.plan.MoreUnsets = p.plan.Unsets[:p.question.Limit], true
	}
	most := p.question.Limit - len(p.plan.Unsets)
	rows, err := tx.Query(ctx, planUnsetsSQL, of, append([]int64{}, p.ids...), most+1)
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[unset])
	if err != nil {
		return err
	}
	if len(found) > most {
		found, p.plan.MoreUnsets = found[:most], true
	}
	for _, u := range found {
		kind, err := p.store.Names.KindOf(ctx, tx, u.Kind)
		if err != nil {
			return err
		}
		path, err := p.store.Names.FieldOf(ctx, tx, u.Field)
		if err != nil {
			return err
		}
		p.plan.Unsets = append(p.plan.Unsets, peer.PlanUnset{
			UID: u.UID, Kind: kind.Kind, Name: u.Name,
			Via: peer.Via{Target: p.targets[u.Target], Path: path, Behaviour: u.Behaviour},
		})
	}
	return nil
}

// count counts the references that the plan leaves out. It has half of the time that is left: without the
// counts the plan is incomplete, and says so.
func (p *planning) count(ctx context.Context) {
	ctx, cancel := peer.InPart(ctx, 1, 2)
	defer cancel()
	named := maps.Clone(p.targets)
	for _, id := range p.ids {
		delete(named, id)
	}
	counts, holders, err := countReferences(ctx, p.store.DB, append([]int64{}, p.ids...),
		append([]int64{}, slices.Collect(maps.Keys(named))...), p.plan.MoreUnsets)
	if err == nil && p.store.rows.Refer() {
		counts, holders, err = p.countRows(ctx, counts, holders)
	}
	if err != nil {
		p.store.Log.Debug("a plan has no counts beyond its limit", zap.Error(err), requestid.Field(ctx))
		p.plan.Uncounted = true
		return
	}
	p.plan.Counts, p.plan.Holders = counts, holders
}
