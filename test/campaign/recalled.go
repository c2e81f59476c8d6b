package campaign

import (
	"context"
	"fmt"
	"time"
)

// recall gives a deployment the right to block a target, lets a holder block it under the right, and deletes the target, so that the right is
// recalled: the holder refuses the delete, or goes along. Now and then the recall is not answered for a while.
func (p *Player) recall(ctx context.Context) {
	p.t.Helper()
	p.forgetSettled(ctx)
	target, holders := p.lit("b1")
	if target == "" || p.o.Would(target, nil) != nil {
		return
	}
	only := func(holder string, refs map[string][]string) {
		p.g.n++
		p.Put(ctx, holder, Content{Payload: fmt.Sprintf("p%d", p.g.n), Refs: refs})
	}
	may, stays := holders[0], holders[1]
	only(may, map[string][]string{"b1": {target}, "bl": {target}}) // two references are enough for the right
	if p.o.flight[target] || !p.o.there(target) {
		return
	}
	for began := time.Now(); !p.asks(ctx, may, hasBlockRightSQL, target) && time.Since(began) < time.Second; <-time.After(10 * time.Millisecond) {
	}
	refs := map[string][]string{"b1": {target}}
	if p.g.has(stays, "c1", target) && p.g.IntN(2) == 0 {
		refs["c1"] = []string{target}
	}
	only(stays, refs)
	only(may, nil)
	if p.asks(ctx, stays, blocksUnderRightSQL, target) {
		p.c.add("blocked a resource under a right, and deleted it", 1)
	}
	if p.g.IntN(3) == 0 {
		mend := p.suffer(stays, "RecallDelegations")
		defer time.AfterFunc(dark/2, mend).Stop()
		defer mend()
	}
	p.Delete(ctx, target)
}

const blocksUnderRightSQL = `
SELECT EXISTS (
    SELECT FROM dbcontroller.reference r JOIN dbcontroller.foreign_target f ON f.id = r.target_id WHERE r.delegated AND r.behaviour = 1 AND f.uid = $1
)`

// asks asks the database of a holder's deployment about the uid of a target; false when the database cannot be reached.
func (p *Player) asks(ctx context.Context, holder, sql, target string) (is bool) {
	err := p.siteOf(holder).admin.QueryRow(ctx, sql, p.o.rows[target].UID).Scan(&is)
	return err == nil && is
}
