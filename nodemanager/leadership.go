package nodemanager

import "time"

// leadership decides whether this process takes and keeps the lead of its deployment. Other deployments reach
// the deployment at the address of the process that leads. One that cannot be registered leaves the lead to
// another process for a moment. If no process takes it, or that one cannot be registered either, the lead
// comes back, and this process goes on.
type leadership struct {
	can func() bool
	ttl time.Duration

	// since is the first renewal at which this process led and could not; zero: it can, or does not lead.
	since time.Time
	// steppedDown is the last time that it left the lead.
	steppedDown time.Time
}

const (
	// patience is the number of TTLs for which a process leads that cannot be registered: as long as shards
	// of a dead process wait.
	patience = 1
	// between is the number of TTLs between two tries to leave the lead: while it is left, no process works
	// on its shard.
	between = 12
)

// aside is the time for which the lead is left to others, each of which renews five times in a TTL.
func (l *leadership) aside() time.Duration { return l.ttl * 3 / 5 }

// takes reports whether this process takes the lead when no process has it.
func (l *leadership) takes(now time.Time) bool {
	return l.can() || l.steppedDown.IsZero() || now.Sub(l.steppedDown) >= l.aside()
}

// stepsDown reports whether this process leaves the lead now. leads: it leads, and there are other processes.
func (l *leadership) stepsDown(now time.Time, leads bool) bool {
	if !leads || l.can() {
		l.since = time.Time{}
		return false
	}
	if l.since.IsZero() {
		l.since = now
	}
	if now.Sub(l.since) < patience*l.ttl || !l.steppedDown.IsZero() && now.Sub(l.steppedDown) < between*l.ttl {
		return false
	}
	l.since, l.steppedDown = time.Time{}, now
	return true
}
