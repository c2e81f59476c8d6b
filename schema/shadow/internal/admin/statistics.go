package admin

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const (
	// manyRows is the number of rows from which the planner may misjudge a table that has few rows by its
	// statistics: fewer are compared with each other in little time.
	manyRows = 1000
	// statisticsPause is the pause between two looks of a process that writes.
	statisticsPause = time.Second
	// othersPause is the pause between two looks of a process that does not, and after a failure: others
	// write, too, embedded applications for instance.
	othersPause = 10 * time.Second
	// analyzeLimit bounds the ANALYZE of a table, which reads at most 30,000 of its pages.
	analyzeLimit = 10 * time.Second
)

// RunStatistics renews the planner's statistics of tables that have grown to a multiple of their recorded
// size, until ctx ends: autovacuum looks at a database once a minute, and a batch that is planned for nearly
// empty tables compares each of its rows with each other. It returns nil.
func (s *Admin) RunStatistics(ctx context.Context) error {
	var seen int64 // rows written before the last look that followed many
	failed := false
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(last.Add(othersPause))):
		case <-s.Wrote:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(statisticsPause):
			}
		}
		written := s.Written.Load()
		if (written-seen < manyRows || failed) && time.Since(last) < othersPause {
			continue
		}
		seen, last = written, time.Now()
		err := s.analyzeGrown(ctx)
		if err != nil && ctx.Err() == nil && !failed {
			s.Log.Warn("the statistics of grown tables could not be renewed, retrying", zap.Error(err))
		}
		failed = err != nil
	}
}

// analyzeGrown renews the statistics of grown tables, each in a transaction of its own. A table that another
// session analyses is passed over.
func (s *Admin) analyzeGrown(ctx context.Context) error {
	for behind := ""; ; {
		var grown *string
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, analyzeLimit)
			defer cancel()
			return s.Pool.QueryRow(ctx, `SELECT dbcontroller.analyze_grown($1, $2)`, manyRows, behind).Scan(&grown)
		}()
		if err != nil {
			return fmt.Errorf("behind table %q: %w", behind, err)
		}
		if grown == nil {
			return nil
		}
		s.Log.Debug("a table has grown, its statistics are renewed here or by another session",
			zap.Stringp("table", grown))
		behind = *grown
	}
}
