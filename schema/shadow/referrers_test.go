package shadow_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// referrersOf reads all pages at one deployment.
func referrersOf(t *testing.T, store *shadow.Store,
	req shadow.ReferrersRequest,
) (lines []string, first *shadow.Referrers) {
	t.Helper()
	for pages := 0; ; pages++ {
		page, err := store.Operate.Referrers(context.Background(), req)
		require.NoError(t, err)
		if first == nil {
			first = page
		}
		require.LessOrEqual(t, len(page.List), req.Limit)
		for _, r := range page.List {
			lines = append(lines, fmt.Sprintf("%s %s %s %s", r.Kind, r.Name, r.Path, r.Behaviour))
		}
		if req.Token = page.Next; req.Token == "" {
			return lines, first
		}
		require.Less(t, pages, 100)
	}
}

// Each deployment lists its own referrers in pages of any size, and the target's names the deployments of the
// others.
func TestReferrersAreListedInPages(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut("//"+aWest+"/targets/near", body{"next": target, "peer": target})
	b.MustPut("//"+aWest+"/targets/t/children/c", nil)
	b.MustPut("//"+aEast+"/targets/far", body{"peer": target})
	for i := range 3 {
		b.MustPut(fmt.Sprintf("//%s/holders/h%d", bEast, i), body{"block": target, "list": []any{target, target2}})
	}
	mustOwn(t, b, "//"+bWest+"/holders/owned", nil, owner(t, target, "Target"))
	mustOwn(t, b, "//"+bEast+"/holders/h0", body{"block": target}, owner(t, target, "Target"))
	b.Settle()

	full, err := schema.ParseFullName(target)
	require.NoError(t, err)
	home := b.Stores[b.ID(aWest)]
	for limit := 1; limit < 5; limit++ {
		lines, first := referrersOf(t, home, shadow.ReferrersRequest{Target: full, Limit: limit})
		require.Equal(t, []string{
			"Target targets/near peer BLOCK", "Target targets/near next CASCADE_DELETE",
			"Child targets/t/children/c @parent CASCADE_DELETE",
		}, lines)
		require.Equal(t, b.Get(target).UID, first.UID)
		require.Equal(t, []schema.DeploymentID{b.ID(aEast), b.ID(bEast), b.ID(bWest)}, first.Deployments)

		at := shadow.ReferrersRequest{Target: full, UID: first.UID, Limit: limit}
		lines, elsewhere := referrersOf(t, b.Stores[b.ID(bEast)], at)
		require.Equal(t, []string{
			"Holder holders/h0 block BLOCK", "Holder holders/h1 block BLOCK", "Holder holders/h2 block BLOCK",
			"Holder holders/h1 list.* UNSET", "Holder holders/h2 list.* UNSET", "Holder holders/h0 @owner " +
				schema.Behaviour(0).String(),
		}, lines)
		require.Empty(t, elsewhere.Deployments)
		lines, _ = referrersOf(t, b.Stores[b.ID(bWest)], at)
		require.Len(t, lines, 1)

		at.Within = grant.Within{"Holder": grant.NameRanges("holders/h1")}
		lines, _ = referrersOf(t, b.Stores[b.ID(bEast)], at)
		require.Equal(t, []string{"Holder holders/h1 block BLOCK", "Holder holders/h1 list.* UNSET"}, lines,
			"what the caller may read")
	}
}

func TestReferrersOfNothing(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut("//"+aWest+"/targets/near", body{"next": target})
	home, ctx := b.Stores[b.ID(aWest)], t.Context()
	full, err := schema.ParseFullName(target)
	require.NoError(t, err)
	other, err := schema.ParseFullName(target2)
	require.NoError(t, err)
	none, err := schema.ParseFullName("//" + aWest + "/targets/none")
	require.NoError(t, err)

	_, err = home.Operate.Referrers(ctx, shadow.ReferrersRequest{Target: none, Limit: 1})
	require.ErrorIs(t, err, peer.ErrNotFound)
	_, err = home.Operate.Referrers(ctx, shadow.ReferrersRequest{Target: full, UID: uuid.New(), Limit: 1})
	require.ErrorIs(t, err, peer.ErrNotFound, "another incarnation")
	_, err = b.Stores[b.ID(bEast)].Operate.Referrers(ctx, shadow.ReferrersRequest{Target: full, Limit: 1})
	require.ErrorContains(t, err, "target_uid: is missing")
	page, err := home.Operate.Referrers(ctx, shadow.ReferrersRequest{Target: full, Limit: 1})
	require.NoError(t, err)
	require.NotEmpty(t, page.Next)
	for _, token := range []string{page.Next, "x"} {
		_, err = home.Operate.Referrers(ctx, shadow.ReferrersRequest{Target: other, Limit: 1, Token: token})
		require.ErrorContains(t, err, "page_token: ")
	}
	empty, err := b.Stores[b.ID(bEast)].Operate.Referrers(ctx, shadow.ReferrersRequest{
		Target: full,
		UID:    uuid.New(), Limit: 1,
	})
	require.NoError(t, err)
	require.Empty(t, empty.List)
	require.Empty(t, empty.Next)
}
