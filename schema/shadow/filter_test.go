package shadow_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// A filter's function names and operators never become text of a statement.
func TestAFilterIsNoSQL(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, ctx := b.Stores[b.ID(aWest)], t.Context()
	b.MustPut(target, nil)
	for _, filter := range []string{
		`IS/**/NULL/**/OR/**/true/**/OR/**/x.name/**/LIKE(name, "no such name")`,        // all resources
		`IS/**/NOT/**/NULL/**/AND/**/current_user/**/NOT/**/LIKE(name, "no such user")`, // would query the server
		`~(name, "t$")`, // regular expressions, which can run for a long time
		`foo(name, "x")`, `;DROP(name, "x")`,
	} {
		found, _, err := store.Read.List(ctx, shadow.ListRequest{Filter: filter, Limit: 10})
		require.Empty(t, found, filter)
		require.ErrorAs(t, err, new(*peer.InvalidError), filter)
	}
}

// Values that PostgreSQL cannot store are the caller's errors, not internal errors.
func TestNULsAndMadeUpTokensAreInvalid(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, ctx := b.Stores[b.ID(aWest)], t.Context()
	b.MustPut(target, nil)
	bad := func(what string, err error) {
		require.ErrorAs(t, err, new(*peer.InvalidError), what)
	}
	for _, filter := range []string{"name = \"a\x00\"", "body.\"a\x00\" = 1", "labels:\"\x00\""} {
		_, _, err := store.Read.List(ctx, shadow.ListRequest{Filter: filter, Limit: 1})
		bad("filter", err)
	}
	token := func(req shadow.ListRequest, change func(map[string]any)) string {
		_, next, err := store.Read.List(ctx, req)
		require.NoError(t, err)
		raw, err := base64.RawURLEncoding.DecodeString(next)
		require.NoError(t, err)
		cursor := map[string]any{}
		require.NoError(t, json.Unmarshal(raw, &cursor))
		change(cursor)
		raw, err = json.Marshal(cursor)
		require.NoError(t, err)
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	req := shadow.ListRequest{Limit: 1, OrderBy: "body.n"}
	for _, v := range []string{`1e400000`, `"\u0000"`, `"\ud800"`} {
		req.Token = ""
		req.Token = token(req, func(c map[string]any) { c["v"].([]any)[0] = json.RawMessage(v) })
		_, _, err := store.Read.List(ctx, req)
		bad("token "+v, err)
	}
	req = shadow.ListRequest{Limit: 1}
	req.Token = token(req, func(c map[string]any) { c["n"] = "a\x00" })
	_, _, err := store.Read.List(ctx, req)
	bad("token name", err)
	w := peer.Write{Name: "targets/x", Labels: map[string]string{"a": "\x00"}}
	_, err = store.Write.Save(ctx, []peer.Write{w})
	bad("label", err)
	_, err = store.Write.Validate(ctx, w)
	bad("label, validated", err)
}

// In a database whose collation is not C, a filter means the same in a list, in a watch's snapshot and in its
// changes.
func TestAFilterMeansTheSameInAListAndInAWatch(t *testing.T) {
	b, ctx := newPair(t, nil), t.Context()
	c := b.Pools[b.ID(aWest)].Config().ConnConfig
	name := c.Database + "_en"
	_, err := b.Pools[b.ID(aWest)].Exec(ctx, `CREATE DATABASE `+name+
		` TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'`)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := b.Pools[b.ID(aWest)].Exec(context.WithoutCancel(ctx), `DROP DATABASE `+name+` WITH (FORCE)`)
		require.NoError(t, err)
	})
	dsn := fmt.Sprintf("host=%s port=%d user=%s password=%s dbname=%s sslmode=disable", c.Host, c.Port, c.User,
		c.Password, name)
	_, err = migrations.Up(ctx, dsn, migrations.Deployment)
	require.NoError(t, err)
	pool, err := postgres.Connect(ctx, dsn, "test", 8)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store, err := shadow.Open(ctx, shadow.Config{Pool: pool, Deployment: b.ID(aWest)})
	require.NoError(t, err)
	require.NoError(t, store.Admin.Switch(ctx, b.Stores[b.ID(aWest)].Model()))
	filter := `name > "targets/a"` // compared by bytes: B is before a
	done := errors.New("done")
	var seen []string
	err = store.Read.WatchResources(ctx, "Target", filter, "", func(e schema.Event[peer.Resource]) error {
		for _, r := range e.Items {
			if r.State == peer.Active {
				seen = append(seen, r.Name)
			}
			if r.Name == "targets/z" {
				return done
			}
		}
		if e.EndOfSnapshot {
			for _, name := range []string{"targets/B", "targets/z"} {
				_, err := store.Write.Save(ctx, []peer.Write{{Name: name}})
				require.NoError(t, err)
			}
		}
		return nil
	})
	require.ErrorIs(t, err, done)
	found, _, err := store.Read.List(ctx, shadow.ListRequest{Kind: "Target", Filter: filter, Limit: 10})
	require.NoError(t, err)
	var listed []string
	for _, r := range found {
		listed = append(listed, r.Name)
	}
	require.Equal(t, listed, seen)
}

func TestNotEqualWithAStarIsTheContraryOfEqual(t *testing.T) {
	b := newPair(t, nil)
	b.MustPut(target, nil) // lacks the field of the filter
	store := b.Stores[b.ID(aWest)]
	for _, f := range []string{`body.tag != "red"`, `body.tag != "re*"`} {
		found, _, err := store.Read.List(t.Context(), shadow.ListRequest{Filter: f, Limit: 10})
		require.NoError(t, err)
		require.Len(t, found, 1, f)
	}
}
