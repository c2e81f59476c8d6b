package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

const leaseTTL = time.Second

func newLeases(b *harness.Box, name string) *shadow.Leases {
	return b.Stores[b.ID(aWest)].Leases(name, leaseTTL)
}

func renew(t *testing.T, l *shadow.Leases, member uuid.UUID) schema.Grant {
	t.Helper()
	g, err := l.Renew(t.Context(), member, true)
	require.NoError(t, err)
	return g
}

// expire ends the time of a member.
func expire(t *testing.T, b *harness.Box, member uuid.UUID) {
	t.Helper()
	_, err := b.Pools[b.ID(aWest)].Exec(t.Context(),
		`UPDATE dbcontroller.member SET expires_at = clock_timestamp() - interval '1 ms' WHERE id = $1`, member)
	require.NoError(t, err)
}

// A process pauses for longer than its lease and resumes: its later transactions are refused.
func TestAMemberThatWasGivenUpChangesNothing_I18(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	const ttl = time.Minute // the leases that end here are ended by expire
	store := b.Stores[b.ID(aWest)]
	first, second := store.Leases("first", ttl), store.Leases("second", ttl)
	old := renew(t, first, uuid.Nil)
	require.Len(t, old.Shards, schema.RingSize)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	deletions, _ := b.Seen(b.ID(bEast), b.ID(aWest))
	require.Len(t, deletions, 1)

	expire(t, b, old.Member)
	fenced := first.Fenced(t.Context(), old.Member)
	err := b.Stores[b.ID(aWest)].InTx(fenced, func(tx pgx.Tx) error {
		// the lease is checked with the first statement
		_, err := tx.Exec(t.Context(), `DELETE FROM dbcontroller.notice`)
		return err
	})
	require.ErrorIs(t, err, schema.ErrFenced, "its time is over, though no other member has taken its shards yet")
	next := renew(t, second, uuid.Nil)
	require.Len(t, next.Shards, schema.RingSize)
	_, err = first.Renew(t.Context(), old.Member, true)
	require.ErrorIs(t, err, schema.ErrFenced)
	_, err = b.Stores[b.ID(aWest)].Cascade.Finalise(fenced, []int64{1})
	require.ErrorIs(t, err, schema.ErrFenced)
	east := b.Stores[b.ID(bEast)].Leases("east", ttl)
	paused := renew(t, east, uuid.Nil)
	exec(t, b, bEast, `UPDATE dbcontroller.member SET expires_at = clock_timestamp() - interval '1 ms'`)
	_, err = b.Stores[b.ID(bEast)].Act(east.Fenced(t.Context(), paused.Member), b.ID(aWest),
		[]uuid.UUID{deletions[0].UID})
	require.ErrorIs(t, err, schema.ErrFenced)
	require.NotNil(t, b.Get(holder))
	require.NoError(t, b.Stores[b.ID(aWest)].InTx(second.Fenced(t.Context(), next.Member), func(pgx.Tx) error {
		return nil
	}))
	again := renew(t, first, uuid.Nil)
	require.NotEqual(t, old.Member, again.Member, "a member that joins again has another term")
	require.Empty(t, again.Shards, "none before the other one releases them")
	next = renew(t, second, next.Member)
	require.Len(t, next.Surplus, schema.RingSize/2)
	require.NoError(t, second.Release(t.Context(), next.Member, next.Surplus))
	require.ElementsMatch(t, next.Surplus, renew(t, first, again.Member).Shards)
}

// An open transaction delays the takeover of its shards; PostgreSQL ends it when it is idle for longer than
// the lease.
func TestATransactionThatPausesTooLongIsEnded_I18(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	first, second := newLeases(b, "first"), b.Stores[b.ID(aWest)].Leases("second", time.Minute)
	old := renew(t, first, uuid.Nil)
	reached, paused := make(chan struct{}), make(chan struct{})
	resume := sync.OnceFunc(func() { close(paused) })
	defer resume() // a failure ends the transaction too
	done := make(chan error, 1)
	go func() {
		done <- b.Stores[b.ID(aWest)].InTx(first.Fenced(t.Context(), old.Member), func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `UPDATE dbcontroller.meta SET environment = 'late'`); err != nil {
				return err
			}
			close(reached)
			<-paused
			return nil
		})
	}()
	<-reached
	expire(t, b, old.Member)
	next := renew(t, second, uuid.Nil)
	var lives bool // still, after the renewal
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(),
		`SELECT EXISTS (SELECT FROM pg_locks WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = 'dbcontroller.meta'::regclass AND mode = 'RowExclusiveLock')`).Scan(&lives))
	t.Logf("the transaction lives: %t", lives)
	if lives {
		require.Empty(t, next.Shards, "the transaction may still commit")
	}
	require.Eventually(t, func() bool {
		next = renew(t, second, next.Member)
		return len(next.Shards) == schema.RingSize
	}, wait.Limit, 50*time.Millisecond)
	resume()
	require.Error(t, <-done)
	var kept []byte
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(), `SELECT environment FROM dbcontroller.meta`).Scan(
		&kept))
	require.Empty(t, kept)
}

// A process that starts again takes its former place at once, also from a predecessor that still runs.
func TestAProcessThatStartsAgainTakesItsPlace(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	l := newLeases(b, "one")
	before := renew(t, l, uuid.Nil)
	after := renew(t, l, uuid.Nil)
	require.Len(t, after.Shards, schema.RingSize)
	_, err := l.Renew(t.Context(), before.Member, true)
	require.ErrorIs(t, err, schema.ErrFenced)
	members, err := b.Stores[b.ID(aWest)].Members(t.Context())
	require.NoError(t, err)
	require.Len(t, members, 1)
	require.Len(t, members[0].Shards, schema.RingSize)
	require.NoError(t, l.Release(t.Context(), after.Member, nil))
	members, err = b.Stores[b.ID(aWest)].Members(t.Context())
	require.NoError(t, err)
	require.Empty(t, members)
}

// Takeovers race with transactions of the former member, aligned as closely as possible: a commit of the
// former member comes before the takeover.
func TestRaceOfATransactionAgainstATakeover_I18(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, pool, store := context.Background(), b.Pools[b.ID(aWest)], b.Stores[b.ID(aWest)]
	_, err := pool.Exec(ctx, `CREATE TABLE public.written (member uuid); GRANT INSERT ON public.written TO PUBLIC`)
	require.NoError(t, err)
	first, second := newLeases(b, "first"), newLeases(b, "second")
	committed, fencedOff := 0, 0
	for i := range 150 {
		old := renew(t, first, uuid.Nil)
		go expire(t, b, old.Member)
		done := make(chan error, 1)
		go func() {
			done <- store.InTx(first.Fenced(ctx, old.Member), func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO public.written VALUES ($1)`, old.Member)
				return err
			})
		}()
		next, err := second.Renew(ctx, uuid.Nil, true)
		require.NoError(t, err)
		for len(next.Shards) < schema.RingSize {
			next = renew(t, second, next.Member)
		}
		count := func() (n int) {
			require.NoError(t, pool.QueryRow(ctx, `SELECT count(*) FROM public.written WHERE member = $1`,
				old.Member).Scan(&n))
			return n
		}
		atTakeover := count()
		if err := <-done; err == nil {
			committed++
		} else {
			require.ErrorIs(t, err, schema.ErrFenced, "try %d", i)
			fencedOff++
		}
		require.Equal(t, atTakeover, count(), "try %d: it committed after the takeover", i)
		require.NoError(t, second.Release(ctx, next.Member, nil))
	}
	t.Logf("%d committed before the takeover, %d were fenced off", committed, fencedOff)
}

// Processes join, leave, pause and crash at random: at any time each shard has at most one member, and at
// rest all shards are assigned in equal parts.
func TestProcessesComeAndGo_I18(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	r := rand.New(rand.NewPCG(7, 7))
	processes := make([]struct {
		leases *shadow.Leases
		grant  schema.Grant
	}, 5)
	for i := range processes {
		processes[i].leases = newLeases(b, fmt.Sprint("process", i))
	}
	check := func() {
		members, err := b.Stores[b.ID(aWest)].Members(t.Context())
		require.NoError(t, err)
		var all []uint32
		for _, m := range members {
			all = append(all, m.Shards...)
		}
		slices.Sort(all)
		require.Len(t, slices.Compact(all), len(all))
	}
	step := func(i int) {
		p := &processes[i]
		g, err := p.leases.Renew(t.Context(), p.grant.Member, true)
		if errors.Is(err, schema.ErrFenced) {
			p.grant = schema.Grant{}
			return
		}
		require.NoError(t, err)
		if p.grant = g; len(g.Surplus) > 0 {
			require.NoError(t, p.leases.Release(t.Context(), g.Member, g.Surplus))
		}
	}
	for range 300 {
		i := r.IntN(len(processes))
		switch p, what := &processes[i], r.IntN(12); {
		case what == 0 && p.grant.Member != uuid.Nil: // leaves
			require.NoError(t, p.leases.Release(t.Context(), p.grant.Member, nil))
			p.grant = schema.Grant{}
		case what == 1 && p.grant.Member != uuid.Nil: // crashes, or pauses for long
			expire(t, b, p.grant.Member)
		default:
			step(i)
		}
		check()
	}
	for range 10 {
		for i := range processes {
			step(i)
		}
	}
	members, err := b.Stores[b.ID(aWest)].Members(t.Context())
	require.NoError(t, err)
	require.Len(t, members, len(processes))
	total := 0
	for _, m := range members {
		require.InDelta(t, schema.RingSize/len(processes), len(m.Shards), 2, m.Name)
		total += len(m.Shards)
	}
	require.Equal(t, schema.RingSize, total)
}

// A process that was given up releases shards late: shards that another process has taken since stay there.
func TestALateReleaseTakesNoShardsOfOthers_I18(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	one, two := newLeases(b, "one"), newLeases(b, "two")
	former := renew(t, one, uuid.Nil)
	require.Len(t, former.Shards, schema.RingSize)
	expire(t, b, former.Member)
	present := renew(t, two, uuid.Nil)
	require.Len(t, present.Shards, schema.RingSize)
	require.NoError(t, one.Release(t.Context(), former.Member, former.Shards))
	var held int
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(),
		`SELECT count(*) FROM dbcontroller.lease WHERE member_id = $1`, present.Member).Scan(&held))
	require.Equal(t, schema.RingSize, held)
}

// The lead is left to a process that wants it, beyond its part of the shards: it releases another shard
// instead.
func TestTheLeadGoesToAProcessThatWantsIt_I18(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	first, second := newLeases(b, "first"), newLeases(b, "second")
	renew := func(l *shadow.Leases, member uuid.UUID, lead bool) schema.Grant {
		t.Helper()
		g, err := l.Renew(t.Context(), member, lead)
		require.NoError(t, err)
		return g
	}
	one := renew(first, uuid.Nil, true)
	two := renew(second, uuid.Nil, true)
	one = renew(first, one.Member, true)
	require.NoError(t, first.Release(t.Context(), one.Member, one.Surplus))
	two = renew(second, two.Member, true)
	require.Len(t, two.Shards, schema.RingSize/2)
	require.NotContains(t, two.Shards, uint32(schema.LeadShard), "it is not taken from the process that has it")

	require.NoError(t, first.Release(t.Context(), one.Member, []uint32{schema.LeadShard}))
	one = renew(first, one.Member, false)
	require.NotContains(t, one.Shards, uint32(schema.LeadShard))
	two = renew(second, two.Member, true)
	require.Contains(t, two.Shards, uint32(schema.LeadShard))
	require.Len(t, two.Surplus, 1)
	require.NotContains(t, two.Surplus, uint32(schema.LeadShard))
	require.NoError(t, second.Release(t.Context(), two.Member, two.Surplus))
	one = renew(first, one.Member, false)
	require.Equal(t, two.Surplus[0], one.Shards[len(one.Shards)-1], "the shards are divided equally again")
	require.Len(t, one.Shards, schema.RingSize/2)
}
