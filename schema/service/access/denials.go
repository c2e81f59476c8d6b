package access

import (
	"sync"
	"time"

	"github.com/db-controller/db-controller/internal/identity"
)

// Of the denials of one identity, and its questions about names that do not exist, burst have a line at once,
// and then one in a pause.
const (
	burst        = 10
	pauseOfLines = 10 * time.Second
)

// denials bounds the lines of each identity in the audit: no identity hides the lines of others by causing
// many.
type denials struct {
	mu sync.Mutex
	of map[identity.Identity]*denied // guarded by mu; of identities that have used a part of their burst
}

// denied counts the lines of one identity.
type denied struct {
	used    time.Duration // of burst*pauseOfLines, at since
	since   time.Time
	leftOut int // since its last line
}

// log reports whether an event has a line, and the number of events of the identity without one since its
// last line.
func (d *denials) log(who identity.Identity, now time.Time) (leftOut int, log bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.of[who]
	if of == nil {
		for other, old := range d.of {
			if old.leftOut == 0 && old.used <= now.Sub(old.since) {
				delete(d.of, other)
			}
		}
		of = &denied{since: now}
		d.of[who] = of
	}
	of.used, of.since = max(0, of.used-now.Sub(of.since)), now
	if of.used > (burst-1)*pauseOfLines {
		of.leftOut++
		return 0, false
	}
	of.used += pauseOfLines
	leftOut, of.leftOut = of.leftOut, 0
	return leftOut, true
}
