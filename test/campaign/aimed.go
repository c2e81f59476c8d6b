package campaign

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
)

// Situations that random operations reach too seldom, played on purpose.

// confirmLate lets a resource refer to a member of a deletion elsewhere, and delays its confirm until that
// member is DELETING.
func (p *Player) confirmLate(ctx context.Context) {
	p.t.Helper()
	target, root, holder := p.trio(ctx, "u1")
	if target == "" {
		return
	}
	mend := p.suffer(target, "ConfirmBlockades")
	defer mend()
	p.refer(ctx, holder, "u1", target)
	if !p.o.there(holder) || !p.goesWith(target, root) {
		return
	}
	if p.Delete(ctx, root); p.o.there(root) {
		return
	}
	full, err := schema.ParseFullName(target)
	require.NoError(p.t, err)
	for began := time.Now(); time.Since(began) < time.Second; <-time.After(10 * time.Millisecond) {
		asked, cancel := context.WithTimeout(ctx, time.Second)
		r, err := p.w.resources(ctx, full.Deployment).
			GetResource(asked, &resourcev1.GetResourceRequest{Name: full.Name})
		cancel()
		if err == nil && r.GetState() == resourcev1.Resource_STATE_DELETING {
			p.c.add("confirmed a target in DELETING", 1)
			return
		}
	}
}

// blockLate lets a resource block a member of a deletion elsewhere whose deployment has not received the
// deletion yet: the member becomes DELETING, and stays.
func (p *Player) blockLate(ctx context.Context) {
	p.t.Helper()
	target, root, _ := p.trio(ctx, "b1")
	if target == "" {
		return
	}
	uid := p.o.rows[target].UID
	p.holdBack(root)
	defer func() { p.held() }()
	if p.delete(ctx, root, false, false); p.o.there(root) {
		return
	}
	for _, i := range p.g.Perm(len(p.g.names)) { // a holder outside of the deletion
		holder := p.g.names[i]
		if p.o.flight[holder] || !p.g.has(holder, "b1", target) {
			continue
		}
		if p.refer(ctx, holder, "b1", target); p.o.held[[2]string{holder, target}] {
			p.c.add("blocked a resource that a deletion was reaching", 1)
			p.blockToTheEnd(ctx, holder, target, uid)
			return
		}
	}
}

// refuse makes an update fail that would have dropped a blocking reference to another deployment: nothing of
// it takes effect (I6).
func (p *Player) refuse(ctx context.Context) {
	p.t.Helper()
	holder, target := p.pair(ctx)
	if holder == "" {
		return
	}
	if p.refer(ctx, holder, "b1", target); !p.blocks(holder) {
		return
	}
	p.g.n++
	// which never exists
	p.Put(ctx, holder, Content{Payload: fmt.Sprintf("p%d", p.g.n), Refs: map[string][]string{"u1": {target + "000"}}})
	if p.blocks(holder) {
		p.c.add("refused update that would have dropped a blocker", 1)
	}
}

// loseCommit loses the answer to the commit of a blocking reference: the reference stands, whether its writer
// reads OK or unknown (I8, I29).
func (p *Player) loseCommit(ctx context.Context) {
	p.t.Helper()
	holder, target := p.pair(ctx)
	if holder == "" {
		return
	}
	line := p.siteOf(holder).db
	line.SetLine(harness.CommitsUnanswered)
	later := time.AfterFunc(300*time.Millisecond, func() { line.SetLine(harness.Clear) })
	p.refer(ctx, holder, "b1", target)
	if later.Stop() {
		line.SetLine(harness.Clear)
	}
	if p.blocks(holder) {
		p.c.add("committed without an answer", 1)
	}
}

// answerLate delays the answer to the establish of a blocking reference until its blockade has expired, and
// deletes the target before the answer arrives: the delete ends the attempt (I5), or it is refused. A
// reference to a deleted target must not be stored; a repair that follows the confirm would establish it
// again, but only while its target exists.
func (p *Player) answerLate(ctx context.Context) {
	p.t.Helper()
	holder, target := p.unblocked(ctx)
	if holder == "" {
		return
	}
	p.g.n += 2
	p.Put(ctx, holder, Content{Payload: fmt.Sprintf("p%d", p.g.n-1)}) // then the deletion does not reach it
	if !p.o.there(holder) || !p.o.there(target) || p.o.flight[holder] || p.o.flight[target] {
		return
	}
	c, request := Content{Payload: fmt.Sprintf("p%d", p.g.n), Refs: map[string][]string{"b1": {target}}},
		uuid.NewString()
	mend := p.siteOf(target).calls.Suffer(func(_ identity.Identity, method string) harness.Mishap {
		if establishes(method) {
			return harness.Mishap{After: 4 * tentativeTTL}
		}
		return harness.Mishap{}
	})
	asked, cancel := context.WithTimeout(ctx, 6*time.Second)
	defer cancel()
	written := make(chan struct{}, 1) // one write; its outcome is asked for below
	resources, put := p.w.resources(ctx, p.siteOf(holder).id),
		&resourcev1.PutResourceRequest{Resource: p.resource(holder, c), RequestId: request}
	go func() {
		_, _ = resources.PutResource(asked, put)
		written <- struct{}{}
	}()
	select {
	case <-ctx.Done():
	case <-time.After(2 * tentativeTTL):
	}
	early := len(written) > 0 // under a right, or refused
	p.o.flight[holder] = true // the oracle cannot decide the delete
	p.Delete(ctx, target)
	delete(p.o.flight, holder)
	<-written
	mend()
	p.put(ctx, holder, c, request) // its definite outcome
	if !early && !p.o.there(target) {
		p.c.add("deleted a target whose blockade had expired", 1)
	}
}

func establishes(method string) bool {
	return strings.HasSuffix(method, "/EstablishReferences")
}

// unblocked is pair for a target that a delete would remove, and that the holder's deployment has no right to
// block without asking.
func (p *Player) unblocked(ctx context.Context) (holder, target string) {
	for range 8 {
		holder, target = p.pair(ctx)
		var right bool
		if holder == "" || p.o.Would(target, nil) != nil {
			continue
		}
		if err := p.siteOf(holder).admin.QueryRow(ctx, hasBlockRightSQL, p.o.rows[target].UID).
			Scan(&right); err == nil && !right {
			return holder, target
		}
	}
	return "", ""
}

const hasBlockRightSQL = `SELECT EXISTS (SELECT FROM dbcontroller.foreign_target WHERE block_epoch IS NOT NULL AND uid = $1)`

// underARight reports whether references to a deleted resource may be written all the same: they act, the
// holder's deployment may not have heard of the deletion yet, and it may have a right to refer to the
// resource without asking. Handlers act upon its writes later.
func (p *Player) underARight(holder, target string, c Content) bool {
	return at(holder) != at(target) && p.o.flight[target] && !slices.Contains(slices.Concat(c.Refs["b1"], c.Refs["bl"]),
		target)
}

// dark is how long a deployment hears of no other one.
const dark = time.Second

// referInTheDark cuts the deployment of a target off from all others, and lets holders elsewhere refer to the
// target by acting references: under a right they need no other deployment (I32). Now and then the target is
// deleted meanwhile: holders whose deployment has not heard of that go with it all the same (I31).
func (p *Player) referInTheDark(ctx context.Context) {
	p.t.Helper()
	target, holders := p.lit("u1")
	if target == "" {
		return
	}
	refs := map[string][]string{"u1": {target}} // nothing that would have to be asked for
	p.only(ctx, holders[0], refs)               // its confirm brings the right
	if p.o.flight[target] || !p.o.there(target) {
		return
	}
	for began := time.Now(); !p.asks(ctx, holders[0], hasRightSQL, p.o.rows[target].UID) &&
		time.Since(began) < time.Second; <-time.After(10 * time.Millisecond) {
	}
	mend := p.siteOf(target).calls.Suffer(func(who identity.Identity, _ string) harness.Mishap {
		return harness.Mishap{Cut: who.Role == identity.RoleDeployment}
	})
	began := time.Now()
	later := time.AfterFunc(dark, mend)
	for i, holder := range holders[1:] {
		if p.only(ctx, holder, refs); time.Since(began) < dark && slices.Contains(p.o.rows[holder].Refs["u1"], target) {
			p.c.add("referred to a target whose deployment was away", 1)
		}
		if i == 0 && p.g.IntN(2) == 0 {
			p.Delete(ctx, target)
		}
	}
	if later.Stop() {
		mend()
	}
}

// lit returns an existing resource, and holders in one other deployment that may refer to it by a field.
func (p *Player) lit(field string) (target string, holders []string) {
	for _, i := range p.g.Perm(len(p.g.names)) {
		target, by := p.g.names[i], map[string][]string{}
		if !p.o.there(target) || p.o.flight[target] {
			continue
		}
		for _, holder := range p.g.names {
			if at(holder) != at(target) && p.g.has(holder, field, target) && !p.o.flight[holder] && !p.holdsOn(holder) {
				by[at(holder)] = append(by[at(holder)], holder)
			}
		}
		for _, d := range deployments {
			if holders = by["//"+d.String()]; len(holders) > 1 {
				return target, holders[:min(4, len(holders))]
			}
		}
	}
	return "", nil
}

const hasRightSQL = `SELECT EXISTS (SELECT FROM dbcontroller.foreign_target WHERE acting_epoch IS NOT NULL AND uid = $1)`

// pair returns a resource that may refer by a blocking field to another one in another deployment; empty
// names when there is none.
func (p *Player) pair(ctx context.Context) (holder, target string) {
	p.forgetSettled(ctx)
	var found [][2]string
	for _, holder := range p.g.names {
		for _, target := range p.g.targets[holder] {
			if p.o.there(target) && !p.o.flight[target] && at(target) != at(holder) && p.g.has(holder, "b1", target) &&
				!p.o.flight[holder] && !p.holdsOn(holder) {
				found = append(found, [2]string{holder, target})
			}
		}
	}
	if len(found) == 0 {
		return "", ""
	}
	f := found[p.g.IntN(len(found))]
	return f[0], f[1]
}

func (p *Player) blocks(holder string) bool { return len(p.o.rows[holder].Refs["b1"]) > 0 }

// holdsOn reports whether a resource blocks a resource in DELETING.
func (p *Player) holdsOn(holder string) bool {
	for pair := range p.o.held {
		if pair[0] == holder {
			return true
		}
	}
	return false
}

// refer adds a reference to a resource, and keeps its other references.
func (p *Player) refer(ctx context.Context, name, field, target string) {
	p.t.Helper()
	content := p.content(name)
	content.Refs[field] = []string{target}
	p.Put(ctx, name, content)
}

// suffer interrupts calls of the protocol at the deployment of a resource.
func (p *Player) suffer(name string, methods ...string) (mend func()) {
	return p.siteOf(name).calls.Suffer(func(_ identity.Identity, method string) harness.Mishap {
		return harness.Mishap{Cut: slices.Contains(methods, method[strings.LastIndex(method, "/")+1:])}
	})
}

func (p *Player) siteOf(name string) *site {
	full, err := schema.ParseFullName(name)
	require.NoError(p.t, err)
	return p.w.sites[full.Deployment]
}

// trio returns a target that cascades with a root in another deployment, and a holder in a third one that may
// refer to it by a field; empty names when there is none. It prefers a new target: no other deployment has an
// entry there and would get a notice.
func (p *Player) trio(ctx context.Context, field string) (target, root, holder string) {
	p.t.Helper()
	p.forgetSettled(ctx)
	var fresh, other [][3]string
	for _, target := range p.g.names {
		for _, root := range p.g.targets[target] {
			if !p.o.there(root) || at(root) == at(target) || !p.g.has(target, "c1", root) || p.o.flight[target] ||
				p.o.flight[root] {
				continue
			}
			for _, holder := range p.g.names {
				switch {
				case holder == root || at(holder) == at(target) || !p.g.has(holder, field, target) ||
					p.o.flight[holder]:
				case p.o.there(target):
					other = append(other, [3]string{target, root, holder})
				default:
					fresh = append(fresh, [3]string{target, root, holder})
				}
			}
		}
	}
	for _, found := range [][][3]string{fresh, other} {
		if len(found) == 0 {
			continue
		}
		f := found[p.g.IntN(len(found))]
		if p.refer(ctx, f[0], "c1", f[1]); p.goesWith(f[0], f[1]) {
			return f[0], f[1], f[2]
		}
	}
	return "", "", ""
}

// at returns the deployment of a full name.
func at(name string) string { return strings.Join(strings.SplitN(name, "/", 5)[:4], "/") }

// goesWith reports whether a target exists and cascades with its root.
func (p *Player) goesWith(target, root string) bool {
	return !p.o.flight[target] && !p.o.flight[root] && slices.Equal(p.o.rows[target].Refs["c1"], []string{root})
}
