package db

import (
	"fmt"
	"sync/atomic"
)

// Look is a value of the sequence mark that was read from disk, and the start of the server at that time, in
// microseconds since 1970. Ids of transactions and places in the log belong to the whole server; the sequence
// belongs to the database.
type Look struct{ Started, Mark int64 }

// presentSQL selects from a row m of meta the values that Lost compares: the noticed start of the server, the
// value of the sequence at that time, and its present value. pg_sequence_last_value is for roles that may
// take numbers, and cannot read the sequence.
const presentSQL = `format('%s:%s:%s', COALESCE((extract(epoch FROM m.started_at) * 1000000)::bigint, 0), m.started_mark, COALESCE(pg_sequence_last_value('dbcontroller.mark'::regclass), 0))`

// looked is the newest Look of a process.
type looked struct{ at atomic.Pointer[Look] }

// Looked records a look that is on disk.
func (l *looked) Looked(at Look) { l.at.Store(&at) }

// witness writes the newest look into tokens.
func (l *looked) witness() string {
	at := l.at.Load()
	if at == nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", at.Started, at.Mark)
}

// lost reports whether a database lacks numbers that another look has seen on disk. A look of an earlier
// start of the server saw no more than the first one of the present start, for any numbers that an older copy
// has taken since.
func lost(witness, present string) bool {
	var told Look
	var started, first, last int64
	if n, _ := fmt.Sscanf(witness, "%d:%d", &told.Started, &told.Mark); n != 2 {
		return false
	}
	if n, _ := fmt.Sscanf(present, "%d:%d:%d", &started, &first, &last); n != 3 {
		return false
	}
	if told.Started != started && started != 0 {
		return told.Mark > first
	}
	return told.Mark > last
}
