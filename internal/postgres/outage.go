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

// Outage tracks whether the database of a process is unavailable, from the errors that the process logs. During an outage
// every call and every retry would log the same error: the first such line is replaced by "the database is unavailable", and
// further ones are dropped until Follow finds the database available again.
type Outage struct {
	log *zap.Logger // the logger without the filter

	mu       sync.Mutex
	began    time.Time // guarded by mu; zero: no outage
	last     time.Time // guarded by mu; time of the last error
	followed bool      // guarded by mu
}

const (
	// settled is how long no error may have been logged before the database is asked whether it is available again.
	settled = 3 * time.Second
	// forgotten is how long after the last error an outage counts as over when Follow does not run.
	forgotten = time.Minute
)

// LogOutageOnce returns a logger that writes one line for an outage of the database. A logger that it has returned before is
// returned as it is.
func LogOutageOnce(log *zap.Logger) (*zap.Logger, *Outage) {
	if core, ok := log.Core().(*outageCore); ok {
		return log, core.outage
	}
	o := &Outage{log: log}
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core { return &outageCore{core, o} })), o
}

// failed records an error, and reports whether it is the first one of an outage.
func (o *Outage) failed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	first := o.began.IsZero() || !o.followed && now.Sub(o.last) > forgotten
	if o.last = now; first {
		o.began = now
	}
	return first
}

// waiting reports whether there is an outage whose last error is at least settled ago.
func (o *Outage) waiting() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.began.IsZero() && time.Since(o.last) >= settled
}

// Follow checks every second whether the database is available again after an outage, and logs that. It returns nil when ctx
// ends.
func (o *Outage) Follow(ctx context.Context, works func(context.Context) error) error {
	o.mu.Lock()
	o.followed = true
	o.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		if !o.waiting() {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, settled)
		err := works(asked)
		cancel()
		if err != nil {
			continue
		}
		o.mu.Lock()
		if time.Since(o.last) >= settled {
			o.log.Info("the database is available again", zap.Duration("after", time.Since(o.began).Round(time.Millisecond)))
			o.began = time.Time{}
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
		if f.Type != zapcore.ErrorType || !ok || !Unavailable(err) || errors.Is(err, io.EOF) { // io.EOF ends every stream
			continue
		}
		if !c.outage.failed() {
			return nil
		}
		e.Level, e.Message = zapcore.WarnLevel, "the database is unavailable, retrying"
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
