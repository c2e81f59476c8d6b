package db

import (
	"cmp"
	"time"

	"github.com/db-controller/db-controller/schema/peer"
)

// Tuning has the settings of a store that may change while its process works. Every use reads the values that
// hold then, and no transaction needs the same value twice: processes of one deployment have different values
// while they are restarted with others.
type Tuning struct {
	TentativeTTL time.Duration // of Times
	OwnerGrace   time.Duration // of Times
	MissingGrace time.Duration // of Times
	ChangesKept  time.Duration // of Retention.Changes
	RemovalsKept time.Duration // of Retention.Removals
	Quotas       peer.Quotas   // of Limits
}

// Defaults of settings that operators see.
const (
	DefaultTentativeTTL   = 15 * time.Second
	DefaultOwnerGrace     = 5 * time.Minute
	DefaultMissingGrace   = time.Minute
	DefaultChangesKept    = 24 * time.Hour
	DefaultRemovalsKept   = 90 * 24 * time.Hour
	DefaultTentativeQuota = 100_000
	DefaultBlockingQuota  = 10_000_000
	DefaultUnusedQuota    = 1000
)

// Complete returns the settings with defaults instead of zeros.
func (t Tuning) Complete() *Tuning {
	t.TentativeTTL = cmp.Or(max(t.TentativeTTL, 0), DefaultTentativeTTL)
	t.OwnerGrace = cmp.Or(max(t.OwnerGrace, 0), DefaultOwnerGrace)
	t.MissingGrace = cmp.Or(max(t.MissingGrace, 0), DefaultMissingGrace)
	t.ChangesKept = cmp.Or(max(t.ChangesKept, 0), DefaultChangesKept)
	t.RemovalsKept = cmp.Or(max(t.RemovalsKept, 0), DefaultRemovalsKept)
	t.Quotas.Tentative = cmp.Or(max(t.Quotas.Tentative, 0), DefaultTentativeQuota)
	t.Quotas.Blocking = cmp.Or(max(t.Quotas.Blocking, 0), DefaultBlockingQuota)
	t.Quotas.Unused = cmp.Or(max(t.Quotas.Unused, 0), DefaultUnusedQuota)
	return &t
}
