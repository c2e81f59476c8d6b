package admin

import (
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	// manyRows is the number of rows written from which the planner may misjudge a table that has few rows by its statistics: fewer are compared
	// with each other in little time.
	manyRows = 1000
	// statisticsPause is the pause between two looks of a process that writes. The counters of a session are visible after a second.
	statisticsPause = time.Second
	// othersPause is the pause between two looks of a process that does not: others write, too, embedded applications for instance.
	othersPause = 10 * time.Second
)

// RunStatistics renews the planner's statistics of tables that have grown to a multiple of what these say, until ctx ends: autovacuum looks at a
// database once a minute, and a batch that is planned for nearly empty tables compares each of its rows with each other. It returns nil.
func (s *Admin) RunStatistics(ctx context.Context) error {
	var seen int64 // rows written before the last look that followed many
	looks := 0     // that are due: two, since the counters of the last rows may not be visible at the first
	failed := false
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(statisticsPause):
		}
		if written := s.Written.Load(); written-seen >= manyRows {
			seen, looks = written, 2
		}
		if looks == 0 && time.Since(last) < othersPause {
			continue
		}
		looks, last = max(looks-1, 0), time.Now()
		err := s.analyzeGrown(ctx)
		if err != nil && ctx.Err() == nil && !failed {
			s.Log.Warn("the statistics of grown tables could not be renewed, retrying", zap.Error(err))
		}
		failed = err != nil
	}
}

func (s *Admin) analyzeGrown(ctx context.Context) error {
	var grown []string
	if err := s.Pool.QueryRow(ctx, `SELECT COALESCE(dbcontroller.analyze_grown($1), '{}')`, manyRows).Scan(&grown); err != nil {
		return err
	}
	if len(grown) > 0 {
		s.Log.Debug("statistics of grown tables were renewed", zap.Strings("tables", grown))
	}
	return nil
}
