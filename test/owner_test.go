package test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

func ownedBy(kind, name string) *resourcev1.OwnerReference {
	return &resourcev1.OwnerReference{Kind: kind, Name: name}
}

func (f *fixture) pinned(name string, owners int) {
	f.t.Helper()
	f.eventually("the owners of "+name+" are known", func() bool {
		r := f.get(name)
		for _, o := range r.GetOwnerReferences() {
			if o.GetUid() == "" {
				return false
			}
		}
		return len(r.GetOwnerReferences()) == owners
	})
}

// Owners across services without an import, several of them, and the flags, as users see them.
func TestOwnersAcrossServices_I16_I17(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "--owner-grace", "1s")
	const ownee = aEast + "targets/owned"
	f.mustPut(bWest+"holders/one", nil)
	f.mustPut(bEast+"holders/two", nil)
	f.mustPut(ownee, nil, ownedBy("Holder", bWest+"holders/one"), ownedBy("Holder", bEast+"holders/two"))
	f.pinned(ownee, 2)
	require.Equal(t, "v1", f.get(ownee).GetOwnerReferences()[0].GetVersion())
	f.mustDelete(bWest + "holders/one")
	f.gone(bWest + "holders/one")
	require.Len(t, f.get(ownee).GetOwnerReferences(), 1)
	f.mustDelete(bEast + "holders/two")
	f.gone(ownee, bEast+"holders/two")

	// An owner that never exists, after its grace period; an owner that drops a required reference; an owner
	// with unset_on_delete.
	f.mustPut(ownee, nil, ownedBy("Holder", bWest+"holders/nobody"))
	f.gone(ownee)
	f.mustPut(bWest+"holders/one", nil)
	requires, unsets := ownedBy("Holder", bWest+"holders/one"), ownedBy("Holder", bWest+"holders/one")
	requires.RequiresOwnerReference, unsets.UnsetOnDelete = true, true
	f.mustPut(ownee, nil, requires)
	f.mustPut(bWest+"holders/one", fields{"block": ownee})
	f.pinned(ownee, 1)
	f.mustPut(bWest+"holders/one", nil)
	f.gone(ownee)
	f.mustPut(ownee, nil, unsets)
	f.pinned(ownee, 1)
	f.mustDelete(bWest + "holders/one")
	f.gone(bWest + "holders/one")
	require.Empty(t, f.get(ownee).GetOwnerReferences())
	f.settled()
}

// Owners are deleted while one side's controller, then the other's, is dead or disabled.
func TestOwnersGoWhileControllersAreDown_I15_I17(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "--owner-grace", "1s")
	const ownee, late = aEast + "targets/owned", aEast + "targets/late"
	owner, ownees := f.Deployments[f.id(bWest+"holders/one")], f.Deployments[f.id(ownee)]
	f.mustPut(bWest+"holders/one", nil)
	f.mustPut(bWest+"holders/two", nil)
	f.mustPut(ownee, nil, ownedBy("Holder", bWest+"holders/one"))
	f.pinned(ownee, 1)
	require.NoError(t, ownees.Kill())
	f.mustDelete(bWest + "holders/one")
	out, err := run(t, "explain", bWest+"holders/one", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "DELETING")
	require.Contains(t, out, "WAITING    for a.example.com/eastus2 to drop it as an owner")
	require.NoError(t, ownees.Start())
	f.ready("a.example.com/eastus2")
	f.gone(ownee, bWest+"holders/one")

	// While the owner's deployment cannot be reached, the owner is unknown.
	require.NoError(t, owner.Kill())
	f.mustPut(late, nil, ownedBy("Holder", bWest+"holders/two"))
	f.eventually("the reason is reported", func() bool {
		out, err := run(t, "explain", late, "--context", f.Context)
		return err == nil && len(out) > 0 && f.status("a.example.com/eastus2").GetFailures() != nil
	})
	out, err = run(t, "explain", late, "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "b.example.com/us-west2 has not confirmed all of its owners yet")
	require.Contains(t, out, "last error: check owners at b.example.com/us-west2")
	require.NotNil(t, f.get(late))
	require.NoError(t, owner.Start())
	f.ready("b.example.com/us-west2")
	f.pinned(late, 1)
	f.settled()
}

// A disabled deployment answers no caller: its resources are unknown, not absent, as are the resources of a
// deployment that was removed from the environment. Owners in a deployment that was never in it are refused
// for now.
func TestOwnersInADisabledDeployment_I15_I27(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "--owner-grace", "1s")
	const ownee, orphan = aEast + "targets/owned", aEast + "targets/orphan"
	applyText := func(text string) {
		file := filepath.Join(t.TempDir(), "d.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		out, err := run(t, "apply", file, "--context", f.Context)
		require.NoError(t, err, out)
	}
	apply := func(disabled bool) {
		applyText(fmt.Sprintf("deployments: [{deployment: b.example.com/us-west2, version: v1, disabled: %v}]\n",
			disabled))
	}
	f.mustPut(bWest+"holders/one", nil)
	apply(true)
	f.mustPut(ownee, nil, ownedBy("Holder", bWest+"holders/one"))
	thing := ownedBy("Thing", "//c.example.com/us-west2/things/x")
	_, err := f.put(orphan, nil, thing)
	require.Equal(t, codes.Unavailable, status.Code(err), "nothing is stored for a deployment that may be made up")
	applyText(
		"service: c.example.com\nversion: v1\nkinds: [{kind: Thing, patterns: [\"things/{thing}\"]}]\n---\ndeployments: [{deployment: c.example.com/us-west2, version: v1}]\n")
	f.mustPut(orphan, nil, thing)
	out, err := run(t, "remove", "c.example.com/us-west2", "--context", f.Context)
	require.NoError(t, err, out)
	f.eventually("both are asked for in vain", func() bool {
		told := map[string]bool{}
		for _, failure := range f.status("a.example.com/eastus2").GetFailures() {
			told[failure.GetDeployment()] = time.Since(f.get(orphan).GetCreateTime().AsTime()) > 2*time.Second
		}
		return told["b.example.com/us-west2"] && told["c.example.com/us-west2"]
	})
	require.NotNil(t, f.get(ownee), "the grace is over, and nothing is known")
	require.NotNil(t, f.get(orphan))
	apply(false)
	f.pinned(ownee, 1)
	f.mustDelete(bWest + "holders/one")
	f.gone(ownee)
	require.NotNil(t, f.get(orphan))
}

// A version is switched while users write and a cascade runs; owner references everywhere follow.
func TestAVersionSwitch_I26(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const target, dangling = aWest + "targets/t", aWest + "targets/d"
	f.mustPut(target, nil)
	f.mustPut(dangling, nil)
	f.mustPut(bEast+"holders/old", fields{"note": target, "dangling": dangling})
	f.mustPut(bEast+"holders/wrong", fields{"note": aWest + "targets/none"})
	f.mustPut(aEast+"targets/owned", nil, ownedBy("Holder", bEast+"holders/old"))
	f.pinned(aEast+"targets/owned", 1)
	id := f.id(bEast + "holders/x")
	require.NoError(t, dev.PutMany(t.Context(), f.Client, id, "holders/h", 3000, fields{"cascade": target}))
	f.mustPut(aWest+"targets/root", nil)
	require.NoError(t, dev.PutMany(t.Context(), f.Client, id, "holders/c", 6000,
		fields{"cascade": aWest + "targets/root"}))
	f.mustDelete(aWest + "targets/root")
	f.switchVersion("b.example.com/eastus2", "v2") // in the middle of it
	writes := make(chan error, 1)
	go func() {
		for i := range 20 {
			if _, err := f.put(fmt.Sprintf("%sholders/new%d", bEast, i), fields{"note": target}); err != nil {
				writes <- err
				return
			}
		}
		writes <- nil
	}()
	f.gone(aWest+"targets/root", bEast+"holders/c6000")
	require.NoError(t, <-writes)
	f.eventually("what can be derived is", func() bool {
		d := f.status("b.example.com/eastus2").GetDerivations()
		return len(d) == 1 && d[0].GetSetAside() == 1 && len(f.status("b.example.com/eastus2").GetOutstanding()) == 1
	})
	out, err := run(t, "status", "b.example.com/eastus2", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "b.example.com/eastus2 runs v2")
	require.Contains(t, out, "1 set aside")
	out, err = run(t, "explain", bEast+"holders/wrong", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "note: "+aWest+"targets/none does not exist")
	f.mustPut(aWest+"targets/none", nil)
	f.settled()

	require.Equal(t, "Keeper", f.get(bEast+"holders/old").GetKind())
	require.Equal(t, "v2", f.get(aEast + "targets/owned").GetOwnerReferences()[0].GetVersion())
	require.Equal(t, "Keeper", f.get(aEast + "targets/owned").GetOwnerReferences()[0].GetKind())
	require.ErrorContains(t, f.delete(target), "(note)")
	require.NoError(t, f.delete(dangling), "cascades now")
	f.gone(dangling, bEast+"holders/old", aEast+"targets/owned")
	// The other region still runs v1, and continues; the target's service renames its kind.
	f.mustPut(bWest+"holders/v1", fields{"block": target})
	f.switchVersion("a.example.com/us-west2", "v2")
	require.Equal(t, "Goal", f.get(target).GetKind())
	f.mustPut(bWest+"holders/v1b", fields{"block": target})
	require.EventuallyWithT(t, func(c *assert.CollectT) { // a deployment that does not answer in time is not counted
		require.ErrorContains(c, f.delete(target), "and 17 more", "twenty new ones, and two of the other region")
	}, wait.Limit, wait.Poll)
	f.settled()
}

// The environment is empty, or lacks the deployment: processes continue (I27).
func TestASwitchToAnUndescribedVersionIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	out, err := run(t, "set-version", "b.example.com/eastus2", "v9", "--context", f.Context)
	require.Error(t, err)
	require.Contains(t, out, "there is no descriptor of b.example.com@v9")
	out, err = run(t, "set-version", "c.example.com/eastus2", "v1", "--context", f.Context)
	require.Error(t, err)
	require.Contains(t, out, "deployment c.example.com/eastus2 is not registered")
}

// Two owners in one or two deployments are deleted in one deletion, many times: the one without
// unset_on_delete decides each time.
func TestEqualDeletionsOfTwoOwnersEndEqually_I17(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const n = 24
	var all []string
	for i := range n {
		root := fmt.Sprintf("%stargets/root%d", aWest, i)
		flagged, plain := fmt.Sprintf("%sholders/flagged%d", bWest, i), fmt.Sprintf("%sholders/plain%d",
			[]string{bEast, bWest}[i%2], i)
		f.mustPut(root, nil)
		f.mustPut(flagged, fields{"cascade": root})
		f.mustPut(plain, fields{"cascade": root})
		lets := ownedBy("Holder", flagged)
		lets.UnsetOnDelete = true
		ownee := fmt.Sprintf("%stargets/owned%d", aEast, i)
		f.mustPut(ownee, nil, lets, ownedBy("Holder", plain))
		all = append(all, root, flagged, plain, ownee)
	}
	for i := range n {
		f.pinned(fmt.Sprintf("%stargets/owned%d", aEast, i), 2)
	}
	f.settled()
	for i := range n {
		f.mustDelete(fmt.Sprintf("%stargets/root%d", aWest, i))
	}
	f.gone(all...)
	f.settled()
}
