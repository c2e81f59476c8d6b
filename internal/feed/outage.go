package feed

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Outage is whether a process's database is away, as the errors that it logs tell. A line that carries such an error says
// what every other one says, once a call and once a try: the first one becomes the line "the database is away", and the
// others are left out, until Follow finds the database back.
type Outage struct {
	log *zap.Logger // below

	mu       sync.Mutex
	began    time.Time // guarded by mu; zero: it is there
	last     time.Time // guarded by mu; of the last error
	followed bool      // guarded by mu
}

const (
	// settled is for how long nothing may have failed before the database counts as back.
	settled = 3 * time.Second
	// forgotten is after how long without an error the next one is of another outage, where nobody follows it.
	forgotten = time.Minute
)

// Patient gives a logger that writes one line for an outage of the database. A logger that does already is given back.
func Patient(log *zap.Logger) (*zap.Logger, *Outage) {
	if core, ok := log.Core().(*outageCore); ok {
		return log, core.outage
	}
	o := &Outage{log: log}
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core { return &outageCore{core, o} })), o
}

// failed reports whether the error is the first one of an outage.
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

// waiting reports whether the database is away as far as is known, and has made nothing fail for a while.
func (o *Outage) waiting() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.began.IsZero() && time.Since(o.last) >= settled
}

// Follow looks every second whether a database that was away is back, and says so.
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
			o.log.Info("the database is back", zap.Duration("after", time.Since(o.began).Round(time.Millisecond)))
			o.began = time.Time{}
		}
		o.mu.Unlock()
	}
}

// outageCore replaces lines with errors of a database that is away.
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
		if f.Type != zapcore.ErrorType || !ok || !Away(err) || errors.Is(err, io.EOF) { // which is the end of any stream
			continue
		}
		if !c.outage.failed() {
			return nil
		}
		e.Level, e.Message = zapcore.WarnLevel, "the database is away, what needs it is tried again until it is back"
		fields = []zapcore.Field{zap.Error(err)}
		break
	}
	// Not Core.Write: a core that samples does so when it is asked.
	if ce := c.Core.Check(e, nil); ce != nil {
		ce.Write(fields...)
	}
	return nil
}
