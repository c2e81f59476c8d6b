package write

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/db-controller/db-controller/internal/gather"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
)

const (
	lockTargetsSQL = `
SELECT s.id, s.kind_id, s.name, s.state, EXISTS (SELECT FROM dbcontroller.closing c WHERE c.target_id = s.id AND ` + target.ClosesSQL + `)
FROM dbcontroller.shadow s
JOIN unnest($1::int[], $2::text[]) AS i (kind_id, name) ON s.kind_id = i.kind_id AND s.name = i.name
ORDER BY s.id
FOR SHARE OF s`

	LockOwnSQL = `
SELECT id, revision, state, derivation FROM dbcontroller.shadow WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`

	// For several writes: the rows that nobody else has locked.
	skipLocked = ` SKIP LOCKED`

	selectExistingSQL = `
SELECT s.kind_id, s.name FROM unnest($1::int[], $2::text[]) AS i (kind_id, name) JOIN dbcontroller.shadow s ON s.kind_id = i.kind_id AND s.name = i.name`

	// Runs after the locks: the revisions of one resource are in the order of its commits.
	takeNumbersSQL = `
SELECT nextval('dbcontroller.revision'), CASE WHEN n <= $2 THEN nextval('dbcontroller.object_id') ELSE 0 END
FROM generate_series(1, $1) AS n`

	commitAttemptsSQL = `INSERT INTO dbcontroller.attempt (id, committed) SELECT i, true FROM unnest($1::uuid[]) AS i ORDER BY i`

	// Runs after the decision is inserted: an ABORTED decision was either forgotten before, and forgotten shows that, or is still
	// there, and the insert failed.
	selectForgottenSQL = `SELECT forgotten FROM dbcontroller.meta`
	deriveSQL          = `UPDATE dbcontroller.shadow SET derivation = derivation + 1 WHERE id = ANY ($1)`

	insertLocalReferencesSQL = `
INSERT INTO dbcontroller.reference (holder_id, target_id, field_id, behaviour)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::smallint[])`

	// A reference that replaces a blocking one after its target was marked needs a notice: the mark wrote none for it.
	insertLateNoticesSQL = `INSERT INTO dbcontroller.notice (target_id, deployment_id) SELECT DISTINCT unnest($1::bigint[]), $2::int`

	insertForeignTargetsSQL = `
INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name)
SELECT DISTINCT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[]) AS i (uid, deployment_id, kind_id, name)
WHERE NOT EXISTS (
    SELECT FROM dbcontroller.foreign_target f WHERE f.uid = i.uid AND f.deployment_id = i.deployment_id AND f.kind_id = i.kind_id
)
ON CONFLICT ON CONSTRAINT foreign_target_uid DO UPDATE SET kind_id = EXCLUDED.kind_id -- a version renamed the kind
WHERE foreign_target.kind_id <> EXCLUDED.kind_id`

	// FOR KEY SHARE keeps Tidy from removing the row, and does not block other holders of the same target.
	insertForeignReferencesSQL = `
WITH f AS (
    SELECT id, uid, deployment_id FROM dbcontroller.foreign_target
    WHERE uid = ANY (@uids::uuid[]) FOR KEY SHARE
)
INSERT INTO dbcontroller.reference (holder_id, target_id, attempt, field_id, behaviour)
SELECT i.holder_id, f.id, i.attempt, i.field_id, i.behaviour
FROM unnest(@holders::bigint[], @uids::uuid[], @deployments::int[], @fields::int[], @behaviours::smallint[], @attempts::uuid[])
    AS i (holder_id, uid, deployment_id, field_id, behaviour, attempt)
JOIN f ON f.uid = i.uid AND f.deployment_id = i.deployment_id`
)

var (
	insertResourcesSQL = db.Codes(`
WITH i AS (
    SELECT * FROM unnest(@ids::bigint[], @uids::uuid[], @kinds::int[], @names::text[], @shards::smallint[], @revisions::bigint[], @labels::text[], @bodies::text[], @owners::text[])
        AS i (id, uid, kind_id, name, shard, revision, labels, body, owners)
), s AS (
    INSERT INTO dbcontroller.shadow (id, uid, kind_id, state, shard, revision, generation, name)
    SELECT id, uid, kind_id, {active}, shard, revision, 1, name FROM i
    RETURNING id
), r AS (
    INSERT INTO dbcontroller.resource (id, labels, body, owners) SELECT id, labels::jsonb, body::jsonb, owners::jsonb FROM i
)` + db.ChangeTo(`{active}`, `(
    SELECT i.uid, i.revision, 1 AS generation, i.kind_id, now() AS created_at, i.name,
        i.labels::jsonb AS labels, i.body::jsonb AS body, i.owners::jsonb AS owners, false AS block_deletion
    FROM s JOIN i USING (id)
) AS created`))  // reads from s: the change's seq is taken after the insert has waited for a transaction that holds the name

	updateResourcesSQL = db.Codes(`
WITH i AS (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[]) AS i (id, revision, labels, body, owners)
), s AS (
    UPDATE dbcontroller.shadow s
    SET revision = i.revision, generation = s.generation + (r.body <> i.body::jsonb)::int, updated_at = now()
    FROM i JOIN dbcontroller.resource r ON r.id = i.id
    WHERE s.id = i.id
    RETURNING s.id, s.uid, s.kind_id, s.name, s.revision, s.generation, s.created_at, s.block_deletion,
        i.labels::jsonb AS labels, i.body::jsonb AS body, i.owners::jsonb AS owners
), r AS (
    UPDATE dbcontroller.resource r SET labels = i.labels::jsonb, body = i.body::jsonb, owners = i.owners::jsonb FROM i WHERE r.id = i.id
), c AS (` + db.ChangeTo(`{active}`, `s`) + `
)
SELECT id, generation FROM s`)

	// Dropped blocking references are released at foreign targets; local targets are looked at again. When the holder has ownees in
	// the target's deployment, which may require the reference, a let_go is sent there.
	dropReferencesSQL = db.Codes(`
WITH gone AS (
    DELETE FROM dbcontroller.reference r
    USING unnest($1::bigint[], $2::int[], $3::bigint[]) AS i (holder_id, field_id, target_id)
    WHERE r.holder_id = i.holder_id AND r.field_id = i.field_id AND r.target_id = i.target_id
    RETURNING r.*
), released AS (
    INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, holder_uid, field_id, target_uid)
    SELECT {release}, s.shard, f.deployment_id, gone.attempt, s.uid, gone.field_id, f.uid
    FROM gone
    JOIN dbcontroller.shadow s ON s.id = gone.holder_id
    JOIN dbcontroller.foreign_target f ON f.id = gone.target_id
    WHERE gone.behaviour = {block}
), told AS (
    INSERT INTO dbcontroller.work (action, shard, deployment_id, holder_uid, target_uid)
    SELECT DISTINCT {let_go}, s.shard, e.deployment_id, s.uid, COALESCE(f.uid, t.uid)
    FROM gone
    JOIN dbcontroller.shadow s ON s.id = gone.holder_id
    JOIN dbcontroller.ownee_entry e ON e.owner_id = s.id
    LEFT JOIN dbcontroller.foreign_target f ON f.id = gone.target_id
    LEFT JOIN dbcontroller.shadow t ON t.id = gone.target_id
    WHERE e.deployment_id = COALESCE(f.deployment_id, $4::int) AND COALESCE(f.uid, t.uid) IS NOT NULL
)` + db.LookAgain(`$4`, `gone JOIN dbcontroller.shadow s ON s.id = gone.target_id WHERE gone.behaviour = {block}`))

	ConfirmWorkSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt)
SELECT {confirm}, i.shard, i.deployment_id, i.attempt FROM unnest($1::smallint[], $2::int[], $3::uuid[]) AS i (shard, deployment_id, attempt)`)
)

// write runs the statements of a save in its transaction, in two round trips: locks and checks, then writes. It returns the resources
// in the order of the writes.
func (s *Writer) write(ctx context.Context, tx pgx.Tx, sv *saving) ([]peer.Resource, error) {
	l, err := s.lock(ctx, tx, sv)
	if err != nil {
		return nil, err
	}
	if err := s.store(ctx, tx, l, sv); err != nil {
		return nil, err
	}
	return sv.saved, nil
}

// store writes savings whose rows are locked.
func (s *Writer) store(ctx context.Context, tx pgx.Tx, l *locked, savings ...*saving) error {
	b := &pgx.Batch{}
	queueResources(b, savings)
	s.queueDrops(b, savings)
	if err := s.queueReferences(ctx, b, savings); err != nil {
		return err
	}
	queueOwners(b, savings)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		switch {
		case db.Violates(err, "attempt_pkey"):
			return peer.ErrAborted // a resolver has decided the attempt ABORTED
		case db.Violates(err, "shadow_name"):
			return db.ErrStale // another write has created the resource
		}
		return fmt.Errorf("write resources: %w", err)
	}
	b = &pgx.Batch{}
	for _, sv := range savings {
		sv.saved = make([]peer.Resource, len(sv.writes))
		for i, wr := range sv.writes {
			sv.saved[i] = wr.saved(l.view.At)
		}
		sv.request.queue(b, Outcome{Saved: sv.saved})
	}
	if b.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, b).Close()
}

// saved returns the resource as the write stores it.
func (wr *writing) saved(at time.Time) peer.Resource {
	r := peer.Resource{
		UID: wr.uid, Kind: wr.kind.Kind, Name: wr.Name, State: peer.Active, Revision: peer.Revision(wr.revision), Generation: 1,
		Labels: wr.Labels, Body: []byte(wr.body), CreatedAt: at, UpdatedAt: at, Owners: wr.Owners,
	}
	if wr.before != nil {
		r.Generation, r.CreatedAt, r.BlockDeletion = wr.before.Generation, wr.before.CreatedAt, wr.before.BlockDeletion
	}
	return r
}

// locked has the rows that writes have locked, and the numbers that they have taken.
type locked struct {
	view      gate.CommitView
	refused   map[*saving][]peer.Refusal // because of local targets
	existing  map[localTarget]bool       // resources that were not read before
	selfRows  map[int64]ShadowRow        // by id
	revisions []int64                    // by write
	ids       []int64                    // for new resources
}

// lock locks the rows of one saving, waits for them, and checks it.
func (s *Writer) lock(ctx context.Context, tx pgx.Tx, sv *saving) (*locked, error) {
	if sv.first != nil {
		if err := sv.first(tx); err != nil {
			return nil, err
		}
	}
	if err := s.ensureRows(ctx, tx, sv); err != nil {
		return nil, err
	}
	l, err := s.lockAll(ctx, tx, []*saving{sv}, "")
	if err != nil {
		return nil, err
	}
	if err := s.refuseGoing(ctx, tx, sv, l); err != nil {
		return nil, err
	}
	return l, s.check(ctx, l, sv)
}

// lockAll locks, in this order, the version (shared), the local targets (shared), and the written shadows, and takes a revision for
// each write and an id for each new resource. suffix is nothing, or skipLocked.
func (s *Writer) lockAll(ctx context.Context, tx pgx.Tx, savings []*saving, suffix string) (*locked, error) {
	l := &locked{view: gate.CommitView{Present: s.gate.Present(tx)}, refused: map[*saving][]peer.Refusal{}, existing: map[localTarget]bool{}, selfRows: map[int64]ShadowRow{}}
	established, epochs, err := s.epochsAt(ctx, savings)
	if err != nil {
		return nil, err
	}
	b := &pgx.Batch{}
	b.Queue(gate.ShareVersionSQL, gate.VersionLock)
	b.Queue(gate.SelectNowSQL, established, epochs).QueryRow(l.view.Scan)
	for _, sv := range savings {
		s.queueDelegated(b, sv)
	}
	l.queueTargets(b, s.Self, savings, suffix)
	l.queueUnread(b, savings)
	l.queueWritten(b, savings, suffix)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("lock the written resources: %w", err)
	}
	for _, sv := range savings {
		l.takeNumbers(sv)
	}
	return l, nil
}

// check checks that nothing has changed since a saving was prepared, under the locks of all that it relies on.
func (s *Writer) check(ctx context.Context, l *locked, sv *saving) error {
	if err := s.checkView(sv, &l.view); err != nil {
		return err
	}
	if err := l.unchanged(sv); err != nil {
		return err
	}
	adoptBatchTargets(sv)
	if err := s.refuseDecommissioned(ctx, sv, l.view.Decommissioned); err != nil {
		return err
	}
	if refused := append(l.refused[sv], missingTargets(s.Self, sv)...); len(refused) > 0 {
		return (&peer.RefusedError{Refusals: refused}).Sorted()
	}
	return nil
}

// queueTargets locks the local targets of new references.
func (l *locked) queueTargets(b *pgx.Batch, self schema.DeploymentID, savings []*saving, suffix string) {
	kinds, rels, wanted := localTargets(self, savings)
	if len(kinds) == 0 {
		return
	}
	b.Queue(lockTargetsSQL+suffix, kinds, rels).Query(func(rows pgx.Rows) error { return l.takeTargets(rows, wanted) })
}

// queueUnread looks for resources that are to be created and were not read before. One that another transaction creates meanwhile makes
// the insert fail.
func (l *locked) queueUnread(b *pgx.Batch, savings []*saving) {
	var kinds []int32
	var names []string
	for sv, wr := range all(savings) {
		if sv.unread {
			kinds, names = append(kinds, wr.kindID), append(names, wr.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	b.Queue(selectExistingSQL, kinds, names).Query(func(rows pgx.Rows) error {
		var k localTarget
		_, err := pgx.ForEachRow(rows, []any{&k.kindID, &k.name}, func() error { l.existing[k] = true; return nil })
		return err
	})
}

// queueWritten locks the written resources that exist, and then takes revisions, and ids for the others.
func (l *locked) queueWritten(b *pgx.Batch, savings []*saving, suffix string) {
	var before []int64
	writes := 0
	for _, sv := range savings {
		writes += len(sv.writes)
		for _, wr := range sv.writes {
			if wr.before != nil {
				before = append(before, wr.before.ID)
			}
		}
	}
	if len(before) > 0 {
		b.Queue(LockOwnSQL+suffix, before).Query(func(rows pgx.Rows) error {
			var r ShadowRow
			_, err := pgx.ForEachRow(rows, []any{&r.ID, &r.Revision, &r.State, &r.Derivation}, func() error { l.selfRows[r.ID] = r; return nil })
			return err
		})
	}
	b.Queue(takeNumbersSQL, writes, writes-len(before)).Query(func(rows pgx.Rows) error {
		var revision, id int64
		_, err := pgx.ForEachRow(rows, []any{&revision, &id}, func() error {
			l.revisions, l.ids = append(l.revisions, revision), append(l.ids, id)
			return nil
		})
		return err
	})
}

// checkView checks that the epochs and the version are those in which the write was prepared, and that its attempt may still commit.
func (s *Writer) checkView(sv *saving, view *gate.CommitView) error {
	if !view.InEpoch(sv.epoch) { // ids that were looked up before may be of lost rows
		s.gate.SignalEpochChanged()
		return fmt.Errorf("%w: a database failed over or was restored", peer.ErrAborted)
	}
	if view.TooLate(sv.attempt) {
		return fmt.Errorf("%w: the attempt began more than %s ago", peer.ErrAborted, peer.MaxAttemptAge)
	}
	if err := s.gate.CheckVersion(sv.version, view.Running); err != nil {
		return err
	}
	if view.Generation != sv.version.Generation { // switched away and back: prepare again with the new generation
		return db.ErrStale
	}
	return nil
}

// takeNumbers gives each write a revision, and each new resource an id.
func (l *locked) takeNumbers(sv *saving) {
	for _, wr := range sv.writes {
		wr.revision, l.revisions = l.revisions[0], l.revisions[1:]
		if wr.before == nil {
			wr.id, l.ids = l.ids[0], l.ids[1:]
		}
	}
}

// unchanged fails when one of the stored resources has changed since prepare.
func (l *locked) unchanged(sv *saving) error {
	for _, wr := range sv.writes {
		if l.existing[localTarget{wr.kindID, wr.Name}] && sv.unread {
			return db.ErrStale
		}
		if wr.before == nil {
			continue
		}
		if row, ok := l.selfRows[wr.before.ID]; !ok || row.Revision != wr.before.Revision || row.Derivation != wr.before.Derivation || row.State != peer.Active {
			return db.ErrStale
		}
	}
	return nil
}

// QueueDecision decides attempts COMMITTED, or fails when one of them was decided ABORTED, also when that decision is forgotten,
// independent of clocks: began was taken from the sequence mark before the first attempt began, so each decision on one has a greater
// number.
func QueueDecision(d *db.DB, b *pgx.Batch, began int64, attempts ...peer.AttemptID) {
	b.Queue(commitAttemptsSQL, attempts)
	b.Queue(selectForgottenSQL).QueryRow(func(row pgx.Row) error {
		var forgotten int64
		if err := row.Scan(&forgotten); err != nil || began >= forgotten {
			return err
		}
		d.Rollback.Observe(forgotten) // so that the next attempt begins with a greater number
		return fmt.Errorf("%w: the attempt began before a decision that is no longer stored", peer.ErrAborted)
	})
}

// epochsAt returns the deployments of established references, and the epochs of their databases at that time.
func (s *Writer) epochsAt(ctx context.Context, savings []*saving) (at []int32, epochs []uuid.UUID, err error) {
	for _, sv := range savings {
		for d, refs := range sv.foreign {
			id, err := s.Names.Deployment(ctx, d)
			if err != nil {
				return nil, nil, err
			}
			at, epochs = append(at, id), append(epochs, refs[0].epoch)
		}
	}
	return at, epochs, nil
}

type localTarget struct {
	kindID int32
	name   string
}

// localTargets returns the distinct local targets of new references.
func localTargets(self schema.DeploymentID, savings []*saving) (kinds []int32, rels []string, wanted map[localTarget][]wantedTarget) {
	wanted = map[localTarget][]wantedTarget{}
	for _, sv := range savings {
		for _, wr := range sv.writes {
			for _, ref := range wr.add {
				if ref.Target.Deployment != self {
					continue
				}
				k := localTarget{ref.kindID, ref.Target.Name}
				if wanted[k] == nil {
					kinds, rels = append(kinds, k.kindID), append(rels, k.name)
				}
				wanted[k] = append(wanted[k], wantedTarget{sv, ref})
				ref.targetID, ref.late = 0, false // from an earlier run of the transaction
			}
		}
	}
	return kinds, rels, wanted
}

// wantedTarget is a local target of a new reference.
type wantedTarget struct {
	by  *saving
	ref *newReference
}

func (l *locked) takeTargets(rows pgx.Rows, wanted map[localTarget][]wantedTarget) error {
	var (
		id      int64
		k       localTarget
		state   peer.State
		closing bool
	)
	_, err := pgx.ForEachRow(rows, []any{&id, &k.kindID, &k.name, &state, &closing}, func() error {
		for _, w := range wanted[k] {
			ref := w.ref
			ref.targetID = id
			refusal := peer.Refusal{Holder: ref.holder.Name, Path: ref.Path, Target: ref.Target}
			switch {
			case state != peer.Active && ref.replacesBlock(id):
				ref.late = true
				continue
			case state != peer.Active:
				refusal.Reason = peer.TargetDeleting
			case closing:
				refusal.Reason = peer.TargetClosing
			default:
				continue
			}
			l.refused[w.by] = append(l.refused[w.by], refusal)
		}
		return nil
	})
	return err
}

// adoptBatchTargets sets the targets of references to resources that the same batch creates.
func adoptBatchTargets(sv *saving) {
	created := map[localTarget]int64{}
	for _, wr := range sv.writes {
		if wr.before == nil {
			created[localTarget{wr.kindID, wr.Name}] = wr.id
		}
	}
	for _, wr := range sv.writes {
		for _, ref := range wr.add {
			if id, ok := created[localTarget{ref.kindID, ref.Target.Name}]; ok && ref.targetID == 0 && ref.uid == uuid.Nil {
				ref.targetID = id
			}
		}
	}
}

func missingTargets(self schema.DeploymentID, sv *saving) []peer.Refusal {
	var missing []peer.Refusal
	for _, wr := range sv.writes {
		for _, ref := range wr.add {
			if ref.Target.Deployment == self && ref.targetID == 0 {
				missing = append(missing, peer.Refusal{Holder: wr.Name, Path: ref.Path, Target: ref.Target, Reason: peer.TargetMissing})
			}
		}
	}
	return missing
}

// all iterates over the writes of savings.
func all(savings []*saving) iter.Seq2[*saving, *writing] {
	return func(yield func(*saving, *writing) bool) {
		for _, sv := range savings {
			for _, wr := range sv.writes {
				if !yield(sv, wr) {
					return
				}
			}
		}
	}
}

func queueResources(b *pgx.Batch, savings []*saving) {
	var created, updated columns
	var derived []int64
	byID := map[int64]*writing{}
	for _, wr := range all(savings) {
		switch {
		case wr.before == nil:
			created.add(wr)
		case wr.derives:
			derived = append(derived, wr.id)
		default:
			updated.add(wr)
			byID[wr.id] = wr
		}
	}
	if len(derived) > 0 {
		b.Queue(deriveSQL, derived)
	}
	if len(created.ids) > 0 {
		c := created
		b.Queue(insertResourcesSQL, db.Named{
			"ids": c.ids, "uids": c.uids, "kinds": c.kinds, "names": c.names, "shards": c.shards, "revisions": c.revisions,
			"labels": c.labels, "bodies": c.bodies, "owners": c.owners,
		})
	}
	if len(updated.ids) > 0 {
		c := updated
		b.Queue(updateResourcesSQL, c.ids, c.revisions, c.labels, c.bodies, c.owners).Query(func(rows pgx.Rows) error {
			var id, generation int64
			_, err := pgx.ForEachRow(rows, []any{&id, &generation}, func() error {
				byID[id].before.Generation = generation
				return nil
			})
			return err
		})
	}
}

// columns are the array parameters of one set-based statement.
type columns struct {
	ids, revisions []int64
	uids           []uuid.UUID
	kinds          []int32
	names, bodies  []string
	labels, owners []*string
	shards         []int16
}

func (c *columns) add(wr *writing) {
	c.ids, c.revisions, c.uids = append(c.ids, wr.id), append(c.revisions, wr.revision), append(c.uids, wr.uid)
	c.kinds, c.names, c.bodies = append(c.kinds, wr.kindID), append(c.names, wr.Name), append(c.bodies, wr.body)
	c.labels, c.owners = append(c.labels, wr.labels), append(c.owners, wr.owners)
	c.shards = append(c.shards, int16(schema.Shard(wr.Name)))
}

func (s *Writer) queueDrops(b *pgx.Batch, savings []*saving) {
	var holders, targets []int64
	var fields []int32
	for _, wr := range all(savings) {
		for _, h := range wr.drop {
			holders, fields, targets = append(holders, h.HolderID), append(fields, h.FieldID), append(targets, h.TargetID)
		}
	}
	if len(holders) > 0 {
		b.Queue(dropReferencesSQL, holders, fields, targets, s.SelfID)
	}
}

func (s *Writer) queueReferences(ctx context.Context, b *pgx.Batch, savings []*saving) error {
	var local referenceColumns
	foreign := foreignColumns{began: math.MaxInt64}
	var late []int64
	for _, sv := range savings {
		s.insertDelegated(b, sv)
		deployments, err := foreign.decide(ctx, s, sv)
		if err != nil {
			return err
		}
		for _, wr := range sv.writes {
			for _, ref := range wr.add {
				switch {
				case slices.Contains(sv.delegated, ref):
					continue
				case ref.Target.Deployment != s.Self:
					foreign.add(ref, deployments[ref.Target.Deployment], sv.attempt)
				default:
					local.add(ref)
				}
				if ref.late && ref.Behaviour != schema.AllowDangling {
					late = append(late, ref.targetID)
				}
			}
		}
	}
	if len(local.holders) > 0 {
		b.Queue(insertLocalReferencesSQL, local.holders, local.targets, local.fields, local.behaviours)
	}
	if len(late) > 0 {
		b.Queue(insertLateNoticesSQL, late, s.SelfID)
	}
	if len(foreign.holders) > 0 {
		s.queueForeign(b, &foreign)
	}
	return nil
}

// referenceColumns are the array parameters of new references.
type referenceColumns struct {
	holders, targets []int64
	fields           []int32
	behaviours       []int16
}

func (c *referenceColumns) add(ref *newReference) {
	c.holders, c.targets = append(c.holders, ref.holder.id), append(c.targets, ref.targetID)
	c.fields, c.behaviours = append(c.fields, ref.fieldID), append(c.behaviours, int16(ref.Behaviour))
}

// foreignColumns are those of references that were established at other deployments, and of the attempts under which they were.
type foreignColumns struct {
	referenceColumns
	deployments, kinds []int32
	names              []string
	uids               []uuid.UUID
	attempts           []peer.AttemptID // by reference

	decided []peer.AttemptID
	began   int64 // of the first
	// By attempt and deployment.
	confirmShards      []int16
	confirmDeployments []int32
	confirmAttempts    []peer.AttemptID
}

// decide adds the attempt of a saving, and returns the numbers of the deployments.
func (c *foreignColumns) decide(ctx context.Context, s *Writer, sv *saving) (map[schema.DeploymentID]int32, error) {
	if len(sv.foreign) == 0 {
		return nil, nil //nolint:nilnil // none
	}
	c.decided, c.began = append(c.decided, sv.attempt), min(c.began, sv.began)
	deployments := map[schema.DeploymentID]int32{}
	for d := range sv.foreign {
		id, err := s.Names.Deployment(ctx, d)
		if err != nil {
			return nil, err
		}
		deployments[d] = id
		c.confirmShards, c.confirmDeployments = append(c.confirmShards, int16(schema.Shard(sv.writes[0].Name))), append(c.confirmDeployments, id)
		c.confirmAttempts = append(c.confirmAttempts, sv.attempt)
	}
	return deployments, nil
}

func (c *foreignColumns) add(ref *newReference, deployment int32, attempt peer.AttemptID) {
	c.referenceColumns.add(ref)
	c.uids, c.deployments, c.attempts = append(c.uids, ref.uid), append(c.deployments, deployment), append(c.attempts, attempt)
	c.kinds, c.names = append(c.kinds, ref.kindID), append(c.names, ref.Target.Name)
}

func (s *Writer) queueForeign(b *pgx.Batch, c *foreignColumns) {
	QueueDecision(s.DB, b, c.began, c.decided...)
	b.Queue(insertForeignTargetsSQL, c.uids, c.deployments, c.kinds, c.names)
	b.Queue(insertForeignReferencesSQL, db.Named{
		"holders": c.holders, "uids": c.uids, "deployments": c.deployments, "fields": c.fields, "behaviours": c.behaviours, "attempts": c.attempts,
	}).Exec(wrote(len(c.holders)))
	b.Queue(ConfirmWorkSQL, c.confirmShards, c.confirmDeployments, c.confirmAttempts)
}

// wrote fails with errStale when a statement wrote fewer rows than it was given, since Tidy removed a foreign target between two
// statements. The write is retried.
func wrote(want int) func(tag pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() != int64(want) {
			return errors.Join(db.ErrStale, fmt.Errorf("%d of %d references were written", tag.RowsAffected(), want))
		}
		return nil
	}
}

// stillRuns fails with ErrAborted when the version or the epoch of a write is not the current one, so that it could not commit. The
// writes that ask while another one reads share the next reading.
func (s *Writer) stillRuns(ctx context.Context, sv *saving) error {
	err := s.readings.Do(ctx, nil, sv, func() error {
		return s.stillRun(ctx, []*saving{sv})[0]
	})
	if errors.Is(err, gather.ErrLeft) { // it writes nothing
		return context.Cause(ctx)
	}
	return err
}

// stillRun is stillRuns for several writes.
func (s *Writer) stillRun(ctx context.Context, savings []*saving) []error {
	var stored gate.Running
	var epoch *uuid.UUID
	err := s.Pool.QueryRow(ctx, `SELECT `+gate.RunningColumns+`, `+gate.EpochNowSQL+` FROM dbcontroller.meta m`).Scan(append(stored.Into(), &epoch)...)
	errs := make([]error, len(savings))
	for i, sv := range savings {
		switch {
		case err != nil:
			errs[i] = fmt.Errorf("read the version: %w", err)
		case epoch == nil || *epoch != sv.epoch:
			s.gate.SignalEpochChanged()
			errs[i] = fmt.Errorf("%w: the database failed over or was restored", peer.ErrAborted)
		default:
			errs[i] = s.gate.CheckVersion(sv.version, stored)
		}
	}
	return errs
}

// stillRunTogether is stillRun for a batch, whose callers have deadlines of their own.
func (s *Writer) stillRunTogether(savings []*saving) []error {
	ctx, cancel := context.WithTimeout(postgres.WithCaller(context.Background(), postgres.Caller{Lane: postgres.Writes}), gatheredTimeout)
	defer cancel()
	return s.stillRun(ctx, savings)
}
