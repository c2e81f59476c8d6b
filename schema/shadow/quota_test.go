package shadow_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

func refusedFor(t *testing.T, err error, reason peer.Reason) {
	t.Helper()
	var refused *peer.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, reason, refused.Refusals[0].Reason, err)
}

// A deployment that establishes and never decides makes deletes wait: its quota bounds that, without effect
// on other deployments.
func TestTentativeBlockadesOfADeploymentAreBounded_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *shadow.Config) { c.Limits.Quotas.Tentative = 10 })
	b.MustPut(target, nil)
	store, hostile, other := b.Stores[b.ID(aWest)], b.ID(bEast), b.ID(bWest)
	establish := func(by schema.DeploymentID) error {
		_, err := store.Targets.Establish(t.Context(), by, uuid.Must(uuid.NewV7()), []peer.EstablishReference{{
			HolderUID: uuid.New(), HolderKind: "Holder", HolderName: "holders/h", Path: "cascade", TargetKind: "Target",
			TargetName: "targets/t", Behaviour: schema.CascadeDelete,
		}})
		return err
	}
	// A count concurrent with an establish may count it twice, for a second.
	require.Eventually(t, func() bool {
		return establish(hostile) != nil && b.Count(aWest, "tentative") == 10
	}, wait.Limit, time.Millisecond)
	err := establish(hostile)
	refusedFor(t, err, peer.QuotaExceeded)
	require.ErrorContains(t, err, "at most 10 tentative blockades")
	require.NoError(t, establish(other))
	require.Equal(t, 11, b.Count(aWest, "tentative"))
	// Settled blockades do not count: the table is counted before a refusal.
	require.NoError(t, b.Resolve(b.ID(aWest)))
	_, err = b.Pools[b.ID(aWest)].Exec(t.Context(), `DELETE FROM dbcontroller.blockade`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return establish(hostile) == nil }, wait.Limit, 20*time.Millisecond)
}

func TestBlockingReferencesOfADeploymentAreBounded(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *shadow.Config) {
		c.Limits.Quotas.Blocking = 6
		// of the environment: lower for one deployment
		c.Limits.QuotaOf = func(holder schema.DeploymentID) peer.Quotas {
			return peer.Quotas{Blocking: map[string]int64{bEast: 5, bWest: 7}[holder.String()]}
		}
	})
	b.MustPut(target, nil)
	for i := range 5 {
		require.Eventually(t, func() bool {
			_, err := b.Put(fmt.Sprintf("//%s/holders/h%d", bEast, i), body{"block": target})
			return err == nil
		}, wait.Limit, time.Millisecond)
	}
	_, err := b.Put(holder, body{"block": target})
	refusedFor(t, err, peer.QuotaExceeded)
	require.ErrorContains(t, err, "at most 5 blocking references")
	b.MustPut(holder, body{"cascade": target}) // an acting reference
	b.MustPut("//"+bWest+"/holders/h", body{"block": target})
	b.Settle()
	b.Audit()
	b.MustPut(fmt.Sprintf("//%s/holders/h0", bEast), body{})
	b.Settle()
	require.Eventually(t, func() bool {
		_, err := b.Put(holder2, body{"block": target})
		return err == nil
	}, wait.Limit, 20*time.Millisecond)
}

// The quota counts blockades from before the process started.
func TestAQuotaCountsEarlierBlockades(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	for i := range 5 {
		b.MustPut(fmt.Sprintf("//%s/holders/h%d", bEast, i), body{"block": target})
	}
	b.Settle()
	again := b.SecondProcess(aWest, shadow.Config{Limits: shadow.Limits{Quotas: peer.Quotas{Blocking: 5}}})
	require.Eventually(t, func() bool { // refusals do not wait for the first count
		_, err := again.Targets.Establish(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()), []peer.EstablishReference{{
			HolderUID: uuid.New(), HolderKind: "Holder", HolderName: "holders/h", Path: "block", TargetKind: "Target",
			TargetName: "targets/t", Behaviour: schema.Block,
		}})
		return err != nil && strings.Contains(err.Error(), "at most 5 blocking references")
	}, wait.Limit, 20*time.Millisecond)
}

// The target's deployment enforces referable_by, also against the descriptor at the holder's deployment.
func TestOnlyServicesInReferableByReferToAKind(t *testing.T) {
	t.Parallel()
	const closed = `
service: a.example.com
version: v1
kinds:
  - { kind: Target, patterns: ["targets/{target}"], referable_by: [b.example.com] }
  - { kind: Own, patterns: ["own/{own}"], references: [{ path: to, targets: [Target], behaviour: BLOCK }] }
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - { kind: Holder, patterns: ["holders/{holder}"], references: [{ path: block, targets: [a.example.com/Target], behaviour: BLOCK }] }
---
service: c.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - { kind: Thing, patterns: ["things/{thing}"] }
`
	b := harness.NewBox(t, closed, nil, aWest, aEast, bEast, "c.example.com/us-west2")
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.MustPut("//"+aWest+"/own/near", body{"to": target})
	b.MustPut("//"+aEast+"/own/far", body{"to": target})
	c := b.ID("c.example.com/us-west2")
	for _, uid := range []uuid.UUID{uuid.Nil, b.Get(target).UID} {
		ref := []peer.EstablishReference{{
			HolderUID: uuid.New(), HolderKind: "Thing", HolderName: "things/x", Path: "block", TargetKind: "Target",
			TargetName: "targets/t", TargetUID: uid, Behaviour: schema.Block,
		}}
		_, err := b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), c, uuid.Must(uuid.NewV7()), ref)
		refusedFor(t, err, peer.NotReferable)
		_, err = b.Stores[b.ID(aWest)].Targets.WouldEstablish(t.Context(), c, uuid.Must(uuid.NewV7()), ref)
		refusedFor(t, err, peer.NotReferable)
	}
	// A descriptor with such a reference is refused when it is applied.
	_, err := schema.ParseFile("s.yaml", strings.NewReader(closed))
	require.NoError(t, err)
	file, err := schema.ParseFile("s.yaml", strings.NewReader(strings.Replace(closed, `patterns: ["things/{thing}"] }`,
		`patterns: ["things/{thing}"], references: [{ path: x, targets: [a.example.com/Target], behaviour: BLOCK }] }`,
		1)))
	require.NoError(t, err)
	err = schema.Check(file.Services)
	require.ErrorContains(t, err, "a.example.com/Target lets only b.example.com refer to it")
	require.ErrorContains(t, err, "add c.example.com to its referable_by")
}

// References from before a kind was closed to a service stay protected: when a database loses them, they are
// established again.
func TestAKindThatIsClosedLaterKeepsItsReferences_I1_I19(t *testing.T) {
	t.Parallel()
	const narrowed = `
service: a.example.com
version: v1
kinds:
  - { kind: Target, patterns: ["targets/{target}"] }
---
service: a.example.com
version: v2
kinds:
  - { kind: Target, patterns: ["targets/{target}"], referable_by: [c.example.com] }
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - { kind: Holder, patterns: ["holders/{holder}"], references: [{ path: block, targets: [a.example.com/Target], behaviour: BLOCK }] }
`
	b := harness.NewBox(t, narrowed, nil, aWest, bEast)
	b.MustPut(target, nil)
	b.Settle()
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore()
	b.Switch(aWest, "v2")
	b.Recover(aWest)
	b.Settle()
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	_, err = b.Put(holder2, body{"block": target})
	refusedFor(t, err, peer.NotReferable)
	b.Audit()
}

// No deployment can close the attempt of another one, even if it knows the id.
func TestAnAttemptIsClosedByItsOwnDeployment_I5_I7(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	store, attempt := b.Stores[b.ID(aWest)], uuid.Must(uuid.NewV7())
	establish := func() error {
		_, err := store.Targets.Establish(t.Context(), b.ID(bEast), attempt, []peer.EstablishReference{{
			HolderUID: uuid.New(), HolderKind: "Holder", HolderName: "holders/h", Path: "block", TargetKind: "Target",
			TargetName: "targets/t", Behaviour: schema.Block,
		}})
		return err
	}
	release := func(by string) {
		require.NoError(t, store.Targets.Release(t.Context(), b.ID(by), b.Stores[b.ID(by)].Gate.PresentEpoch(), nil,
			[]peer.AttemptID{attempt}))
	}
	release(bWest)
	require.NoError(t, establish())
	release(bWest)
	require.Equal(t, 1, b.Count(aWest, "blockade"))
	release(bEast)
	require.Zero(t, b.Count(aWest, "blockade"))
	refusedFor(t, establish(), peer.AttemptClosed)
}

// Field paths and kinds are never removed: names that no service describes are not stored.
func TestNamesOfAHostileDeploymentAreBounded(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	store := b.Stores[b.ID(aWest)]
	names := func() (n int) {
		require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(),
			`SELECT (SELECT count(*) FROM dbcontroller.field) + (SELECT count(*) FROM dbcontroller.kind)`).Scan(&n))
		return n
	}
	before := names()
	var refs []peer.EstablishReference
	for i := range 5000 {
		refs = append(refs, peer.EstablishReference{
			HolderUID: uuid.New(), HolderKind: fmt.Sprintf("Kind%d", i), HolderName: "holders/h",
			Path: fmt.Sprintf("p%d", i), TargetKind: "Target", TargetName: "targets/t", Behaviour: schema.Block,
		})
	}
	_, err := store.Targets.Establish(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()), refs)
	refusedFor(t, err, peer.QuotaExceeded)
	_, err = store.Targets.WouldEstablish(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()), refs)
	refusedFor(t, err, peer.QuotaExceeded)
	require.LessOrEqual(t, names(), before+1)
	b.MustPut(holder, body{"block": target})
}
