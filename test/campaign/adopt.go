package campaign

import (
	"context"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// overwrite writes a resource without the oracle.
func (p *Player) overwrite(ctx context.Context, name string, c Content) {
	p.t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(p.t, err)
	body, err := structpb.NewStruct(c.body())
	require.NoError(p.t, err)
	p.insist(func() error {
		_, err := p.w.resources(ctx, full.Deployment).
			PutResource(ctx, &resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{
				Name: full.Name,
				Body: body,
			}})
		return err
	})
}

// adopt sets the oracle to the state of the system: after a loss of commits there is no other source of the
// expected state. Of resources that are gone, and referred to all the same, the oracle has empty rows.
func (p *Player) adopt(ctx context.Context, gone map[string]bool) {
	p.t.Helper()
	system := p.list(ctx)
	o := newOracle(p.t)
	rows := map[string]row{}
	for name, r := range system {
		if r.GetState() == resourcev1.Resource_STATE_ACTIVE {
			rows[name] = row{UID: r.GetUid(), Content: read(r)}
		} else {
			o.flight[name] = true // it is removed when its blockers are
		}
	}
	for name := range gone {
		rows[name] = row{UID: "lost", Content: Content{Payload: "lost"}}
	}
	// First all resources without references, then their references to existing resources: the others are
	// drained.
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		require.NoError(p.t, o.put(name, rows[name].UID, Content{Payload: rows[name].Payload}, true))
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		c := rows[name].Content
		for _, target := range c.targets() {
			if _, there := rows[target]; !there {
				c = c.without(target, func(f string) bool { return f != "d" })
				o.held[[2]string{name, target}] = true
			}
		}
		require.NoError(p.t, o.put(name, rows[name].UID, c, true), "%s %v", name, c)
	}
	p.o, p.deleted, p.going = o, map[string]bool{}, nil
}
