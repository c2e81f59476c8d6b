package shadow_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
)

const untilRemoved = `
service: a.example.com
version: v1
kinds:
  - { kind: Project, patterns: ["projects/{project}"] }
  - kind: Credential
    patterns: ["credentials/{credential}"]
    hide_while_deleting: true
    finalizers: [{ name: revoke, holder: user/vault }]
    references: [{ path: project, targets: [Project], behaviour: CASCADE_DELETE }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Release
    patterns: ["releases/{release}"]
    finalizers: [{ name: uninstall, holder: user/installer }]
    references:
      - { path: credential, targets: [a.example.com/Credential], behaviour: BLOCK, until: removed }
      - { path: project, targets: [a.example.com/Project], behaviour: CASCADE_DELETE }
      - { path: needs.*, targets: [Release, Part], behaviour: BLOCK, until: removed }
  - kind: Part
    patterns: ["parts/{part}"]
    references:
      - { path: release, targets: [Release], behaviour: BLOCK, until: removed }
      - { path: project, targets: [a.example.com/Project], behaviour: CASCADE_DELETE }
`

const (
	credential = "//" + aWest + "/credentials/c"
	owning     = "//" + aWest + "/projects/p"
	release    = "//" + bEast + "/releases/r"
)

func newKeeping(t *testing.T, delegations bool) *harness.Box {
	t.Helper()
	b := harness.NewBox(t, untilRemoved, func(cfg *shadow.Config) { cfg.Delegations = delegations }, aWest, bEast)
	b.MustPut(owning, nil)
	b.MustPut(credential, body{"project": owning})
	b.MustPut(release, body{"credential": credential, "project": owning})
	b.Settle()
	return b
}

// deleting requires that a resource is in DELETING with these finalizers.
func deleting(t *testing.T, b *harness.Box, name string, finalizers ...string) *peer.Resource {
	t.Helper()
	r := b.Get(name)
	require.NotNil(t, r, name)
	require.Equal(t, peer.Deleting, r.State, name)
	require.ElementsMatch(t, finalizers, r.Finalizers, name)
	return r
}

// inTurn requires that the clean-up of a release comes before the clean-up of the credential that it names.
func inTurn(t *testing.T, b *harness.Box) {
	t.Helper()
	b.Settle()
	deleting(t, b, credential)
	clean(t, b, release, deleting(t, b, release, "uninstall").UID, "uninstall")
	b.Settle()
	b.Gone(release)
	clean(t, b, credential, deleting(t, b, credential, "revoke").UID, "revoke")
	b.Settle()
	b.Gone(credential)
	require.Empty(t, harness.AuditDatabases(t, b.Pools))
}

// A holder in DELETING keeps the targets that its clean-up needs, with an own blockade and under a right: a
// later delete of the target is accepted, the target stays readable, and its own clean-up begins when the
// holder is removed.
func TestAHolderKeepsItsTargetUntilItIsRemoved_I33(t *testing.T) {
	t.Parallel()
	for _, delegations := range []bool{false, true} {
		t.Run(fmt.Sprintf("delegations=%t", delegations), func(t *testing.T) {
			t.Parallel()
			b := newKeeping(t, delegations)
			_, err := b.Delete(credential)
			require.ErrorContains(t, err, "releases/r (credential)", "the holder is ACTIVE")
			require.False(t, b.MustDelete(release).Removed)
			b.Settle()
			require.Equal(t, peer.Active, b.Get(credential).State)
			require.False(t, b.MustDelete(credential).Removed)
			inTurn(t, b)
		})
	}
}

// One deletion of all, by a cascade: the order is that of the references.
func TestACascadeIsTornDownInTheOrderOfTheReferences_I14_I33(t *testing.T) {
	t.Parallel()
	for _, delegations := range []bool{false, true} {
		t.Run(fmt.Sprintf("delegations=%t", delegations), func(t *testing.T) {
			t.Parallel()
			b := newKeeping(t, delegations)
			b.MustDelete(owning)
			inTurn(t, b)
			b.Gone(owning)
		})
	}
}

// A stack of resources in one selection. Parts have no clean-up: each stays until the release that needs it
// is removed.
func TestAStackIsTornDownInOrder_I14_I33(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, untilRemoved, nil, aWest, bEast)
	const stack = 30
	var reqs []shadow.DeleteRequest
	name := func(i int) string { return fmt.Sprintf("//%s/releases/r%d", bEast, i) }
	b.MustPut(name(0), nil)
	for i := 1; i < stack; i++ {
		part := fmt.Sprintf("parts/p%d", i)
		b.MustPut("//"+bEast+"/"+part, body{"release": fmt.Sprintf("releases/r%d", i-1)})
		b.MustPut(name(i), body{"needs": []any{part}})
		reqs = append(reqs, shadow.DeleteRequest{Name: part},
			shadow.DeleteRequest{Name: fmt.Sprintf("releases/r%d", i)})
	}
	b.Settle()
	_, err := b.Stores[b.ID(bEast)].Deletions.DeleteAll(t.Context(),
		append(reqs, shadow.DeleteRequest{Name: "releases/r0"}))
	require.NoError(t, err)
	for i := stack - 1; i >= 0; i-- {
		b.Settle()
		for below := range i {
			deleting(t, b, name(below))
			if below > 0 {
				deleting(t, b, fmt.Sprintf("//%s/parts/p%d", bEast, below))
			}
		}
		clean(t, b, name(i), deleting(t, b, name(i), "uninstall").UID, "uninstall")
	}
	b.Settle()
	require.Zero(t, b.Count(bEast, "deleting"))
	require.Empty(t, harness.AuditDatabases(t, b.Pools))
}

// Two releases that need each other, deleted together, wait for each other for ever. An operator takes one
// reference away.
func TestAnOperatorEndsACycleOfKeptReferences_I33(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := harness.NewBox(t, untilRemoved, nil, aWest, bEast)
	b.MustPut(credential, nil)
	one, two := "//"+bEast+"/releases/1", "//"+bEast+"/releases/2"
	b.MustPut(one, nil)
	b.MustPut(two, body{"needs": []any{"releases/1"}})
	b.MustPut(one, body{"needs": []any{"releases/2"}, "credential": credential})
	b.Settle()
	store := b.Stores[b.ID(bEast)]
	_, err := store.Deletions.DeleteAll(ctx, []shadow.DeleteRequest{{Name: "releases/1"}, {Name: "releases/2"}})
	require.NoError(t, err)
	b.MustDelete(credential)
	b.Settle()
	uid := deleting(t, b, one).UID
	conditions, err := store.Read.Conditions(ctx, "releases/1")
	require.NoError(t, err)
	require.Equal(t, []string{
		"by " + two + " (needs.*), until it is removed",
		"for user/installer to clean up (finalizer uninstall), which begins when nothing blocks the resource any more",
	},
		[]string{conditions[0].Message, conditions[1].Message})

	var keys []string
	for token, more := "", true; more; more = token != "" {
		var page []shadow.Releasable
		page, token, err = store.Operate.Releasable(ctx, "releases/2", 1, token)
		require.NoError(t, err)
		for _, r := range page {
			require.Equal(t, []string{"KEPT_REFERENCE", one, "needs.*"}, []string{r.What, r.Other, r.Path})
			keys = append(keys, r.Key)
		}
	}
	for _, want := range []int{1, 0} { // repeated, it finds nothing
		released, err := store.Operate.ForceRelease(ctx, keys, false, "a cycle", "operator/o")
		require.NoError(t, err)
		require.Len(t, released, want)
	}
	b.Settle()
	deleting(t, b, one, "uninstall")
	all, _, err := store.Operate.Releasable(ctx, "releases/1", 10, "")
	require.NoError(t, err)
	require.Equal(t, credential, all[0].Other)
	_, err = store.Operate.ForceRelease(ctx, []string{all[0].Key}, false, "revoke it at once", "operator/o")
	require.NoError(t, err)
	b.Settle()
	clean(t, b, credential, deleting(t, b, credential, "revoke").UID, "revoke")
	clean(t, b, one, uid, "uninstall")
	b.Settle()
	clean(t, b, two, deleting(t, b, two, "uninstall").UID, "uninstall")
	b.Settle()
	b.Gone(one, two, credential)
	require.Empty(t, harness.AuditDatabases(t, b.Pools))
}

// The version that runs when a holder is marked says which references it keeps; a later version does not take
// them away.
func TestTheRunningVersionSaysWhatIsKept_I33(t *testing.T) {
	t.Parallel()
	_, second, _ := strings.Cut(untilRemoved, "---\n")
	without := strings.NewReplacer(", until: removed", "", "version: v1", "version: v2").Replace(second)
	b := harness.NewBox(t, untilRemoved+"---\n"+without, nil, aWest, bEast)
	for _, version := range []string{"v2", "v1"} {
		b.Switch(bEast, version)
		b.Settle()
		b.MustPut(credential, nil)
		b.MustPut(release, body{"credential": credential})
		b.Settle()
		b.MustDelete(release)
		b.Switch(bEast, "v2")
		b.MustDelete(credential)
		b.Settle()
		if version == "v2" {
			clean(t, b, credential, deleting(t, b, credential, "revoke").UID, "revoke")
			clean(t, b, release, deleting(t, b, release, "uninstall").UID, "uninstall")
			b.Settle()
			b.Gone(release, credential)
		}
	}
	inTurn(t, b)
}

// A decommissioned deployment has nothing to keep: the holder goes when its clean-up is done.
func TestNothingIsKeptAtADecommissionedDeployment_I33(t *testing.T) {
	t.Parallel()
	for _, blocking := range []schema.Behaviour{schema.Unset, schema.CascadeDelete} {
		t.Run(blocking.String(), func(t *testing.T) {
			t.Parallel()
			_, second, _ := strings.Cut(untilRemoved, "---\n")
			without := strings.NewReplacer("    finalizers: [{ name: uninstall, holder: user/installer }]\n", "",
				"version: v1", "version: v2").Replace(second)
			b := harness.NewBox(t, untilRemoved+"---\n"+without, func(cfg *shadow.Config) {
				cfg.Delegations = true
			}, aWest, bEast)
			b.Switch(bEast, "v1")
			b.MustPut(credential, nil)
			b.MustPut(release, body{"credential": credential})
			b.Settle()
			b.MustDelete(release)
			b.Switch(bEast, "v2")
			b.Settle()
			uid := deleting(t, b, release, "uninstall").UID
			b.SetDown(aWest, true)
			decommission(t, b, bEast, aWest, blocking)
			b.Settle()
			require.Zero(t, b.Count(bEast, "reference"))
			deleting(t, b, release, "uninstall")
			clean(t, b, release, uid, "uninstall")
			b.Settle()
			require.Zero(t, b.Count(bEast, "deleting"))
		})
	}
}

// The database of the target loses the blockade of the holder, which is in DELETING meanwhile: the comparison
// establishes it again.
func TestAKeptTargetOutlivesARestoreOfItsDatabase_I2_I33(t *testing.T) {
	t.Parallel()
	for _, delegations := range []bool{false, true} {
		t.Run(fmt.Sprintf("delegations=%t", delegations), func(t *testing.T) {
			t.Parallel()
			b := harness.NewBox(t, untilRemoved, func(cfg *shadow.Config) {
				cfg.Delegations = delegations
			}, aWest, bEast)
			b.MustPut(credential, nil)
			b.Settle()
			restore := b.Backup(aWest)
			b.MustPut(release, body{"credential": credential})
			b.Settle()
			b.MustDelete(release)
			b.Settle()
			restore()
			b.Recover(aWest)
			b.Settle()
			require.False(t, b.MustDelete(credential).Removed)
			inTurn(t, b)
		})
	}
}

// Projects, credentials and releases are written, deleted and cleaned up after at random. No clean-up of a
// credential begins while a release is there that names this incarnation, and everything that was deleted
// goes.
func TestKeptTargetsInRandomSteps_I2_I33(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			playKept(t, rand.New(rand.NewPCG(seed, 40)), seed%2 == 0)
		})
	}
}

func playKept(t *testing.T, rnd *rand.Rand, delegations bool) {
	t.Helper()
	b := harness.NewBox(t, untilRemoved, func(cfg *shadow.Config) { cfg.Delegations = delegations }, aWest, bEast)
	credentialOf := func() string { return fmt.Sprint("//", aWest, "/credentials/c", rnd.IntN(2)) }
	releaseOf := func() string { return fmt.Sprint("//", bEast, "/releases/r", rnd.IntN(3)) }
	names := map[uuid.UUID]uuid.UUID{} // of releases: the credential
	cleaned := 0
	cleanUp := func(name, finalizer string) {
		r := b.Get(name)
		if r == nil || !slices.Contains(r.Finalizers, finalizer) {
			return
		}
		for i := range 3 {
			if kept := b.Get(fmt.Sprint("//", bEast, "/releases/r", i)); kept != nil {
				require.NotEqual(t, r.UID, names[kept.UID], "the clean-up of %s begins beside %s", name, kept.Name)
			}
		}
		cleaned++
		clean(t, b, name, r.UID, finalizer)
	}
	for range 80 {
		switch rnd.IntN(8) {
		case 0:
			_, _ = b.Put(credentialOf(), body{"project": owning, "n": rnd.IntN(9)})
		case 1, 2:
			to := credentialOf()
			target := b.Get(to)
			bodyOf := body{"credential": to}
			if rnd.IntN(2) == 0 {
				bodyOf["project"] = owning
			}
			if r, err := b.Put(releaseOf(), bodyOf); err == nil && target != nil {
				names[r.UID] = target.UID
			}
		case 3:
			_, _ = b.Delete(releaseOf())
		case 4:
			_, _ = b.Delete(credentialOf())
		case 5:
			if _, err := b.Put(owning, nil); err == nil && rnd.IntN(4) == 0 {
				_, _ = b.Delete(owning)
			}
		case 6:
			cleanUp(credentialOf(), "revoke")
		case 7:
			cleanUp(releaseOf(), "uninstall")
		}
		if rnd.IntN(2) == 0 {
			b.Settle()
		}
	}
	for range 6 {
		b.Settle()
		for i := range 3 {
			cleanUp(fmt.Sprint("//", bEast, "/releases/r", i), "uninstall")
			cleanUp(fmt.Sprint("//", aWest, "/credentials/c", i), "revoke")
		}
	}
	b.Settle()
	require.NotZero(t, cleaned)
	require.Zero(t, b.Count(aWest, "deleting")+b.Count(bEast, "deleting"))
	b.Audit()
}

// A deletion reaches a target in another deployment, which a holder in DELETING of a third one keeps: it is
// accepted.
func TestAKeptTargetElsewhereRefusesNoDeletion_I13_I33(t *testing.T) {
	t.Parallel()
	const aEast = "a.example.com/east"
	for _, delegations := range []bool{false, true} {
		for _, atomic := range []bool{false, true} {
			t.Run(fmt.Sprintf("delegations=%t,atomic=%t", delegations, atomic), func(t *testing.T) {
				t.Parallel()
				b := harness.NewBox(t, untilRemoved, func(cfg *shadow.Config) {
					cfg.Delegations = delegations
				}, aWest, aEast, bEast)
				root := "//" + aEast + "/projects/p"
				b.MustPut(root, nil)
				b.MustPut(credential, body{"project": root})
				b.MustPut(release, body{"credential": credential})
				b.Settle()
				_, err := b.Delete(root)
				require.ErrorContains(t, err, "releases/r (credential)")
				b.MustDelete(release)
				b.Settle()
				plan, err := b.Stores[b.ID(aEast)].Deletions.PlanDelete(t.Context(), "projects/p")
				require.NoError(t, err)
				require.NoError(t, plan.Refusal)
				_, err = b.Stores[b.ID(aEast)].Deletions.Delete(t.Context(), shadow.DeleteRequest{
					Name:   "projects/p",
					Atomic: atomic,
				})
				require.NoError(t, err)
				inTurn(t, b)
				b.Gone(root)
			})
		}
	}
}

// A release that needs itself waits for nothing.
func TestAReleaseThatKeepsItselfIsRemoved_I33(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, untilRemoved, nil, aWest, bEast)
	b.MustPut(release, nil)
	b.MustPut(release, body{"needs": []any{"releases/r"}})
	b.Settle()
	b.MustDelete(release)
	b.Settle()
	clean(t, b, release, deleting(t, b, release, "uninstall").UID, "uninstall")
	b.Settle()
	b.Gone(release)
	require.Empty(t, harness.AuditDatabases(t, b.Pools))
}

// More releases in DELETING than an answer names: the delete of their credential is accepted, and is refused
// for the one that is ACTIVE.
func TestAnyNumberOfHoldersInDeletingRefusesNoDelete_I3_I33(t *testing.T) {
	t.Parallel()
	const beyond = peer.MaxRecalled + 20
	for _, delegations := range []bool{false, true} {
		for _, n := range rounds.Of([]int{beyond, peer.PlanLimit + 100}, []int{beyond}) {
			t.Run(fmt.Sprintf("delegations=%t,%d", delegations, n), func(t *testing.T) {
				t.Parallel()
				b := harness.NewBox(t, untilRemoved, func(cfg *shadow.Config) {
					cfg.Delegations, cfg.Limits.BlockRightFrom = delegations, 1
					cfg.Times.DeleteTimeout = time.Minute // the test does not depend on time
				}, aWest, bEast)
				b.MustPut(owning, nil)
				b.MustPut(credential, nil)
				b.MustPut("//"+bEast+"/releases/z", body{"credential": credential})
				b.Settle()
				putMany(t, b, bEast, "releases/r", n, body{"credential": credential, "project": owning})
				b.Settle()
				b.MustDelete(owning)
				b.Settle()
				require.Equal(t, n, b.Count(bEast, "deleting"))
				_, err := b.Delete(credential)
				requireBlocked(t, err, "//"+bEast+"/releases/z")
				b.MustPut("//"+bEast+"/releases/z", nil)
				b.Settle()
				require.False(t, b.MustDelete(credential).Removed)
			})
		}
	}
}

// The version is switched while a deletion is decided: the decision and the mark keep the same references.
func TestAMarkKeepsWhatTheDecisionKeeps_I33(t *testing.T) {
	t.Parallel()
	const hasNote = `
  - kind: Note
    patterns: ["notes/{note}"]
    references: [{ path: of, targets: [Release], behaviour: UNSET }]
`
	_, second, _ := strings.Cut(untilRemoved, "---\n")
	without := strings.NewReplacer(", until: removed", "", "version: v1", "version: v2").Replace(second)
	for _, to := range []string{"v1", "v2"} {
		t.Run("to "+to, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			b := harness.NewBox(t, untilRemoved+hasNote+"---\n"+without+hasNote, nil, aWest, bEast)
			b.Switch(bEast, map[string]string{"v1": "v2", "v2": "v1"}[to])
			b.MustPut("//"+bEast+"/parts/p", nil)
			b.MustPut(release, body{"needs": []any{"parts/p"}})
			b.MustPut("//"+bEast+"/notes/n", body{"of": "releases/r"})
			b.Settle()

			// The deletion waits where it unsets the note: behind its decision, and before it marks.
			db := b.Pools[b.ID(bEast)]
			const key = 33
			holder, err := db.Acquire(ctx)
			require.NoError(t, err)
			defer holder.Release()
			_, err = holder.Exec(ctx, fmt.Sprintf(`
CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(%d); RETURN NEW; END $$;
GRANT EXECUTE ON FUNCTION public.wait() TO PUBLIC;
CREATE TRIGGER wait BEFORE UPDATE ON dbcontroller.resource FOR EACH ROW EXECUTE FUNCTION public.wait();
SELECT pg_advisory_lock(%d)`, key, key))
			require.NoError(t, err)
			deleted := make(chan error, 1)
			go func() {
				_, err := b.Stores[b.ID(bEast)].Deletions.DeleteAll(ctx, []shadow.DeleteRequest{
					{Name: "parts/p"},
					{Name: "releases/r"},
				})
				deleted <- err
			}()
			require.Eventually(t, func() bool {
				var waits bool
				err := holder.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`, key).Scan(&waits)
				return err == nil && waits
			}, time.Minute, 10*time.Millisecond)
			b.Switch(bEast, to)
			_, err = holder.Exec(ctx, fmt.Sprintf(`SELECT pg_advisory_unlock(%d)`, key))
			require.NoError(t, err)
			require.NoError(t, <-deleted)
			_, err = holder.Exec(ctx, `DROP TRIGGER wait ON dbcontroller.resource`)
			require.NoError(t, err)

			b.Settle()
			clean(t, b, release, deleting(t, b, release, "uninstall").UID, "uninstall")
			b.Settle()
			b.Gone(release, "//"+bEast+"/parts/p")
			require.Empty(t, harness.AuditDatabases(t, b.Pools))
		})
	}
}
