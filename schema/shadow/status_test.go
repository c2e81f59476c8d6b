package shadow_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// A status is stored apart from the body: each has a generation of its own, neither write touches the other's
// value, and watches and lists have both.
func TestAStatusIsApartFromTheBody(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, ctx := b.Stores[b.ID(bEast)], context.Background()
	b.MustPut(target, nil)
	made := b.MustPut(holder, body{"cascade": target, "x": 1})
	update := func(status string, generation *int64) (*peer.Resource, error) {
		var text []byte
		if status != "" {
			text = []byte(status)
		}
		return store.Write.UpdateStatus(ctx, "holders/h", made.UID, text, generation)
	}
	generations := func(r *peer.Resource, body, status int64, text string) {
		t.Helper()
		require.Equal(t, []any{body, status}, []any{r.Generation, r.StatusGeneration})
		require.Equal(t, text, string(r.Status))
	}
	first, err := update(`{"phase": "new"}`, new(int64))
	require.NoError(t, err)
	generations(first, 1, 1, `{"phase": "new"}`)
	require.Greater(t, first.Revision, made.Revision)
	again, err := update(`{"phase":"new"}`, new(int64)) // the answer was lost: the same call
	require.NoError(t, err)
	require.Equal(t, first.Revision, again.Revision)
	_, err = update(`{"phase": "other"}`, new(int64))
	require.ErrorIs(t, err, peer.ErrConflict)
	_, err = store.Write.UpdateStatus(ctx, "holders/h", uuid.New(), nil, nil)
	require.ErrorIs(t, err, peer.ErrNotFound)
	for _, bad := range []string{`{"x": "` + strings.Repeat("x", 64<<10) + `"}`, `{"x": "\u0000"}`} {
		_, err = update(bad, nil)
		require.ErrorAs(t, err, new(*peer.InvalidError))
	}
	put := b.MustPut(holder, body{"cascade": target, "x": 2})
	generations(&put, 2, 1, `{"phase": "new"}`)
	generations(b.Get(holder), 2, 1, `{"phase": "new"}`)
	found, _, err := store.Read.List(ctx, shadow.ListRequest{Kind: "Holder", Limit: 10})
	require.NoError(t, err)
	generations(&found[0], 2, 1, `{"phase": "new"}`)

	var token string
	follow := func(n int) (seen []peer.Resource) {
		enough := errors.New("enough")
		err := store.Read.WatchResources(ctx, "Holder", "", token, func(e schema.Event[peer.Resource]) error {
			seen = append(seen, e.Items...)
			if e.Token != "" {
				token = e.Token
			}
			if token != "" && len(seen) >= n {
				return enough
			}
			return nil
		})
		require.ErrorIs(t, err, enough)
		return seen
	}
	snapshot := follow(1)
	generations(&snapshot[0], 2, 1, `{"phase": "new"}`)
	_, err = update(`{"phase": "ready"}`, nil)
	require.NoError(t, err)
	b.MustPut(holder, body{"cascade": target, "x": 3})
	b.Settle()
	protect(t, b, target, true)
	protect(t, b, target, false)
	b.MustDelete(target)
	seen := follow(2)
	generations(&seen[0], 2, 2, `{"phase": "ready"}`)
	generations(&seen[1], 3, 2, `{"phase": "ready"}`)
	protect(t, b, holder, true) // it stays in DELETING
	b.Settle()
	deleting := b.Get(holder)
	require.Equal(t, peer.Deleting, deleting.State)
	generations(deleting, 3, 2, `{"phase": "ready"}`)
	late, err := update(`{"phase": "leaving"}`, nil)
	require.NoError(t, err, "in DELETING too")
	generations(late, 3, 3, `{"phase": "leaving"}`)
	require.Equal(t, deleting.UpdatedAt, late.UpdatedAt, "the time of the mark, by which long waits are found")
	gone, err := update("", nil)
	require.NoError(t, err)
	generations(gone, 3, 4, "")
	protect(t, b, holder, false)
	b.Settle()
	b.Gone(holder, target)
	b.Audit()
}
