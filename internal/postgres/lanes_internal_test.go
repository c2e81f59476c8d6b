package postgres

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// newTestLanes returns lanes of a pool that never connects.
func newTestLanes(t *testing.T, connections int32) *Lanes {
	t.Helper()
	cfg, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/none")
	require.NoError(t, err)
	cfg.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return NewLanes(pool)
}

// take enters until a caller has to wait, and returns how many connections it has got.
func take(l *Lanes, c Caller) (tickets []*ticket) {
	for {
		t := l.join(c)
		select {
		case <-t.granted:
			tickets = append(tickets, t)
		default:
			l.leave(t)
			return tickets
		}
	}
}

func TestNoLaneAndNoCallerTakesTheConnectionsOfOthers_I20(t *testing.T) {
	l := newTestLanes(t, 20)
	require.Len(t, take(l, Caller{Lane: Reads, Who: "ann"}), 10, "half of all connections")
	require.Empty(t, take(l, Caller{Lane: Writes, Who: "ann"}), "in all lanes together")
	require.Len(t, take(l, Caller{Lane: Reads, Who: "bob"}), 2, "what no lane keeps for itself")
	require.Empty(t, take(l, Caller{Lane: Reads, Who: "eve"}))
	for _, in := range []Lane{Work, Control, Peers, Writes} {
		require.Len(t, take(l, Caller{Lane: in}), 2, "reserved")
	}
}

func TestALaneOfFourConnectionsServesEveryClass_I22(t *testing.T) {
	l := newTestLanes(t, 4)
	require.Len(t, take(l, Caller{Lane: Reads, Who: "ann"}), 1)
	require.Empty(t, take(l, Caller{Lane: Writes, Who: "bob"}), "people share one connection")
	for _, in := range []Lane{Work, Control, Peers} {
		require.Len(t, take(l, Caller{Lane: in}), 1)
	}
}

func TestCallersAreServedInTurn_I20(t *testing.T) {
	l := newTestLanes(t, 4)
	held := l.join(Caller{Lane: Peers, Who: "first"})
	var many []*ticket
	for range 100 {
		many = append(many, l.join(Caller{Lane: Peers, Who: "many"}))
	}
	one := l.join(Caller{Lane: Peers, Who: "one"})
	l.leave(held)
	<-many[0].granted
	l.leave(many[0])
	<-one.granted
	select {
	case <-many[1].granted:
		t.Fatal("there is one connection")
	default:
	}
}

func TestACallerWithTooManyStatementsIsRefusedAtOnce_I20(t *testing.T) {
	l := newTestLanes(t, 20)
	refused := 0
	hostile := Caller{Lane: Peers, Who: "hostile", Refused: func() { refused++ }}
	for range maxUnderWay {
		require.NotNil(t, l.join(hostile))
	}
	_, err := l.enter(WithCaller(t.Context(), hostile))
	require.ErrorIs(t, err, ErrTooMany)
	require.Equal(t, 1, refused)
	leave, err := l.enter(WithCaller(t.Context(), Caller{Lane: Peers, Who: "other"}))
	require.NoError(t, err)
	leave()
	for range 2 * maxUnderWay {
		require.NotNil(t, l.join(Caller{Lane: Work}), "the process is not refused")
	}
}

func TestAWaitThatIsGivenUpTakesNoConnection(t *testing.T) {
	l := newTestLanes(t, 4)
	held := l.join(Caller{Lane: Peers, Who: "first"})
	ctx, cancel := context.WithTimeout(WithCaller(t.Context(), Caller{Lane: Peers, Who: "second"}), time.Millisecond)
	defer cancel()
	_, err := l.enter(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	l.leave(held)
	require.Len(t, l.uses, 0)
	require.Len(t, take(l, Caller{Lane: Peers, Who: "third"}), 1)
}

func TestLanesNeverGiveMoreThanThePoolHas(t *testing.T) {
	for _, connections := range []int32{4, 5, 7, 20, 64} {
		l := newTestLanes(t, connections)
		var running, most atomic.Int32
		var g sync.WaitGroup
		for i := range 40 {
			g.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				for range 200 {
					c := Caller{Lane: Lane(r.IntN(int(lanes)))}
					if c.Lane >= Peers {
						c.Who = i % 5
					}
					ctx, cancel := context.WithCancel(WithCaller(context.Background(), c))
					if r.IntN(4) == 0 {
						cancel()
					}
					leave, err := l.enter(ctx)
					if err == nil {
						now := running.Add(1)
						for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
						}
						running.Add(-1)
						leave()
						leave()
					}
					cancel()
				}
			})
		}
		g.Wait()
		require.LessOrEqual(t, most.Load(), connections)
		free := l.shared
		seen := map[*lane]bool{}
		for _, at := range l.lanes {
			if !seen[at] {
				free += at.reserved
			}
			seen[at] = true
			require.Empty(t, at.waiting)
		}
		require.EqualValues(t, connections, free, "every connection was given back")
		require.Empty(t, l.uses)
	}
}

// An idle process is healthy by the answers that its statements get: it asks when there was none for a
// second.
func TestAnAnswerIsAsGoodAsAPing_I22(t *testing.T) {
	l := newTestLanes(t, 4)
	ctx := t.Context()
	require.Error(t, l.Answers(ctx), "nothing listens there")
	_, err := l.Exec(ctx, "SELECT 1")
	require.Error(t, err)
	require.Error(t, l.QueryRow(ctx, "SELECT 1").Scan())
	b := &pgx.Batch{}
	b.Queue("SELECT 1")
	require.Error(t, l.SendBatch(ctx, b).Close())
	require.Error(t, l.Answers(ctx), "a failure is no answer")
	l.heard(nil)
	require.NoError(t, l.Answers(ctx))
	require.Error(t, l.Ping(ctx), "which asks in any case")
	l.heard(pgx.ErrNoRows)
	require.NoError(t, l.Answers(ctx))
	l.heard(&pgconn.PgError{Code: "57P01"})
	require.Error(t, l.Answers(ctx), "the server may be going away")
	l.heard(nil)
	l.answered.Store(time.Now().Add(-answerValid).UnixNano())
	require.Error(t, l.Answers(ctx), "an older one is not")
	l.answered.Store(time.Now().Add(time.Hour).UnixNano())
	require.Error(t, l.Answers(ctx), "nor is one of a clock that has gone back")
}
