package db

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
)

// notifyChannel carries the payload "process feeds": the id of the committing process and the bit mask of the
// feeds that it changed, in decimal.
const notifyChannel = "dbcontroller_wake"

// retryChannel carries the deployment (service/region) whose work is to be tried at once, in every process;
// empty: all.
const retryChannel = "dbcontroller_retry"

// NotifyRetrySQL sends it with the commit of the transaction.
const NotifyRetrySQL = `SELECT pg_notify('` + retryChannel + `', $1)`

// notifyDelay is the time for which commits are collected into one notification.
const notifyDelay = 4 * time.Millisecond

// RunNotifications sends and receives wake-ups between the processes of this deployment: a NOTIFY on a
// connection of its own after commits, one for several. (Inside the writing transactions NOTIFY would
// serialise their commits.) Notifications carry no data: a lost one delays watches until their next pulse. It
// blocks until ctx ends and returns nil.
//
// Notifications may not arrive at all: a pooler does not forward them, and a connection can be half open. The
// process detects that by the notifications that it sends to itself every few seconds; while they arrive,
// pulses are rare.
func (s *DB) RunNotifications(ctx context.Context) error {
	process := uuid.NewString()
	for ctx.Err() == nil {
		g, both := errgroup.WithContext(ctx)
		g.Go(func() error { return s.listen(both, process) })
		g.Go(func() error { return s.notify(both, process) })
		err := g.Wait()
		s.notifiedAt.Store(nil)
		s.watchers.Wake(AllFeeds) // the pulse changes to its short interval
		if err != nil && !errors.Is(err, context.Canceled) {
			s.Log.Warn("notifications were interrupted; watches poll until they resume", zap.Error(err))
		}
		_ = sleep(ctx, time.Second)
	}
	return nil
}

// heartbeatInterval is the interval of the notifications that a process sends to itself; after
// heartbeatTimeout without one, notifications count as interrupted. Until then a commit of another process
// whose notification is lost waits for the rare pulse.
const (
	heartbeatInterval = 10 * time.Second
	heartbeatTimeout  = 22 * time.Second
)

// NotificationsAlive reports whether notifications of other processes arrive.
func (s *DB) NotificationsAlive() bool {
	at := s.notifiedAt.Load()
	return at != nil && time.Since(*at) < heartbeatTimeout
}

// connection opens a connection of its own, whose wait ends at once with its context: it is closed then.
func (s *DB) connection(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := postgres.Beside(ctx, s.Pool.Config())
	if err != nil {
		return nil, fmt.Errorf("connect for notifications: %w", err)
	}
	cfg.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect for notifications: %w", err)
	}
	return conn, nil
}

func (s *DB) listen(ctx context.Context, process string) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "LISTEN "+notifyChannel+"; LISTEN "+retryChannel); err != nil {
		return err
	}
	s.watchers.Wake(AllFeeds) // for notifications sent before LISTEN
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if n.Channel == retryChannel {
			s.ringRetry(n.Payload)
			continue
		}
		from, mask, _ := strings.Cut(n.Payload, " ")
		touched, err := strconv.ParseUint(mask, 10, 8)
		switch {
		case from == process:
			now := time.Now()
			s.notifiedAt.Store(&now)
		case err == nil:
			s.watchers.Wake(feed.Topics(touched) & (AllFeeds | RightsFeed))
		}
	}
}

// Asked returns a channel that is closed when rights are asked for, or a right is given in this process.
func (s *DB) Asked() <-chan struct{} { return s.watchers.Wait(RightsFeed) }

// WakeAsked closes the channels of Asked.
func (s *DB) WakeAsked() { s.watchers.Wake(RightsFeed) }

// Attached returns a channel that is closed when this process has found attached tables, or has read them.
func (s *DB) Attached() <-chan struct{} { return s.watchers.Wait(AttachedFeed) }

// WakeAttached closes the channels of Attached.
func (s *DB) WakeAttached() { s.watchers.Wake(AttachedFeed) }

// ringRetry makes the loops of this process try work at once. A message in another form, of a newer program,
// stands for all work.
func (s *DB) ringRetry(payload string) {
	of, _ := schema.ParseDeploymentID(payload)
	s.Retries.Ring(of)
}

func (s *DB) notify(ctx context.Context, process string) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	// New channels are taken before the notification is sent: a commit in between closes one of them and is
	// sent next.
	wait := func() map[feed.Topics]<-chan struct{} {
		return map[feed.Topics]<-chan struct{}{
			ChangeFeed: s.committed.Wait(ChangeFeed),
			WorkFeed:   s.committed.Wait(WorkFeed), NoticeFeed: s.committed.Wait(NoticeFeed),
		}
	}
	next := wait()
	for touched := AllFeeds; ; { // the first notification covers earlier commits
		if _, err := conn.Exec(ctx, `SELECT pg_notify($1, $2)`, notifyChannel,
			fmt.Sprintf("%s %d", process, touched)); err != nil {
			return err
		}
		waiting, pause := next, notifyDelay
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-waiting[ChangeFeed]:
		case <-waiting[WorkFeed]:
		case <-waiting[NoticeFeed]:
		case <-time.After(heartbeatInterval):
			pause = 0
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		next, touched = wait(), NoFeed
		for topic, ch := range waiting {
			select {
			case <-ch:
				touched |= topic
			default:
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
