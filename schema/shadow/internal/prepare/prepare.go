package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/budget"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/violation"
)

// ShadowRow is a stored resource, read before a write.
type ShadowRow struct {
	ID            int64
	UID           uuid.UUID
	KindID        int32
	Name          string
	State         peer.State
	Revision      peer.Revision
	Generation    int64
	Derivation    int32
	Frozen        bool // it may be a member of an atomic deletion: db.Frozen
	Hidden        bool // in ACTIVE: it is a member of a scheduled deletion
	BlockDeletion bool
	CreatedAt     time.Time
	UpdatedAt     time.Time
	Labels        map[string]string
	Body          map[string]any
	Owners        []peer.OwnerReference
	// Status and StatusGeneration are not written with the body; answers have them.
	Status           []byte
	StatusGeneration int64

	body []byte // until it is decoded
}

const (
	ShadowColumns = `
SELECT s.id, s.uid, s.kind_id, s.name, s.state, s.revision, s.generation, s.derivation, s.hidden, s.block_deletion, s.created_at, s.updated_at,
    r.labels, r.body, r.owners, r.status, COALESCE(r.status_generation, 0)
`
	selectShadowsSQL = ShadowColumns + `
FROM unnest($1::int[], $2::text[]) AS i (kind_id, name)
CROSS JOIN LATERAL (SELECT * FROM dbcontroller.shadow s WHERE s.kind_id = i.kind_id AND s.name = i.name OFFSET 0) AS s
LEFT JOIN LATERAL (SELECT * FROM dbcontroller.resource r WHERE r.id = s.id OFFSET 0) AS r ON true`
)

// ScanShadow reads a row of ShadowColumns.
func ScanShadow(row pgx.CollectableRow) (*ShadowRow, error) {
	r, err := scanUndecoded(row)
	if err != nil {
		return nil, err
	}
	return r, r.decode()
}

// decode decodes the body.
func (r *ShadowRow) decode() error {
	body := r.body
	r.body = nil
	return postgres.DecodeJSON(body, &r.Body)
}

// scanUndecoded is ScanShadow without the body's values.
func scanUndecoded(row pgx.CollectableRow) (*ShadowRow, error) {
	r := &ShadowRow{}
	var labels, owners []byte
	if err := row.Scan(&r.ID, &r.UID, &r.KindID, &r.Name, &r.State, &r.Revision, &r.Generation, &r.Derivation,
		&r.Hidden, &r.BlockDeletion,
		&r.CreatedAt, &r.UpdatedAt, &labels, &r.body, &owners, &r.Status, &r.StatusGeneration); err != nil {
		return nil, err
	}
	for _, column := range []struct {
		raw  []byte
		into any
	}{{labels, &r.Labels}, {owners, &r.Owners}} {
		if err := postgres.DecodeJSON(column.raw, column.into); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// maxPageBytes is the size of the rows of resources at which a page of them ends early: a process has their
// bodies in memory.
const maxPageBytes = 4 << 20

// PageSize returns the number of rows to ask for after a page of so many: no more than it had when it was
// cut, since the database has read the cut-off rows for nothing, and then more again.
func PageSize(asked, got int, cut bool, most int) int {
	if cut {
		return got
	}
	return min(2*asked, most)
}

// CollectShadows collects rows until they have maxPageBytes. cut: there are further ones.
func CollectShadows(rows pgx.Rows) (page []*ShadowRow, cut bool, err error) {
	defer rows.Close()
	for bytes := 0; rows.Next(); {
		for _, value := range rows.RawValues() {
			bytes += len(value)
		}
		if bytes > maxPageBytes && len(page) > 0 {
			return page, true, nil
		}
		row, err := ScanShadow(rows)
		if err != nil {
			return nil, false, err
		}
		page = append(page, row)
	}
	return page, false, rows.Err()
}

// Prepare reads the stored resources, unless they are left unread, validates the writes, and computes the
// references and owner references that they add and drop.
func (p *Preparer) Prepare(ctx context.Context, q db.Querier, writes []peer.Write, unread bool) (*Saving, error) {
	v, err := p.Current()
	if err != nil {
		return nil, err
	}
	sv := p.NewSaving(v)
	named := map[string]bool{}
	for _, w := range writes {
		if named[w.Name] {
			return nil, &peer.InvalidError{
				Resource: w.Name,
				Err:      violation.In("name", errors.New("the batch contains this resource twice")),
			}
		}
		named[w.Name] = true
		kind, err := v.Model.KindOf(w.Name)
		if err != nil {
			return nil, violation.In("name", read.Unfit(ctx, p.DB, q, w.Name, err))
		}
		if kind.Table != nil {
			return nil, &peer.InvalidError{
				Resource: w.Name,
				Err: violation.In("name", fmt.Errorf("%s is a row of table %s: write it with SQL", kind.ID.Kind,
					kind.Table.Name)),
			}
		}
		wr := &Writing{Write: w, Kind: kind.ID}
		if wr.KindID, err = p.Names.Kind(ctx, kind.ID); err != nil {
			return nil, err
		}
		sv.Writes = append(sv.Writes, wr)
	}
	if err := p.free(ctx, q, sv); err != nil {
		return nil, err
	}
	var held map[int64][]read.HeldReference
	if sv.Unread = unread; !unread {
		if held, err = p.readBefore(ctx, q, sv); err != nil {
			return nil, err
		}
	}
	references, steps := 0, schema.MaxCheckSteps
	for _, wr := range sv.Writes {
		if err := expected(wr); err != nil {
			return nil, err
		}
		found, err := p.validate(v.Model, wr, &steps)
		if err != nil {
			return nil, &peer.InvalidError{Resource: wr.Name, Err: err}
		}
		if references += len(found); references > maxBatchReferences {
			return nil, &peer.InvalidError{Err: fmt.Errorf("the batch has more than %d references: split it",
				maxBatchReferences)}
		}
		if err := p.Compare(ctx, q, sv, wr, found, held[wr.ID]); err != nil {
			return nil, err
		}
		if err := p.compareOwners(ctx, v.Model, wr); err != nil {
			return nil, err
		}
	}
	return sv, p.permitted(ctx, sv)
}

// ownersPath is the path of an owner in a refusal.
const ownersPath = "owner_references"

// permitted refuses new references to resources here, and new owners anywhere, to which the writing person
// has no right to refer. Other deployments decide about references to their resources. They do not learn who
// names an owner: the grants known here decide about that. It also refuses references and owners whose
// deletion takes a stored resource along that the person may not delete: a right to write would be one to
// delete. The creator of a resource decides with which ones it goes.
func (p *Preparer) permitted(ctx context.Context, sv *Saving) error {
	var refers, takes []peer.Refusal
	var targets, holders []schema.FullName
	for _, wr := range sv.Writes {
		refer := func(path string, target schema.FullName) {
			refers, targets = append(refers, peer.Refusal{
				Holder: wr.Name, Path: path, Target: target,
				Reason: peer.ReferDenied,
			}), append(targets, target)
		}
		for _, ref := range wr.Add {
			if ref.Target.Deployment == p.Self {
				refer(ref.Path, ref.Target)
			}
		}
		for _, owner := range wr.NewOwners {
			refer(ownersPath, owner)
		}
		if wr.Before != nil {
			for _, t := range wr.Takes {
				t.Holder, t.Reason = wr.Name, peer.RemovalDenied
				takes, holders = append(takes, t), append(holders, schema.FullName{Deployment: p.Self, Name: wr.Name})
			}
		}
	}
	person, refused := peer.PersonFrom(ctx), &peer.RefusedError{}
	if err := deny(ctx, person.Refer, targets, refers, refused); err != nil {
		return err
	}
	if err := deny(ctx, person.Delete, holders, takes, refused); err != nil {
		return err
	}
	if len(refused.Refusals) == 0 {
		return nil
	}
	return refused.Sorted()
}

// deny adds the refusals of the names that a person has no right on.
func deny(ctx context.Context, may peer.Permission, names []schema.FullName, refusals []peer.Refusal,
	refused *peer.RefusedError,
) error {
	if may == nil || len(names) == 0 {
		return nil
	}
	allowed, err := may(ctx, names)
	if err != nil {
		return err
	}
	for i, ok := range allowed {
		if !ok {
			refused.Refusals = append(refused.Refusals, refusals[i])
		}
	}
	return nil
}

// validate sets the JSON columns to store, and returns the references in the body. The check by a JSON Schema
// takes its steps from left.
func (p *Preparer) validate(model *schema.Model, wr *Writing, left *schema.CheckSteps) ([]schema.Found, error) {
	if wr.Before != nil && len(wr.Mask) > 0 {
		if err := wr.merge(); err != nil {
			return nil, err
		}
	}
	if wr.Body == nil {
		wr.Body = map[string]any{}
	}
	kind, err := model.Kind(wr.Kind.Kind)
	if err != nil {
		return nil, err
	}
	// Depth and size come first: they bound the work of the other checks.
	if !within(wr.Body, MaxBodyDepth) {
		return nil, violation.In("body", fmt.Errorf("body: more than %d levels", MaxBodyDepth))
	}
	var stored map[string]any
	if wr.Before != nil {
		stored = wr.Before.Body
	} else if err := kind.CheckRegion(p.Self, wr.Name); err != nil {
		return nil, violation.In("name", err)
	}
	if wr.Body, err = kind.Complete(wr.Body); err != nil {
		return nil, err
	}
	if err := kind.CheckUndeclared(wr.Body, stored); err != nil {
		return nil, err
	}
	body, err := json.Marshal(wr.Body)
	if err != nil {
		return nil, err
	}
	wr.BodyText = string(body)
	if err := Storable("body", wr.BodyText, MaxBodyBytes); err != nil {
		return nil, err
	}
	if n := budget.DecodedBytes(body); n > MaxDecodedBytes {
		return nil, violation.In("body",
			fmt.Errorf("body: it has so many values that they take %d bytes of memory, at most %d are allowed", n,
				MaxDecodedBytes))
	}
	if err := kind.CheckBody(body, stored, left); err != nil {
		return nil, err
	}
	found, err := kind.References(p.Self, wr.Name, wr.Body)
	if err != nil || len(wr.Labels) == 0 {
		return found, err
	}
	if _, ok := wr.Labels[""]; ok {
		return nil, violation.In("labels", errors.New("labels: a key is empty"))
	}
	labels, err := json.Marshal(wr.Labels)
	if err != nil {
		return nil, err
	}
	text := string(labels)
	wr.LabelsText = &text
	return found, Storable("labels", text, maxLabelBytes)
}

// MaxBodyBytes is the maximum size of a body as JSON: each stored body has to fit into a gRPC message.
const (
	MaxBodyBytes  = 1 << 20
	maxLabelBytes = 64 << 10
	// MaxDecodedBytes bounds the memory of the values of a body, or of the stored bodies that a batch
	// changes.
	MaxDecodedBytes = 12 << 20
	// MaxBodyDepth is the maximum nesting of objects and lists in a body, which JSON parsers of other
	// languages can be expected to support.
	MaxBodyDepth = 100
	// maxBatchBytes bounds the stored resources that a batch of writes changes, which are in memory together.
	maxBatchBytes = 4 << 20
	// maxBatchReferences is the maximum number of references in one batch of writes, which is also the
	// maximum that one deployment establishes in one call.
	maxBatchReferences = 10_000
)

// within reports whether a value has at most a number of nested levels of objects and lists.
func within(value any, levels int) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, e := range v {
			if levels == 0 || !within(e, levels-1) {
				return false
			}
		}
	case []any:
		for _, e := range v {
			if levels == 0 || !within(e, levels-1) {
				return false
			}
		}
	}
	return true
}

// Storable returns an error for the text of a field that is too long, or that PostgreSQL cannot store.
func Storable(field, text string, most int) error {
	if len(text) > most {
		return violation.In(field, fmt.Errorf("%s: %d bytes as JSON, at most %d are allowed", field, len(text), most))
	}
	// In \\u0000 the backslash itself is escaped: no NUL.
	if strings.Contains(text, `\u0000`) && strings.Contains(strings.ReplaceAll(text, `\\`, ""), `\u0000`) {
		return violation.In(field, fmt.Errorf("%s: contains a NUL character, which PostgreSQL cannot store", field))
	}
	return nil
}

// readBefore reads the stored resources into the writes, and returns the references that they hold, by holder
// id.
func (p *Preparer) readBefore(ctx context.Context, q db.Querier, sv *Saving) (map[int64][]read.HeldReference, error) {
	type key struct {
		kindID int32
		name   string
	}
	byName := map[key]*Writing{}
	kinds, rels := make([]int32, len(sv.Writes)), make([]string, len(sv.Writes))
	for i, wr := range sv.Writes {
		kinds[i], rels[i] = wr.KindID, wr.Name
		byName[key{wr.KindID, wr.Name}] = wr
	}
	rows, err := q.Query(ctx, selectShadowsSQL, kinds, rels)
	if err != nil {
		return nil, fmt.Errorf("read shadows: %w", err)
	}
	bytes := 0
	before, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*ShadowRow, error) {
		for _, value := range row.RawValues() {
			bytes += len(value)
		}
		if bytes > maxBatchBytes && len(sv.Writes) > 1 {
			return nil, &peer.InvalidError{
				Err: fmt.Errorf("the resources of the batch, as they are stored, have more than %d bytes: split it",
					maxBatchBytes),
			}
		}
		return scanUndecoded(row)
	})
	if err != nil || len(before) == 0 {
		return nil, err
	}
	if err := decodeAll(ctx, before); err != nil {
		return nil, err
	}
	ids := make([]int64, len(before))
	for i, row := range before {
		wr := byName[key{row.KindID, row.Name}]
		wr.Before, wr.ID, wr.ShadowUID = row, row.ID, row.UID
		ids[i] = row.ID
	}
	return read.Held(ctx, q, ids)
}

// decodeAll decodes the bodies of stored resources, which stay in memory until the write is done.
func decodeAll(ctx context.Context, rows []*ShadowRow) error {
	bytes := int64(0)
	for _, r := range rows {
		bytes += budget.DecodedBytes(r.body)
	}
	if bytes > MaxDecodedBytes && len(rows) > 1 {
		return &peer.InvalidError{
			Err: fmt.Errorf(
				"the resources of the batch, as they are stored, have so many values that they take %d bytes of memory, at most %d are allowed: split it", bytes, MaxDecodedBytes),
		}
	}
	if err := budget.Convert(ctx, bytes); err != nil {
		return err
	}
	for _, r := range rows {
		if err := r.decode(); err != nil {
			return err
		}
	}
	return nil
}

// Compare computes the references that a write adds and drops. When a switch of the version changes the
// behaviour of a stored reference, the new form is added and the old one dropped: the target's deployment
// establishes the new form before the old one is released.
func (p *Preparer) Compare(ctx context.Context, q db.Querier, sv *Saving, wr *Writing, found []schema.Found,
	held []read.HeldReference,
) error {
	if wr.Before == nil {
		wr.ShadowUID = uuid.Must(uuid.NewV7())
	}
	type key struct {
		fieldID int32
		kind    schema.KindID
		target  schema.FullName
	}
	have := map[key]read.HeldReference{}
	for _, h := range held {
		if wr.Before == nil || h.Name == nil {
			continue
		}
		d := p.Self
		var err error
		if h.Deployment != nil {
			if d, err = p.Names.DeploymentOf(ctx, q, *h.Deployment); err != nil {
				return err
			}
		}
		kind, err := p.Names.KindOf(ctx, q, *h.KindID)
		if err != nil {
			return err
		}
		h.Target = schema.FullName{Deployment: d, Name: *h.Name}
		have[key{h.FieldID, sv.Version.Model.Canonical(kind), h.Target}] = h
	}
	var refused peer.RefusedError // references to deployments that are made up
	for _, f := range found {
		ref := &NewReference{Found: f, Holder: wr}
		var err error
		if ref.FieldID, err = p.Names.Field(ctx, f.Path); err != nil {
			return err
		}
		if ref.KindID, err = p.Names.Kind(ctx, f.TargetKind); err != nil {
			return err
		}
		k := key{ref.FieldID, f.TargetKind, f.Target}
		if h, ok := have[k]; ok && h.Behaviour == f.Behaviour {
			if !h.Dangling {
				delete(have, k)
				continue
			}
		}
		var away *peer.UnavailableError
		if err = p.gate.CheckNamed(ctx, f.Target.Deployment); errors.As(err, &away) {
			refused.Add(&peer.RefusedError{Refusals: []peer.Refusal{{
				Holder: wr.Name, Path: f.Path, Target: f.Target,
				Reason: peer.TargetUnreadable, Detail: away.Err.Error(),
			}}})
		} else if err != nil {
			return err
		}
		wr.Add = append(wr.Add, ref)
		if f.Behaviour.Cascades() {
			wr.takes(f.Path, f.Target)
		}
	}
	if refused.Total() > 0 {
		return refused.Sorted()
	}
	for _, h := range have {
		wr.Drop = append(wr.Drop, h)
	}
	p.keepDangling(sv, wr)
	return sv.Establish(p.Self, wr)
}

// Establish adds the new references of a write to other deployments to the references of the whole
// transaction. When there are too many, it adds none.
func (sv *Saving) Establish(self schema.DeploymentID, wr *Writing) error {
	foreign := map[schema.DeploymentID][]*NewReference{}
	for _, ref := range wr.Add {
		if d := ref.Target.Deployment; d != self {
			if foreign[d] = append(foreign[d], ref); len(sv.Foreign[d])+len(foreign[d]) > MaxNewReferences {
				return &peer.InvalidError{
					Resource: wr.Name,
					Err:      fmt.Errorf("more than %d new references to %s in one write", MaxNewReferences, d),
				}
			}
		}
	}
	for d, refs := range foreign {
		sv.Foreign[d] = append(sv.Foreign[d], refs...)
	}
	return nil
}

// keepDangling lets an update keep the value of an ALLOW_DANGLING reference whose target was deleted: the
// stored reference was removed with the target, but the value is not a new reference.
func (p *Preparer) keepDangling(sv *Saving, wr *Writing) {
	mayDangle := func(ref *NewReference) bool { return ref.Behaviour == schema.AllowDangling }
	if wr.Before == nil || wr.Derives || !slices.ContainsFunc(wr.Add, mayDangle) {
		return
	}
	kind, err := sv.Version.Model.Kind(wr.Kind.Kind)
	if err != nil {
		return
	}
	had, err := kind.References(p.Self, wr.Name, wr.Before.Body)
	if err != nil {
		return // written under another version, which this one cannot parse: all references are new
	}
	wr.Add = slices.DeleteFunc(wr.Add, func(ref *NewReference) bool {
		return mayDangle(ref) && slices.ContainsFunc(had, func(f schema.Found) bool { return f == ref.Found })
	})
}

func expected(wr *Writing) error {
	full := wr.Name
	switch {
	case wr.Before == nil:
		if wr.Mode == peer.Update || wr.UID != uuid.Nil || wr.Revision != 0 {
			return fmt.Errorf("%s: %w", full, peer.ErrNotFound)
		}
		return nil
	case wr.Before.State != peer.Active:
		return fmt.Errorf("%s: %w", full, peer.ErrDeleting)
	case wr.Before.Hidden:
		return fmt.Errorf("%s %w", full, peer.ErrDeleted)
	case wr.Mode == peer.Create:
		return fmt.Errorf("%s: %w", full, peer.ErrExists)
	case wr.UID != uuid.Nil && wr.UID != wr.Before.UID:
		return fmt.Errorf("%s: %w: its uid is %s", full, peer.ErrConflict, wr.Before.UID)
	case wr.Revision != 0 && wr.Revision != wr.Before.Revision:
		return fmt.Errorf("%s: %w: it is at revision %d, not %d", full, peer.ErrConflict, wr.Before.Revision,
			wr.Revision)
	}
	return nil
}
