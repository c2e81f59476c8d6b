package feed

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/db-controller/db-controller/internal/postgres"
)

// everything is the set of all topics.
const everything = ^Topics(0)

// restful is the factor by which pulses are rarer while notifications of other processes' commits arrive.
const restful = 10

// pulse is one query for all watches of a process: it asks which topics have new rows since the pulse before,
// and wakes their watches. The first watch that finds it due runs it. It replaces lost notifications: a watch
// reads when it joins, and from then on each commit lies between two pulses.
type pulse struct {
	mu      sync.Mutex
	began   time.Time // guarded by mu; the last one
	running bool      // guarded by mu
	at      Position  // guarded by mu; the position of the last pulse that succeeded
	epoch   string    // guarded by mu; at is of this epoch
	// quiet has, by topic, a position after which nothing was written until at; guarded by mu.
	quiet map[Topics]Position
}

// rested returns the position of the last pulse when nothing of a topic was written between it and an earlier
// position: then both are the same place in the feed. The token of the later one reveals more of an older
// copy of the database.
func (p *pulse) rested(topic Topics, epoch string, at Position) (Position, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	since, ok := p.quiet[topic]
	return p.at, ok && p.epoch == epoch && !since.after(at) && p.at.after(at)
}

// note records the result of a pulse. The caller holds mu.
func (p *pulse) note(to Position, epoch string, touched Topics) {
	if p.quiet == nil {
		p.quiet = map[Topics]Position{}
	}
	for topic := Topics(1); topic != 0; topic <<= 1 {
		if touched&topic != 0 {
			p.quiet[topic] = to
		}
	}
	p.at, p.epoch = to, epoch
}

// due returns how long to wait before the next pulse.
func (l *Log) due() time.Duration {
	l.pulse.mu.Lock()
	defer l.pulse.mu.Unlock()
	interval := l.cfg.PollInterval
	if l.cfg.Heard() {
		interval *= restful
	}
	if l.pulse.running {
		return interval
	}
	return time.Until(l.pulse.began.Add(interval))
}

// beat asks whether anything was written, unless another watch has asked. After an error, or in another
// epoch, it wakes all watches, whose own reads return the error.
func (l *Log) beat(ctx context.Context) {
	if l.due() > 0 {
		return
	}
	p := &l.pulse
	p.mu.Lock()
	if p.running {
		p.mu.Unlock()
		return
	}
	p.running, p.began = true, time.Now()
	from, epoch := p.at, p.epoch
	p.mu.Unlock()
	touched := everything
	var to Position
	var err error
	defer func() {
		p.mu.Lock()
		if p.running = false; err == nil {
			p.note(to, epoch, touched)
		}
		p.mu.Unlock()
		l.cfg.Wake.Wake(touched)
	}()
	// Not cancelled with the watch that found it due: the other watches depend on it.
	ctx, cancel := context.WithTimeout(postgres.InControl(context.WithoutCancel(ctx)), lookTimeout)
	defer cancel()
	var current state
	var written Topics
	if current, written, err = l.written(ctx, from); err == nil {
		to, err = parsePosition(current.at)
	}
	if err == nil && current.epoch == epoch && !from.after(to) {
		touched = written
	}
	epoch = current.epoch
}

// written returns the topics that were written after a position, and a newer position that is on disk.
func (l *Log) written(ctx context.Context, from Position) (current state, touched Topics, err error) {
	var mask int16
	row := l.cfg.Pool.QueryRow(ctx, l.cfg.WrittenSQL, from.xmax, from.xip)
	if err := row.Scan(&current.at, &current.lsn, &current.flushed, &current.epoch, &mask); err != nil {
		return current, everything, fmt.Errorf("read which topics were written: %w", err)
	}
	return current, Topics(mask), l.flush(ctx, current) //nolint:gosec // as many bits as there are topics
}
