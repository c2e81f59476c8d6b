package db

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// Marked is a transaction with the last number that it has taken from the sequence mark.
type Marked struct {
	pgx.Tx
	Mark int64

	committed bool // with its last statements
	after     []func()
}

// AfterCommit calls fn when a transaction of InTx is committed; not for a transaction of the users' own.
func AfterCommit(tx pgx.Tx, fn func()) {
	if m, ok := tx.(*Marked); ok {
		m.after = append(m.after, fn)
	}
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
