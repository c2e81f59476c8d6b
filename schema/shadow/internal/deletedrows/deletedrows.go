// Package deletedrows carries out the deletion of rows of attached tables that are resources. Triggers note
// which rows were deleted by SQL (dbcontroller.deleted_row), after they have refused the deletion of rows
// that others block.
//
// A note is removed in the transaction that carries the deletion out, so that a crash, a repetition or a
// second process costs a look and nothing else.
package deletedrows

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Deleter carries out the deletion of rows.
type Deleter struct {
	*db.DB
	rows    *rows.Rows
	cascade *cascade.Actor
	pauses  *db.LatePauses
}

// New returns the Deleter of a database, which uses the given rooms.
func New(rs *rows.Rows, c *cascade.Actor) *Deleter {
	return &Deleter{DB: rs.DB, rows: rs, cascade: c, pauses: db.NewLatePauses("deleted_row")}
}

const (
	// batch is the number of notes of one step.
	batch = 1000
	// idle is the pause before the next look for notes.
	idle = 200 * time.Millisecond
)

// RunDeletedRows reads which tables are attached, and carries out the deletion of rows while leads returns
// true. It returns nil when ctx ends.
func (s *Deleter) RunDeletedRows(ctx context.Context, leads func() bool) error {
	for failed := false; ; {
		attached := s.Attached() // before they are read
		more, err := s.step(ctx, leads)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !failed {
			s.Log.Warn("the deletion of rows of attached tables could not be carried out, retrying", zap.Error(err))
		}
		if failed = err != nil; more && !failed {
			continue
		}
		var due <-chan time.Time
		if len(s.rows.Tables()) > 0 {
			due, attached = time.After(idle), nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-due:
		case <-attached:
		}
	}
}

func (s *Deleter) step(ctx context.Context, leads func() bool) (more bool, err error) {
	if !leads() || s.Version.Load() == nil {
		return false, s.rows.Load(ctx)
	}
	return s.DeleteRows(ctx)
}

// DeleteRows reads which tables are attached, carries out the deletions that are due, at most a batch of
// them, and removes the resources of detached tables. It reports whether there may be more.
func (s *Deleter) DeleteRows(ctx context.Context) (more bool, err error) {
	detached, err := s.rows.LoadDetached(ctx)
	if err != nil {
		return false, err
	}
	for _, kind := range detached {
		if err := s.removeAttachment(ctx, kind); err != nil {
			return false, err
		}
	}
	if len(s.rows.Tables()) == 0 {
		return false, nil
	}
	if err := s.pauses.End(ctx, s.Pool); err != nil {
		return false, err
	}
	notes, err := s.due(ctx)
	if err != nil || len(notes) == 0 {
		return false, err
	}
	return true, s.carryOut(ctx, notes)
}

const countSQL = `
SELECT count(*) FILTER (WHERE NOT missing), count(*) FILTER (WHERE missing)
FROM (
    (SELECT false AS missing FROM dbcontroller.deleted_row LIMIT 1000000) UNION ALL (SELECT missing FROM dbcontroller.lacking LIMIT 1000000)
) AS c`

// Waiting counts the deleted rows whose deletion is to be carried out with the values that wait for their
// right, and the values whose target does not exist. It counts each to a million.
func (s *Deleter) Waiting(ctx context.Context) (waiting, missing int64, err error) {
	if err := s.Pool.QueryRow(ctx, countSQL).Scan(&waiting, &missing); err != nil {
		return 0, 0, fmt.Errorf("count notes of attached tables: %w", err)
	}
	return waiting, missing, nil
}

// note is a row of deleted_row.
type note struct {
	Seq   int64
	Kind  int32
	Name  *string    // nil: any row of the table
	Gone  *uuid.UUID // the resource whose row was deleted; nil: it is looked whether the row is there
	Actor *string
}

const (
	selectDueSQL = `
SELECT seq, kind_id, name, gone, actor FROM dbcontroller.deleted_row
WHERE due <= now() AND kind_id = ANY ($1) ORDER BY due, seq LIMIT $2`

	// Every row of a kind with a resource is looked at after TRUNCATE.
	expandSQL = `
INSERT INTO dbcontroller.deleted_row (kind_id, name) SELECT s.kind_id, s.name FROM dbcontroller.shadow s WHERE s.kind_id = $1 AND NOT s.hidden`

	deleteNotesSQL = `DELETE FROM dbcontroller.deleted_row WHERE seq = ANY ($1)`
)

// due returns notes about tables whose attachment is the one that the present version declares. Notes about
// other tables wait until attach is called again.
func (s *Deleter) due(ctx context.Context) ([]note, error) {
	v, err := s.Current()
	if err != nil {
		return nil, err
	}
	var kinds []int32
	for id, t := range s.rows.Tables() {
		if t.Declared(v.Model) != nil {
			kinds = append(kinds, id)
		}
	}
	found, err := s.Pool.Query(ctx, selectDueSQL, kinds, batch)
	if err != nil {
		return nil, fmt.Errorf("read deleted rows: %w", err)
	}
	return pgx.CollectRows(found, pgx.RowToStructByPos[note])
}

func (s *Deleter) carryOut(ctx context.Context, notes []note) (failed error) {
	looks := map[*rows.Table][]note{}
	var gone []note
	for _, n := range notes {
		switch t := s.rows.Of(n.Kind); {
		case t == nil:
		case n.Name == nil:
			if err := s.expand(ctx, n); err != nil {
				return err
			}
		case n.Gone == nil:
			looks[t] = append(looks[t], n)
		default:
			gone = append(gone, n)
		}
	}
	for t, of := range looks {
		absent, err := s.absent(ctx, t, of)
		if err != nil { // a table that cannot be read keeps no other one back
			failed = errors.Join(failed, err, s.postpone(ctx, of, err))
			continue
		}
		gone = append(gone, absent...)
	}
	_, err := retry.Halves[note]{
		Run: func(part []note) error {
			return s.remove(ctx, part)
		}, Whole: func(err error) bool { return wholesale(ctx, err) },
		Failed: func(one note, err error) error { return s.postpone(ctx, []note{one}, err) },
	}.Do(gone)
	return errors.Join(failed, err)
}

func (s *Deleter) expand(ctx context.Context, n note) error {
	return s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(expandSQL, n.Kind)
		b.Queue(deleteNotesSQL, []int64{n.Seq})
		return tx.SendBatch(ctx, b).Close()
	})
}

// The resource is read before the row: a row that is inserted meanwhile has no resource, or this one.
const selectActiveSQL = `SELECT name, uid FROM dbcontroller.shadow WHERE kind_id = $1 AND name = ANY ($2) AND NOT hidden`

// absent returns the notes whose rows are not there, with their resources. It ends the others.
func (s *Deleter) absent(ctx context.Context, t *rows.Table, notes []note) (absent []note, err error) {
	names := make([]string, len(notes))
	for i, n := range notes {
		names[i] = *n.Name
	}
	found, err := s.Pool.Query(ctx, selectActiveSQL, t.KindID, names)
	if err != nil {
		return nil, fmt.Errorf("read the resources of rows: %w", err)
	}
	uids := map[string]uuid.UUID{}
	var name string
	var uid uuid.UUID
	if _, err = pgx.ForEachRow(found, []any{&name, &uid}, func() error { uids[name] = uid; return nil }); err != nil {
		return nil, fmt.Errorf("read the resources of rows: %w", err)
	}
	there, err := t.Existing(ctx, s.Pool, names)
	if err != nil {
		return nil, err
	}
	var done []int64
	for _, n := range notes {
		uid, resource := uids[*n.Name]
		if !resource || slices.Contains(there, *n.Name) {
			done = append(done, n.Seq)
			continue
		}
		n.Gone = &uid
		absent = append(absent, n)
	}
	if _, err := s.Pool.Exec(ctx, deleteNotesSQL, done); err != nil {
		return nil, fmt.Errorf("end notes of rows: %w", err)
	}
	return absent, nil
}

const (
	selectGoneSQL = `SELECT uid, id FROM dbcontroller.shadow WHERE uid = ANY ($1)`

	// The pauses grow from a quarter of a second to ten seconds.
	postponeSQL = `
UPDATE dbcontroller.deleted_row SET problem = $2, tries = tries + 1, due = now() + least(interval '250 ms' * power(2, least(tries, 20)), interval '10 s')
WHERE seq = ANY ($1)`
)

// remove carries out the deletions of resources whose rows are gone.
func (s *Deleter) remove(ctx context.Context, notes []note) error {
	if len(notes) == 0 {
		return nil
	}
	uids := make([]uuid.UUID, len(notes))
	of := map[uuid.UUID]note{}
	for i, n := range notes {
		uids[i], of[*n.Gone] = *n.Gone, n
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
	return s.cascade.RowsGone(ctx, gone, seqsOf(notes))
}

func (s *Deleter) postpone(ctx context.Context, notes []note, why error) error {
	if _, err := s.Pool.Exec(ctx, postponeSQL, seqsOf(notes), why.Error()); err != nil {
		return fmt.Errorf("postpone deleted rows: %w", err)
	}
	return nil
}

func seqsOf(notes []note) []int64 {
	seqs := make([]int64, len(notes))
	for i, n := range notes {
		seqs[i] = n.Seq
	}
	return seqs
}

// wholesale reports whether an error is not of single rows.
func wholesale(ctx context.Context, err error) bool {
	return ctx.Err() != nil || peer.HaltsAll(err) || errors.Is(err, peer.ErrStaleEpoch) ||
		errors.Is(err, schema.ErrFenced) || postgres.Unavailable(err)
}
