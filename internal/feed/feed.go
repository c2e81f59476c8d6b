package feed

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
)

var (
	// ErrReset says that a resume token cannot be resumed: start with a new snapshot.
	ErrReset = schema.ErrReset
	// ErrSlow reports that the reader of a watch took too long to take a delivery: open the watch again.
	ErrSlow = errors.New("the reader is too slow, open the watch again")
	// ErrUnnoticed reports that the database was restored or failed over and has not begun a new epoch yet;
	// try again.
	ErrUnnoticed = errors.New("the database was restored or failed over, and has not begun a new epoch yet: try again")
)

// Config of a Log. All fields but the times and Heard are needed.
type Config struct {
	Pool postgres.Pool
	// StateSQL is StateBegin, the text that Lost compares, StateFrom, the table of one row, and StateEnd.
	StateSQL string
	// WrittenSQL is WrittenBegin, for which of the topics AnyNew holds, as a number, WrittenFrom, the table
	// of one row, and StateEnd. It takes xmax and xip.
	WrittenSQL string
	// Wake is woken after commits of this process, and at notifications of commits of other processes.
	Wake *Broadcast
	// PollInterval is the pause between two reads, for all watches together, of whether anything was written
	// (default 1 s).
	PollInterval time.Duration
	// Heard reports whether notifications of other processes' commits arrive. While they do, that read only
	// finds commits whose notification was lost, and happens ten times less often (default: they do not).
	Heard func() bool
	// SlowTimeout is how long a reader may take for one delivery before its watch ends with ErrSlow; it can
	// open the watch again with its last token, and is served from the table as long as rows are kept
	// (default 1 min).
	SlowTimeout time.Duration
	// Ahead is called with the present epoch when a token of it is ahead of the database: an older copy has
	// taken its place. May be nil.
	Ahead func(ctx context.Context, epoch string)
	// Witness returns, for tokens, a text about the commits that this process knows to be on disk. Lost
	// reports whether a database has lost such a commit: witness is from a token of its present epoch,
	// present from StateSQL. Both may be nil: then positions alone reveal an older copy, and other databases
	// of its server move them as well.
	Witness func() string
	Lost    func(witness, present string) bool
}

// Log is the set of followed tables of one database.
type Log struct {
	cfg   Config
	began time.Time
	tails tails
	pulse pulse
	// flushes are shared by all watches.
	flushes flushes
	own     own
	// kept is the size of the pages that tails keep for their watches, bounded by maxKeptBytes.
	kept atomic.Int64
}

// NewLog returns a log.
func NewLog(cfg Config) *Log {
	if cfg.PollInterval <= 0 {
		cfg.PollInterval = time.Second
	}
	if cfg.Heard == nil {
		cfg.Heard = func() bool { return false }
	}
	if cfg.Witness == nil {
		cfg.Witness, cfg.Lost = func() string { return "" }, func(string, string) bool { return false }
	}
	if cfg.SlowTimeout <= 0 {
		cfg.SlowTimeout = time.Minute
	}
	return &Log{
		cfg: cfg, began: time.Now(), tails: tails{byKey: map[tailKey]counted{}},
		pulse: pulse{at: Position{xmax: "0"}},
	}
}

// Feed is a table that is its own log: its rows at a position, and the rows that a newer position sees in
// addition.
type Feed[T any] struct {
	// Filter identifies the watched rows and the reader: tokens are bound to it.
	Filter string
	// Form is a comparable value: only feeds with equal ones share items.
	Form any
	// Topic wakes the feed.
	Topic Topics
	// Chunk bounds how many items one watch holds in memory; maxPageBytes bounds them as well.
	Chunk int
	// Aged: rows are removed because of their age, and not only when they are done; users can read the feed.
	Aged bool
	// Keyed: the table has its log beside it, and its snapshot is read by Key; otherwise it is its log, and
	// is read by sequence number.
	Keyed bool
	// Written: the columns of items of FirstSQL and NextSQL, and of SnapshotSQL unless Keyed, begin with the
	// text of xid. Scan does not see it.
	Written bool
	// All statements are SinceBegin, the table of one row, SinceJoin, and a SELECT of the items. Their
	// parameters have fixed numbers, except the parameters of More, which come last.
	//
	// SnapshotSQL takes, when Keyed, a limit, Args, and the Kind and Name of the key after which it begins;
	// its rows begin with their key. Otherwise it takes the text of a position, a limit, the sequence number
	// after which it begins, and Args: its rows are visible at the position. SnapshotEnd is its end.
	//
	// FirstSQL and NextSQL take xmax, xip, a limit, Args, the Kind and Name of the last key when Keyed, the
	// end of the window, and NextSQL after these the last sequence number: the SELECT with New in its
	// condition, and FirstPage or NextPage.
	SnapshotSQL, FirstSQL, NextSQL string
	Args, More                     []any
	// Scan reads an item and its sequence number, which is 0 for a row without an item (all columns are NULL
	// then).
	Scan func(pgx.CollectableRow) (T, int64, error)
}

// The statements of a feed, around the table of one row and the SELECT of the items. The left join gives a
// row without an item where there is none, so that the statement always returns its snapshot and epoch.
//
// New rows have xid >= xmax OR xid = ANY (running). The first page finds it by the index on xid: "seq + 0"
// keeps the planner from scanning the whole table in the order of seq, which it prefers because of the LIMIT.
// Further pages mean that the window is large: they scan in the order of seq, from the end of the page
// before.
const (
	SinceBegin = `
SELECT pg_current_snapshot()::text, ` + lsnSQL + `, COALESCE((` + EpochSQL + `)::text, ''), m.compacted::text, x.* FROM `
	SinceJoin = ` AS m LEFT JOIN LATERAL (`
	New       = ` (` + since + ` OR ` + ran + `) `
	since     = `xid >= $1::text::xid8`
	ran       = `xid = ANY ($2::text[]::xid8[])`
	byXID     = ` ORDER BY seq + 0 LIMIT $3) AS x ON true`
	bySeq     = ` ORDER BY seq LIMIT $3) AS x ON true`
)

// AnyNew is the condition that a table has a row with New. (As one EXISTS with New it read all of the index
// on xid, row by row: 54 ms of 1,000,000 rows. Each of these two reads the index where such rows are.)
func AnyNew(table string) string {
	return `(EXISTS (SELECT FROM ` + table + ` WHERE ` + since + `) OR EXISTS (SELECT FROM ` + table +
		` WHERE ` + ran + `))`
}

// SnapshotEnd is the end of a SnapshotSQL in an order, with the number of the parameter of the limit.
func SnapshotEnd(order string, limit int) string {
	return fmt.Sprintf(` ORDER BY %s LIMIT $%d) AS x ON true`, order, limit)
}

// KeyRead is the condition that a snapshot of pages has read a key of two columns; first is the number of the
// first of the two parameters that hold the greatest key.
func KeyRead(key string, first int) string {
	return fmt.Sprintf(`(%s) <= ($%d, $%d)`, key, first, first+1)
}

// FirstPage is the end of a FirstSQL with so many parameters between the limit and the end of the window.
func FirstPage(args int) string {
	return fmt.Sprintf(` AND ($%[1]d::text IS NULL OR pg_visible_in_snapshot(xid, $%[1]d::text::pg_snapshot))`,
		args+4) + byXID
}

// NextPage is the end of a NextSQL with so many parameters between the limit and the end of the window.
func NextPage(args int) string {
	return fmt.Sprintf(` AND pg_visible_in_snapshot(xid, $%d::text::pg_snapshot) AND seq > $%d`, args+4, args+5) + bySeq
}
