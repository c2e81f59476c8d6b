// Package standby lets a standby of the deployment's database answer reads of people in place of the primary.
//
// A read of the standby may be old by a bound. It is no older than the last write of its caller over this
// process, or than the last state of the primary that the caller asked for. Everything else is read from the
// primary: what the protocol decides by, what a caller wants to be the latest state, and each read that the
// standby does not answer. So a standby that is away, late or wrong costs the primary its reads, and nothing
// else.
package standby

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/postgres"
)

// DefaultMaxLag is the default of Config.MaxLag, MinMaxLag its least value.
const (
	DefaultMaxLag = time.Second
	MinMaxLag     = 100 * time.Millisecond
)

// Config of a Standby.
type Config struct {
	Primary postgres.Statements
	// Connect opens the pool of the standby. All of its connections have to be to one server: a sample proves
	// the state of the server that it asked.
	Connect func(ctx context.Context) (*pgxpool.Pool, error)
	// MaxLag is the greatest age of the state that a read may show.
	MaxLag time.Duration
	Logger *zap.Logger
}

// Standby is a server that replays the log of the deployment's database. Nil is none. It is safe for
// concurrent use.
type Standby struct {
	cfg    Config
	lanes  atomic.Pointer[postgres.Lanes] // nil before it was reached
	recent recent
	reads  [outcomes]atomic.Int64

	// asked receives when a read asks for the standby: without reads nothing is sampled. One place.
	asked chan struct{}
	// shows is the newest time whose commits the standby has all replayed; nil when that is not known.
	shows atomic.Pointer[time.Time]
}

// Outcome is how a read was answered.
type Outcome int

// The outcomes of reads that a standby may answer.
const (
	Answered Outcome = iota // by the standby
	Failed                  // by the primary, after the standby had failed or had not found the resource
	Late                    // by the primary: the standby's state is too old, or not known
	Recent                  // by the primary: the caller has written, or seen the latest state, a moment ago
	outcomes
)

func (o Outcome) String() string { return [...]string{"answered", "failed", "late", "recent"}[o] }

// New returns a Standby, which Run follows.
func New(cfg Config) *Standby {
	return &Standby{cfg: cfg, asked: make(chan struct{}, 1), recent: recent{keep: cfg.MaxLag}}
}

// Read answers a call by the standby if the caller's reads may be old (postgres.Caller.Standby) and the
// standby is fit for it; otherwise, and when the standby does not answer, by the primary. The statements and
// transactions of answer have to be of its context.
func Read[T any](ctx context.Context, s *Standby, answer func(ctx context.Context) (T, error)) (T, error) {
	over, ok := s.over(ctx)
	if !ok {
		return answer(ctx)
	}
	out, err := answer(over)
	if err == nil || ctx.Err() != nil {
		s.reads[Answered].Add(1)
		return out, err
	}
	s.reads[Failed].Add(1)
	// a later read must not show a resource that this one does not find
	defer func() { s.Saw(postgres.CallerOf(ctx).Who) }()
	return answer(ctx)
}

// over returns the context of a read over the standby's connections.
func (s *Standby) over(ctx context.Context) (context.Context, bool) {
	caller := postgres.CallerOf(ctx)
	if s == nil || !caller.Standby {
		return ctx, false
	}
	select {
	case s.asked <- struct{}{}:
	default:
	}
	now := time.Now()
	switch shows := s.shows.Load(); {
	case shows == nil || now.Sub(*shows) > s.cfg.MaxLag:
		s.reads[Late].Add(1)
		return ctx, false
	case s.recent.has(caller.Who, now):
		s.reads[Recent].Add(1)
		return ctx, false
	}
	return postgres.Over(ctx, s.lanes.Load()), true
}

// Saw records that a caller's write, or its read of the latest state, has ended: for a while its reads are of
// the primary.
func (s *Standby) Saw(who any) {
	if s != nil {
		s.recent.add(who, time.Now())
	}
}

// Reads returns the number of reads by outcome, since the start of the process.
func (s *Standby) Reads() map[Outcome]int64 {
	out := map[Outcome]int64{}
	for o := range outcomes {
		out[o] = s.reads[o].Load()
	}
	return out
}

// Close closes the connections.
func (s *Standby) Close() {
	if s == nil {
		return
	}
	if lanes := s.lanes.Load(); lanes != nil {
		lanes.Close()
	}
}

const (
	// samples is the least number of samples within MaxLag.
	samples = 4
	// sampleTimeout bounds a sample. A sample that ends late does no harm: the state that it proves has the
	// time of its begin.
	sampleTimeout = 10 * time.Second
)

// Run samples the standby while reads ask for it, until ctx ends.
func (s *Standby) Run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	ctx = postgres.InControl(ctx)
	waiting, told := []sample(nil), reporter{log: s.cfg.Logger}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.asked:
		}
		var err error
		if waiting, err = s.sample(ctx, waiting); ctx.Err() != nil {
			return nil
		}
		told.report(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.pause(err)):
		}
	}
}

// pause returns the time until the next sample. A server that cannot be used is not asked, and not connected
// to, as often.
func (s *Standby) pause(failed error) time.Duration {
	if failed != nil && !errors.Is(failed, errLagging) {
		return time.Second
	}
	return min(s.cfg.MaxLag, DefaultMaxLag) / samples
}

// sample is a position in the primary's log, which all commits before a time are below.
type sample struct {
	at       time.Time
	position int64 // bytes of the log
}

// Acknowledged commits are flushed. Each database has epochs of its own, and a standby that has replayed
// commits which the present primary has lost stays in the epoch before.
const (
	primarySQL = `
SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint, epoch::text FROM dbcontroller.meta`

	standbySQL = `
SELECT pg_is_in_recovery(), COALESCE(pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint, 0), epoch::text FROM dbcontroller.meta`
)

var (
	errNoStandby = errors.New("the server is no standby: it was promoted, or the address leads to a primary")
	errEpoch     = errors.New(
		"the standby has another epoch than the database: it is of another database, follows a server that is no longer the primary, or lags behind")
	errLagging = errors.New("the standby lags behind")
)

// sample asks the primary for a position, and the standby how many of the waiting ones it has replayed.
func (s *Standby) sample(ctx context.Context, waiting []sample) (still []sample, err error) {
	defer func() {
		if err != nil && !errors.Is(err, errLagging) {
			s.shows.Store(nil)
			still = nil
		}
	}()
	lanes, err := s.connected(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	taken := sample{at: time.Now()}
	var epoch, stored *string // nil: none is noticed yet
	if err := s.cfg.Primary.QueryRow(ctx, primarySQL).Scan(&taken.position, &epoch); err != nil {
		return nil, err
	}
	var recovers bool
	var replayed int64
	if err := lanes.QueryRow(ctx, standbySQL).Scan(&recovers, &replayed, &stored); err != nil {
		return nil, err
	}
	switch {
	case !recovers:
		return nil, errNoStandby
	case epoch == nil || stored == nil || *stored != *epoch:
		return nil, errEpoch
	}
	for _, w := range append(waiting, taken) {
		switch {
		case w.position <= replayed:
			s.shows.Store(&w.at)
		case taken.at.Sub(w.at) <= s.cfg.MaxLag:
			still = append(still, w)
		}
	}
	if shows := s.shows.Load(); shows == nil || time.Since(*shows) > s.cfg.MaxLag {
		err = errLagging
	}
	return still, err
}

// connected opens the pool when the standby is reached for the first time.
func (s *Standby) connected(ctx context.Context) (*postgres.Lanes, error) {
	if lanes := s.lanes.Load(); lanes != nil {
		return lanes, nil
	}
	pool, err := s.cfg.Connect(ctx)
	if err != nil {
		return nil, err
	}
	lanes := postgres.NewLanes(pool)
	s.lanes.Store(lanes)
	return lanes, nil
}

// reporter logs whether the standby answers reads, when that changes.
type reporter struct {
	log    *zap.Logger
	failed int // samples in a row
	told   bool
}

func (r *reporter) report(err error) {
	switch {
	case err == nil:
		if r.failed = 0; r.told {
			r.told = false
			r.log.Info("the standby of --postgres-read answers reads again")
		}
		return
	case r.told:
		return
	}
	// The first sample is not replayed at once; neither are the first ones after a pause of the reads.
	if r.failed++; r.failed > 2*samples || !errors.Is(err, errLagging) {
		r.told = true
		r.log.Warn("the standby of --postgres-read answers no reads, the primary answers them", zap.Error(err))
	}
}
