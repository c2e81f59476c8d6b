package shadow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// MaxNewReferences is how many new references to one other deployment a write may have.
const MaxNewReferences = 10_000

// saveTimeout bounds a write whose caller gives no deadline.
const saveTimeout = 10 * time.Second

// errStale says that what the write was compared with is not what is there now; it is compared again.
var errStale = errors.New("the resource changed while it was written")

// Save writes resources, all or nothing (I6). References to other deployments are established there first, under one
// attempt id; then one transaction decides the attempt and writes everything. The resources may refer to one another
// in any order. It fails with *InvalidError, *RefusedError, ErrNotFound, ErrExists, ErrMoved, ErrDeleting or
// ErrUnknown. What passes by itself (a target that a delete is waiting for, a concurrent write) is tried again
// until the deadline.
func (s *Store) Save(ctx context.Context, writes []Write) ([]Resource, error) {
	return s.save(ctx, nil, writes)
}

func (s *Store) save(ctx context.Context, req *request, writes []Write) ([]Resource, error) {
	ctx, cancel := withDefaultTimeout(ctx, saveTimeout)
	defer cancel()
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		saved, err := s.saveOnce(ctx, req, writes)
		if err == nil || !passes(err) {
			return saved, err
		}
		select {
		case <-ctx.Done():
			if errors.Is(err, errStale) {
				err = ErrAborted
			}
			return nil, err
		case <-time.After(wait):
		}
	}
}

// SaveTx writes resources inside the caller's own transaction, which must be READ COMMITTED. New references can only
// be to resources of this deployment, since no other one is asked while a transaction is open; else it fails with
// ErrForeignReference, and the transaction can go on. Call Wake after the commit.
func (s *Store) SaveTx(ctx context.Context, tx pgx.Tx, writes []Write) ([]Resource, error) {
	sv, err := s.prepare(ctx, tx, writes)
	if err != nil {
		return nil, err
	}
	if len(sv.foreign) > 0 {
		return nil, ErrForeignReference
	}
	var saved []Resource
	// A savepoint, so that a refused write leaves the caller's transaction usable.
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		saved, err = s.write(ctx, tx, sv)
		return err
	})
	if errors.Is(err, errStale) {
		return nil, ErrAborted
	}
	return saved, err
}

func passes(err error) bool {
	var refused *RefusedError
	return errors.Is(err, errStale) || errors.Is(err, ErrAborted) ||
		errors.As(err, &refused) && (refused.Only(TargetClosing) || refused.Only(AttemptClosed))
}

func withDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

func (s *Store) saveOnce(ctx context.Context, req *request, writes []Write) ([]Resource, error) {
	sv, err := s.prepare(ctx, s.pool, writes)
	if err != nil {
		return nil, err
	}
	sv.request = req
	if len(sv.foreign) > 0 {
		if err := s.establishAll(ctx, sv); err != nil {
			return nil, err
		}
		for d := range sv.foreign { // the transaction needs its number, and must not ask for a second connection
			if _, err := s.names.deployment(ctx, d); err != nil {
				return nil, err
			}
		}
	}
	var saved []Resource
	err = s.inTx(ctx, sv.touches(), func(tx pgx.Tx) error {
		saved, err = s.write(ctx, tx, sv)
		return err
	})
	if err != nil && len(sv.foreign) > 0 {
		committed, aerr := s.abandon(ctx, sv, slices.Collect(maps.Keys(sv.foreign)))
		if committed {
			return saved, nil // the commit's answer was lost, not the commit
		}
		if aerr == nil && errors.Is(err, ErrUnknown) {
			return nil, ErrAborted
		}
	}
	return saved, err
}

// saving is a write under way.
type saving struct {
	version *version
	request *request // nil: without an id
	writes  []*writing
	// New references to other deployments, by deployment, and the attempt that they are established under.
	attempt AttemptID
	foreign map[schema.DeploymentID][]*newReference
}

// touches tells which feeds the write adds to.
func (sv *saving) touches() feeds {
	touched := changeFeed
	for _, wr := range sv.writes {
		if len(sv.foreign) > 0 || len(wr.drop) > 0 {
			touched |= workFeed
		}
	}
	return touched
}

type writing struct {
	Write
	kind   schema.KindID
	kindID int32
	body   string // JSON
	labels *string
	before *shadowRow // nil: there is none
	id     int64      // of the shadow; given when it is written
	uid    uuid.UUID
	add    []*newReference
	drop   []heldReference
}

type newReference struct {
	schema.Found
	fieldID  int32
	kindID   int32
	holder   *writing
	targetID int64     // local target, once it is locked
	uid      uuid.UUID // foreign target, once it is established
}

type shadowRow struct {
	id         int64
	uid        uuid.UUID
	kindID     int32
	name       string
	state      State
	revision   Revision
	generation int64
	createdAt  time.Time
	updatedAt  time.Time
}

// heldReference is a reference as it is stored, with the name of its target.
type heldReference struct {
	holderID   int64
	fieldID    int32
	targetID   int64
	behaviour  schema.Behaviour
	attempt    *uuid.UUID
	deployment *int32 // null: a local target
	kindID     *int32 // null: the target is gone
	name       *string
	uid        *uuid.UUID
}

// querier is the pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

const (
	selectShadowsSQL = `
SELECT s.id, s.uid, s.kind_id, s.name, s.state, s.revision, s.generation, s.created_at, s.updated_at
FROM unnest($1::int[], $2::text[]) AS i (kind_id, name)
JOIN dbcontroller.shadow s ON s.kind_id = i.kind_id AND s.name = i.name`

	selectHeldSQL = `
SELECT r.holder_id, r.field_id, r.target_id, r.behaviour, r.attempt, f.deployment_id,
       COALESCE(f.kind_id, t.kind_id), COALESCE(f.name, t.name), COALESCE(f.uid, t.uid)
FROM dbcontroller.reference r
LEFT JOIN dbcontroller.foreign_target f ON f.id = r.target_id
LEFT JOIN dbcontroller.shadow t ON t.id = r.target_id
WHERE r.holder_id = ANY ($1)`
)

func scanShadow(row pgx.CollectableRow) (*shadowRow, error) {
	r := &shadowRow{}
	return r, row.Scan(&r.id, &r.uid, &r.kindID, &r.name, &r.state, &r.revision, &r.generation, &r.createdAt, &r.updatedAt)
}

func scanHeld(row pgx.CollectableRow) (h heldReference, err error) {
	err = row.Scan(&h.holderID, &h.fieldID, &h.targetID, &h.behaviour, &h.attempt, &h.deployment, &h.kindID, &h.name, &h.uid)
	return h, err
}

// prepare validates the writes and compares them with what is there.
func (s *Store) prepare(ctx context.Context, q querier, writes []Write) (*saving, error) {
	v, err := s.current()
	if err != nil {
		return nil, err
	}
	sv := &saving{version: v, attempt: uuid.Must(uuid.NewV7()), foreign: map[schema.DeploymentID][]*newReference{}}
	found := make([][]schema.Found, len(writes))
	named := map[string]bool{}
	for i, w := range writes {
		if named[w.Name] {
			return nil, &InvalidError{Resource: w.Name, Err: errors.New("stands twice in one batch")}
		}
		named[w.Name] = true
		wr, refs, err := s.validate(ctx, v.model, w)
		if err != nil {
			return nil, err
		}
		sv.writes, found[i] = append(sv.writes, wr), refs
	}
	held, err := s.readBefore(ctx, q, sv)
	if err != nil {
		return nil, err
	}
	for i, wr := range sv.writes {
		if err := s.compare(ctx, q, sv, wr, found[i], held); err != nil {
			return nil, err
		}
	}
	return sv, nil
}

func (s *Store) validate(ctx context.Context, model *schema.Model, w Write) (*writing, []schema.Found, error) {
	kind, err := model.KindOf(w.Name)
	if err != nil {
		return nil, nil, &InvalidError{Err: err}
	}
	if w.Body == nil {
		w.Body = map[string]any{}
	}
	found, err := kind.References(s.self, w.Name, w.Body)
	if err != nil {
		return nil, nil, &InvalidError{Resource: w.Name, Err: err}
	}
	wr := &writing{Write: w, kind: kind.ID}
	body, err := json.Marshal(w.Body)
	if err != nil {
		return nil, nil, &InvalidError{Resource: w.Name, Err: err}
	}
	if wr.body = string(body); strings.Contains(wr.body, `\u0000`) {
		return nil, nil, &InvalidError{Resource: w.Name, Err: errors.New("the body has a NUL character, which PostgreSQL cannot store")}
	}
	if len(w.Labels) > 0 {
		labels, err := json.Marshal(w.Labels)
		if err != nil {
			return nil, nil, &InvalidError{Resource: w.Name, Err: err}
		}
		text := string(labels)
		wr.labels = &text
	}
	wr.kindID, err = s.names.kind(ctx, wr.kind)
	return wr, found, err
}

// readBefore finds the shadows that are there, and answers the references they hold, by holder.
func (s *Store) readBefore(ctx context.Context, q querier, sv *saving) (map[int64][]heldReference, error) {
	type key struct {
		kindID int32
		name   string
	}
	byName := map[key]*writing{}
	kinds, rels := make([]int32, len(sv.writes)), make([]string, len(sv.writes))
	for i, wr := range sv.writes {
		kinds[i], rels[i] = wr.kindID, wr.Name
		byName[key{wr.kindID, wr.Name}] = wr
	}
	rows, err := q.Query(ctx, selectShadowsSQL, kinds, rels)
	if err != nil {
		return nil, fmt.Errorf("read shadows: %w", err)
	}
	before, err := pgx.CollectRows(rows, scanShadow)
	if err != nil || len(before) == 0 {
		return nil, err
	}
	ids := make([]int64, len(before))
	for i, row := range before {
		wr := byName[key{row.kindID, row.name}]
		wr.before, wr.id, wr.uid = row, row.id, row.uid
		ids[i] = row.id
	}
	if rows, err = q.Query(ctx, selectHeldSQL, ids); err != nil {
		return nil, fmt.Errorf("read references: %w", err)
	}
	all, err := pgx.CollectRows(rows, scanHeld)
	held := map[int64][]heldReference{}
	for _, h := range all {
		held[h.holderID] = append(held[h.holderID], h)
	}
	return held, err
}

// compare settles what a write adds and drops.
func (s *Store) compare(ctx context.Context, q querier, sv *saving, wr *writing, found []schema.Found, held map[int64][]heldReference) error {
	if err := expected(wr); err != nil {
		return err
	}
	if wr.before == nil {
		wr.uid = uuid.Must(uuid.NewV7())
	}
	type key struct {
		fieldID int32
		kindID  int32
		target  schema.FullName
	}
	have := map[key]heldReference{}
	for _, h := range held[wr.id] {
		if wr.before == nil || h.name == nil {
			continue
		}
		d := s.self
		if h.deployment != nil {
			var err error
			if d, err = s.names.deploymentOf(ctx, q, *h.deployment); err != nil {
				return err
			}
		}
		have[key{h.fieldID, *h.kindID, schema.FullName{Deployment: d, Name: *h.name}}] = h
	}
	for _, f := range found {
		ref := &newReference{Found: f, holder: wr}
		var err error
		if ref.fieldID, err = s.names.field(ctx, f.Path); err != nil {
			return err
		}
		if ref.kindID, err = s.names.kind(ctx, f.TargetKind); err != nil {
			return err
		}
		k := key{ref.fieldID, ref.kindID, f.Target}
		if _, ok := have[k]; ok {
			delete(have, k)
			continue
		}
		wr.add = append(wr.add, ref)
		if f.Target.Deployment != s.self {
			if sv.foreign[f.Target.Deployment] = append(sv.foreign[f.Target.Deployment], ref); len(sv.foreign[f.Target.Deployment]) > MaxNewReferences {
				return &InvalidError{Resource: wr.Name, Err: fmt.Errorf("more than %d new references to %s in one write", MaxNewReferences, f.Target.Deployment)}
			}
		}
	}
	for _, h := range have {
		wr.drop = append(wr.drop, h)
	}
	return s.keepDangling(ctx, q, sv, wr)
}

const selectBodySQL = `SELECT body FROM dbcontroller.resource WHERE id = $1`

// keepDangling lets an update keep a value that dangles by permission: its target went, and its reference with it, but
// it is not a new reference.
func (s *Store) keepDangling(ctx context.Context, q querier, sv *saving, wr *writing) error {
	mayDangle := func(ref *newReference) bool {
		return ref.Behaviour == schema.AllowDangling && ref.Target.Deployment == s.self
	}
	if wr.before == nil || !slices.ContainsFunc(wr.add, mayDangle) {
		return nil
	}
	rows, err := q.Query(ctx, selectBodySQL, wr.before.id)
	if err != nil {
		return fmt.Errorf("read the body before: %w", err)
	}
	bodies, err := pgx.CollectRows(rows, pgx.RowTo[map[string]any])
	if err != nil || len(bodies) == 0 {
		return err
	}
	kind, err := sv.version.model.Kind(wr.kind.Kind)
	if err != nil {
		return err
	}
	had, err := kind.References(s.self, wr.Name, bodies[0])
	if err != nil {
		return nil // it was written under another version; then everything is new
	}
	wr.add = slices.DeleteFunc(wr.add, func(ref *newReference) bool {
		return mayDangle(ref) && slices.ContainsFunc(had, func(f schema.Found) bool { return f == ref.Found })
	})
	return nil
}

func expected(wr *writing) error {
	full := wr.Name
	switch {
	case wr.before == nil:
		if wr.Mode == Update || wr.UID != uuid.Nil || wr.Revision != 0 {
			return fmt.Errorf("%s: %w", full, ErrNotFound)
		}
		return nil
	case wr.before.state != Active:
		return fmt.Errorf("%s: %w", full, ErrDeleting)
	case wr.Mode == Create:
		return fmt.Errorf("%s: %w", full, ErrExists)
	case wr.UID != uuid.Nil && wr.UID != wr.before.uid:
		return fmt.Errorf("%s: %w: its uid is %s", full, ErrMoved, wr.before.uid)
	case wr.Revision != 0 && wr.Revision != wr.before.revision:
		return fmt.Errorf("%s: %w: it is at revision %d, not %d", full, ErrMoved, wr.before.revision, wr.Revision)
	}
	return nil
}
