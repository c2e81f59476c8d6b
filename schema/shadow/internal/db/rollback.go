package db

import (
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// rollbackDetector detects that the database was replaced by an older copy of itself. Every transaction that removes or decides
// something takes a number from the sequence mark, which nothing else uses: it is greater than each number that this process has
// committed with or has read from disk. An older copy returns a smaller number, even if its server has the same system identifier
// and timeline; from then on nothing is decided until a new epoch has begun.
type rollbackDetector struct {
	// seen only grows. Only numbers of committed transactions are included: a crash may lose the others.
	Seen atomic.Int64
	// EndedEpoch is the epoch in which a smaller number was taken. It counts as ended from then on, also when later transactions
	// take greater numbers: retries advance the copy's sequence.
	EndedEpoch atomic.Pointer[uuid.UUID]
}

func (m *rollbackDetector) Observe(n int64) {
	for {
		seen := m.Seen.Load()
		if n <= seen || m.Seen.CompareAndSwap(seen, n) {
			return
		}
	}
}

// HasEnded reports whether a smaller number was taken in an epoch.
func (m *rollbackDetector) HasEnded(epoch uuid.UUID) bool {
	behind := m.EndedEpoch.Load()
	return behind != nil && *behind == epoch
}

// Marked is a transaction with the last number that it has taken from the sequence mark.
type Marked struct {
	pgx.Tx
	Mark int64
}

// tokenAhead ends an epoch of which another deployment, or a client, has a token that the database has not reached: it is a copy of
// before, and this process began over it.
func (s *DB) tokenAhead(epoch string) {
	ended, err := uuid.Parse(epoch)
	if err != nil || s.Rollback.HasEnded(ended) {
		return
	}
	s.Log.Warn("a resume token is ahead of the database: an older copy has taken its place; a new epoch begins", zap.String("epoch", epoch))
	s.Rollback.EndedEpoch.Store(&ended)
}
