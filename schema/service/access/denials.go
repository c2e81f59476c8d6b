package access

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/identity"
)

// denialsOfOne is the number of denials of one identity that the audit has in a second.
const denialsOfOne = 10

// denials bounds the lines of each identity in the audit: nobody hides the denials of others by causing many.
type denials struct {
	mu sync.Mutex
	of map[identity.Identity]*denied // guarded by mu; of identities with denials in the last second, or with ones that were left out
}

// denied counts the denials of one identity.
type denied struct {
	since   time.Time
	count   int
	leftOut int
}

// log reports whether a denial has a line, and how many of the identity had none since its last line.
func (d *denials) log(who identity.Identity, now time.Time) (leftOut int, log bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.of[who]
	if of == nil {
		for other, old := range d.of {
			if old.leftOut == 0 && now.Sub(old.since) >= time.Second {
				delete(d.of, other)
			}
		}
		of = &denied{since: now}
		d.of[who] = of
	}
	if now.Sub(of.since) >= time.Second {
		of.since, of.count = now, 0
	}
	if of.count++; of.count > denialsOfOne {
		of.leftOut++
		return 0, false
	}
	leftOut, of.leftOut = of.leftOut, 0
	return leftOut, true
}

// fields of the line of a denial.
func (d *denials) fields(who identity.Identity, fields []zap.Field) ([]zap.Field, bool) {
	leftOut, log := d.log(who, time.Now())
	if leftOut > 0 {
		fields = append(fields, zap.Int("left_out", leftOut))
	}
	return fields, log
}
