package db

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Finish removes pieces of work that are done. It waits for the disk: after a crash of PostgreSQL a watch
// that goes on would not deliver work that is there again, because its position is later than that work.
func (s *DB) Finish(ctx context.Context, seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	err := s.InTx(ctx, NoFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(DoneSQL, seqs)
		return CommitWith(ctx, tx, b)
	})
	if err != nil {
		return fmt.Errorf("finish work: %w", err)
	}
	return nil
}

const (
	DoneSQL = `DELETE FROM dbcontroller.work WHERE seq = ANY ($1)`
)

// Groups in countsSQL, beside the actions of work.
const (
	AcknowledgeGroup = 101
	DeletingGroup    = 102
	ResolveGroup     = 103
	AcquireGroup     = 104
	PurgeGroup       = 105
)
