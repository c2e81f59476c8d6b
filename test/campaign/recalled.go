package campaign

import (
	"context"
	"fmt"
	"time"
)

// recall gives a deployment the right to block a target, lets a holder block it under the right, and deletes
// the target, so that the right is recalled: the holder refuses the delete, or goes along. Now and then the
// recall is not answered for a while.
func (p *Player) recall(ctx context.Context) {
	p.t.Helper()
	p.forgetSettled(ctx)
	target, may, holder := p.mayBlock(ctx)
	if target == "" {
		return
	}
	refs := map[string][]string{"b1": {target}}
	if p.g.has(holder, "c1", target) && p.g.IntN(2) == 0 {
		refs["c1"] = []string{target}
	}
	p.only(ctx, holder, refs)
	p.only(ctx, may, nil)
	if p.asks(ctx, holder, blocksUnderRightSQL, p.o.rows[target].UID) {
		p.c.add("blocked a resource under a right, and deleted it", 1)
	}
	if !p.w.calm && p.g.IntN(3) == 0 {
		mend := p.suffer(holder, "RecallDelegations")
		defer time.AfterFunc(dark/2, mend).Stop()
		defer mend()
	}
	p.Delete(ctx, target)
}

// mayBlock returns a target, a resource that blocks it by two references, whose deployment has the right to
// block it therefore, and another holder in that deployment; empty names when there is none. A right that was
// not given is asked for again after a minute only, so that under faults other targets are tried.
func (p *Player) mayBlock(ctx context.Context) (target, may, holder string) {
	for range 3 {
		target, holders := p.lit("bl") // whose kinds have b1 too
		if target == "" || p.o.Would(target, nil) != nil {
			continue
		}
		if p.only(ctx, holders[0], map[string][]string{"b1": {target}, "bl": {target}}); p.o.flight[target] ||
			!p.o.there(target) {
			continue
		}
		if p.awaitsRight(ctx, holders[0], p.o.rows[target].UID) {
			return target, holders[0], holders[1]
		}
	}
	return "", "", ""
}

// awaitsRight waits a while for the right of a holder's deployment to block a target.
func (p *Player) awaitsRight(ctx context.Context, holder, uid string) bool {
	for began := time.Now(); time.Since(began) < time.Second; <-time.After(10 * time.Millisecond) {
		if p.asks(ctx, holder, hasBlockRightSQL, uid) {
			return true
		}
	}
	return false
}

// blockToTheEnd lets a holder, which blocks a target that a deletion elsewhere is about to reach, give its
// deployment the right to do so, and another one there block the target under the right. The target waits for
// that one when the first one has let go.
func (p *Player) blockToTheEnd(ctx context.Context, first, target, uid string) {
	p.t.Helper()
	if !p.g.has(first, "bl", target) {
		return
	}
	for _, holder := range p.g.names {
		if holder == first || at(holder) != at(first) || at(holder) == at(target) || p.o.flight[holder] ||
			!p.g.has(holder, "b1", target) {
			continue
		}
		if p.only(ctx, first, map[string][]string{"b1": {target}, "bl": {target}}); !p.awaitsRight(ctx, first, uid) {
			return
		}
		p.only(ctx, holder, map[string][]string{"b1": {target}})
		p.only(ctx, first, nil)
		if p.asks(ctx, holder, blocksUnderRightSQL, uid) {
			p.c.add("blocked a resource that a deletion was reaching under a right", 1)
		}
		return
	}
}

// only writes a resource with these references and no others.
func (p *Player) only(ctx context.Context, holder string, refs map[string][]string) {
	p.t.Helper()
	p.g.n++
	p.Put(ctx, holder, Content{Payload: fmt.Sprintf("p%d", p.g.n), Refs: refs})
}

const blocksUnderRightSQL = `
SELECT EXISTS (
    SELECT FROM dbcontroller.reference r JOIN dbcontroller.foreign_target f ON f.id = r.target_id WHERE r.delegated AND r.behaviour = 1 AND f.uid = $1
)`

// asks asks the database of a holder's deployment about the uid of a target; false when the database cannot
// be reached.
func (p *Player) asks(ctx context.Context, holder, sql, uid string) (is bool) {
	err := p.siteOf(holder).admin.QueryRow(ctx, sql, uid).Scan(&is)
	return err == nil && is
}
