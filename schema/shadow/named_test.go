package shadow_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
)

// numbered counts the deployments and kinds with numbers, which are stored for good.
func numbered(t *testing.T, b *harness.Box, deployment string) (n int) {
	t.Helper()
	require.NoError(t, b.Pools[b.ID(deployment)].QueryRow(t.Context(),
		`SELECT (SELECT count(*) FROM dbcontroller.deployment) + (SELECT count(*) FROM dbcontroller.kind)`).Scan(&n))
	return n
}

// An owner of a wrong kind would never be found, and its ownee collected: a name that no described version
// gives to the kind is refused. Of a renamed kind each name and pattern counts.
func TestAnOwnersNameFitsItsKind_I16(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }, { kind: Other, patterns: ["others/{other}"] }]
---
service: a.example.com
version: v2
patterns_dropped: keep
kinds: [{ kind: Thing, previous_name: Target, patterns: ["things/{thing}"] }, { kind: Other, patterns: ["others/{other}"] }]
---
service: b.example.com
version: v1
kinds: [{ kind: Holder, patterns: ["holders/{holder}"] }]
`, nil, aWest, bEast)
	require.NoError(t, b.Stores[b.ID(bEast)].Gate.Recover(t.Context(), b.Environment()))
	for name, kinds := range map[string][]string{
		"targets/t": {"Other"}, "things/t": {"Other"},
		"others/o": {"Target", "Thing"}, "nothings/n": {"Target", "Other"},
	} {
		for _, kind := range kinds {
			_, err := b.PutOwned(holder, nil, owner(t, "//"+aWest+"/"+name, kind))
			require.ErrorAs(t, err, new(*peer.UnavailableError), "the environment may know the version later")
			require.EqualError(t, err, "the name "+name+" fits no pattern of kind "+kind+
				" in any version of a.example.com "+peer.ErrUndescribed.Error())
		}
	}
	for name, kinds := range map[string][]string{
		"targets/t": {"Target", "Thing"}, "things/t": {"Target", "Thing"},
		"others/o": {"Other"},
	} {
		for _, kind := range kinds {
			_, err := b.PutOwned(holder, nil, owner(t, "//"+aWest+"/"+name, kind))
			require.NoError(t, err, "%s %s", kind, name)
		}
	}
}

// Requests of people and messages of other deployments can name any regions, services and kinds: a name that
// the environment does not list gets no number, which would stay for good, in memory and in the database.
func TestMadeUpNamesAreNotStored_I20(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(bEast)]
	require.NoError(t, store.Gate.Recover(t.Context(), b.Environment()))
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	_, err := b.PutOwned(holder, nil, owner(t, target, "Target"))
	require.NoError(t, err)
	b.Settle()
	before := numbered(t, b, bEast)

	var away *peer.UnavailableError
	for i := range 20 {
		elsewhere := fmt.Sprintf("//a.example.com/mars-%d/targets/t", i)
		_, err := b.Put(holder, body{"block": elsewhere})
		refusedFor(t, err, peer.TargetUnreadable)
		require.ErrorContains(t, err, elsewhere)
		require.ErrorContains(t, err, "not in the environment")
		_, err = b.PutOwned(holder, nil, owner(t, elsewhere, "Target"))
		require.ErrorAs(t, err, &away)
		_, err = b.PutOwned(holder, nil, owner(t, target, fmt.Sprintf("Kind%d", i)))
		require.ErrorAs(t, err, &away)
		require.ErrorContains(t, err, "of no version of a.example.com")
	}
	var gone []peer.PlanTarget
	renamed := map[string]string{}
	for i := range 10_000 {
		gone = append(gone, peer.PlanTarget{Deployment: schema.DeploymentID{
			Service: "a.example.com",
			Region:  fmt.Sprintf("mars-%d", i),
		}, UID: uuid.New()})
		renamed[fmt.Sprintf("Old%d", i)] = fmt.Sprintf("New%d", i)
	}
	plan, err := store.Deletions.Plan(t.Context(), peer.PlanQuestion{Targets: gone, Limit: 5})
	require.NoError(t, err)
	require.Empty(t, plan.Members)
	_, err = store.Owners.UpgradeOwners(t.Context(), b.ID(aWest), "v9", 9, renamed)
	require.NoError(t, err)
	_, err = store.Owners.UpgradeOwners(t.Context(), b.ID(aWest), "v10", 10, map[string]string{"Target": "New1"})
	require.ErrorAs(t, err, &away, "a kind that no version has")
	require.Equal(t, before, numbered(t, b, bEast))

	// A path of a map's values stands for all keys.
	roles := map[string]any{}
	for i := range 50 {
		roles[fmt.Sprintf("key%d", i)] = map[string]any{"who": target}
	}
	fields := func() (n int) {
		require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.field`).Scan(
			&n))
		return n
	}
	was := fields()
	b.MustPut(holder2, body{"roles": roles})
	require.LessOrEqual(t, fields(), was+1)
}
