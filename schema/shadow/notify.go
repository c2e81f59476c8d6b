package shadow

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/internal/feed"
)

// notifyChannel carries "process feeds": who committed something, and a mask of what.
const notifyChannel = "dbcontroller_wake"

// gather is how long what was committed is gathered before it is told.
const gather = 4 * time.Millisecond

// RunNotifications tells other processes of this deployment, and is told by them, that there is something to look at:
// with NOTIFY on a connection of its own, after commits, several at once. (Inside the writing transactions it would
// put their commits in a row.) It carries no data: without it watches notice a little later. It blocks until ctx ends.
//
// Whether notifications come at all (a pooler passes none on, and a connection can be half open) is seen from the own ones, of which
// there is one every few seconds. While they do, the tables are looked at rarely.
func (s *Store) RunNotifications(ctx context.Context) error {
	process := uuid.NewString()
	for ctx.Err() == nil {
		g, both := errgroup.WithContext(ctx)
		g.Go(func() error { return s.listen(both, process) })
		g.Go(func() error { return s.notify(both, process) })
		err := g.Wait()
		s.heard.Store(nil)
		s.wake.Wake(allFeeds) // to look more often
		if err != nil && !errors.Is(err, context.Canceled) {
			s.log.Warn("notifications were interrupted; watches notice by themselves meanwhile", zap.Error(err))
		}
		_ = sleep(ctx, time.Second)
	}
	return nil
}

// alive is how often a process tells itself that notifications come, and deaf after how long without that they do not.
const (
	alive = 5 * time.Second
	deaf  = 12 * time.Second
)

// hears tells whether what other processes commit is heard of.
func (s *Store) hears() bool {
	at := s.heard.Load()
	return at != nil && time.Since(*at) < deaf
}

func (s *Store) connection(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig.Copy())
	if err != nil {
		return nil, fmt.Errorf("connect for notifications: %w", err)
	}
	return conn, nil
}

func (s *Store) listen(ctx context.Context, process string) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "LISTEN "+notifyChannel); err != nil {
		return err
	}
	s.wake.Wake(allFeeds) // for what was told before anybody listened
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		from, mask, _ := strings.Cut(n.Payload, " ")
		touched, err := strconv.ParseUint(mask, 10, 8)
		switch {
		case from == process:
			now := time.Now()
			s.heard.Store(&now)
		case err == nil:
			s.wake.Wake(feed.Topics(touched) & allFeeds)
		}
	}
}

func (s *Store) notify(ctx context.Context, process string) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	// Taken before what they stand for is told, so that nothing committed in between is kept back.
	wait := func() map[feed.Topics]<-chan struct{} {
		return map[feed.Topics]<-chan struct{}{changeFeed: s.told.Wait(changeFeed), workFeed: s.told.Wait(workFeed), noticeFeed: s.told.Wait(noticeFeed)}
	}
	next := wait()
	for touched := allFeeds; ; { // first, what was committed before
		if _, err := conn.Exec(ctx, `SELECT pg_notify($1, $2)`, notifyChannel, fmt.Sprintf("%s %d", process, touched)); err != nil {
			return err
		}
		waiting := next
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-waiting[changeFeed]:
		case <-waiting[workFeed]:
		case <-waiting[noticeFeed]:
		case <-time.After(alive):
		}
		if err := sleep(ctx, gather); err != nil {
			return err
		}
		next, touched = wait(), noFeed
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
