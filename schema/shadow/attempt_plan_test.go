package shadow_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// lookups keeps statements that look for rows of attempts by their whole keys, with their arguments.
type lookups struct {
	mu   sync.Mutex
	sent map[string][]any // guarded by mu
}

func (l *lookups) keep(sql string, args []any) {
	if !strings.Contains(sql, "(attempt, holder_uid, field_id, target_uid") {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[sql] = args
}

func (l *lookups) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	l.keep(d.SQL, d.Args)
	return ctx
}

func (l *lookups) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (l *lookups) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	for _, q := range d.Batch.QueuedQueries {
		l.keep(q.SQL, q.Arguments)
	}
	return ctx
}

func (l *lookups) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (l *lookups) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// A write of 500 resources is one attempt. A question about them looks for the rows of each by their keys:
// through the index of attempts each would give all 500. (6 s instead of 2 ms, for 500 of an attempt with
// 3,000 references.)
func TestTheReferencesOfOneAttemptAreFoundByTheirKeys(t *testing.T) {
	t.Parallel()
	const writes = 500
	asked := &lookups{sent: map[string][]any{}}
	b := newPair(t, func(cfg *shadow.Config) {
		traced := cfg.Pool.Config().Copy()
		traced.ConnConfig.Tracer = asked
		pool, err := pgxpool.NewWithConfig(context.Background(), traced)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		cfg.Pool = pool
	})
	b.MustPut(target, nil)
	putHolders(t, b, "many", writes, body{"block": target})
	rows, err := b.Pools[b.ID(aWest)].Query(t.Context(),
		`SELECT b.attempt, b.holder_uid, 'block', s.uid FROM dbcontroller.blockade b JOIN dbcontroller.shadow s ON s.id = b.target_id`)
	require.NoError(t, err)
	keys, err := pgx.CollectRows(rows, pgx.RowToStructByPos[peer.BlockadeKey])
	require.NoError(t, err)
	require.Len(t, keys, writes)
	var questions []peer.Question
	var refs []peer.CheckedReference
	for _, k := range keys {
		questions, refs = append(questions, peer.Question{Key: k}),
			append(refs, peer.CheckedReference{Key: k, Behaviour: schema.Block})
	}
	answers, err := b.Stores[b.ID(bEast)].Attempts.Answer(t.Context(), b.ID(aWest), questions)
	require.NoError(t, err)
	require.Equal(t, slices.Repeat([]peer.Verdict{peer.Held}, writes), answers.Verdicts)
	_, err = b.Stores[b.ID(aWest)].Attempts.CheckReferences(t.Context(), b.ID(bEast), refs)
	require.NoError(t, err)
	require.NoError(t, b.Stores[b.ID(aWest)].Targets.Release(t.Context(), b.ID(bEast), uuid.Nil, keys, nil))

	require.Len(t, asked.sent, 3, "answer, check, release")
	for sql, args := range asked.sent {
		for id, pool := range b.Pools {
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), `SET LOCAL enable_seqscan = off`) // as the sessions of the store
			require.NoError(t, err)
			rows, err := tx.Query(t.Context(), "EXPLAIN "+sql, args...)
			require.NoError(t, err)
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			require.NoError(t, tx.Rollback(t.Context()))
			require.NotRegexp(t, `(reference|blockade)_attempt`, strings.Join(plan, "\n"), "%s at %s", sql, id)
		}
	}
}
