package shadow_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
)

// occupyHolders is occupy for the deployment of the holders.
func occupyHolders(t *testing.T, b *harness.Box) (release func()) {
	t.Helper()
	locked := func(i int) string { return fmt.Sprintf("//b.example.com/eastus2/holders/locked%d", i) }
	for i := range 4 {
		b.MustPut(locked(i), nil)
	}
	unlock := sync.OnceFunc(hold(t, b, bEast,
		`SELECT FROM dbcontroller.shadow WHERE name LIKE 'holders/locked%' FOR UPDATE`))
	var g sync.WaitGroup
	for i := range 4 {
		g.Go(func() { b.MustPut(locked(i), body{"n": 1.0}) })
	}
	stopped(t, b, bEast, 4)
	return func() { unlock(); g.Wait() }
}

// putTogether puts holders concurrently, and returns their errors when all have ended.
func putTogether(b *harness.Box, bodies map[string]body) map[string]error {
	var mu sync.Mutex
	var g sync.WaitGroup
	errs := map[string]error{}
	for name, of := range bodies {
		g.Go(func() {
			_, err := b.Put("//"+bEast+"/holders/"+name, of)
			mu.Lock()
			defer mu.Unlock()
			errs[name] = err
		})
	}
	g.Wait()
	return errs
}

func targetNumber(n int) string { return fmt.Sprintf("//%s/targets/t%d", aWest, n) }

// storedAs returns, by field, whether a reference of a holder was written under a right; otherwise it was
// asked for.
func storedAs(t *testing.T, b *harness.Box, name string) (delegated map[string]bool) {
	t.Helper()
	delegated = map[string]bool{}
	rows, err := b.Pools[b.ID(bEast)].Query(t.Context(), `
SELECT f.path, r.delegated FROM dbcontroller.reference r JOIN dbcontroller.field f ON f.id = r.field_id JOIN dbcontroller.shadow s ON s.id = r.holder_id
WHERE s.name = $1`, "holders/"+name)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var path string
		var under bool
		require.NoError(t, rows.Scan(&path, &under))
		delegated[path] = under
	}
	require.NoError(t, rows.Err())
	return delegated
}

// Concurrent writes under rights share transactions with one another and with the others. Each has its own
// outcome: one whose right has ended, ends, or is locked asks or waits by itself, and neither fails nor
// delays its neighbours (I20).
func TestGatheredWritesUnderRights_I20_I30(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	acquired(t, b)
	for n := range 5 { // acting rights to five more, which this process knows
		b.MustPut(targetNumber(n), nil)
		b.MustPut(holderNumber(10+n), body{"unset": targetNumber(n)})
	}
	b.MustPut(holderNumber(20), body{"unset": target})
	b.Settle()
	for n := range 5 {
		unasked(t, b, holderNumber(30+n), body{"unset": targetNumber(n)})
	}
	exec := func(sql string) {
		tag, err := b.Pools[b.ID(bEast)].Exec(t.Context(), sql)
		require.NoError(t, err)
		require.EqualValues(t, 1, tag.RowsAffected())
	}
	exec(
		`UPDATE dbcontroller.foreign_target SET acting_epoch = NULL, turn = nextval('dbcontroller.object_id') WHERE name = 'targets/t1'`)
	exec(
		`INSERT INTO dbcontroller.ending (target_id, until) SELECT id, now() + interval '30 s' FROM dbcontroller.foreign_target WHERE name = 'targets/t2'`)
	b.MustDelete(targetNumber(3)) // and no process has heard of it
	unlock := sync.OnceFunc(hold(t, b, bEast,
		`SELECT FROM dbcontroller.foreign_target WHERE name = 'targets/t4' FOR UPDATE`))
	defer unlock()
	release := occupyHolders(t, b)

	bodies := map[string]body{
		"both":       {"unset": target, "block": target},
		"some asked": {"unset": targetNumber(0), "block": targetNumber(0)},
		"ended":      {"unset": targetNumber(1)},
		"ending":     {"cascade": targetNumber(2)},
		"deleted":    {"cascade": targetNumber(3)},
		"missing":    {"unset": targetNumber(9)},
	}
	for i := range 10 {
		bodies[fmt.Sprint("none", i)] = body{"n": 1.0}
		bodies[fmt.Sprint("acting", i)] = body{"asyncCascade": target}
		bodies[fmt.Sprint("block", i)] = body{"block": target}
	}
	names := map[string]body{}
	for name, of := range bodies {
		names[strings.ReplaceAll(name, " ", "-")] = of
	}
	locked := make(chan error, 1)
	go func() { _, err := b.Put("//"+bEast+"/holders/locked", body{"unset": targetNumber(4)}); locked <- err }()
	errs := putTogether(b, names) // while the row is locked, and single writes wait
	require.Empty(t, locked)
	unlock()
	require.NoError(t, <-locked)
	release()

	require.Equal(t, peer.TargetMissing, refusals(t, errs["missing"])[0].Reason)
	delete(errs, "missing")
	for name, err := range errs {
		require.NoError(t, err, name)
	}
	require.Equal(t, map[string]bool{"unset": true, "block": true}, storedAs(t, b, "both"))
	require.Equal(t, map[string]bool{"unset": true, "block": false}, storedAs(t, b, "some-asked"))
	require.Equal(t, map[string]bool{"unset": false}, storedAs(t, b, "ended"))
	require.Equal(t, map[string]bool{"cascade": false}, storedAs(t, b, "ending"))
	require.Equal(t, map[string]bool{"cascade": true}, storedAs(t, b, "deleted"), "as if it had been written before")
	require.Equal(t, map[string]bool{"unset": true}, storedAs(t, b, "locked"))
	var writes, transactions int
	require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(), `
SELECT count(*), count(DISTINCT s.xmin::text) FROM dbcontroller.reference r JOIN dbcontroller.shadow s ON s.id = r.holder_id
WHERE r.delegated AND s.name ~ '^holders/(acting|block)[0-9]'`).Scan(&writes, &transactions))
	require.Equal(t, 20, writes)
	require.Less(t, transactions, 10, "they shared transactions")
	_, err := b.Pools[b.ID(bEast)].Exec(t.Context(), `DELETE FROM dbcontroller.ending`)
	require.NoError(t, err)
	b.Settle()
	b.Gone(targetNumber(3), "//"+bEast+"/holders/deleted")
	b.Audit()
}

// A right that is recalled while a batch has locked its row ends before or after the batch, and never between
// its check and its commit: a reference written under it is found, or was written by asking (I3, I31).
func TestARecallBesideABatch_I3_I31(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	idleRight(t, b)
	unasked(t, b, holderNumber(1), body{"block": target})
	b.MustPut(holderNumber(1), nil)
	release := occupyHolders(t, b)
	tx, err := b.Pools[b.ID(bEast)].Begin(context.Background())
	require.NoError(t, err)
	// stops the batch between its check and its commit
	_, err = tx.Exec(context.Background(), `LOCK TABLE dbcontroller.reference IN SHARE MODE`)
	require.NoError(t, err)
	unlock := sync.OnceFunc(func() { require.NoError(t, tx.Rollback(context.Background())) })
	defer unlock()
	bodies := map[string]body{}
	for i := range 6 {
		bodies[fmt.Sprint("beside", i)] = body{"block": target}
	}
	var errs map[string]error
	var g sync.WaitGroup
	g.Go(func() { errs = putTogether(b, bodies) })
	stopped(t, b, bEast, 5)
	deleted := make(chan error, 1)
	go func() { _, err := b.Delete(target); deleted <- err }() // recalls the right
	stopped(t, b, bEast, 6)                                    // the recall waits for the row of the right
	unlock()
	g.Wait()
	release()
	if err := <-deleted; err == nil { // the right ended first: the others asked, and were refused
		for name, err := range errs {
			require.Error(t, err, name)
		}
	} else {
		for name, err := range errs {
			require.NoError(t, err, name)
		}
	}
	b.Settle()
	b.Audit()
}

// This process knows where it found the right to a name. When another uid has a right of that name meanwhile,
// its target's deployment decides which of the two is meant.
func TestARightThatIsKnownIsThatOfItsName_I2_I30(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	b.Settle()
	unasked(t, b, holderNumber(1), body{"unset": target})
	unasked(t, b, holderNumber(2), body{"cascade": target})
	_, err := b.Pools[b.ID(bEast)].Exec(t.Context(), `
INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name, acting_epoch, acting_own)
SELECT gen_random_uuid(), deployment_id, kind_id, name, acting_epoch, acting_own FROM dbcontroller.foreign_target`)
	require.NoError(t, err)
	b.MustPut(holderNumber(3), body{"unset": target})
	require.Equal(t, map[string]bool{"unset": false}, storedAs(t, b, "d3"))
	_, err = b.Pools[b.ID(bEast)].Exec(t.Context(),
		`DELETE FROM dbcontroller.foreign_target f WHERE NOT EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = f.id)`)
	require.NoError(t, err)
	b.Settle()
	unasked(t, b, holderNumber(4), body{"unset": target})
	b.Settle()
	b.Audit()
}

// In an older copy of the holder's database, which takes the place of the present one, the number of a known
// target may belong to another target. A write under a right refers to the target that it names.
func TestAKnownNumberIsThatOfItsUID_I2_I15(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	for n, name := range []string{targetNumber(1), targetNumber(2)} {
		b.MustPut(name, nil)
		b.MustPut(holderNumber(n), body{"unset": name})
		b.Settle()
		unasked(t, b, holderNumber(10+n), body{"unset": name})
	}
	conn, err := b.Pools[b.ID(bEast)].Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	for _, sql := range []string{
		`UPDATE dbcontroller.reference SET target_id = (SELECT sum(id) FROM dbcontroller.foreign_target) - target_id`,
		`CREATE TEMPORARY TABLE former AS SELECT id, uid, name FROM dbcontroller.foreign_target`,
		`UPDATE dbcontroller.foreign_target SET uid = gen_random_uuid(), name = name || '-'`,
		`UPDATE dbcontroller.foreign_target f SET uid = o.uid, name = o.name FROM former o WHERE o.id <> f.id`,
	} {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	unasked(t, b, holderNumber(20), body{"unset": targetNumber(1)})
	var refersTo string
	require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(), `
SELECT f.name FROM dbcontroller.reference r JOIN dbcontroller.foreign_target f ON f.id = r.target_id JOIN dbcontroller.shadow s ON s.id = r.holder_id
WHERE s.name = 'holders/d20'`).Scan(&refersTo))
	require.Equal(t, "targets/t1", refersTo)
	b.Settle()
	b.Audit()
}
