package gate

import (
	"slices"
	"time"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// A process looks at its database every second: for a failover or a restore, and for what other processes
// change. One statement reads it all. The renewals of its lease look as well, and come a little more often by
// default: then they are the only looks.

// LookInterval bounds the time between two looks. A longer one delays what docs/protocol/watches.md has under
// "Waiting times" with a second.
const LookInterval = time.Second

const (
	// ReferencedSQL is the condition that references may point to a deployment d, which is not
	// decommissioned.
	ReferencedSQL = `d.pointed_to AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id)`

	// The columns of a look. TentativeTTL, an interval, stands between the two parts.
	lookBegin = `
SELECT ` + epochColumns + `    , ` + RunningColumns + `, ARRAY(SELECT d.id FROM dbcontroller.deployment d WHERE ` + ReferencedSQL + ` ORDER BY d.id),
    EXISTS (SELECT FROM dbcontroller.attachment), EXISTS (SELECT FROM dbcontroller.blockade b WHERE ` + db.ExpiredSQL
	lookEnd = `::interval)) OR EXISTS (SELECT FROM dbcontroller.freeze f WHERE ` + db.FreezeExpiredSQL + `
        AND (NOT f.committed OR EXISTS (SELECT FROM dbcontroller.frozen m WHERE m.deletion = f.deletion)))
    OR EXISTS (SELECT FROM dbcontroller.freeze f WHERE ` + db.PurgeDueSQL + ` AND NOT f.committed)
FROM dbcontroller.meta m`
	lookSQL = lookBegin + `$1` + lookEnd
)

// look is what one statement read of the database.
type look struct {
	ran *db.Version // the version of this process before the statement; nil before the first switch

	observedEpoch
	running    Running
	referenced []int32 // the deployments of ReferencedSQL
	attached   bool    // there are attached tables
	// there are expired blockades, or freezes by atomic deletions, or scheduled deletions to carry out
	expired bool
}

// beginLook returns a look with what this process knows before its statement is sent.
func (s *Gate) beginLook() *look {
	return &look{ran: s.Version.Load(), observedEpoch: observedEpoch{was: s.epoch.Load(), seen: s.Rollback.Seen.Load()}}
}

// columns returns the scan targets of a look.
func (n *look) columns() []any {
	return slices.Concat(n.observedEpoch.columns(), n.running.Into(), []any{&n.referenced, &n.attached, &n.expired})
}

// tell signals what a look has found to those who act upon it. Each signal is repeated by every look until
// they have: a look whose answer is lost delays them by a second.
func (s *Gate) tell(n *look) {
	known := s.referenced.Load()
	if n.ran != nil && !n.ran.Model.Says(n.running.Version, n.running.Digest) || known != nil &&
		!slices.Equal(*known, n.referenced) {
		signal(s.superseded)
	}
	if n.attached {
		s.WakeAttached()
	}
	if n.expired {
		signal(s.expired)
	}
}

// noted takes over the epoch of a look, which this process has noticed.
func (s *Gate) noted(n *look) {
	if n.flushed {
		s.Rollback.Observe(n.mark)
		s.Rollback.Looked(db.Look{Started: n.started, Mark: n.mark})
	}
	s.epoch.Store(n.epoch)
	s.checkedDatabases.Clear() // another process may have accepted another database
	now := time.Now()
	s.lookedAt.Store(&now)
}

// renewalLooked takes the look of a renewal. It counts when NoticeEpoch would have nothing to do; else
// NoticeEpoch looks when its look is due.
func (s *Gate) renewalLooked(n *look) {
	if s.sameDatabase(n.database) != nil {
		return
	}
	s.tell(n)
	if s.hasEnded(&n.observedEpoch) || n.was == nil || n.epoch == nil || *n.was != *n.epoch || !n.noticed ||
		n.awaiting || n.mark%markStep != 0 {
		return
	}
	s.noted(n)
	signal(s.looked)
}

// LookDue returns the time at which the next look is due.
func (s *Gate) LookDue() time.Time {
	if at := s.lookedAt.Load(); at != nil {
		return at.Add(LookInterval)
	}
	return time.Time{}
}

// Looked receives after a renewal looked, and there is no new epoch. Capacity one; never closed.
func (s *Gate) Looked() <-chan struct{} { return s.looked }

// Expired receives after a look has found expired blockades. Capacity one; never closed.
func (s *Gate) Expired() <-chan struct{} { return s.expired }

// ReferencedRead records the deployments of ReferencedSQL that the node manager has read, by their ids: a
// look that finds others signals Superseded.
func (s *Gate) ReferencedRead(ids []int32) { s.referenced.Store(&ids) }

// signal sends to a channel of capacity one: one signal means the same as several.
func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
