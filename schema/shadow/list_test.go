package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

func TestListsFilterOrderAndPage(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, ctx := b.Stores[b.ID(aWest)], context.Background()
	var writes []peer.Write
	for i := range 25 {
		labels := map[string]string{"team": []string{"red", "blue"}[i%2]}
		content := body{
			"size": i % 7, "tag": fmt.Sprintf("t_%d", i%3), "on": i%2 == 0,
			"list": []any{"a", fmt.Sprint(i)}, "deep": body{"er": fmt.Sprint(i)},
		}
		if i == 24 {
			content = body{"size": "large"}
		}
		writes = append(writes, peer.Write{Name: fmt.Sprintf("targets/n%02d", i), Labels: labels, Body: content})
	}
	writes = append(writes, peer.Write{Name: "targets/n00/children/c"})
	_, err := store.Write.Save(ctx, writes)
	require.NoError(t, err)

	all := func(req shadow.ListRequest) (names []string) {
		t.Helper()
		for {
			found, next, err := store.Read.List(ctx, req)
			require.NoError(t, err, req.Filter)
			require.LessOrEqual(t, len(found), req.Limit)
			for _, r := range found {
				names = append(names, strings.TrimPrefix(r.Name, "targets/"))
			}
			if req.Token = next; next == "" {
				return names
			}
		}
	}
	for filter, want := range map[string]int{
		``: 26, `kind = "Child"`: 1, `labels.team = "red"`: 13, `labels.team != "red"`: 13, `labels:team`: 25,
		`labels:nothing`:                         0,
		`body.size > 4 AND labels.team = "blue"`: 3, `body.size = 3 OR body.size = 4`: 6, `NOT body.size < 100`: 2,
		`body.size = "large"`: 1,
		`body.on = true`:      12, `body.on = null`: 2, `body.on != null`: 24, `body.tag = "t_*"`: 24,
		`body.tag = "t*1"`: 8,
		`body.tag = "t%"`:  0,
		`body.list:"7"`:    1, `body.deep:er`: 24, `body.deep.er = "7"`: 1, `body.list:*`: 24,
		`name = "targets/n0*"`:  11,
		`-name = "targets/n0*"`: 15,
		`state = ACTIVE`:        26, `state = DELETING`: 0, `create_time < "2020-01-01T00:00:00Z"`: 0,
		`create_time > "2020-01-01T00:00:00Z"`: 26,
		`revision > 0 generation = 1`:          26, `body.size >= 1.5 AND body.size <= 2.5`: 4, `body.nothing > 3`: 0,
		`body.tag = "'; DROP TABLE x; --"`: 0, `(labels.team = "red" AND body.on = true) OR name = "targets/n01"`: 13,
	} {
		require.Len(t, all(shadow.ListRequest{Filter: filter, Limit: 7}), want, filter)
	}
	require.Equal(t, []string{"n20", "n13", "n06", "n19", "n12", "n05"},
		all(shadow.ListRequest{Kind: "Target", OrderBy: "body.size desc, name desc", Limit: 3})[:6],
		"by jsonb's own order, in which numbers are greater than strings")
	ordered := all(shadow.ListRequest{
		Kind: "Target", Filter: `body.on = true`,
		OrderBy: "labels.team, body.size desc, name", Limit: 5,
	})
	require.Len(t, ordered, 12)
	require.Equal(t, []string{"n06", "n20", "n12", "n04", "n18"}, ordered[:5])
	byRevision := all(shadow.ListRequest{OrderBy: "revision desc", Limit: 4})
	require.Len(t, byRevision, 26)
	require.Equal(t, "n24", byRevision[1])

	for says, req := range map[string]shadow.ListRequest{
		"want the next_page_token":         {Limit: 1, Token: "nonsense"},
		"want comparisons such as":         {Limit: 1, Filter: "red"},
		"unknown field":                    {Limit: 1, Filter: `hue = "red"`},
		"want a whole number":              {Limit: 1, Filter: `revision = "x"`},
		"want a time such as":              {Limit: 1, Filter: `create_time > 5`},
		"want = or != with ACTIVE":         {Limit: 1, Filter: `state > ACTIVE`},
		"order_by: unknown field \"size\"": {Limit: 1, OrderBy: "size"},
		"unknown kind":                     {Limit: 1, Kind: "Robot"},
		"at most 4096 are allowed":         {Limit: 1, Filter: strings.Repeat("x", 5000)},
	} {
		_, _, err := store.Read.List(ctx, req)
		require.ErrorAs(t, err, new(*peer.InvalidError), says)
		require.ErrorContains(t, err, says)
	}
	_, next, err := store.Read.List(ctx, shadow.ListRequest{Kind: "Target", Limit: 2})
	require.NoError(t, err)
	_, _, err = store.Read.List(ctx, shadow.ListRequest{
		Kind: "Target", Limit: 2, Token: next,
		Filter: `body.on = true`,
	})
	require.ErrorContains(t, err, "of a list of another kind, filter or order")
}

func TestAWatchWithAFilterTellsWhatComesAndGoes(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, body{"on": true})
	b.MustPut(target2, body{"on": false})
	done := errors.New("done")
	var seen []string
	primed := false
	err := b.Stores[b.ID(aWest)].Read.WatchResources(context.Background(), "Target", `body.on = true`, "",
		func(e schema.Event[peer.Resource]) error {
			for _, r := range e.Items {
				what := "has "
				if r.State == peer.Gone {
					what = "not "
					require.Nil(t, r.Body, "a resource that no longer matches has no body")
				}
				seen = append(seen, what+r.Name)
			}
			if e.EndOfSnapshot {
				primed = true
				require.Equal(t, []string{"has targets/t"}, seen)
				b.MustPut(target2, body{"on": true})
				b.MustPut(target, body{"on": false})
				b.MustDelete(target2)
			}
			if primed && len(seen) == 4 {
				return done
			}
			return nil
		})
	require.ErrorIs(t, err, done)
	require.Equal(t, []string{"has targets/t", "has targets/t2", "not targets/t", "not targets/t2"}, seen)
}

func TestMaskedUpdatesReplaceOnlyWhatTheyName(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, ctx := b.Stores[b.ID(bEast)], context.Background()
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	_, err := store.Write.Save(ctx, []peer.Write{{
		Name: "holders/h", Labels: map[string]string{"a": "1", "b": "2"},
		Owners: []peer.OwnerReference{owner(t, target, "Target")},
		Body: body{
			"block": target, "unset": target, "deep": body{"x": 1, "y": 2}, "keep": "me",
			"big": 12345678901234567,
		},
	}})
	require.NoError(t, err)
	update := func(w peer.Write) error {
		w.Name, w.Mode = "holders/h", peer.Update
		_, err := store.Write.Save(ctx, []peer.Write{w})
		return err
	}
	require.NoError(t, update(peer.Write{
		Mask: []string{"body.unset", "body.deep.y", "labels.b", "body.deep.z"},
		Body: body{"deep": body{"y": 3}, "keep": "not this"},
	}))
	r := b.Get(holder)
	require.JSONEq(t, `{"block": "`+target+`", "deep": {"x": 1, "y": 3}, "keep": "me", "big": 12345678901234567}`,
		string(r.Body))
	require.Contains(t, string(r.Body), "12345678901234567", "digit by digit")
	require.Equal(t, map[string]string{"a": "1"}, r.Labels)
	require.Len(t, r.Owners, 1)
	require.NoError(t, update(peer.Write{
		Mask:   []string{"owner_references", "labels", "body.block"},
		Labels: map[string]string{"c": "3"}, Body: body{"block": target2},
	}))
	b.Settle()
	require.Empty(t, b.Get(holder).Owners)
	require.Equal(t, map[string]string{"c": "3"}, b.Get(holder).Labels)
	b.MustDelete(target)
	b.Settle()
	b.Gone(target)
	_, err = b.Delete(target2)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	require.NoError(t, update(peer.Write{Mask: []string{"*"}, Body: body{"only": "this"}}))
	require.JSONEq(t, `{"only": "this"}`, string(b.Get(holder).Body))
	for says, mask := range map[string]string{
		"want labels":                          "uid",
		"not a message in the stored resource": "body.only.x",
	} {
		require.ErrorContains(t, update(peer.Write{Mask: []string{mask}, Body: body{"only": body{"x": 1}}}), says)
	}
	require.ErrorIs(t, func() error {
		_, err := store.Write.Save(ctx,
			[]peer.Write{{Name: "holders/nobody", Mode: peer.Update, Mask: []string{"labels"}}})
		return err
	}(), peer.ErrNotFound)
	b.Settle()
	b.Audit()
}

// Validate runs all checks of a save, checks at other deployments included, and stores nothing anywhere.
func TestValidateChecksEverythingAndStoresNothing(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, ctx := b.Stores[b.ID(bEast)], context.Background()
	b.MustPut(target, nil)
	would, err := store.Write.Validate(ctx, peer.Write{Name: "holders/h", Body: body{"block": target}})
	require.NoError(t, err)
	require.Equal(t, "Holder", would.Kind)
	var refused *peer.RefusedError
	for _, content := range []body{{"block": "//" + aWest + "/targets/none"}, {"near": body{"block": "holders/none"}}} {
		_, err = store.Write.Validate(ctx, peer.Write{Name: "holders/h", Body: content})
		require.ErrorAs(t, err, &refused)
		require.Equal(t, peer.TargetMissing, refused.Refusals[0].Reason)
	}
	b.SetDown(aWest, true)
	_, err = store.Write.Validate(ctx, peer.Write{Name: "holders/h", Body: body{"block": target}})
	require.ErrorAs(t, err, &refused)
	require.Equal(t, peer.TargetUnreadable, refused.Refusals[0].Reason)
	b.SetDown(aWest, false)
	_, err = store.Write.Validate(ctx, peer.Write{Mode: peer.Update, Name: "holders/h"})
	require.ErrorIs(t, err, peer.ErrNotFound)
	require.Nil(t, b.Get(holder))
	for _, table := range []string{"blockade", "work"} {
		require.Zero(t, b.Count(aWest, table))
		require.Zero(t, b.Count(bEast, table))
	}
	require.True(t, b.MustDelete(target).Removed)
}
