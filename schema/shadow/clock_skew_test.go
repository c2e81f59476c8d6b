package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
	"github.com/db-controller/db-controller/test/wait"
)

// uuidNow is the clock of new attempt ids.
//
//go:linkname uuidNow github.com/google/uuid.timeNow
var uuidNow func() time.Time

// The clocks of two deployments differ by an hour, in either direction: blockades expire by the target's
// clock alone, and the date in an attempt's id, which is the holder's, is believed.
func TestClocksAnHourApart_I5_I7_I8(t *testing.T) { // alone: all tests share the clock
	honest := uuidNow
	defer func() { uuidNow = honest }()
	for _, apart := range []time.Duration{time.Hour, -time.Hour} {
		uuidNow = func() time.Time { return honest().Add(apart) }
		b := newPair(t, nil)
		b.MustPut(target, nil)
		b.MustPut(target2, nil)
		b.MustPut(holder, body{"block": target})
		require.Equal(t, 1, b.Count(aWest, "tentative"))
		require.NoError(t, b.Resolve(b.ID(aWest)))
		require.Equal(t, 1, b.Count(aWest, "tentative"), "it has not expired by the target's clock")
		_, err := b.Delete(target)
		require.ErrorContains(t, err, "is referred to by")
		b.Expire(aWest)
		b.Settle()
		require.Zero(t, b.Count(aWest, "tentative"))

		// With a clock that differs: an attempt that is never decided, and an aborted one.
		attempt := newAttempt()
		ref := reference("block", schema.Block, newAttempt())
		_, err = b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), b.ID(bEast), attempt,
			[]peer.EstablishReference{ref})
		require.NoError(t, err)
		require.NoError(t, b.Stores[b.ID(aWest)].Targets.Release(t.Context(), b.ID(bEast),
			b.Stores[b.ID(bEast)].Gate.PresentEpoch(), nil, []peer.AttemptID{attempt}))
		_, err = b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), b.ID(bEast), attempt,
			[]peer.EstablishReference{ref})
		require.Error(t, err, "it was released")
		b.MustPut(holder, body{"block": target2})
		b.Settle()
		b.MustDelete(target)
		b.Settle()
		b.Gone(target)
		b.Audit()
	}
}

// Two deployments save references to each other concurrently, with the fewest connections allowed: no save
// holds a connection while it waits for the other deployment.
func TestMutualSavesWithTheFewestConnections_I22(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, graphServices, fewConnections, "a.example.com/us", "a.example.com/eu")
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	sides := []string{"us", "eu"}
	for _, side := range sides {
		b.MustPut("//a.example.com/"+side+"/nodes/target", nil)
	}
	var wg sync.WaitGroup
	for g := range 24 {
		own, other := sides[g%2], sides[(g+1)%2]
		wg.Go(func() {
			for i := range 8 {
				_, err := b.Stores[b.ID("a.example.com/"+own)].Write.Save(ctx, []peer.Write{{
					Name: fmt.Sprintf("nodes/n%d-%d", g, i),
					Body: body{"b": []any{"//a.example.com/" + other + "/nodes/target"}},
				}})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.Settle()
	require.Equal(t, 96, b.Count("a.example.com/us", "blockade"))
	require.Equal(t, 96, b.Count("a.example.com/eu", "blockade"))
	b.Audit()
}

// An ownee changes from one owner to another while the first one is deleted, before and after every step of
// that deletion: it stays, and is deleted with the second owner.
func TestOwnersThatAreSwappedWhileOneGoes_I16_I17(t *testing.T) {
	t.Parallel()
	const first, second, ownee = "//a.example.com/us/nodes/first", "//a.example.com/eu/nodes/second",
		"//a.example.com/as/nodes/ownee"
	for _, point := range []string{"before the delete", "after the delete", "after the drop", "both at first"} {
		t.Run(point, func(t *testing.T) {
			b := harness.NewBox(t, graphServices, nil, "a.example.com/us", "a.example.com/eu", "a.example.com/as")
			b.MustPut(first, nil)
			b.MustPut(second, nil)
			swap := func() {
				_, err := b.PutOwned(ownee, nil, owner(t, second, "Node"))
				require.NoError(t, err)
			}
			_, err := b.PutOwned(ownee, nil, owner(t, first, "Node"))
			require.NoError(t, err)
			b.Settle()
			switch point {
			case "before the delete":
				swap()
				b.MustDelete(first)
			case "after the delete":
				b.MustDelete(first)
				swap()
			case "after the drop":
				b.MustDelete(first)
				_, _ = b.Do(b.ID("a.example.com/us"), schema.DropOwners)
				require.Nil(t, b.Get(ownee), "its only owner was removed before the swap")
				swap() // a new resource of this name
			case "both at first":
				_, err := b.PutOwned(ownee, nil, owner(t, first, "Node"), owner(t, second, "Node"))
				require.NoError(t, err)
				b.MustDelete(first)
				swap()
			}
			b.Settle()
			b.Gone(first)
			require.NotNil(t, b.Get(ownee), "the second owner lives")
			b.Audit()
			b.MustDelete(second)
			b.Settle()
			b.Gone(second, ownee)
			b.Audit()
		})
	}
}

// putHolders writes holders/prefix0 and so on at bEast.
func putHolders(t *testing.T, b *harness.Box, prefix string, n int, content body) {
	t.Helper()
	var writes []peer.Write
	for i := range n {
		writes = append(writes, peer.Write{Name: fmt.Sprintf("holders/%s%d", prefix, i), Body: content})
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit) // the time of a call is for fewer
	defer cancel()
	_, err := b.Stores[b.ID(bEast)].Write.Save(ctx, writes)
	require.NoError(t, err)
}

// Two hundred holders that always fail come first in key order: the other holders are handled all the same,
// each failure is reported, and once the cause is removed, no reference remains.
func TestTwoHundredFailingHoldersDelayNoOther_I20(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	putHolders(t, b, "bad", 200, body{"unset": target})
	putHolders(t, b, "good", 300, body{"unset": target})
	b.Settle()
	spoil := func(to, from string) {
		_, err := b.Pools[b.ID(bEast)].Exec(t.Context(), `UPDATE dbcontroller.resource SET body = $1::text::jsonb
			WHERE id IN (SELECT id FROM dbcontroller.shadow WHERE name LIKE 'holders/bad%') AND body <> $2::text::jsonb`, to, from)
		require.NoError(t, err)
	}
	spoil(`[]`, `{}`)
	b.MustDelete(target)
	b.Settle()
	require.Equal(t, 200, b.Count(bEast, "reference"), "all others are handled")
	require.Equal(t, peer.Deleting, b.Get(target).State)
	spoil(`{"unset": "`+target+`"}`, `{}`)
	b.Settle()
	b.Gone(target)
	b.Audit()
}

// With any number of failing holders, of each behaviour, and with very short runs, the holders behind them
// are handled; only then the failure is returned, so that the next try can be delayed.
func TestManyFailingHoldersDelayNoOther_I20(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"cascade", "unset", "asyncCascade", "near.asyncUnset"} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			b := newPair(t, func(cfg *shadow.Config) { cfg.Limits.Batch = 20 })
			from, of := aWest, target
			if field == "near.asyncUnset" {
				from, of = bEast, "//"+bEast+"/holders/of"
			}
			b.MustPut(of, nil)
			content := body{field: of}
			if outer, inner, ok := strings.Cut(field, "."); ok {
				content = body{outer: body{inner: of}}
			}
			putHolders(t, b, "bad", 120, content)
			putHolders(t, b, "good", 120, content)
			b.Settle()
			pool := b.Pools[b.ID(bEast)]
			_, err := pool.Exec(t.Context(), failingSQL)
			require.NoError(t, err)
			b.MustDelete(of)
			deletions, _ := b.Seen(b.ID(bEast), b.ID(from))
			var failed map[uuid.UUID]error
			for runs := 1; len(failed) == 0 || errors.Is(failed[deletions[0].UID], schema.ErrUnfinished); runs++ {
				require.LessOrEqual(t, runs, 280, "each run handles at least one of 240")
				failed, err = b.Stores[b.ID(bEast)].Follow.ActFor(t.Context(), b.ID(from), deletions,
					50*time.Millisecond)
				require.NoError(t, err)
				require.Len(t, failed, 1)
			}
			require.ErrorContains(t, failed[deletions[0].UID], "it always fails")
			var left int
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.shadow s JOIN dbcontroller.reference r ON r.holder_id = s.id
				WHERE s.name LIKE 'holders/good%' AND s.state = 1`).Scan(&left))
			require.Zero(t, left, "holders that do not fail")
			failed, err = b.Stores[b.ID(bEast)].Follow.ActFor(t.Context(), b.ID(from), deletions, time.Minute)
			require.NoError(t, err, "it ends")
			require.Len(t, failed, 1)
		})
	}
}

// Marking writes to shadow, unsetting to resource.
const failingSQL = `
CREATE FUNCTION public.fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF EXISTS (SELECT FROM dbcontroller.shadow WHERE id = OLD.id AND name LIKE 'holders/bad%') THEN
        RAISE EXCEPTION 'it always fails';
    END IF;
    RETURN COALESCE(NEW, OLD);
END $$;
CREATE TRIGGER fails BEFORE UPDATE OR DELETE ON dbcontroller.shadow FOR EACH ROW EXECUTE FUNCTION public.fails();
CREATE TRIGGER fails BEFORE UPDATE ON dbcontroller.resource FOR EACH ROW EXECUTE FUNCTION public.fails()`

// A deletion that is delivered again may concern new holders at keys that the walk has passed: the walk
// begins anew.
func TestADeletionThatIsToldAgainIsWalkedFromTheBeginning_I4(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Limits.Batch = 20 })
	b.MustPut(target, nil)
	bad, good := rounds.Of(300, 60), 600 // so many that no call below reaches the last one
	putHolders(t, b, "bad", bad, body{"unset": target})
	putHolders(t, b, "good", good, body{"unset": target})
	b.Settle()
	pool := b.Pools[b.ID(bEast)]
	_, err := pool.Exec(t.Context(), failingSQL)
	require.NoError(t, err)
	b.MustDelete(target)
	deletions, _ := b.Seen(b.ID(bEast), b.ID(aWest))
	for b.Count(bEast, "reference") > bad+good-10 { // until the walk has passed all that fail
		failed, err := b.Stores[b.ID(bEast)].Follow.ActFor(t.Context(), b.ID(aWest), deletions, 20*time.Millisecond)
		require.NoError(t, err)
		require.ErrorIs(t, failed[deletions[0].UID], schema.ErrUnfinished)
	}
	_, err = pool.Exec(t.Context(), `DROP FUNCTION public.fails CASCADE`)
	require.NoError(t, err)
	deletions[0].Seq++
	failed, err := b.Stores[b.ID(bEast)].Follow.ActFor(t.Context(), b.ID(aWest), deletions, time.Minute)
	require.NoError(t, err)
	require.Empty(t, failed)
	require.Zero(t, b.Count(bEast, "reference"))
	b.Settle()
	b.Audit()
}

// Holders locked by a transaction that hangs are skipped within seconds.
func TestLockedHoldersDelayNoOther_I20(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	putHolders(t, b, "h", 300, body{"unset": target})
	b.Settle()
	tx, err := b.Pools[b.ID(bEast)].Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }() // the pool waits for its connection
	_, err = tx.Exec(t.Context(), `SELECT FROM dbcontroller.shadow WHERE name LIKE 'holders/h1%' FOR UPDATE`)
	require.NoError(t, err)
	b.MustDelete(target)
	deletions, _ := b.Seen(b.ID(bEast), b.ID(aWest))
	failed, err := b.Stores[b.ID(bEast)].Follow.ActFor(t.Context(), b.ID(aWest), deletions, wait.Limit)
	require.NoError(t, err)
	require.ErrorContains(t, failed[deletions[0].UID], "holds the lock")
	require.ErrorContains(t, failed[deletions[0].UID], "111 holders could not be handled",
		"each counts once, however often it was tried")
	require.Equal(t, 111, b.Count(bEast, "reference"), "the locked holders remain")
	require.NoError(t, tx.Rollback(t.Context()))
	b.Settle()
	b.Gone(target)
	b.Audit()
}

// A database that refuses writes is not the fault of a holder: the batch fails as a whole, and no holder is
// reported.
func TestAReadOnlyDatabaseIsNoHoldersFault_I20(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	for i := range 5 {
		b.MustPut(fmt.Sprintf("//%s/holders/h%d", bEast, i), body{"unset": target})
	}
	b.Settle()
	b.MustDelete(target)
	deletions, _ := b.Seen(b.ID(bEast), b.ID(aWest))
	pool := b.Pools[b.ID(bEast)]
	database := pgx.Identifier{pool.Config().ConnConfig.Database}.Sanitize()
	_, err := pool.Exec(t.Context(), "ALTER DATABASE "+database+" SET default_transaction_read_only = on")
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(),
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	require.NoError(t, err)
	var failed map[uuid.UUID]error
	require.Eventually(t, func() bool { // until the pool has replaced its broken connections
		failed, err = b.Stores[b.ID(bEast)].Follow.ActFor(t.Context(), b.ID(aWest), deletions, time.Minute)
		return err == nil || strings.Contains(err.Error(), "read-only")
	}, wait.Limit, 10*time.Millisecond)
	require.ErrorContains(t, err, "read-only transaction")
	require.Empty(t, failed, "no holder is reported")
}

// A batch with two deletions, which runs out of time among the failing holders of one, skips no holder of the
// other.
func TestABatchThatRanOutOfTimeSkipsNobody_I1_I20(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Limits.Batch = 20 })
	store, pool := b.Stores[b.ID(bEast)], b.Pools[b.ID(bEast)]
	uids := make([][]uuid.UUID, rounds.Of(12, 4)) // the order of the two in a batch is random
	for i := range uids {
		// More good holders than the first look and a page, so that some could be skipped.
		holders := map[string]int{"good": 360, "bad": 60}
		for _, prefix := range []string{"good", "bad"} {
			name := fmt.Sprintf("//%s/targets/%s%d", aWest, prefix, i)
			uids[i] = append(uids[i], b.MustPut(name, nil).UID)
			putHolders(t, b, fmt.Sprintf("%s-%d-", prefix, i), holders[prefix], body{"cascade": name})
		}
	}
	b.Settle()
	_, err := pool.Exec(t.Context(), failingSQL)
	require.NoError(t, err)
	for i, pair := range uids {
		b.MustDelete(fmt.Sprintf("//%s/targets/good%d", aWest, i))
		b.MustDelete(fmt.Sprintf("//%s/targets/bad%d", aWest, i))
		deletions, _ := b.Seen(b.ID(bEast), b.ID(aWest))
		deletions = slices.DeleteFunc(deletions, func(d schema.Deletion) bool { return !slices.Contains(pair, d.UID) })
		require.Len(t, deletions, 2)
		for unfinished := true; unfinished; {
			failed, err := store.Follow.ActFor(t.Context(), b.ID(aWest), deletions, time.Millisecond)
			require.NoError(t, err)
			unfinished = failed[pair[0]] != nil
		}
		var left int
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.reference r JOIN dbcontroller.foreign_target f ON f.id = r.target_id
			WHERE f.uid = $1`, pair[0]).Scan(&left))
		require.Zero(t, left, "the deletion was reported as done")
	}
}
