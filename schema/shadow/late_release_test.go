package shadow_test

import (
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// keyOf is the key of the one blockade of a holder.
func keyOf(t *testing.T, b *harness.Box, holder peer.Resource, target uuid.UUID) peer.BlockadeKey {
	t.Helper()
	var attempt uuid.UUID
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(), `SELECT attempt FROM dbcontroller.blockade`).Scan(
		&attempt))
	return peer.BlockadeKey{Attempt: attempt, HolderUID: holder.UID, Path: "block", TargetUID: target}
}

// A release that arrives last (the holder refers again; holder and target were created anew; no holder
// exists) removes nothing newer than its blockade, and a released attempt cannot establish any more.
func TestAReleaseThatArrivesLastTakesNothing_I7_I8_I9(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store, from := context.Background(), b.Stores[b.ID(aWest)], b.ID(bEast)
	var late []peer.BlockadeKey
	release := func(left int) {
		for range 2 {
			require.NoError(t, store.Targets.Release(ctx, from, b.Stores[from].Gate.PresentEpoch(), late, nil))
		}
		for _, key := range late {
			_, err := store.Targets.Establish(ctx, from, key.Attempt,
				[]peer.EstablishReference{reference(key.Path, 1, key.HolderUID)})
			require.Error(t, err, "a late establish of a released attempt")
		}
		b.Settle()
		require.Equal(t, left, b.Count(aWest, "blockade"))
		b.Audit()
	}
	first := b.MustPut(target, nil)
	h := b.MustPut(holder, body{"block": target})
	b.Settle()
	late = append(late, keyOf(t, b, h, first.UID))
	b.MustPut(holder, nil)
	release(0)

	b.MustPut(holder, body{"block": target})
	b.Settle()
	release(1)
	late = append(late, keyOf(t, b, h, first.UID))

	b.MustDelete(holder)
	b.Settle()
	b.MustDelete(target)
	release(0)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	release(1)
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
}

// hangCommits makes each commit of a decision wait, inside the server, for the function that it returns.
func hangCommits(t *testing.T, pool *pgxpool.Pool) (letCommit func()) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `
CREATE FUNCTION public.hang() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7777777); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER hang AFTER INSERT ON dbcontroller.attempt DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.hang();
SELECT pg_advisory_lock(7777777)`)
	require.NoError(t, err)
	letCommit = sync.OnceFunc(func() {
		_, _ = conn.Exec(context.Background(), `SELECT pg_advisory_unlock(7777777)`)
		conn.Release()
	})
	t.Cleanup(letCommit)
	return letCommit
}

// hangs reports whether a commit waits.
func hangs(t *testing.T, pool *pgxpool.Pool) (waits bool) {
	t.Helper()
	const sql = `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objid = 7777777 AND NOT l.granted)`
	require.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&waits))
	return waits
}

// The holder's commit is sent and hangs: the target's deployment waits for its decision for any time after
// the expiry of the blockade, and the blockade stays.
func TestACommitThatHangsIsWaitedFor_I3_I5(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	letCommit := hangCommits(t, b.Pools[b.ID(bEast)])
	saved := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
		defer cancel()
		_, err := b.Stores[b.ID(bEast)].Write.Save(ctx, []peer.Write{{Name: "holders/h", Body: body{"block": target}}})
		saved <- err
	}()
	require.Eventually(t, func() bool { return hangs(t, b.Pools[b.ID(bEast)]) }, wait.Limit, 5*time.Millisecond)
	impatient, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := b.Stores[b.ID(aWest)].Deletions.Delete(impatient, shadow.DeleteRequest{Name: "targets/t"})
	require.Error(t, err, "an undecided reference counts as live")
	b.Expire(aWest)
	resolved := make(chan error, 1)
	go func() { resolved <- b.Resolve(b.ID(aWest)) }()
	select {
	case err := <-resolved:
		require.FailNow(t, "it was resolved before it was decided", "%v", err)
	case <-time.After(500 * time.Millisecond):
	}
	require.Equal(t, 1, b.Count(aWest, "tentative"))
	letCommit()
	require.NoError(t, <-saved)
	require.NoError(t, <-resolved)
	b.Settle()
	require.NotNil(t, b.Get(holder))
	require.Equal(t, 1, b.Count(aWest, "blockade"))
	b.Audit()
}

// hearing calls lost when a statement or a batch ends without an answer.
type hearing struct{ lost func() }

func (h hearing) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (h hearing) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if data.Err != nil {
		h.lost()
	}
}

func (h hearing) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (h hearing) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (h hearing) TraceBatchEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	if data.Err != nil {
		h.lost()
	}
}

// A commit takes effect and its answer is lost: the write reads the decision, finds COMMITTED, and does not
// release its blockade.
func TestACommitWhoseAnswerIsLostStands_I8_I29(t *testing.T) {
	t.Parallel()
	t.Run("asked at once", func(t *testing.T) { commitUnanswered(t, false) })
	// as after a pause of hours
	t.Run("asked when the decision is forgotten", func(t *testing.T) { commitUnanswered(t, true) })
}

func commitUnanswered(t *testing.T, forgotten bool) {
	t.Helper()
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	var lost atomic.Int32
	var store *shadow.Store
	var line *harness.Proxy
	store, line = throughProxy(t, b, bEast, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.Tracer = hearing{func() {
			lost.Add(1)
			line.SetLine(harness.Clear)
			if forgotten {
				_, err := b.Pools[b.ID(bEast)].Exec(context.Background(), `DELETE FROM dbcontroller.attempt`)
				assert.NoError(t, err)
			}
		}}
	})
	tries := 0
	b.AfterEstablish = func() {
		tries++
		line.SetLine(harness.CommitsUnanswered)
	}
	saved, err := store.Write.Save(t.Context(), []peer.Write{{Name: "holders/h", Body: body{"block": target}}})
	require.NoError(t, err)
	require.Equal(t, 1, tries, "no second attempt")
	require.Equal(t, int32(1), lost.Load())
	require.Equal(t, b.Get(holder).UID, saved[0].UID)
	b.Settle()
	require.Equal(t, 1, b.Count(aWest, "blockade"))
	b.Audit()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
}

// throughProxy opens a second process of a deployment, whose database connections pass a proxy.
func throughProxy(t *testing.T, b *harness.Box, deployment string,
	configure func(*pgxpool.Config),
) (*shadow.Store, *harness.Proxy) {
	t.Helper()
	id := b.ID(deployment)
	cfg := b.Pools[id].Config().Copy()
	line := harness.NewProxy(t, net.JoinHostPort(cfg.ConnConfig.Host, strconv.Itoa(int(cfg.ConnConfig.Port))))
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, line.Address())
	}
	if configure != nil {
		configure(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store, err := shadow.Open(t.Context(), shadow.Config{Pool: pool, Deployment: id, Peers: b.Peers(deployment)})
	require.NoError(t, err)
	require.NoError(t, store.Admin.Switch(t.Context(), b.Stores[id].Model()))
	return store, line
}
