package postgres

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Outage tracks whether the database of a process is unavailable, or refuses writes, from the errors that the
// process logs. During an outage every call and every retry would log the same error: the first such line is
// replaced by "the database is unavailable", and further ones are dropped until Follow finds the database
// available again.
type Outage struct {
	log    *zap.Logger   // the logger without the filter
	failed chan struct{} // one place: an error was recorded

	mu       sync.Mutex
	began    time.Time // guarded by mu; zero: no outage
	last     time.Time // guarded by mu; time of the last error
	followed bool      // guarded by mu
	refuses  error     // guarded by mu; why it refuses writes: ErrDiskFull, ErrReadOnly or nil
}

const (
	// settled is how long no error may have been logged before the database is asked whether it is available
	// again.
	settled = 3 * time.Second
	// forgotten is how long after the last error an outage counts as over when Follow does not run.
	forgotten = time.Minute
)

// LogOutageOnce returns a logger that writes one line for an outage of the database. A logger that it has
// returned before is returned as it is.
func LogOutageOnce(log *zap.Logger) (*zap.Logger, *Outage) {
	if core, ok := log.Core().(*outageCore); ok {
		return log, core.outage
	}
	o := &Outage{log: log, failed: make(chan struct{}, 1)}
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core { return &outageCore{core, o} })), o
}

// record records an error, and reports whether it is the first one of an outage, or of another kind than
// those before.
func (o *Outage) record(err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.failed <- struct{}{}:
	default:
	}
	now := time.Now()
	first := o.began.IsZero() || !o.followed && now.Sub(o.last) > forgotten
	if why := refusesWrites(err); why != nil && o.refuses == nil {
		first, o.refuses = true, why
	}
	if o.last = now; first {
		o.began = now
	}
	return first
}

// silent reports whether there is an outage whose last error is at least some time ago.
func (o *Outage) silent(atLeast time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.began.IsZero() && time.Since(o.last) >= atLeast
}

// Refuses returns why the database refuses writes: ErrDiskFull, ErrReadOnly, or nil. It is nil again when
// Follow has found that the database takes writes.
func (o *Outage) Refuses(context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.refuses
}

// Follow checks every second of an outage whether the database takes writes again, and logs that. It returns
// nil when ctx ends.
func (o *Outage) Follow(ctx context.Context, works func(ctx context.Context, refused error) error) error {
	o.mu.Lock()
	o.followed = true
	o.mu.Unlock()
	for {
		var next <-chan time.Time // nil: there is no outage
		if o.silent(0) {
			next = time.After(time.Second)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-o.failed:
			continue
		case <-next:
		}
		if !o.silent(settled) {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, settled)
		err := works(asked, o.Refuses(ctx))
		cancel()
		if err != nil {
			continue
		}
		o.mu.Lock()
		if time.Since(o.last) >= settled {
			o.log.Info("the database is available again",
				zap.Duration("after", time.Since(o.began).Round(time.Millisecond)))
			o.began, o.refuses = time.Time{}, nil
		}
		o.mu.Unlock()
	}
}

// outageCore replaces the first line about an outage, and drops the others.
type outageCore struct {
	zapcore.Core
	outage *Outage
}

func (c *outageCore) With(fields []zapcore.Field) zapcore.Core {
	return &outageCore{c.Core.With(fields), c.outage}
}

func (c *outageCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *outageCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	for _, f := range fields {
		err, ok := f.Interface.(error)
		// io.EOF ends every stream
		if f.Type != zapcore.ErrorType || !ok || !Unavailable(err) || errors.Is(err, io.EOF) {
			continue
		}
		if !c.outage.record(err) {
			return nil
		}
		e.Level, e.Message = zapcore.WarnLevel, "the database is unavailable, retrying"
		if why := refusesWrites(err); why != nil {
			e.Message = why.Error()
		}
		fields = slices.DeleteFunc(slices.Clone(fields), func(f zapcore.Field) bool {
			return f.Type != zapcore.ErrorType && f.Key != "request_id" // the request that has met the outage
		})
		break
	}
	// Not Core.Write: a sampling core drops entries in Check.
	if ce := c.Core.Check(e, nil); ce != nil {
		ce.Write(fields...)
	}
	return nil
}
