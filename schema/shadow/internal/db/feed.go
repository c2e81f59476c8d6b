package db

import (
	"github.com/db-controller/db-controller/internal/feed"
)

// The tables that watches follow.
const (
	ChangeFeed feed.Topics = 1 << iota
	WorkFeed
	NoticeFeed
	NoFeed   feed.Topics = 0
	AllFeeds feed.Topics = ChangeFeed | WorkFeed | NoticeFeed
)

const (
	stateSQL = feed.StateBegin + `dbcontroller.meta` + feed.StateEnd
)

var writtenSQL = Codes(feed.WrittenBegin + `
    EXISTS (SELECT FROM dbcontroller.change WHERE` + feed.New + `)::int + {work_feed} * EXISTS (SELECT FROM dbcontroller.work WHERE` + feed.New + `)::int
    + {notice_feed} * EXISTS (SELECT FROM dbcontroller.notice WHERE` + feed.New + `)::int` + feed.WrittenFrom + `dbcontroller.meta` + feed.StateEnd)
