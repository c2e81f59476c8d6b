package shadow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
)

const ruledServices = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: cascade, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }
      - { path: list.*, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: dangling, targets: [a.example.com/Target], behaviour: ALLOW_DANGLING }
      - { path: near, targets: [Holder], behaviour: BLOCK }
    fields:
      - { path: spec.size, default: 3 }
      - { path: zone, immutable: true }
    schema:
      properties: { spec: { properties: { size: { type: integer } } } }
`

// ruledNext is a version with other defaults, one more reference, and a finalizer.
const ruledNext = `
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    finalizers: [{ name: calendar, holder: user/calendar }]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }
      - { path: cascade, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }
      - { path: list.*, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: dangling, targets: [a.example.com/Target], behaviour: ALLOW_DANGLING }
      - { path: near, targets: [Holder], behaviour: BLOCK }
      - { path: blok, targets: [a.example.com/Target], behaviour: BLOCK }
    fields:
      - { path: spec.size, default: 4 }
    schema:
      properties: { spec: { properties: { size: { type: integer, maximum: 6 } } } }
`

const (
	aFull    = "a.example.com/full"    // its quota of blocking references is used up
	aGone    = "a.example.com/gone"    // is decommissioned at the holders' deployment
	aRefuses = "a.example.com/refuses" // has decommissioned the holders' deployment
)

// writer makes random writes of holders, of which some are invalid.
type randomWrites struct {
	*rand.Rand
	uids map[string]uuid.UUID
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func (w *randomWrites) target() string {
	at := pick(w.Rand, aWest, aWest, aWest, aEast, aFull, aGone, aRefuses)
	if w.IntN(4) > 0 {
		at = aWest
	}
	return fmt.Sprintf("//%s/targets/t%d", at, min(w.IntN(13)/3, 4)) // t4 does not exist
}

func (w *randomWrites) body() body {
	b := body{}
	some := func(chance int, set func()) {
		if w.IntN(chance) == 0 {
			set()
		}
	}
	some(3, func() { b["block"] = w.target() })
	some(3, func() { b["cascade"] = w.target() })
	some(4, func() { b["list"] = []any{w.target(), w.target()} })
	some(6, func() { b["dangling"] = w.target() })
	some(4, func() { b["near"] = fmt.Sprintf("holders/h%d", w.IntN(4)) })
	some(2, func() { b["spec"] = body{"size": pick[any](w.Rand, 3.0, 4.0, 5.0, 6.0, 7.0, 5.5, nil)} })
	b["zone"] = "z1"
	some(15, func() { b["zone"] = "z2" })
	some(20, func() { delete(b, "zone") })
	some(20, func() { b["blok"] = w.target() })
	return b
}

func (w *randomWrites) batch() (writes []peer.Write) {
	for _, i := range w.Perm(5)[:1+w.IntN(3)] {
		name := fmt.Sprintf("holders/h%d", i)
		write := peer.Write{Name: name, Mode: pick(w.Rand, peer.Put, peer.Put, peer.Put, peer.Put, peer.Create,
			peer.Update), Body: w.body()}
		if write.Mode == peer.Update {
			write.Mask = pick(w.Rand, nil, []string{"body.block"}, []string{"body.spec", "labels"},
				[]string{"body.spec.size"})
		}
		if w.IntN(4) == 0 {
			write.Labels = map[string]string{"n": pick(w.Rand, "1", "2")}
		}
		if w.IntN(12) == 0 {
			write.UID = w.uids[name]
		}
		if w.IntN(40) == 0 {
			write.Revision = peer.Revision(1 + w.IntN(3))
		}
		if w.IntN(6) == 0 {
			owner, _ := schema.ParseFullName(w.target())
			write.Owners = []peer.OwnerReference{{Owner: owner, Kind: "Target"}}
		}
		writes = append(writes, write)
	}
	return writes
}

// A random write and its validation just before have the same answer, defaults and generations included, and
// the validation leaves no row behind; across switches of the version, and with resources in DELETING that
// wait for a finalizer.
func TestValidateAnswersAsTheWriteWould(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, ruledServices+ruledNext, func(cfg *shadow.Config) {
		cfg.Delegations = true
		if cfg.Deployment.Region == "full" {
			cfg.Limits.Quotas = peer.Quotas{Blocking: 1}
		}
	}, aWest, aEast, aFull, aGone, aRefuses, bEast)
	for _, at := range []string{aWest, aEast, aFull, aGone, aRefuses} {
		for i := range 4 {
			b.MustPut(fmt.Sprintf("//%s/targets/t%d", at, i), nil)
		}
	}
	b.MustPut("//"+bEast+"/holders/filler", body{"block": "//" + aFull + "/targets/t0"})
	b.Settle()
	store := b.Stores[b.ID(bEast)]
	require.NoError(t, store.Admin.Decommission(t.Context(), shadow.Decommissioned{
		Deployment: b.ID(aGone),
		Blocking:   schema.Unset, Reason: "burnt down", By: "operator/ann",
	}))
	require.NoError(t, b.Stores[b.ID(aRefuses)].Admin.Decommission(t.Context(),
		shadow.Decommissioned{
			Deployment: b.ID(bEast), Blocking: schema.Unset, Reason: "burnt down",
			By: "operator/ann",
		}))
	b.Settle()

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := &randomWrites{Rand: rand.New(rand.NewPCG(seed, 0)), uids: map[string]uuid.UUID{}}
	stored, refused := 0, map[string]int{}
	for i := 0; i < rounds.Of(150, 40) || stored <= 20 && i < 1000; i++ {
		w.event(b)
		writes := w.batch()
		before := rowsOf(b)
		would, wouldErr := store.Write.ValidateBatch(t.Context(), writes, "")
		require.Equal(t, before, rowsOf(b), "%+v", writes)
		saved, err := store.Write.Save(t.Context(), writes)
		if err != nil || wouldErr != nil {
			require.Equal(t, fmt.Sprint(err), fmt.Sprint(wouldErr), "%+v", writes)
			refused[fmt.Sprintf("%T", err)]++
			continue
		}
		stored++
		for i := range saved {
			if would[i].UID != uuid.Nil {
				require.Equal(t, saved[i].UID, would[i].UID)
			}
			w.uids[saved[i].Name] = saved[i].UID
			saved[i].UID, saved[i].Revision, saved[i].CreatedAt, saved[i].UpdatedAt = would[i].UID, would[i].Revision,
				would[i].CreatedAt, would[i].UpdatedAt
			require.JSONEq(t, string(saved[i].Body), string(would[i].Body))
			require.Equal(t, saved[i], would[i], "%+v", writes)
		}
	}
	t.Logf("%d stored, refused: %v", stored, refused)
	require.Greater(t, stored, 20)
	b.Settle()
	b.Audit()
}

// event changes the world between two writes.
func (w *randomWrites) event(b *harness.Box) {
	switch w.IntN(14) {
	case 0:
		_, _ = b.Delete(fmt.Sprintf("//%s/targets/t%d", aWest, w.IntN(4)))
	case 1:
		_, _ = b.Put(fmt.Sprintf("//%s/targets/t%d", aWest, w.IntN(4)), nil)
	case 2:
		_, _ = b.Delete(fmt.Sprintf("//%s/holders/h%d", bEast, w.IntN(5)))
	case 3, 4:
		b.Settle()
	case 5:
		if w.IntN(3) == 0 {
			b.Renew(aWest) // a failover: a new epoch at the targets' deployment
		}
	case 6:
		b.Switch(bEast, pick(w.Rand, "v1", "v2")) // its derivations wait for the next Settle
	case 7, 8:
		_, _ = b.Stores[b.ID(bEast)].Write.RemoveFinalizer(context.Background(), fmt.Sprintf("holders/h%d", w.IntN(5)),
			uuid.Nil, "calendar")
	}
}

func rowsOf(b *harness.Box) map[string]int {
	rows := map[string]int{}
	for _, at := range []string{aWest, aEast, aFull, bEast} {
		for _, table := range []string{
			"shadow", "reference", "foreign_target", "blockade", "aborted", "work", "notice",
			"change",
		} {
			rows[at+" "+table] = b.Count(at, table)
		}
	}
	return rows
}

// Every door of the store has the rules of the kind, and a default is a value of the stored body.
func TestRulesOfAKindHoldForEachWrite(t *testing.T) {
	t.Parallel()
	b, ctx := harness.NewBox(t, ruledServices, nil, aWest, bEast), t.Context()
	store := b.Stores[b.ID(bEast)]
	given := body{"zone": "z1"}
	saved, err := store.Write.Save(ctx, []peer.Write{{Mode: peer.Create, Name: "holders/h", Body: given}})
	require.NoError(t, err)
	require.JSONEq(t, `{"zone": "z1", "spec": {"size": 3}}`, string(saved[0].Body))
	require.Equal(t, body{"zone": "z1"}, given, "the caller's body")
	require.JSONEq(t, string(saved[0].Body), string(b.Get(holder).Body))
	for _, w := range []peer.Write{
		{Name: "holders/h", Body: body{"zone": "z2"}},
		{Name: "holders/h", Body: body{}},
		{Name: "holders/h", Mode: peer.Update, Mask: []string{"body.zone"}},
		{Name: "holders/h2", Body: body{"spec": body{"size": "big"}}},
		{Name: "holders/h2", Mode: peer.Create, Body: body{"spec": "text"}},
	} {
		_, err := store.Write.Save(ctx, []peer.Write{w})
		require.ErrorAs(t, err, new(*peer.InvalidError), "%+v", w)
		require.ErrorAs(t, within(ctx, store, b.Pools[b.ID(bEast)], w), new(*peer.InvalidError), "%+v", w)
	}
	masked, err := store.Write.Save(ctx,
		[]peer.Write{{Name: "holders/h", Mode: peer.Update, Mask: []string{"body.spec"}}})
	require.NoError(t, err)
	require.JSONEq(t, `{"zone": "z1", "spec": {"size": 3}}`, string(masked[0].Body),
		"a removed field has its default again")
	require.Equal(t, saved[0].Generation, masked[0].Generation)
}
