package feed

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/db-controller/db-controller/schema"
)

var (
	// ErrReset says that a resume token cannot be resumed: start with a new snapshot.
	ErrReset = schema.ErrReset
	// ErrSlow reports that the reader of a watch took too long to take a delivery: open the watch again.
	ErrSlow = errors.New("the reader is too slow, open the watch again")
	// ErrUnnoticed: the database was restored or failed over and has not begun a new epoch yet; try again.
	ErrUnnoticed = errors.New("the database was restored or failed over, and has not begun a new epoch yet: try again")
)

// Config of a Log. All fields but the times and Heard are needed.
type Config struct {
	Pool *pgxpool.Pool
	// StateSQL is StateBegin, the table of one row, and StateEnd.
	StateSQL string
	// WrittenSQL is WrittenBegin, which of the topics have a row with New, as a number, WrittenFrom, the table of one row, and
	// StateEnd. It takes xmax and xip.
	WrittenSQL string
	// Wake is woken after commits of this process, and at notifications of commits of other processes.
	Wake *Broadcast
	// PollInterval is the pause between two reads, for all watches together, of whether anything was written (default 1 s).
	PollInterval time.Duration
	// Heard reports whether notifications of other processes' commits arrive. While they do, that read only finds commits whose
	// notification was lost, and happens ten times less often (default: they do not).
	Heard func() bool
	// SlowTimeout is how long a reader may take for one delivery before its watch ends with ErrSlow; it can open the watch
	// again with its last token, and is served from the table as long as rows are kept (default 1 min).
	SlowTimeout time.Duration
	// Ahead is called with the present epoch when a token of it is ahead of the database: an older copy has taken its place. May
	// be nil.
	Ahead func(epoch string)
}

// Log is the set of followed tables of one database.
type Log struct {
	cfg Config
	// snapshots bounds the open snapshots of feeds that users can read, to a quarter of the connections.
	snapshots chan struct{}
	tails     tails
	pulse     pulse
}

// NewLog returns a log.
func NewLog(cfg Config) *Log {
	if cfg.PollInterval <= 0 {
		cfg.PollInterval = time.Second
	}
	if cfg.Heard == nil {
		cfg.Heard = func() bool { return false }
	}
	if cfg.SlowTimeout <= 0 {
		cfg.SlowTimeout = time.Minute
	}
	return &Log{cfg: cfg, snapshots: make(chan struct{}, max(1, cfg.Pool.Config().MaxConns/4)), tails: tails{byKey: map[tailKey]counted{}}, pulse: pulse{at: Position{xmax: "0"}}}
}

// Feed is a table that is its own log: its rows at a position, and the rows that a newer position sees in addition.
type Feed[T any] struct {
	// Filter identifies the watched rows and the reader: tokens are bound to it.
	Filter string
	// Topic wakes the feed.
	Topic Topics
	// Chunk bounds how many items one watch holds in memory.
	Chunk int
	// Aged: rows are removed because of their age, and not only when they are done; users can read the feed.
	Aged bool
	// SnapshotSQL declares a cursor, DECLARE feed NO SCROLL CURSOR FOR ..., and takes Args. FirstSQL and NextSQL take xmax,
	// xip, a limit, Args, the end of the window, and NextSQL after these the last sequence number: SinceBegin, the
	// table of one row, SinceJoin, a SELECT of the items with New in its condition, and FirstPage or NextPage. More comes
	// last in all of them. All parameters but these last ones have fixed numbers.
	SnapshotSQL, FirstSQL, NextSQL string
	Args, More                     []any
	// Scan reads an item and its sequence number, which is 0 for a row without an item (all columns are NULL then).
	Scan func(pgx.CollectableRow) (T, int64, error)
}

// The statements of a feed, around the table of one row and the SELECT of the items. The left join gives a row without
// an item where there is none, so that the statement always returns its snapshot and epoch.
//
// New rows have xid >= xmax OR xid = ANY (running). The first page finds it by the index on xid: "seq + 0" keeps
// the planner from scanning the whole table in the order of seq, which it prefers because of the LIMIT. Further pages mean
// that the window is large: they scan in the order of seq, from the end of the page before.
const (
	SinceBegin = `
SELECT pg_current_snapshot()::text, ` + lsnSQL + `, COALESCE((` + EpochSQL + `)::text, ''), m.compacted::text, x.* FROM `
	SinceJoin = ` AS m LEFT JOIN LATERAL (`
	New       = ` (xid >= $1::text::xid8 OR xid = ANY ($2::text[]::xid8[])) `
	// FirstPage and NextPage are of feeds with one argument, FirstPageOfAll and NextPageOfAll of those with none.
	FirstPage      = ` AND ($5::text IS NULL OR pg_visible_in_snapshot(xid, $5::text::pg_snapshot))` + byXID
	NextPage       = ` AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) AND seq > $6` + bySeq
	FirstPageOfAll = ` AND ($4::text IS NULL OR pg_visible_in_snapshot(xid, $4::text::pg_snapshot))` + byXID
	NextPageOfAll  = ` AND pg_visible_in_snapshot(xid, $4::text::pg_snapshot) AND seq > $5` + bySeq

	byXID = ` ORDER BY seq + 0 LIMIT $3) AS x ON true`
	bySeq = ` ORDER BY seq LIMIT $3) AS x ON true`
)
