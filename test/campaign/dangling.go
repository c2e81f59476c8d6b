package campaign

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"

	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// family writes a resource of the deployment that is going to lose it, and others that refer to it: by
// cascades over two levels, one of which another resource will block; by unset fields; and by a field that
// blocks.
func (p *Player) family(ctx context.Context) (lost string, acting int) {
	p.t.Helper()
	name := func(deployment, n int) string { return fmt.Sprintf("//%s/nodes/90%d", deployments[deployment], n) }
	refs := func(field, target string) Content {
		return Content{Payload: "family", Refs: map[string][]string{field: {target}}}
	}
	lost = name(0, 0)
	p.Put(ctx, lost, Content{Payload: "lost", Refs: map[string][]string{}})
	p.Put(ctx, name(3, 1), refs("c1", lost))
	p.Put(ctx, name(2, 2), refs("c2", name(3, 1)))
	p.Put(ctx, name(2, 3), refs("u1", lost))
	p.Put(ctx, name(1, 4), refs("c2", lost))
	p.Put(ctx, name(3, 5), refs("b1", name(1, 4)))
	p.Put(ctx, name(3, 6), refs("ul", lost))
	p.Put(ctx, name(3, 7), refs("b1", lost))
	return lost, 4
}

// actable returns the targets of the dangling references that one decision can act upon: native keys would
// have acted upon them when the target was deleted. A name that is in use again is a person's to decide
// about, as is a field that blocks.
func actable(found []*adminv1.VerifyResponse_Difference, system map[string]*resourcev1.Resource) (gone map[string]bool,
	acts func(*adminv1.VerifyResponse_Difference) bool,
) {
	gone = map[string]bool{}
	acts = func(d *adminv1.VerifyResponse_Difference) bool {
		return d.GetBehaviour() != "BLOCK" && system[d.GetTarget()].GetState() != resourcev1.Resource_STATE_ACTIVE
	}
	for _, d := range found {
		if acts(d) {
			gone[d.GetTarget()] = true
		}
	}
	return gone, acts
}

// act lets one decision act upon all dangling references (verify --repair --dangling=act). The oracle has
// their targets, which native keys demand, and deletes them.
func (p *Player) act(ctx context.Context, gone map[string]bool) (acted int) {
	p.t.Helper()
	for _, id := range deployments {
		for _, d := range p.insistVerified(ctx, id, &adminv1.VerifyRequest{
			Repair:   true,
			Dangling: adminv1.VerifyRequest_DANGLING_ACT, Reason: "the standby lagged",
		}) {
			require.True(p.t, d.GetActedUpon(), "%v", d)
			acted++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		p.o.Delete(name)
	}
	return acted
}
