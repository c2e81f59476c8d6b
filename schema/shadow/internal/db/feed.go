package db

import (
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/db-controller/db-controller/internal/feed"
)

// The tables that watches follow.
const (
	ChangeFeed feed.Topics = 1 << iota
	WorkFeed
	NoticeFeed
	NoFeed   feed.Topics = 0
	AllFeeds feed.Topics = ChangeFeed | WorkFeed | NoticeFeed

	// RightsFeed is no feed of a table: an application has asked for rights, or a right was given.
	RightsFeed feed.Topics = 1 << 3

	// AttachedFeed is no feed of a table: there are attached tables.
	AttachedFeed feed.Topics = 1 << 4

	// ConfirmFeed is the part of WorkFeed for which no call waits, confirms: under load its watches hear of
	// several commits together.
	ConfirmFeed feed.Topics = 1 << 7
)

// confirmPace is the least time between two wake-ups by commits with confirms. Each costs all readers of
// WorkFeed some statements, for a few clients as many as a write.
const confirmPace = 100 * time.Millisecond

const stateSQL = feed.StateBegin + presentSQL + feed.StateFrom + `dbcontroller.meta` + feed.StateEnd

// guestStateSQL is stateSQL with a key of this process for the tokens of its watches: the role of an
// application cannot read the deployment's key.
func guestStateSQL() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // which never fails
	return feed.StateBegin + presentSQL + feed.StateFrom + `(SELECT server, timeline, epoch, database_id, compacted, started_at, started_mark, ARRAY[decode('` + hex.EncodeToString(key) + `', 'hex')] AS token_keys
    FROM dbcontroller.meta)` + feed.StateEnd
}

var writtenSQL = Codes(feed.WrittenBegin + `
    ` + feed.AnyNew("dbcontroller.change") + `::int + {work_feed} * ` + feed.AnyNew("dbcontroller.work") + `::int
    + {notice_feed} * ` + feed.AnyNew("dbcontroller.notice") + `::int` + feed.WrittenFrom + `dbcontroller.meta` + feed.StateEnd)
