package harness

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/test/wait"
)

const (
	// seatConnections bounds the connections of a store to one database, and the connections of a test.
	seatConnections = 12
	// restConnections is how many connections of each pool a seat without a test keeps.
	restConnections = 4
	// mostSeats bounds the seats without a test: the server has a limit of connections.
	mostSeats = 20
	// stopLimit bounds the wait for statements and transactions that a test has left, leaveLimit that for
	// sessions that are about to end, and resetLimit a reset.
	stopLimit, leaveLimit, resetLimit = 5 * time.Second, time.Second, 30 * time.Second
)

// seat is a migrated database of a deployment with two pools: for a test, with all rights, and for a store,
// with the rights that serve needs. New sessions and new databases are half of the price of most tests, so a
// seat serves one test after another, as long as its reset gives it the contents, the catalogues and the
// sessions of a new one.
type seat struct {
	database      string
	drop          func(context.Context) error
	test, serving *pgxpool.Pool
	acquired      int64 // connections that both pools had given out when the last test ended
	spoiled       bool  // its pools or its database have been replaced or changed
}

// seats has the seats without a test.
type seats struct {
	mu     sync.Mutex
	free   []*seat
	once   sync.Once
	blank  *blank // the content of a new seat
	failed error
}

// takeSeat returns a seat for this test alone, like new.
func (s *Server) takeSeat(t testing.TB) *seat {
	t.Helper()
	taken := s.freeSeat(t)
	if taken == nil {
		taken = s.newSeat(t)
	}
	t.Cleanup(func() {
		if err := s.giveBack(taken, t.Failed()); err != nil {
			t.Error(err)
		}
	})
	return taken
}

// freeSeat returns a seat of an earlier test; nil when none is like new. The seat that was given back last is
// the warmest.
func (s *Server) freeSeat(t testing.TB) *seat {
	t.Helper()
	for {
		s.seats.mu.Lock()
		last := len(s.seats.free) - 1
		if last < 0 {
			s.seats.mu.Unlock()
			return nil
		}
		found := s.seats.free[last]
		s.seats.free = s.seats.free[:last]
		s.seats.mu.Unlock()
		if found.used() == found.acquired {
			return found
		}
		if err := found.discard(); err != nil { // work that an earlier test has left running used it
			t.Fatal(err)
		}
	}
}

func (s *Server) newSeat(t testing.TB) *seat {
	t.Helper()
	database, drop, err := s.createDatabase(t.Context(), deploymentTemplate(t, s))
	if err != nil {
		t.Fatal(err)
	}
	made := &seat{database: database, drop: drop}
	if made.test, made.serving, err = openPools(s.DSN(database)); err != nil {
		t.Fatal(errors.Join(err, drop(context.Background())))
	}
	s.seats.once.Do(func() { s.seats.blank, s.seats.failed = readBlank(t.Context(), made.serving) })
	if s.seats.failed != nil {
		t.Fatal(errors.Join(s.seats.failed, made.discard()))
	}
	return made
}

// openPools opens a database for a test and for a store. The connections of the test begin with its first
// statement: most tests have several deployments and look into few.
func openPools(dsn string) (test, serving *pgxpool.Pool, err error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, nil, err
	}
	cfg.MaxConns = seatConnections
	maps.Copy(cfg.ConnConfig.RuntimeParams, postgres.Settings)
	if test, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
		return nil, nil, err
	}
	if serving, err = postgres.Connect(context.Background(), AsServing(dsn), "test", seatConnections); err != nil {
		test.Close()
		return nil, nil, err
	}
	return test, serving, nil
}

// giveBack resets a seat for the next test. One that cannot be made like new, or whose test failed, is
// removed instead.
func (s *Server) giveBack(used *seat, failed bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), resetLimit)
	defer cancel()
	if failed || used.spoiled || used.reset(ctx, s.seats.blank) != nil || !s.keep(used) {
		return used.discard()
	}
	return nil
}

func (s *Server) keep(used *seat) bool {
	s.seats.mu.Lock()
	defer s.seats.mu.Unlock()
	if len(s.seats.free) == mostSeats {
		return false
	}
	used.acquired = used.used()
	s.seats.free = append(s.seats.free, used)
	return true
}

// dropSeats removes the seats without a test.
func (s *Server) dropSeats() error {
	s.seats.mu.Lock()
	defer s.seats.mu.Unlock()
	var errs []error
	for _, free := range s.seats.free {
		errs = append(errs, free.discard())
	}
	s.seats.free = nil
	return errors.Join(errs...)
}

// used counts the connections that the pools have given out so far.
func (s *seat) used() int64 { return s.test.Stat().AcquireCount() + s.serving.Stat().AcquireCount() }

// discard closes the pools and drops the database. A test that failed may have left a transaction open, whose
// connection is never given back: Close would wait for it without end.
func (s *seat) discard() error {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.test.Close()
		s.serving.Close()
	}()
	select {
	case <-closed:
	case <-time.After(stopLimit):
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	return s.drop(ctx)
}

// reset makes the seat like new; an error says why it cannot.
func (s *seat) reset(ctx context.Context, like *blank) error {
	if like == nil {
		return errors.New("only a superuser can compare catalogues")
	}
	var kept []int32
	for _, pool := range []*pgxpool.Pool{s.test, s.serving} {
		if err := quiet(ctx, pool); err != nil {
			return err
		}
		sessions, err := resetSessions(ctx, pool)
		if err != nil {
			return err
		}
		kept = append(kept, sessions...)
	}
	if err := alone(ctx, s.serving, kept); err != nil {
		return err
	}
	return like.restore(ctx, s.serving)
}

// quiet waits until nothing runs on a pool.
func quiet(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	for pool.Stat().AcquiredConns() > 0 || pool.Stat().ConstructingConns() > 0 {
		if err := pause(ctx); err != nil {
			return errors.New("something that the test has left running uses its connections")
		}
	}
	return nil
}

// resetSessionSQL is DISCARD ALL without the plans and the prepared statements, which follow the catalogues.
const resetSessionSQL = `
RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; UNLISTEN *; CLOSE ALL; DISCARD TEMPORARY; DISCARD SEQUENCES; SELECT pg_advisory_unlock_all()`

// resetSessions resets the sessions of a pool, and returns their process ids. It ends the sessions that a
// seat without a test does not keep.
func resetSessions(ctx context.Context, pool *pgxpool.Pool) (kept []int32, err error) {
	for i, conn := range pool.AcquireAllIdle(ctx) {
		if i >= restConnections {
			err = errors.Join(err, conn.Conn().Close(ctx))
		} else if _, failed := conn.Conn().PgConn().Exec(ctx, resetSessionSQL).ReadAll(); failed != nil {
			err = errors.Join(err, failed)
		}
		kept = append(kept, int32(conn.Conn().PgConn().PID())) //nolint:gosec // PostgreSQL's type
		conn.Release()
	}
	return kept, err
}

// alone waits until a database has no other sessions than its seat's. A worker of autovacuum, which has no
// user, may come at any time.
func alone(ctx context.Context, pool *pgxpool.Pool, sessions []int32) error {
	leave, cancel := context.WithTimeout(ctx, leaveLimit)
	defer cancel()
	for {
		var others int
		const sql = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usesysid IS NOT NULL AND pid <> pg_backend_pid() AND pid <> ALL ($1)`
		if err := pool.QueryRow(ctx, sql, sessions).Scan(&others); err != nil {
			return err
		}
		if others == 0 {
			return nil
		}
		if err := pause(leave); err != nil {
			return errors.New("the test has left sessions")
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Millisecond):
		return nil
	}
}
