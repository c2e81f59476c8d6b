package db

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// lateLook is the time between two looks for notes that are due impossibly late.
const lateLook = 10 * time.Second

// No pause is longer than the one of its number of tries: the clock of the database has gone back since. The
// pauses of few tries are found by an index on them, number by number, and longer ones than an hour by the
// index on due, so that notes that wait as they should cost nothing.
const endLatePausesSQL = `
UPDATE dbcontroller.{table} SET due = now() WHERE seq = ANY (ARRAY(
    SELECT c.seq FROM generate_series(1, 13) AS n CROSS JOIN LATERAL (
        SELECT seq FROM dbcontroller.{table} WHERE tries = n AND tries > 0 AND tries < 14 AND due > now() + interval '1 s' + interval '250 ms' * power(2, n)) AS c
    UNION ALL
    SELECT seq FROM dbcontroller.{table} WHERE due > now() + interval '1 hour 1 s'))`

// LatePauses ends the pauses of the notes in a table that are longer than any pause allows (I28). The table
// has the columns seq, tries and due; the n-th pause is 250 ms * 2^n, and at most an hour.
type LatePauses struct {
	sql  string
	last atomic.Int64 // when this process looked last, in Unix nanoseconds
}

// NewLatePauses returns the pauses of a table.
func NewLatePauses(table string) *LatePauses {
	return &LatePauses{sql: strings.ReplaceAll(endLatePausesSQL, "{table}", table)}
}

// End looks for such pauses, every ten seconds.
func (l *LatePauses) End(ctx context.Context, q Querier) error {
	last, now := l.last.Load(), time.Now().UnixNano()
	if now-last < int64(lateLook) || !l.last.CompareAndSwap(last, now) {
		return nil
	}
	rows, err := q.Query(ctx, l.sql)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		return fmt.Errorf("end pauses that are too long: %w", err)
	}
	return nil
}
