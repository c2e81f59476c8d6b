package auditlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema/peer"
)

const (
	// maxPending bounds the lines that wait for the sink.
	maxPending = 10_000
	// patience is how long a call waits for its line, and Close for the sink.
	patience = 5 * time.Second
	// atOnce is the number of lines that the sink is given at once: each of them has at most some 40 KiB, and
	// receivers have bounds.
	atOnce = 50
)

// Config of a Log.
type Config struct {
	// Source is the deployment, or registry.
	Source  string
	Sink    Sink
	Classes []Class
	// Required: Record returns peer.ErrAuditLog for an event that the sink did not take.
	Required bool
	Logger   *zap.Logger
}

// Log numbers events, chains them and hands them to a sink, in batches. A nil Log records nothing.
type Log struct {
	cfg  Config
	wake chan struct{} // one place

	mu      sync.Mutex
	seq     uint64        // guarded by mu; of the last line
	hash    string        // guarded by mu; of the last line
	pending [][]byte      // guarded by mu; lines that the sink has not taken
	taken   uint64        // guarded by mu; of the last line that it has
	moved   chan struct{} // guarded by mu; closed when taken moves
	dropped int           // guarded by mu; events without a number, since the last line

	failing atomic.Bool // the sink did not take the last lines

	stop context.CancelFunc
	done chan struct{}
}

// Open begins a log with the event Began, after the last line of the sink.
func Open(cfg Config) (*Log, error) {
	last, err := cfg.Sink.Last()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	l := &Log{
		cfg: cfg, wake: make(chan struct{}, 1), seq: last.Seq, taken: last.Seq, hash: last.Hash,
		moved: make(chan struct{}), stop: stop, done: make(chan struct{}),
	}
	go l.run(ctx)
	return l, l.Record(context.Background(), Event{Outcome: Began})
}

// Failing reports whether the sink did not take the last lines; they are kept, and tried again. A nil Log
// never fails.
func (l *Log) Failing() bool { return l != nil && l.failing.Load() }

// Has reports whether a class is recorded.
func (l *Log) Has(c Class) bool { return l != nil && slices.Contains(l.cfg.Classes, c) }

// Record writes an event. With Config.Required it waits until the sink has it, or returns peer.ErrAuditLog;
// else it waits for nothing.
func (l *Log) Record(ctx context.Context, e Event) error {
	if l == nil || e.Class != "" && !l.Has(e.Class) {
		return nil
	}
	seq, err := l.add(e)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	if err != nil || !l.cfg.Required {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		l.mu.Lock()
		taken, moved := l.taken, l.moved
		l.mu.Unlock()
		if taken >= seq {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return peer.ErrAuditLog
		}
	}
}

// Note adds an event of a call that has its answer, and does not wait until the line is written.
func (l *Log) Note(e Event) {
	if l == nil || e.Class != "" && !l.Has(e.Class) {
		return
	}
	_, _ = l.add(e) // add counts an event that finds no room
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// add numbers an event. Without Config.Required, an event that has no room is counted, and the next line has
// the number of such events.
func (l *Log) add(e Event) (seq uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) >= maxPending {
		l.dropped++
		if l.cfg.Required {
			return 0, peer.ErrAuditLog
		}
		return 0, nil
	}
	if l.dropped > 0 {
		n := l.dropped
		l.dropped = 0
		if err := l.append(Event{
			Outcome: LeftOut, Count: n,
			Reason: "the sink did not take them in time",
		}); err != nil {
			return 0, err
		}
	}
	err = l.append(e)
	return l.seq, err
}

// append adds a line; the caller holds mu.
func (l *Log) append(e Event) error {
	line, hash, err := (&entry{
		Seq: l.seq + 1, Time: time.Now().UTC(), Source: l.cfg.Source, Event: e,
		Previous: l.hash,
	}).line()
	if err != nil {
		return err
	}
	l.seq, l.hash, l.pending = l.seq+1, hash, append(l.pending, line)
	return nil
}

// run hands lines to the sink. One that fails is tried again until the log is closed: no line is left out.
func (l *Log) run(ctx context.Context) {
	defer close(l.done)
	pause := retry.Backoff{First: 100 * time.Millisecond, Max: time.Second}
	for {
		select {
		case <-ctx.Done():
			_ = l.flush() // the remaining lines
			return
		case <-l.wake:
		}
		for err := l.flush(); err != nil; err = l.flush() {
			if !l.failing.Swap(true) {
				l.cfg.Logger.Error("the audit log cannot be written", zap.Error(err))
			}
			if pause.Wait(ctx) != nil {
				break
			}
		}
		pause.Reset()
		if ctx.Err() == nil && l.failing.Swap(false) {
			l.cfg.Logger.Info("the audit log is written again")
		}
	}
}

// flush hands all pending lines to the sink, some at a time.
func (l *Log) flush() error {
	for {
		l.mu.Lock()
		lines := slices.Clone(l.pending[:min(len(l.pending), atOnce)])
		l.mu.Unlock()
		if len(lines) == 0 {
			return nil
		}
		n, err := l.cfg.Sink.Write(lines)
		l.mu.Lock()
		l.pending = slices.Delete(l.pending, 0, n)
		l.taken += uint64(n) //nolint:gosec // a count
		close(l.moved)
		l.moved = make(chan struct{})
		l.mu.Unlock()
		if err != nil {
			return fmt.Errorf("write the audit log: %w", err)
		}
	}
}

// Close writes the lines that are left, and closes the sink. It gives up a sink that does not answer in time.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.stop()
	select {
	case <-l.done:
		return l.cfg.Sink.Close()
	case <-time.After(patience):
		return errors.New("the audit log did not take its last lines in time")
	}
}
