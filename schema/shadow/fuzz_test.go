package shadow_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// Arbitrary filters, orders and page tokens: each list is answered, or refused as the caller's error.
func FuzzLists(f *testing.F) {
	b := harness.NewBox(f, services, nil, aWest)
	store := b.Stores[b.ID(aWest)]
	_, err := store.Write.Save(context.Background(),
		[]peer.Write{{Name: "targets/t", Labels: map[string]string{"a": "b"}, Body: body{"x": 1, "y": body{"z": "w"}}}})
	require.NoError(f, err)
	for _, seed := range [][3]string{
		{`labels.a = "b"`, "name", ""},
		{`body.x > 0 AND NOT body.y.z:"w"`, "create_time desc", ""},
		{`state = ACTIVE OR name = "targets/*"`, "body.x", "e30"},
		{`create_time > "2020-01-01T00:00:00Z"`, "uid,kind", "x"},
		{`'; DROP TABLE x; --`, `name; --`, `W10`},
		{`((((`, ",", "\x00"},
		{`body.x = 1e999`, "", ""},
		{`a = "\x00"`, "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, filter, order, token string) {
		_, _, err := store.Read.List(t.Context(), shadow.ListRequest{
			Filter: filter, OrderBy: order, Token: token,
			Limit: 10,
		})
		if err != nil && !errors.As(err, new(*peer.InvalidError)) {
			t.Fatalf("filter %q, order %q, token %q: %v", filter, order, token, err)
		}
	})
}

// Messages about one blockade in any order and number, from its holder's deployment and from another: the
// final state follows from the attempt's decision alone, and no other row protects the target (I5, I7, I8).
func FuzzBlockades(f *testing.F) {
	b := harness.NewBox(f, services, func(c *shadow.Config) {
		c.Times.TentativeTTL = time.Millisecond
	}, aWest, bEast, bWest)
	at, holder, other := b.ID(aWest), b.ID(bEast), b.ID(bWest)
	target, pool := b.Stores[at], b.Pools[at]
	for _, seed := range []string{
		"", "ec", "er", "ecr", "rec", "cer", "eec", "erc", "eac", "aec", "eEcR", "eCcA",
		"ecx", "xec", "erex", "ececrr", "e",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, messages []byte) {
		if len(messages) > 20 {
			return
		}
		ctx := t.Context()
		name := "targets/" + uuid.NewString()
		saved, err := target.Write.Save(ctx, []peer.Write{{Name: name}})
		require.NoError(t, err)
		attempt, uid := uuid.Must(uuid.NewV7()), uuid.New()
		key := peer.BlockadeKey{Attempt: attempt, HolderUID: uid, Path: "block", TargetUID: saved[0].UID}
		over := false
		for _, m := range messages {
			by := holder
			if m >= 'A' && m <= 'Z' { // from another deployment, with the right key
				by, m = other, m-'A'+'a'
			}
			epoch := b.Stores[by].Gate.PresentEpoch()
			fromHolder := by == holder
			switch m {
			case 'e':
				_, err := target.Targets.Establish(ctx, holder, attempt, []peer.EstablishReference{{
					HolderUID: uid, HolderKind: "Holder", HolderName: "holders/h", Path: "block", TargetKind: "Target",
					TargetName: name, Behaviour: schema.Block,
				}})
				require.Equal(t, over, err != nil, "%q: %v", messages, err)
			case 'c':
				_, _ = target.Targets.Confirm(ctx, by, peer.Confirm{
					Epoch: epoch, Attempts: []peer.AttemptID{attempt},
					Delegable: true,
				})
			case 'r':
				require.NoError(t, target.Targets.Release(ctx, by, epoch, []peer.BlockadeKey{key}, nil))
				over = over || fromHolder
			case 'a':
				require.NoError(t, target.Targets.Release(ctx, by, epoch, nil, []peer.AttemptID{attempt}))
				over = over || fromHolder
			case 'x':
				_ = b.Resolve(at)
			}
		}
		count := func(sql string) (n int) {
			require.NoError(t, pool.QueryRow(ctx, sql).Scan(&n))
			return n
		}
		if over {
			require.Zero(t, count(`SELECT count(*) FROM dbcontroller.blockade`), "%q", messages)
		}
		// The holder's deployment has no such attempt: after any messages, the resolve reports "gone".
		_, err = target.Deletions.Delete(ctx, shadow.DeleteRequest{Name: name})
		require.NoError(t, err, "%q", messages)
		require.Zero(t, count(`SELECT count(*) FROM dbcontroller.blockade`), "%q", messages)
	})
}
