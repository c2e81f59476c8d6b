package shadow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// PlanLimit is how many resources a look-ahead walks over, in all deployments together. What is beyond is handled as
// what changes after a look-ahead is: it waits as BLOCKED.
const PlanLimit = 10_000

// PlanTarget is a resource of some deployment that a deletion takes.
type PlanTarget struct {
	Deployment schema.DeploymentID
	UID        uuid.UUID
}

// PlanMember is a resource of the deployment that is asked, which cascades.
type PlanMember struct {
	UID  uuid.UUID
	Name string
	// Entries are the deployments that hold acting references to it.
	Entries []schema.DeploymentID
}

// PlanBlocker refers to a member and blocks it, unless the same deletion removes it too.
type PlanBlocker struct {
	Holder Holder
	UID    uuid.UUID
}

// Plan is what the deletion of some targets takes along in one deployment.
type Plan struct {
	Members   []PlanMember
	Blockers  []PlanBlocker
	Truncated bool
}

const (
	planHoldersSQL = `
SELECT DISTINCT holder_id FROM dbcontroller.reference WHERE target_id = ANY ($1) AND behaviour IN (3, 5) LIMIT $2`

	planMembersSQL = `
SELECT s.id, s.uid, s.name,
    ARRAY (SELECT deployment_id FROM dbcontroller.holder_entry e WHERE e.target_id = s.id ORDER BY 1)
FROM dbcontroller.shadow s WHERE s.id = ANY ($1) AND s.state = 1 ORDER BY s.id`

	planBlockersSQL = `
SELECT h.uid, h.name, r.field_id
FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id
WHERE r.target_id = ANY ($1) AND r.behaviour = 1 AND NOT r.holder_id = ANY ($1) LIMIT $2`
)

// Plan tells what the deletion of targets would take along here, up to limit members. It changes nothing that counts:
// blockades in the way are asked about, and what was let go is settled, as a delete here would do. Blockades that are
// undecided are left out, since they may be gone by the time that the cascade comes.
func (s *Store) Plan(ctx context.Context, targets []PlanTarget, limit int) (*Plan, error) {
	var (
		plan *Plan
		ids  []int64
		o    *obstacle
	)
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) (err error) {
		plan = &Plan{}
		if ids, plan.Truncated, err = s.planClosure(ctx, tx, targets, limit); err != nil {
			return err
		}
		if err := s.planMembers(ctx, tx, plan, ids); err != nil {
			return err
		}
		o, err = s.obstacle(ctx, tx, ids, maxAsked, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("plan a deletion: %w", err)
	}
	for _, b := range s.askAll(ctx, o).held {
		plan.Blockers = append(plan.Blockers, PlanBlocker{Holder: Holder{Name: b.holder, Path: b.question.Key.Path}, UID: b.question.Key.HolderUID})
	}
	return plan, nil
}

// planClosure finds what cascades here, at once or later, level by level.
func (s *Store) planClosure(ctx context.Context, tx pgx.Tx, targets []PlanTarget, limit int) (ids []int64, truncated bool, err error) {
	byDeployment := map[schema.DeploymentID][]uuid.UUID{}
	for _, t := range targets {
		byDeployment[t.Deployment] = append(byDeployment[t.Deployment], t.UID)
	}
	var frontier []int64
	for d, uids := range byDeployment {
		a := &acting{store: s, from: d, targets: map[int64]actTarget{}}
		if err := a.load(ctx, tx, uids); err != nil {
			return nil, false, err
		}
		for id := range a.targets {
			frontier = append(frontier, id)
		}
	}
	seen := map[int64]bool{}
	for len(frontier) > 0 && len(ids) < limit {
		rows, err := tx.Query(ctx, planHoldersSQL, frontier, limit-len(ids)+1)
		if err != nil {
			return nil, false, err
		}
		holders, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return nil, false, err
		}
		frontier = nil
		for _, id := range holders {
			if !seen[id] {
				seen[id] = true
				ids, frontier = append(ids, id), append(frontier, id)
			}
		}
	}
	if len(ids) > limit {
		return ids[:limit], true, nil
	}
	return ids, len(frontier) > 0, nil
}

func (s *Store) planMembers(ctx context.Context, tx pgx.Tx, plan *Plan, ids []int64) error {
	type member struct {
		ID      int64
		UID     uuid.UUID
		Name    string
		Entries []int32
	}
	rows, err := tx.Query(ctx, planMembersSQL, ids)
	if err != nil {
		return err
	}
	members, err := pgx.CollectRows(rows, pgx.RowToStructByPos[member])
	if err != nil {
		return err
	}
	for _, m := range members {
		p := PlanMember{UID: m.UID, Name: m.Name}
		for _, id := range m.Entries {
			d, err := s.names.deploymentOf(ctx, tx, id)
			if err != nil {
				return err
			}
			p.Entries = append(p.Entries, d)
		}
		plan.Members = append(plan.Members, p)
	}
	type blocker struct {
		UID   uuid.UUID
		Name  string
		Field int32
	}
	if rows, err = tx.Query(ctx, planBlockersSQL, ids, maxAsked); err != nil {
		return err
	}
	blockers, err := pgx.CollectRows(rows, pgx.RowToStructByPos[blocker])
	if err != nil {
		return err
	}
	for _, b := range blockers {
		path, err := s.names.fieldOf(ctx, tx, b.Field)
		if err != nil {
			return err
		}
		plan.Blockers = append(plan.Blockers, PlanBlocker{Holder: Holder{Name: schema.FullName{Deployment: s.self, Name: b.Name}, Path: path}, UID: b.UID})
	}
	return nil
}

// lookAhead is what a delete found out about the other deployments before it locks anything.
type lookAhead struct {
	// going are the resources everywhere that the deletion removes.
	going map[PlanTarget]bool
	// keys and blocks are the blockades, and the local references, of going ones that were there before the walk: they
	// and no others are excused.
	keys   keyColumns
	blocks map[edge]bool
	// unasked are deployments that could not be asked.
	unasked []schema.DeploymentID
}

// excuse notes which of those that blocked before the walk go with the deletion.
func (l *lookAhead) excuse(self schema.DeploymentID, o *obstacle) {
	for _, b := range o.blockades {
		if k := b.question.Key; l.going[PlanTarget{b.deployment, k.HolderUID}] {
			l.keys.attempts, l.keys.holders = append(l.keys.attempts, k.Attempt), append(l.keys.holders, k.HolderUID)
			l.keys.fields = append(l.keys.fields, b.fieldID)
		}
	}
	for _, b := range o.blocks {
		if l.going[PlanTarget{self, b.uid}] {
			l.blocks[b.edge] = true
		}
	}
}

// withoutExcused gives the local blockers that refuse a delete. Where there are too many to be sure, nobody is excused.
func (l *lookAhead) withoutExcused(blocks []outsider) []outsider {
	if l == nil || len(blocks) >= maxBlockers {
		return blocks
	}
	return slices.DeleteFunc(slices.Clone(blocks), func(o outsider) bool { return l.blocks[o.edge] })
}

// walk follows a deletion over all deployments, starting from what it takes here, each step one call a deployment. It
// fails with *BlockedError when somebody from outside the deletion blocks something in it. It is best effort: what
// changes afterwards, is too much, or cannot be asked, is handled when the cascade gets there.
func (s *Store) walk(ctx context.Context, name string, from *obstacle) (*lookAhead, error) {
	l := &lookAhead{going: map[PlanTarget]bool{}, blocks: map[edge]bool{}}
	ask := map[schema.DeploymentID][]PlanTarget{}
	take := func(d schema.DeploymentID, members []PlanMember) {
		for _, m := range members {
			t := PlanTarget{d, m.UID}
			if l.going[t] {
				continue
			}
			l.going[t] = true
			for _, e := range m.Entries {
				ask[e] = append(ask[e], t)
			}
		}
	}
	take(s.self, from.members)
	var blockers []PlanBlocker
	for len(ask) > 0 {
		var next schema.DeploymentID
		for next = range ask {
			break
		}
		targets := ask[next]
		delete(ask, next)
		plan, err := s.askPlan(ctx, next, targets, max(1, PlanLimit-len(l.going)))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			l.unasked = append(l.unasked, next)
			continue
		}
		blockers = append(blockers, plan.Blockers...)
		if take(next, plan.Members); len(l.going) >= PlanLimit {
			break
		}
	}
	l.unasked = schema.SortedDeployments(l.unasked)
	l.excuse(s.self, from)
	return l, outsiders(name, blockers, l)
}

// askPlan gives one deployment a part of the time that is left, so that one which does not answer is named, and the
// delete goes on.
func (s *Store) askPlan(ctx context.Context, at schema.DeploymentID, targets []PlanTarget, limit int) (*Plan, error) {
	patience := time.Second
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)/4)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.peers.Plan(ctx, at, targets, limit)
}

func outsiders(name string, blockers []PlanBlocker, l *lookAhead) error {
	blocked := &BlockedError{Name: name}
	for _, b := range blockers {
		if l.going[PlanTarget{b.Holder.Name.Deployment, b.UID}] || slices.Contains(blocked.Holders, b.Holder) {
			continue
		}
		if blocked.Total++; len(blocked.Holders) < MaxNamedHolders {
			blocked.Holders = append(blocked.Holders, b.Holder)
		}
	}
	if blocked.Total == 0 {
		return nil
	}
	blocked.sort()
	return blocked
}

var errNeedsLookAhead = errors.New("the deletion reaches other deployments, which have to be asked first")
