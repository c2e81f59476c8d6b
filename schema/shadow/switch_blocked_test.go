package shadow_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// Each later version of b has another behaviour for the reference that blocks in v1.
func actingVersions(t *testing.T, configure harness.BoxConfig) *harness.Box {
	t.Helper()
	text := `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
    references: [{ path: next, targets: [Target], behaviour: ASYNC_CASCADE_DELETE }]
`
	for i, behaviour := range []string{
		"BLOCK", "UNSET", "CASCADE_DELETE", "ASYNC_UNSET", "ASYNC_CASCADE_DELETE",
		"ALLOW_DANGLING",
	} {
		text += fmt.Sprintf(`---
service: b.example.com
version: v%[1]d
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: far, targets: [a.example.com/Target], behaviour: %[2]s }
      - { path: near, targets: [Holder], behaviour: %[2]s }
      - { path: next, targets: [Holder], behaviour: ASYNC_CASCADE_DELETE }
`, i+1, behaviour)
	}
	return harness.NewBox(t, text, configure, aWest, bEast)
}

// S10: a cascade has marked a target that a holder blocks, and the holder's deployment switches to a version
// in which the reference does not block: the holder acts, and the target is removed.
func TestABlockingReferenceOfAWaitingDeletionActsAfterASwitch_I13_I26(t *testing.T) {
	t.Parallel()
	for version, stays := range map[string]bool{"v2": true, "v3": false, "v4": true, "v5": false, "v6": true} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := actingVersions(t, nil)
			near := func(n string) string { return "//" + bEast + "/holders/" + n }
			doomed(b, targetName, near)
			b.MustPut(holder, body{"far": targetName("mid"), "near": "holders/mid"})
			b.Settle()
			require.Equal(t, peer.Deleting, b.Get(targetName("mid")).State)
			require.Equal(t, peer.Deleting, b.Get(near("mid")).State)
			b.Switch(bEast, version)
			b.Settle()
			b.Gone(targetName("mid"), near("mid"))
			if !stays {
				b.Gone(holder)
			} else {
				require.NotNil(t, b.Get(holder))
			}
			for _, d := range []string{aWest, bEast} {
				require.Zero(t, b.Count(d, "work"), d)
			}
			b.Audit()
		})
	}
}

// doomed makes resources that an accepted delete will reach by cascades: a blockade until then makes them
// wait.
func doomed(b *harness.Box, names ...func(string) string) {
	for _, name := range names {
		b.MustPut(name("root"), nil)
		b.MustPut(name("mid"), body{"next": name("root")})
	}
	b.Settle()
	for _, name := range names {
		b.MustDelete(name("root"))
	}
}

// The same for a blocking reference that was written under a right to block, and has no blockade of its own.
func TestABlockingReferenceUnderARightActsAfterASwitch_I13_I26(t *testing.T) {
	t.Parallel()
	for version, stays := range map[string]bool{"v2": true, "v3": false, "v6": true} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := actingVersions(t, func(cfg *shadow.Config) { cfg.Delegations, cfg.Limits.BlockRightFrom = true, 2 })
			named := func(n int) string { return fmt.Sprintf("//%s/holders/h%d", bEast, n) }
			doomed(b, targetName)
			for n := range 2 {
				b.MustPut(named(n), body{"far": targetName("mid")})
			}
			for _, action := range []schema.Action{schema.Confirm, schema.Confirm} {
				_, err := b.Do(b.ID(bEast), action)
				require.NoError(t, err)
			}
			unasked(t, b, named(2), body{"far": targetName("mid")})
			b.Settle()
			require.Equal(t, peer.Deleting, b.Get(targetName("mid")).State)
			b.Switch(bEast, version)
			b.Settle()
			b.Gone(targetName("mid"))
			for n := range 3 {
				require.Equal(t, stays, b.Get(named(n)) != nil)
			}
			for _, d := range []string{aWest, bEast} {
				require.Zero(t, b.Count(d, "work"), d)
			}
			b.Audit()
		})
	}
}

// Only an acting reference that replaces a blocking one of the same holder and field is accepted: no other
// new reference to a resource in DELETING is.
func TestNothingElseRefersToWhatIsDeleting_I4(t *testing.T) {
	t.Parallel()
	b, ctx := actingVersions(t, nil), context.Background()
	doomed(b, targetName)
	uid := b.MustPut(holder, body{"far": targetName("mid")}).UID
	b.Settle()
	require.Equal(t, peer.Deleting, b.Get(targetName("mid")).State)
	ask := func(uid uuid.UUID, path string, behaviour schema.Behaviour) error {
		_, err := b.Stores[b.ID(aWest)].Targets.Establish(ctx, b.ID(bEast), newAttempt(), []peer.EstablishReference{{
			HolderUID: uid, HolderKind: "Holder", HolderName: "holders/h", Path: path, TargetKind: "Target",
			TargetName: "targets/mid", Behaviour: behaviour,
		}})
		return err
	}
	for what, err := range map[string]error{
		"blocks":       ask(uid, "far", schema.Block),
		"other field":  ask(uid, "other", schema.Unset),
		"other holder": ask(uuid.New(), "far", schema.Unset),
		"other service": func() error {
			_, err := b.Put(targetName("x"), body{"next": targetName("mid")})
			return err
		}(),
	} {
		require.Equal(t, peer.TargetDeleting, refusals(t, err)[0].Reason, what)
	}
	require.NoError(t, ask(uid, "far", schema.CascadeDelete))
	b.MustPut(holder, nil) // drops its reference: the new blockade belongs to none
	b.Expire(aWest)
	b.Settle()
	b.Gone(targetName("mid"))
	require.ErrorContains(t, ask(uid, "far", schema.CascadeDelete), "does not exist")
	b.Audit()
}
