package shadow_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
)

// Each kind of write refuses a full name in a field without a declared reference, and stores nothing.
func TestAReferenceInAnUndeclaredFieldIsRefused_I1(t *testing.T) {
	t.Parallel()
	b, ctx := newPair(t, nil), t.Context()
	store := b.Stores[b.ID(bEast)]
	b.MustPut(target, nil)
	b.MustPut(holder2, body{"block": target})
	for _, typo := range []body{
		{"blok": target},
		{"near": map[string]any{"blck": holder2}},
		{"list": []any{target}, "lists": []any{target}},
		{"roles": map[string]any{"admin": map[string]any{"whom": target}}},
	} {
		create := []peer.Write{{Mode: peer.Create, Name: "holders/h", Body: typo}}
		masked := []peer.Write{{Mode: peer.Update, Name: "holders/h2", Body: typo, Mask: []string{"body"}}}
		doors := map[string]func([]peer.Write) error{
			"save": func(w []peer.Write) error { _, err := store.Write.Save(ctx, w); return err },
			"requested": func(w []peer.Write) error {
				_, err := store.Write.SaveRequested(ctx, uuid.Must(uuid.NewV7()), w)
				return err
			},
			"validate": func(w []peer.Write) error { _, err := store.Write.Validate(ctx, w[0]); return err },
			"own transaction": func(w []peer.Write) error {
				return within(ctx, store, b.Pools[b.ID(bEast)], w...)
			},
		}
		for name, door := range doors {
			for _, w := range [][]peer.Write{create, masked} {
				err := door(w)
				require.ErrorAs(t, err, new(*peer.InvalidError), "%s: %v", name, typo)
				require.ErrorContains(t, err, "did you mean")
			}
		}
	}
	b.Gone(holder)
	require.JSONEq(t, `{"block": "`+target+`"}`, string(b.Get(holder2).Body))
	b.Settle()
	b.Audit()
}

// A body may have references of the previous and of the next version; a body of a version that is not
// described any more can still be updated.
func TestFieldsOfOtherVersionsDoNotRefuseUpdates_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, `
service: a.example.com
version: v1
kinds:
  - kind: Node
    patterns: ["nodes/{node}"]
    references: [{ path: up, targets: [Node], behaviour: BLOCK }]
---
service: a.example.com
version: v2
kinds:
  - kind: Knot
    previous_name: Node
    patterns: ["nodes/{node}"]
    references: [{ path: over, targets: [Knot], behaviour: BLOCK }]
`, nil, aWest)
	const up, down = "//" + aWest + "/nodes/up", "//" + aWest + "/nodes/down"
	b.MustPut(up, nil)
	b.MustPut(down, body{"up": up, "over": up})
	b.Switch(aWest, "v2")
	b.Settle()
	b.MustPut(down, body{"up": up, "over": up, "title": "more"})
	_, err := b.Put(down, body{"ovr": up})
	require.ErrorContains(t, err,
		`field ovr: "`+up+`" is the name of a resource, and Knot has no reference there; did you mean over?`)

	// The first version is not described any more.
	services, err := schema.ParseFile("f.yaml", strings.NewReader(`
service: a.example.com
version: v2
kinds: [{ kind: Knot, previous_name: Node, patterns: ["nodes/{node}"], references: [{ path: over, targets: [Knot], behaviour: BLOCK }] }]`))
	require.NoError(t, err)
	model, err := schema.NewModel(services.Services[0].ServiceVersion, services.Services)
	require.NoError(t, err)
	b.Stores[b.ID(aWest)].Admin.Refresh(model)
	b.MustPut(down, body{"up": up, "title": "still more"})
	_, err = b.Put(down, body{"up": down})
	require.ErrorContains(t, err, "Knot has no reference there")
}
