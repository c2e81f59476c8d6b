package capture

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

const (
	// SelectNotesSQL is one look into the index for each name: statistics say that there are few notes, and a condition on an array would be compared with each
	// of the notes of a large statement.
	SelectNotesSQL = `
SELECT c.seq, i.name, c.lost FROM unnest($2::text[]) AS i (name) CROSS JOIN LATERAL (
    SELECT seq, lost FROM dbcontroller.captured WHERE kind_id = $1 AND name = i.name AND gone IS NULL OFFSET 0
) AS c`

	// A resource and the deletion of its row are of one snapshot: the transaction that carries the deletion out removes both.
	selectShadowsSQL = `
SELECT s.id, s.uid, s.name, s.state, s.hidden, s.revision, r.body,
    EXISTS (SELECT FROM dbcontroller.reference WHERE holder_id = s.id AND dangling),
    EXISTS (SELECT FROM dbcontroller.captured c WHERE c.kind_id = s.kind_id AND c.name = s.name AND c.gone = s.uid)
FROM dbcontroller.shadow s LEFT JOIN dbcontroller.resource r ON r.id = s.id
WHERE s.kind_id = $1 AND s.name = ANY ($2)`

	// saveTimeout bounds a write of rows: a deployment that does not answer delays the rows that refer to others by it, once.
	saveTimeout = 3 * time.Second
	// groups is the maximum number of writes at one time; each needs a connection.
	groups = 4
)

// changed is a row with notes, as it is now.
type changed struct {
	name   string
	seqs   []int64   // of its notes that were read before the row was
	values []*string // nil: the row does not exist
	body   map[string]any
	// unnamed are the problems of values that are no names, by field: nothing like it exists.
	unnamed map[string]error
	before  *shadow        // nil: the row has no resource
	stored  map[string]any // the body of before
	// without are the problems of the references that it is stored without; soon: one of them may pass by itself.
	without []string
	soon    bool
	// lost: a restore of another database has lost one of its targets. The declared action for missing targets does not apply: nobody
	// deleted them.
	lost bool
}

type shadow struct {
	ID       int64
	UID      uuid.UUID
	Name     string
	State    peer.State
	Hidden   bool
	Revision peer.Revision
	Body     []byte
	Dangling bool // a reference to a target that was lost: it is established again, to the resource that has the name now
	Going    bool // its row was deleted, and that is not carried out yet: a row of this name is another one
}

// storeRows stores the content of rows of one table. A row that fails by itself keeps no other one back.
func (s *Capturer) storeRows(ctx context.Context, t *rows.Table, notes map[string][]note) error {
	kind, err := s.kindOf(t)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(notes))
	all, err := s.read(ctx, t, names)
	if err != nil {
		return err
	}
	var settled []int64
	var gone, write []*changed
	for _, c := range all {
		switch next, problem := s.judge(t, kind, c); {
		case problem != nil:
			err = errors.Join(err, s.postpone(ctx, c.seqs, problem.Error()))
		case next == nothing:
			settled = append(settled, c.seqs...)
		case next == remove:
			gone = append(gone, c)
		default:
			done, uerr := s.cutUnnamed(ctx, t, kind, c)
			if err = errors.Join(err, uerr); !done && uerr == nil {
				write = append(write, c)
			}
		}
	}
	if len(settled) > 0 {
		_, derr := s.Pool.Exec(ctx, deleteNotesSQL, settled)
		err = errors.Join(err, derr)
	}
	return errors.Join(err, s.halving(ctx, gone, func(part []*changed) error { return s.removeAbsent(ctx, part) }), s.writeGroups(ctx, t, kind, write))
}

// read reads the notes, the rows and the resources of names, in this order.
func (s *Capturer) read(ctx context.Context, t *rows.Table, names []string) ([]*changed, error) {
	byName := map[string]*changed{}
	all := make([]*changed, len(names))
	for i, name := range names {
		all[i] = &changed{name: name}
		byName[name] = all[i]
	}
	found, err := s.Pool.Query(ctx, SelectNotesSQL, t.KindID, names)
	if err != nil {
		return nil, fmt.Errorf("read captured rows: %w", err)
	}
	var seq int64
	var name string
	var lost bool
	if _, err = pgx.ForEachRow(found, []any{&seq, &name, &lost}, func() error {
		c := byName[name]
		c.seqs, c.lost = append(c.seqs, seq), c.lost || lost
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read captured rows: %w", err)
	}
	values, err := t.Read(ctx, s.Pool, names)
	if err != nil {
		return nil, err
	}
	for name, v := range values {
		byName[name].values = v
	}
	if found, err = s.Pool.Query(ctx, selectShadowsSQL, t.KindID, names); err != nil {
		return nil, fmt.Errorf("read resources of rows: %w", err)
	}
	shadows, err := pgx.CollectRows(found, pgx.RowToAddrOfStructByPos[shadow])
	for _, sh := range shadows {
		byName[sh.Name].before = sh
	}
	return all, err
}

// step is the action for a changed row.
type step int

const (
	nothing step = iota
	remove
	store
)

var errOldName = errors.New("the deletion of the row that had this key before is not finished")

// judge decides about a changed row, and sets its body.
func (s *Capturer) judge(t *rows.Table, kind *schema.KindModel, c *changed) (next step, problem error) {
	if len(c.name) > schema.MaxNameBytes {
		return nothing, fmt.Errorf("name %.40s…: more than %d bytes: the references of this row are not held", c.name, schema.MaxNameBytes)
	}
	if c.values == nil {
		if c.before != nil && c.before.State == peer.Active && !c.before.Going {
			return remove, nil
		}
		return nothing, nil
	}
	c.body, c.unnamed = t.Body(s.Self, kind, c.values)
	switch {
	case c.before == nil && len(c.body) == 0 && len(c.unnamed) == 0:
		return nothing, nil // a shadow when something refers to it
	case c.before == nil:
		return store, nil
	case c.before.Going:
		return nothing, errOldName
	case c.before.State != peer.Active && c.before.Hidden && len(c.body) > 0:
		return nothing, errOldName
	case c.before.State != peer.Active:
		return nothing, nil // its references were dropped when it was marked
	}
	if err := postgres.DecodeJSON(c.before.Body, &c.stored); err != nil {
		return nothing, err
	}
	if !c.differs() && len(c.unnamed) == 0 {
		return nothing, nil
	}
	return store, nil
}

// differs reports whether the resource has to be written. It may equal the row without the references that are missing.
func (c *changed) differs() bool {
	return !maps.Equal(c.stored, c.body) || c.before != nil && c.before.Dangling
}

func (s *Capturer) removeAbsent(ctx context.Context, absent []*changed) error {
	var gone []cascade.Gone
	var seqs []int64
	for _, c := range absent {
		gone, seqs = append(gone, cascade.Gone{ID: c.before.ID}), append(seqs, c.seqs...)
	}
	return s.cascade.RowsGone(ctx, gone, seqs)
}

// writeGroups writes rows, those that refer to the same deployments together, so that one that does not answer delays no others.
func (s *Capturer) writeGroups(ctx context.Context, t *rows.Table, kind *schema.KindModel, all []*changed) error {
	byDeployments := map[string][]*changed{}
	for _, c := range all {
		key := deploymentsOf(c.body)
		byDeployments[key] = append(byDeployments[key], c)
	}
	var g errgroup.Group
	g.SetLimit(groups)
	for _, group := range byDeployments {
		g.Go(func() error { return s.writeGroup(ctx, t, kind, group) })
	}
	return g.Wait()
}

func deploymentsOf(body map[string]any) string {
	seen := map[string]bool{}
	for _, v := range body {
		if target, err := schema.ParseFullName(v.(string)); err == nil {
			seen[target.Deployment.String()] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), " ")
}

// writeGroup writes rows in one transaction; when it fails, each half of them.
func (s *Capturer) writeGroup(ctx context.Context, t *rows.Table, kind *schema.KindModel, group []*changed) error {
	return s.halving(ctx, group, func(part []*changed) error { return s.writePart(ctx, t, kind, part) })
}

// writePart writes rows in one transaction. Refused rows are set aside, and the others written again; rows whose write may succeed at the next try
// wait for it.
func (s *Capturer) writePart(ctx context.Context, t *rows.Table, kind *schema.KindModel, part []*changed) error {
	err := s.writeOnce(ctx, t, part)
	var refused *peer.RefusedError
	var unavailable *peer.UnavailableError
	var left []*changed
	switch {
	case err == nil || wholesale(ctx, err):
		return err
	case errors.As(err, &refused):
		left, err = s.setAside(ctx, t, kind, part, refused)
	case errors.As(err, &unavailable):
		left, err = s.setApart(ctx, part, unavailable)
	case errors.Is(err, context.DeadlineExceeded), passes(err):
		return s.postpone(ctx, seqsOf(part), err.Error())
	}
	if err != nil {
		return err
	}
	return s.writeGroup(ctx, t, kind, left)
}

// halving runs a batch of rows; when it fails, each of its halves, until a row that makes it fail is by itself, and is postponed.
func (s *Capturer) halving(ctx context.Context, batch []*changed, run func([]*changed) error) error {
	if len(batch) == 0 {
		return nil
	}
	_, err := retry.Halves[*changed]{
		Run: run, Whole: func(err error) bool { return wholesale(ctx, err) },
		Failed: func(one *changed, err error) error { return s.postpone(ctx, one.seqs, err.Error()) },
	}.Do(batch)
	return err
}

// passes reports whether the same write may succeed at the next try.
func passes(err error) bool {
	for _, e := range []error{db.ErrStale, peer.ErrAborted, peer.ErrUnknown, peer.ErrExists, peer.ErrNotFound, peer.ErrConflict, peer.ErrDeleting} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func seqsOf(group []*changed) (seqs []int64) {
	for _, c := range group {
		seqs = append(seqs, c.seqs...)
	}
	return seqs
}

const (
	deleteNotesSQL = `DELETE FROM dbcontroller.captured WHERE seq = ANY ($1)`

	withoutSQL = `
UPDATE dbcontroller.captured SET problem = i.problem, missing = true, soon = i.soon, lost = i.lost, tries = tries + 1,
    due = now() + least(interval '250 ms' * power(2, least(tries, 20)), CASE WHEN i.soon THEN interval '10 s' ELSE interval '1 hour' END)
FROM unnest($1::bigint[], $2::text[], $3::boolean[], $4::boolean[]) AS i (seq, problem, soon, lost) WHERE captured.seq = i.seq`
)

// writeOnce stores rows, and removes their notes in the same transaction. It fails with db.ErrStale when a row is not as it was read.
func (s *Capturer) writeOnce(ctx context.Context, t *rows.Table, group []*changed) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	writes := make([]peer.Write, 0, len(group))
	for _, c := range group {
		w := peer.Write{Name: c.name, Body: c.body, Mode: peer.Create}
		if c.before != nil {
			w.Mode, w.UID, w.Revision = peer.Update, c.before.UID, c.before.Revision
		}
		if c.differs() {
			writes = append(writes, w)
		}
	}
	first := func(tx pgx.Tx) error { return unchanged(ctx, tx, t, group) }
	also := func(tx pgx.Tx) error { return settle(ctx, tx, group) }
	if len(writes) == 0 {
		return s.InTx(ctx, db.NoFeed, also)
	}
	return s.write.SaveRows(ctx, writes, first, also)
}

// unchanged locks rows against deletion, and fails with db.ErrStale unless they are as they were read. An update that commits later has a note of its
// own.
func unchanged(ctx context.Context, tx pgx.Tx, t *rows.Table, group []*changed) error {
	names := make([]string, len(group))
	for i, c := range group {
		names[i] = c.name
	}
	there, err := t.Share(ctx, tx, names)
	if err != nil {
		return err
	}
	if len(there) < len(names) {
		return db.ErrStale
	}
	values, err := t.Read(ctx, tx, names)
	if err != nil {
		return err
	}
	for _, c := range group {
		if !slices.EqualFunc(values[c.name], c.values, func(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }) {
			return db.ErrStale
		}
	}
	return nil
}

// settle removes the notes of rows. One note of a row that is stored without a reference stays, and is tried again.
func settle(ctx context.Context, tx pgx.Tx, group []*changed) error {
	var done, kept []int64
	var problems []string
	var soon, lost []bool
	for _, c := range group {
		if len(c.without) == 0 {
			done = append(done, c.seqs...)
			continue
		}
		kept, problems = append(kept, c.seqs[0]), append(problems, strings.Join(c.without, "; "))
		soon, lost = append(soon, c.soon), append(lost, c.lost)
		done = append(done, c.seqs[1:]...)
	}
	b := &pgx.Batch{}
	b.Queue(deleteNotesSQL, done)
	b.Queue(withoutSQL, kept, problems, soon, lost)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("remove captured rows: %w", err)
	}
	return nil
}
