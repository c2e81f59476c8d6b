package deletion

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// planRows are the rows of tables that refer to targets of the question, in a plan under way.
type planRows struct {
	// members have no resource: nothing refers to them, so that nothing follows from their removal.
	members []peer.PlanMember
	// at are the indexes of members, by uid.
	at map[uuid.UUID]int
	// vias are the reasons for which rows with a resource are removed, by its id.
	vias   map[int64][]peer.Via
	unsets []peer.PlanUnset
}

func (r *planRows) take(h rows.Holder, kind string, via peer.Via) {
	i, known := r.at[h.UID]
	if !known {
		if i = len(r.members); r.at == nil {
			r.at = map[uuid.UUID]int{}
		}
		r.at[h.UID] = i
		r.members = append(r.members, peer.PlanMember{UID: h.UID, Kind: kind, Name: h.Name})
	}
	r.members[i].Vias = append(r.members[i].Vias, via)
}

func (r *planRows) truncate(most int) { r.members = r.members[:min(len(r.members), most)] }

// rowHolders finds the rows of tables that act upon the deletion of targets of the question, by the indexes
// of the tables. It returns the ids of rows that have a resource.
func (p *planning) rowHolders(ctx context.Context, tx pgx.Tx) (next []int64, err error) {
	s := p.store
	if !s.rows.Refer() {
		return nil, nil
	}
	all, err := p.rowTargets(ctx, tx)
	if err != nil {
		return nil, err
	}
	for targets := range slices.Chunk(all, targetsAtOnce) {
		if p.found() > p.question.Limit {
			break
		}
		found, err := p.takeRows(ctx, tx, targets)
		if err != nil {
			return nil, err
		}
		next = append(next, found...)
	}
	return next, nil
}

// targetsAtOnce bounds the rows of a query: each target has at most as many as the plan names.
const targetsAtOnce = 16

func (p *planning) takeRows(ctx context.Context, tx pgx.Tx, targets []rows.Target) (next []int64, err error) {
	s := p.store
	found, err := s.rows.Holders(ctx, tx, false, targets, p.question.Limit+1)
	if err != nil {
		return nil, err
	}
	for _, h := range found {
		kind, err := s.Names.KindOf(ctx, tx, h.Table.KindID)
		if err != nil {
			return nil, err
		}
		via := peer.Via{
			Target: peer.PlanTarget{Deployment: targets[h.Target].Deployment, UID: targets[h.Target].UID},
			Path:   h.Path, Behaviour: h.Behaviour,
		}
		switch {
		case h.Behaviour.Unsets() && p.question.Detailed:
			p.rows.unsets = append(p.rows.unsets, peer.PlanUnset{UID: h.UID, Kind: kind.Kind, Name: h.Name, Via: via})
		case !h.Behaviour.Cascades():
		case h.ID == 0:
			p.rows.take(h, kind.Kind, via)
		default:
			p.rows.vias[h.ID] = append(p.rows.vias[h.ID], via)
			if p.take(h.ID, h.UID) {
				next = append(next, h.ID)
			}
		}
	}
	return next, nil
}

// rowTargets returns the targets of the question that rows here may name, also targets of this deployment.
func (p *planning) rowTargets(ctx context.Context, q db.Querier) ([]rows.Target, error) {
	var deployments []int32
	var uids []uuid.UUID
	for _, t := range p.question.Targets {
		if id, known := p.store.Names.KnownDeployment(t.Deployment); known {
			deployments, uids = append(deployments, id), append(uids, t.UID)
		}
	}
	return p.store.rows.TargetsOf(ctx, q, deployments, uids)
}

// countRows adds the rows of tables to the counts of references and of holders. A row that goes with two
// targets counts for both.
func (p *planning) countRows(ctx context.Context, counts []peer.PlanCount, holders int) ([]peer.PlanCount, int, error) {
	s := p.store
	targets, err := p.rowTargets(ctx, s.Pool)
	if err != nil {
		return nil, 0, err
	}
	found, err := s.rows.Counts(ctx, s.Pool, targets)
	for _, c := range found {
		if c.Behaviour.Cascades() {
			holders += c.Rows
		}
		if c.Behaviour.Cascades() || p.plan.MoreUnsets {
			counts = append(counts, peer.PlanCount{Path: c.Path, Behaviour: c.Behaviour, Count: c.Rows})
		}
	}
	return counts, holders, err
}

// addRows adds the rows without a resource to the plan.
func (p *planning) addRows() {
	goes := map[uuid.UUID]bool{}
	for _, t := range p.targets {
		goes[t.UID] = true
	}
	for _, m := range p.rows.members {
		if p.question.Freeze != nil { // it is not frozen: as a blocker it could stay
			break
		}
		if goes[m.UID] = true; p.question.Compact {
			m.Kind, m.Name = "", ""
		}
		p.plan.Members = append(p.plan.Members, m)
	}
	var unsets []peer.PlanUnset
	for _, u := range p.rows.unsets {
		if !goes[u.UID] {
			unsets = append(unsets, u)
		}
	}
	p.rows.unsets = unsets
}
