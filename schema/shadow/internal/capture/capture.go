// Package capture stores the async references of rows of attached tables. Triggers note which rows changed (dbcontroller.captured, and for those of
// large statements dbcontroller.captured_batch); this room reads these rows as they are now, and keeps shadow, body and references of each as
// for resources with bodies.
//
// A note is removed in the transaction that stores its row, under a lock of the row, so that a crash, a repetition or a
// second process costs a reading and nothing else.
package capture

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// Capturer stores captured rows.
type Capturer struct {
	*db.DB
	gate    *gate.Gate
	rows    *rows.Rows
	write   *write.Writer
	cascade *cascade.Actor
	// bounded is when this process last looked for notes that are due impossibly late, in Unix nanoseconds.
	bounded atomic.Int64
}

// New joins the parts.
func New(g *gate.Gate, rs *rows.Rows, w *write.Writer, c *cascade.Actor) *Capturer {
	return &Capturer{DB: g.DB, gate: g, rows: rs, write: w, cascade: c}
}

const (
	// batch is the number of notes that one step reads, and of rows that one transaction stores.
	batch = 1000
	// idle is the pause before the next look for notes; unused that before the next look for attached tables while there are none.
	idle   = 200 * time.Millisecond
	unused = 2 * time.Second
	// lateLook is the time between two looks for notes that are due impossibly late.
	lateLook = 10 * time.Second
)

// RunCaptures stores captured rows while leads returns true, and reads attached tables for the first time. It returns nil when ctx
// ends.
func (s *Capturer) RunCaptures(ctx context.Context, leads func() bool) error {
	for failed := false; ; {
		more, err := s.step(ctx, leads)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !failed {
			s.Log.Warn("rows of attached tables could not be read, retrying", zap.Error(err))
		}
		if failed = err != nil; more && !failed {
			continue
		}
		pause := idle
		if len(s.rows.Tables()) == 0 {
			pause = unused
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (s *Capturer) step(ctx context.Context, leads func() bool) (more bool, err error) {
	if !leads() || s.Version.Load() == nil {
		return false, s.rows.Load(ctx)
	}
	return s.Capture(ctx)
}

// Capture reads which tables are attached, stores the captured rows that are due, at most a batch of them, reads the next page of each
// table that is read for the first time, and gives up references of detached tables. It reports whether there may be more.
func (s *Capturer) Capture(ctx context.Context) (more bool, err error) {
	detached, err := s.rows.LoadDetached(ctx)
	if err != nil {
		return false, err
	}
	more, err = s.letGo(ctx, detached)
	if err != nil || len(s.rows.Tables()) == 0 {
		return more, err
	}
	captured, err := s.capture(ctx)
	return more || captured, err
}

const countCapturedSQL = `
SELECT count(*) FILTER (WHERE NOT missing) + (SELECT COALESCE(sum(rows), 0)::bigint FROM dbcontroller.captured_batch), count(*) FILTER (WHERE missing)
FROM (
    (SELECT missing FROM dbcontroller.captured LIMIT 1000000) UNION ALL (SELECT missing FROM dbcontroller.lacking LIMIT 1000000)
) AS c`

// Captured counts the rows that wait to be stored, and the rows that are stored without a reference, because its target does not exist
// or could not be asked; of strict references the values that wait for their right, and those whose target does not exist. It counts each to a million.
func (s *Capturer) Captured(ctx context.Context) (waiting, incomplete int64, err error) {
	if err := s.Pool.QueryRow(ctx, countCapturedSQL).Scan(&waiting, &incomplete); err != nil {
		return 0, 0, fmt.Errorf("count captured rows: %w", err)
	}
	return waiting, incomplete, nil
}

func (s *Capturer) capture(ctx context.Context) (more bool, err error) {
	filled, err := s.fill(ctx)
	if err != nil {
		return false, err
	}
	if err := s.boundDue(ctx); err != nil {
		return false, err
	}
	spread, err := s.spread(ctx)
	if err != nil {
		return false, err
	}
	notes, err := s.due(ctx)
	if err != nil || len(notes) == 0 {
		return filled || spread, err
	}
	return true, s.store(ctx, notes)
}

// In one statement: whoever looks for notes finds a name in one of the two tables. The oldest batches, up to a number of rows.
const spreadSQL = `
WITH batch AS (
    DELETE FROM dbcontroller.captured_batch WHERE seq IN (
        SELECT b.seq FROM (
            SELECT o.seq, sum(o.rows) OVER (ORDER BY o.seq) - o.rows AS before FROM (SELECT seq, rows FROM dbcontroller.captured_batch ORDER BY seq LIMIT $1) AS o
        ) AS b WHERE b.before < $1)
    RETURNING kind_id, names, at
)
INSERT INTO dbcontroller.captured (kind_id, name, at)
SELECT b.kind_id, n.name, b.at FROM batch b CROSS JOIN unnest(b.names) AS n (name)`

// spread replaces the oldest batches of names by a note for each name. It reports whether there were any.
func (s *Capturer) spread(ctx context.Context) (bool, error) {
	tag, err := s.Pool.Exec(ctx, spreadSQL, batch)
	if err != nil {
		return false, fmt.Errorf("spread captured rows: %w", err)
	}
	return tag.RowsAffected() > 0, nil
}

// No pause is longer than the one of its number of tries: the clock of the database has gone back since. The pauses of few tries are
// found by captured_tried, number by number, and longer ones than an hour by captured_due, so that rows that wait as they should cost nothing.
const boundDueSQL = `
UPDATE dbcontroller.captured SET due = now() WHERE seq = ANY (ARRAY(
    SELECT c.seq FROM generate_series(1, 13) AS n CROSS JOIN LATERAL (
        SELECT seq FROM dbcontroller.captured WHERE tries = n AND tries > 0 AND tries < 14 AND due > now() + interval '1 s' + interval '250 ms' * power(2, n)) AS c
    UNION ALL
    SELECT seq FROM dbcontroller.captured WHERE due > now() + interval '1 hour 1 s'))`

// boundDue makes notes due that are due later than any pause allows.
func (s *Capturer) boundDue(ctx context.Context) error {
	last, now := s.bounded.Load(), time.Now().UnixNano()
	if now-last < int64(lateLook) || !s.bounded.CompareAndSwap(last, now) {
		return nil
	}
	if _, err := s.Pool.Exec(ctx, boundDueSQL); err != nil {
		return fmt.Errorf("bound the pauses of captured rows: %w", err)
	}
	return nil
}

// note is a row of captured.
type note struct {
	Seq   int64
	Kind  int32
	Name  *string    // nil: any row of the table
	Gone  *uuid.UUID // the resource whose row was deleted
	Actor *string
	Tries int
}

const selectDueSQL = `
SELECT seq, kind_id, name, gone, actor, tries FROM dbcontroller.captured
WHERE due <= now() AND kind_id = ANY ($1) ORDER BY due, seq LIMIT $2`

// due returns notes about tables whose attachment is the one that the present version declares. Those of others wait until attach is
// called again.
func (s *Capturer) due(ctx context.Context) ([]note, error) {
	var kinds []int32
	for id, t := range s.rows.Tables() {
		if _, err := s.kindOf(t); err == nil {
			kinds = append(kinds, id)
		}
	}
	found, err := s.Pool.Query(ctx, selectDueSQL, kinds, batch)
	if err != nil {
		return nil, fmt.Errorf("read captured rows: %w", err)
	}
	return pgx.CollectRows(found, pgx.RowToStructByPos[note])
}

// Every row of a kind with a resource is looked at after TRUNCATE.
const expandSQL = `
INSERT INTO dbcontroller.captured (kind_id, name) SELECT s.kind_id, s.name FROM dbcontroller.shadow s WHERE s.kind_id = $1 AND NOT s.hidden`

func (s *Capturer) store(ctx context.Context, notes []note) error {
	byTable := map[*rows.Table]map[string][]note{}
	var gone []note
	for _, n := range notes {
		t := s.rows.Of(n.Kind)
		switch {
		case t == nil:
		case n.Name == nil:
			if err := s.expand(ctx, n); err != nil {
				return err
			}
		case n.Gone != nil:
			gone = append(gone, n)
		default:
			if byTable[t] == nil {
				byTable[t] = map[string][]note{}
			}
			byTable[t][*n.Name] = append(byTable[t][*n.Name], n)
		}
	}
	var failed error
	if _, err := (retry.Halves[note]{
		Run: func(part []note) error { return s.storeGone(ctx, part) }, Whole: func(err error) bool { return wholesale(ctx, err) },
		Failed: func(one note, err error) error { return s.postpone(ctx, []int64{one.Seq}, err.Error()) },
	}).Do(gone); err != nil {
		failed = err
	}
	for t, names := range byTable {
		if err := s.storeRows(ctx, t, names); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func (s *Capturer) expand(ctx context.Context, n note) error {
	return s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(expandSQL, n.Kind)
		b.Queue(`DELETE FROM dbcontroller.captured WHERE seq = $1`, n.Seq)
		return tx.SendBatch(ctx, b).Close()
	})
}

const (
	selectGoneSQL = `SELECT uid, id FROM dbcontroller.shadow WHERE uid = ANY ($1)`

	// The pauses grow from a quarter of a second to ten seconds.
	postponeSQL = `
UPDATE dbcontroller.captured SET problem = $2, missing = false, tries = tries + 1,
    due = now() + least(interval '250 ms' * power(2, least(tries, 20)), interval '10 s')
WHERE seq = ANY ($1)`
)

// storeGone carries out the deletions of rows.
func (s *Capturer) storeGone(ctx context.Context, notes []note) error {
	if len(notes) == 0 {
		return nil
	}
	uids, seqs := make([]uuid.UUID, len(notes)), make([]int64, len(notes))
	of := map[uuid.UUID]note{}
	for i, n := range notes {
		uids[i], seqs[i], of[*n.Gone] = *n.Gone, n.Seq, n
	}
	found, err := s.Pool.Query(ctx, selectGoneSQL, uids)
	if err != nil {
		return fmt.Errorf("read deleted rows: %w", err)
	}
	var uid uuid.UUID
	var id int64
	var gone []cascade.Gone
	_, err = pgx.ForEachRow(found, []any{&uid, &id}, func() error {
		g := cascade.Gone{ID: id}
		if actor := of[uid].Actor; actor != nil {
			g.Actor = *actor
		}
		gone = append(gone, g)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read deleted rows: %w", err)
	}
	return s.cascade.RowsGone(ctx, gone, seqs)
}

func (s *Capturer) postpone(ctx context.Context, seqs []int64, problem string) error {
	if _, err := s.Pool.Exec(ctx, postponeSQL, seqs, problem); err != nil {
		return fmt.Errorf("postpone captured rows: %w", err)
	}
	return nil
}

// wholesale reports whether an error is not of single rows.
func wholesale(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, peer.ErrRecovering) || errors.Is(err, peer.ErrPaused) || errors.Is(err, peer.ErrStaleEpoch) || errors.Is(err, schema.ErrFenced) || postgres.Unavailable(err)
}
