package shadow

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

const (
	// chunk and bodyChunk bound how many items one watch holds in memory; those of the latter have bodies.
	chunk     = 500
	bodyChunk = 100
	// coalesce is the least time between two looks of a watch.
	coalesce = 4 * time.Millisecond
	// bookmarkInterval keeps an idle stream alive, and its token young.
	bookmarkInterval = 5 * time.Second
	// stallTimeout ends a snapshot whose reader does not take a chunk: an open snapshot holds a connection, and keeps
	// PostgreSQL from cleaning up.
	stallTimeout = 10 * time.Second
	// snapshotTimeout ends a snapshot that takes too long altogether.
	snapshotTimeout = time.Minute
)

// feed is a table that is its own log: the rows there are, and those that a newer position sees.
type feed[T any] struct {
	filter string
	wakes  feeds
	chunk  int
	// snapshotSQL takes args. firstSQL and nextSQL take xmax, xip, a limit, args, and nextSQL after these the end of
	// the window and the last sequence number.
	snapshotSQL, firstSQL, nextSQL string
	args                           []any
	scan                           func(pgx.CollectableRow) (T, int64, error)
}

// follow delivers the state at one cut, one end of snapshot, and then everything after it: ordered, each once,
// without gap; or, with a token, everything after the token's position. It returns when deliver fails, ctx ends, or
// the database does; a token that cannot be resumed is ErrReset. A reader that is slow is served from the tables: it
// costs a chunk of memory and delays nobody.
func follow[T any](ctx context.Context, s *Store, f feed[T], token string, deliver func(schema.Event[T]) error) error {
	e, err := s.epoch(ctx)
	if err != nil {
		return err
	}
	var at position
	if token != "" {
		if at, err = e.open(token, f.filter); err != nil {
			return err
		}
		if e.compactedBeyond(at) {
			return fmt.Errorf("%w: it is older than what is kept", ErrReset)
		}
	} else if at, err = snapshot(ctx, s, f, deliver); err != nil {
		return err
	} else if err := deliver(schema.Event[T]{EndOfSnapshot: true, Token: e.token(at, f.filter)}); err != nil {
		return err
	}
	poll := time.NewTicker(s.cfg.PollInterval)
	defer poll.Stop()
	bookmark := time.NewTicker(bookmarkInterval)
	defer bookmark.Stop()
	for {
		woken := s.wake.Wait(f.wakes) // before the look, so that a commit after it is not slept through
		looked := time.Now()
		next, n, err := since(ctx, s, f, at, deliver)
		if err != nil {
			return err
		}
		at = next
		if n > 0 {
			if err := deliver(schema.Event[T]{Token: e.token(at, f.filter)}); err != nil {
				return err
			}
			if n >= f.chunk {
				continue // there is probably more
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-woken:
			// At once after a rest; under load one look finds what several commits wrote.
			if err := sleep(ctx, coalesce-time.Since(looked)); err != nil {
				return err
			}
		case <-poll.C:
		case <-bookmark.C:
			if err := deliver(schema.Event[T]{Token: e.token(at, f.filter)}); err != nil {
				return err
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

const fetchSQL = `FETCH FORWARD 100 FROM feed`

// snapshot delivers the rows as one transaction sees them, and answers that transaction's position. Snapshots of
// resources, whose readers are anybody, take at most a quarter of the connections.
func snapshot[T any](ctx context.Context, s *Store, f feed[T], deliver func(schema.Event[T]) error) (at position, err error) {
	if f.wakes == changeFeed {
		select {
		case s.snapshots <- struct{}{}:
			defer func() { <-s.snapshots }()
		case <-ctx.Done():
			return at, ctx.Err()
		}
	}
	began := time.Now()
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var text string
		if err := tx.QueryRow(ctx, `SELECT pg_current_snapshot()::text`).Scan(&text); err != nil {
			return err
		}
		if at, err = parsePosition(text); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, f.snapshotSQL, f.args...); err != nil {
			return err
		}
		for {
			items, err := fetch(ctx, tx, f)
			if err != nil || len(items) == 0 {
				return err
			}
			if time.Since(began) > snapshotTimeout {
				return ErrSlow
			}
			if err := promptly(ctx, func() error { return deliver(schema.Event[T]{Items: items}) }); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return at, fmt.Errorf("snapshot of %s: %w", f.filter, err)
	}
	return at, nil
}

func fetch[T any](ctx context.Context, tx pgx.Tx, f feed[T]) ([]T, error) {
	// Described each time: the same text has other columns for another feed.
	rows, err := tx.Query(ctx, fetchSQL, pgx.QueryExecModeDescribeExec)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (T, error) {
		item, _, err := f.scan(row)
		return item, err
	})
}

// promptly gives a delivery up when it takes too long. Its goroutine ends with the stream that it sends on, which the
// caller ends because of the error.
func promptly(ctx context.Context, deliver func() error) error {
	done := make(chan error, 1) // one place: nobody may wait any more
	go func() { done <- deliver() }()
	stalled := time.NewTimer(stallTimeout)
	defer stalled.Stop()
	select {
	case err := <-done:
		return err
	case <-stalled.C:
		return ErrSlow
	case <-ctx.Done():
		return ctx.Err()
	}
}

// since delivers what is visible now and was not at a position, and answers the position of now. The first page's own
// snapshot is the end of the window; further pages stay inside it.
func since[T any](ctx context.Context, s *Store, f feed[T], at position, deliver func(schema.Event[T]) error) (next position, n int, err error) {
	var until string
	for after := int64(0); ; {
		sql, args := f.firstSQL, append([]any{at.xmax, at.xip, f.chunk}, f.args...)
		if n > 0 {
			sql, args = f.nextSQL, append(args, until, after)
		}
		rows, err := s.pool.Query(ctx, sql, args...)
		if err != nil {
			return at, n, fmt.Errorf("follow %s: %w", f.filter, err)
		}
		var items []T
		var text, compacted string
		for rows.Next() {
			item, seq, err := f.scan(&withSnapshot{rows, []any{&text, &compacted}})
			if err != nil {
				rows.Close()
				return at, n, fmt.Errorf("follow %s: %w", f.filter, err)
			}
			if seq > 0 {
				items, after = append(items, item), seq
			}
		}
		if err := rows.Err(); err != nil {
			return at, n, fmt.Errorf("follow %s: %w", f.filter, err)
		}
		// In the statement's own snapshot: what was compacted away is seen as compacted.
		if f.wakes == changeFeed && (epoch{compacted: compacted}).compactedBeyond(at) {
			return at, n, fmt.Errorf("%w: the reader paused longer than changes are kept", ErrReset)
		}
		if n == 0 {
			until = text
		}
		if len(items) > 0 {
			if err := deliver(schema.Event[T]{Items: items}); err != nil {
				return at, n, err
			}
		}
		if n += len(items); len(items) < f.chunk {
			next, err = parsePosition(until)
			return next, n, err
		}
	}
}

// withSnapshot takes the first columns, which tell about the statement, away from the scan.
type withSnapshot struct {
	pgx.CollectableRow
	first []any
}

func (r *withSnapshot) Scan(dest ...any) error {
	return r.CollectableRow.Scan(append(slices.Clone(r.first), dest...)...)
}

// The left join gives a row without an item where there is none, so that the statement's snapshot is always told.
//
// What can be new is xid >= xmax OR xid = ANY (running). The first page finds it by the index on xid: "seq + 0" keeps
// the planner from walking the whole table in the order of seq instead, which it likes for its LIMIT. When there are
// more pages the window is large, and they do walk in the order of seq, from where the last page ended.
const (
	beginSinceSQL = `
SELECT pg_current_snapshot()::text, m.compacted::text, x.* FROM dbcontroller.meta m LEFT JOIN LATERAL (`
	newSQL       = ` (xid >= $1::text::xid8 OR xid = ANY ($2::text[]::xid8[])) `
	firstPageSQL = ` ORDER BY seq + 0 LIMIT $3) AS x ON true`
	nextPageSQL  = ` AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) AND seq > $6 ORDER BY seq LIMIT $3) AS x ON true`
)

const (
	noticesSnapshotSQL = `
DECLARE feed NO SCROLL CURSOR FOR
SELECT n.seq, k.kind, s.name, s.uid
FROM dbcontroller.notice n
JOIN dbcontroller.shadow s ON s.id = n.target_id
JOIN dbcontroller.kind k ON k.id = s.kind_id
WHERE n.deployment_id = $1 ORDER BY n.seq`

	noticesNewSQL = beginSinceSQL + `
    SELECT n.seq, k.kind, s.name, s.uid
    FROM dbcontroller.notice n
    JOIN dbcontroller.shadow s ON s.id = n.target_id
    JOIN dbcontroller.kind k ON k.id = s.kind_id
    WHERE n.deployment_id = $4 AND` + newSQL
)

// WatchDeletions follows the deletions that a holder's deployment has to act upon and has not acknowledged.
func (s *Store) WatchDeletions(ctx context.Context, holder schema.DeploymentID, token string, deliver func(schema.Event[schema.Deletion]) error) error {
	deployment, err := s.names.deployment(ctx, holder)
	if err != nil {
		return err
	}
	return follow(ctx, s, feed[schema.Deletion]{
		filter: noticesFilter(holder), wakes: noticeFeed, chunk: chunk, snapshotSQL: noticesSnapshotSQL, firstSQL: noticesNewSQL + firstPageSQL, nextSQL: noticesNewSQL + nextPageSQL, args: []any{deployment},
		scan: func(row pgx.CollectableRow) (d schema.Deletion, seq int64, err error) {
			var n *int64
			var kind, name *string
			var uid *uuid.UUID
			if err := row.Scan(&n, &kind, &name, &uid); err != nil || n == nil {
				return d, 0, err
			}
			return schema.Deletion{Kind: *kind, Name: *name, UID: *uid}, *n, nil
		},
	}, token, deliver)
}

const (
	workSnapshotSQL = `
DECLARE feed NO SCROLL CURSOR FOR
SELECT w.seq, w.action, d.service, d.region, w.created_at
FROM dbcontroller.work w JOIN dbcontroller.deployment d ON d.id = w.deployment_id
WHERE w.shard = ANY ($1) ORDER BY w.seq`

	workNewSQL = beginSinceSQL + `
    SELECT w.seq, w.action, d.service, d.region, w.created_at
    FROM dbcontroller.work w JOIN dbcontroller.deployment d ON d.id = w.deployment_id
    WHERE w.shard = ANY ($4) AND` + newSQL
)

// WatchWork follows the outstanding work of some shards: what makes shadows PENDING, and DELETING ones worth a look.
func (s *Store) WatchWork(ctx context.Context, shards []int16, token string, deliver func(schema.Event[schema.Work]) error) error {
	return follow(ctx, s, feed[schema.Work]{
		filter: fmt.Sprint("work of shards ", shards), wakes: workFeed, chunk: chunk, snapshotSQL: workSnapshotSQL, firstSQL: workNewSQL + firstPageSQL, nextSQL: workNewSQL + nextPageSQL, args: []any{shards},
		scan: func(row pgx.CollectableRow) (w schema.Work, seq int64, err error) {
			var n *int64
			var action *schema.Action
			var service, region *string
			var created *time.Time
			if err := row.Scan(&n, &action, &service, &region, &created); err != nil || n == nil {
				return w, 0, err
			}
			return schema.Work{Seq: *n, Action: *action, Deployment: schema.DeploymentID{Service: *service, Region: *region}, CreatedAt: *created}, *n, nil
		},
	}, token, deliver)
}

const (
	resourcesSnapshotSQL = `
DECLARE feed NO SCROLL CURSOR FOR
SELECT s.id, s.uid, k.kind, s.name, s.state, s.revision, s.generation, s.created_at, s.updated_at, r.labels, r.body
FROM dbcontroller.shadow s JOIN dbcontroller.kind k ON k.id = s.kind_id LEFT JOIN dbcontroller.resource r ON r.id = s.id
WHERE $1::int = 0 OR s.kind_id = $1 ORDER BY s.kind_id, s.name`

	resourcesNewSQL = beginSinceSQL + `
    SELECT c.seq, c.uid, k.kind, c.name, c.state, c.revision, c.generation, c.created_at, c.changed_at, c.labels, c.body
    FROM dbcontroller.change c JOIN dbcontroller.kind k ON k.id = c.kind_id
    WHERE ($4::int = 0 OR c.kind_id = $4) AND` + newSQL
)

// WatchResources follows the resources of a kind, or of all kinds when it is empty. What is gone comes as an item in
// state Gone, with name, kind, uid and revision.
func (s *Store) WatchResources(ctx context.Context, kindName, token string, deliver func(schema.Event[Resource]) error) error {
	v, err := s.current()
	if err != nil {
		return err
	}
	var kindID int32
	if kindName != "" {
		kind, err := v.model.Kind(kindName)
		if err != nil {
			return &InvalidError{Err: err}
		}
		if kindID, err = s.names.kind(ctx, kind.ID); err != nil {
			return err
		}
	}
	return follow(ctx, s, feed[Resource]{
		filter: "resources of kind " + kindName, wakes: changeFeed, chunk: bodyChunk, snapshotSQL: resourcesSnapshotSQL, firstSQL: resourcesNewSQL + firstPageSQL, nextSQL: resourcesNewSQL + nextPageSQL, args: []any{kindID},
		scan: scanChange,
	}, token, deliver)
}
