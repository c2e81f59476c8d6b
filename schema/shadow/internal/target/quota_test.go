package target

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
)

// slowCount is a count that takes a while and returns no rows.
type slowCount struct {
	takes time.Duration
	n     atomic.Int32
}

func (s *slowCount) Query(context.Context, string, ...any) (pgx.Rows, error) {
	s.n.Add(1)
	time.Sleep(s.takes)
	return noRows{}, nil
}

type noRows struct{ pgx.Rows }

func (noRows) Next() bool                    { return false }
func (noRows) Close()                        {}
func (noRows) Err() error                    { return nil }
func (noRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }
func (noRows) Scan(...any) error             { return nil }

// Each blockade is settled at once: a quota refuses only for stored blockades, also when a count takes long.
func TestAQuotaRefusesForStoredBlockadesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &slowCount{takes: 500 * time.Millisecond}
		u := newUsage()
		for range 2000 {
			more := used{tentative: 1000}
			detail, err := u.add(t.Context(), q, 1, peer.Quotas{Tentative: 100_000}, more)
			require.NoError(t, err)
			require.Empty(t, detail)
			u.done(1, more)
			time.Sleep(10 * time.Millisecond)
		}
		require.Less(t, q.n.Load(), int32(50))
		synctest.Wait()
	})
}

// Many calls over the limit share one count, and a deployment that was refused by a count causes no other one
// for a while.
func TestAQuotaIsCountedOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &slowCount{takes: 200 * time.Millisecond}
		u := newUsage()
		for range 3 {
			var callers sync.WaitGroup
			for range 50 {
				callers.Go(func() {
					detail, err := u.add(t.Context(), q, 1, peer.Quotas{Tentative: 10}, used{tentative: 11})
					if err != nil || detail == "" {
						t.Errorf("%q, %v", detail, err)
					}
				})
			}
			callers.Wait()
		}
		require.LessOrEqual(t, q.n.Load(), int32(2))
	})
}

// endless counts until its context ends.
type endless struct{ began chan struct{} }

func (e endless) Query(ctx context.Context, _ string, _ ...any) (pgx.Rows, error) {
	close(e.began)
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestCloseEndsACountInTheBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u, q := newUsage(), endless{make(chan struct{})}
		detail, err := u.add(t.Context(), q, 1, peer.Quotas{Tentative: 100_000}, used{tentative: 1})
		require.NoError(t, err)
		require.Empty(t, detail)
		<-q.began
		began := time.Now()
		u.close()
		require.Zero(t, time.Since(began))
	})
}
