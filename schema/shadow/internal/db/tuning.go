package db

import (
	"cmp"
	"time"

	"github.com/db-controller/db-controller/schema/peer"
)

// Tuning are the settings of a store that may change while its process works. Every use reads the value that holds then, and no
// transaction needs the same value twice: processes of one deployment have different values while they are restarted with others.
type Tuning struct {
	TentativeTTL time.Duration // of Times
	OwnerGrace   time.Duration // of Times
	RemovalsKept time.Duration // Retention.Removals
	Quotas       peer.Quotas   // of Limits
}

// Tune changes settings; a zero is the default.
func (s *DB) Tune(t Tuning) {
	t.TentativeTTL = cmp.Or(max(t.TentativeTTL, 0), DefaultTentativeTTL)
	t.OwnerGrace = cmp.Or(max(t.OwnerGrace, 0), DefaultOwnerGrace)
	t.RemovalsKept = cmp.Or(max(t.RemovalsKept, 0), DefaultRemovalsKept)
	t.Quotas.Tentative = cmp.Or(max(t.Quotas.Tentative, 0), DefaultTentativeQuota)
	t.Quotas.Blocking = cmp.Or(max(t.Quotas.Blocking, 0), DefaultBlockingQuota)
	s.tuning.Store(&t)
}

// Tuning returns the present settings.
func (s *DB) Tuning() Tuning { return *s.tuning.Load() }
