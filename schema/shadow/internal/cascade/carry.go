package cascade

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

var (
	// A marked or removed resource drops its owners and its references. Foreign BLOCK references are
	// released; the targets of local ones are looked at again. A holder in DELETING therefore has no
	// references and keeps no target, but by the references that it keeps until it is removed (I14).
	leaveReferencesSQL = db.Codes(leaveSQL("", notGoing))
	markReferencesSQL  = db.Codes(leaveSQL(`
        AND (cardinality(@kept_kinds::int[]) = 0 OR r.target_id = r.holder_id OR NOT EXISTS (
            SELECT FROM dbcontroller.shadow h JOIN unnest(@kept_kinds::int[], @kept_fields::int[]) AS k (kind_id, field_id) USING (kind_id)
            WHERE h.id = r.holder_id AND r.behaviour = {block} AND r.field_id = k.field_id))`, notGoing))

	// Whether the feeds of work and of notices have new rows; the feed of changes always has.
	leftWorkSQL = `
)
SELECT EXISTS (SELECT FROM released) OR EXISTS (SELECT FROM rights) OR EXISTS (SELECT FROM looked)`
)

// notGoing is a condition on a local target s: the same decision does not mark or remove it.
const notGoing = " AND NOT s.id = ANY (@ids)"

// leaveSQL drops the owners, and the references for which a condition holds. The targets for which another
// one holds are looked at again.
func leaveSQL(condition, looked string) string {
	return `
owned AS (
    DELETE FROM dbcontroller.owner_reference WHERE ownee_id = ANY (@ids)
), owned_once AS (
    DELETE FROM dbcontroller.owner_lost WHERE ownee_id = ANY (@ids)
), refs AS (
    DELETE FROM dbcontroller.reference r WHERE r.holder_id = ANY (@ids)` + condition + ` RETURNING holder_id, target_id, field_id, behaviour, attempt, delegated
), released AS (
    INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, holder_uid, field_id, target_uid)
    SELECT {release}, going.shard, f.deployment_id, refs.attempt, going.uid, refs.field_id, f.uid
    FROM refs JOIN going ON going.id = refs.holder_id JOIN dbcontroller.foreign_target f ON f.id = refs.target_id
    WHERE refs.behaviour = {block} AND NOT refs.delegated RETURNING 1
), rights AS (
` + db.LookAtRights(`refs JOIN dbcontroller.foreign_target f ON f.id = refs.target_id WHERE refs.behaviour = {block} AND refs.delegated RETURNING 1`) + `
), looked AS (
` + db.LookAgain("@self", `refs JOIN dbcontroller.shadow s ON s.id = refs.target_id WHERE refs.behaviour = {block}`+looked+` RETURNING 1`) + `
), changed AS (`
}

var (
	removeSQL = db.Codes(`
WITH going AS (
    DELETE FROM dbcontroller.shadow WHERE id = ANY (@ids) RETURNING id, uid, kind_id, name, shard, generation, created_at, hidden
), ` + notedSQL + `, bodies AS (
    DELETE FROM dbcontroller.resource WHERE id = ANY (@ids)
), entries AS (
    DELETE FROM dbcontroller.holder_entry WHERE target_id = ANY (@ids)
), ` + leaveReferencesSQL + db.ChangeGone(`nextval('dbcontroller.revision')`, `going WHERE NOT hidden`) + leftWorkSQL + `, false`)

	// A reference that a holder in DELETING keeps. The holder is locked.
	dropKeptSQL = db.Codes(`
WITH going AS (
    SELECT id, uid, shard FROM dbcontroller.shadow WHERE id = ANY (@ids) AND state = {deleting}
), ` + leaveSQL(` AND r.holder_id IN (SELECT id FROM going) AND r.behaviour = {block} AND r.field_id = @field AND r.target_id = @target`, "") + `SELECT FROM refs` + leftWorkSQL + `, EXISTS (SELECT FROM refs)`)

	// Of any deletion: a marked resource gets no references.
	thawSQL = `DELETE FROM dbcontroller.frozen WHERE target_id = ANY ($1)`

	removeDanglingSQL = db.Codes(
		`DELETE FROM dbcontroller.reference WHERE target_id = ANY ($1) AND behaviour = {allow_dangling}`)

	// References of a batch. Their targets stay in DELETING, and get no new ones (I4).
	removeSomeDanglingSQL = db.Codes(`
DELETE FROM dbcontroller.reference WHERE (holder_id, field_id, target_id) IN (
    SELECT holder_id, field_id, target_id FROM dbcontroller.reference WHERE target_id = ANY ($1) AND behaviour = {allow_dangling} LIMIT $2
)`)

	// What a scheduled deletion had hidden is seen again, in DELETING: controllers clear its finalizers.
	markSQL = db.Codes(`
WITH going AS (
    UPDATE dbcontroller.shadow
    SET state = {deleting}, revision = nextval('dbcontroller.revision'), updated_at = now(),
        hidden = COALESCE(kind_id = ANY (@hiding::int[]), false) AND NOT COALESCE(id = ANY (@visible::bigint[]), false),
        finalizers = CASE WHEN id = ANY (@held::bigint[]) THEN '{}' ELSE (SELECT string_to_array(f.names, ' ') FROM unnest(@held_kinds::int[], @finalizers::text[]) AS f (kind_id, names) WHERE f.kind_id = shadow.kind_id) END
    WHERE id = ANY (@ids) AND state = {active}
    RETURNING id, uid, kind_id, name, shard, revision, generation, created_at, hidden, block_deletion, finalizers
), ` + notedSQL + `, notices AS (
    INSERT INTO dbcontroller.notice (target_id, deployment_id)
    SELECT e.target_id, e.deployment_id FROM dbcontroller.holder_entry e JOIN going ON going.id = e.target_id
    UNION SELECT b.target_id, b.deployment_id FROM dbcontroller.blockade b JOIN going ON going.id = b.target_id AND going.uid = b.holder_uid
    UNION SELECT id, @self::int FROM going WHERE id = ANY (@notify)
    RETURNING 1
), disowned AS (
    INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
    SELECT {drop_owners}, going.shard, e.deployment_id, going.id FROM dbcontroller.ownee_entry e JOIN going ON going.id = e.owner_id
    RETURNING 1
), ` + markReferencesSQL + db.ChangeTo(`{deleting}`, `going JOIN dbcontroller.resource r USING (id) WHERE NOT hidden`) + `
UNION ALL
SELECT uid, revision, generation, kind_id, {gone}, created_at, name, NULL, NULL, NULL, false, NULL, NULL, NULL FROM going
WHERE hidden AND NOT COALESCE(id = ANY (@gone::bigint[]), false)` + leftWorkSQL + ` OR EXISTS (SELECT FROM disowned), EXISTS (SELECT FROM notices)`)
)

// carryOut carries out a decision. The members are locked.
func (s *Actor) carryOut(ctx context.Context, tx pgx.Tx, d Decision) error {
	return s.CarryOutAnd(ctx, tx, d, &pgx.Batch{}, db.Stay)
}

// CarryOutAnd is carryOut with further statements behind, which are sent together with the statements of the
// decision where possible.
func (s *Actor) CarryOutAnd(ctx context.Context, tx pgx.Tx, d Decision, also *pgx.Batch, send db.Sender) error {
	gone := rowsOf(d)
	if err := s.rows.Take(ctx, tx, gone, d.recovered.Behind); err != nil {
		return err
	}
	attached := s.rows.Any(gone)
	if attached {
		if err := s.keepNamed(ctx, tx, &d); err != nil {
			return err
		}
		gone = rowsOf(d)
	}
	c, v := d.Closure, d.Verdict
	names, b := s.memberNames(c), &pgx.Batch{}
	carried, left := s.statements(d)
	if err := s.Unset(ctx, tx, v.Unset, names); err != nil {
		return err
	}
	if kinds := kindsOf(c, v); len(kinds) > 0 {
		if err := d.recovered.Check(ctx, kinds); err != nil {
			return err
		}
	}
	if err := s.progress.decided(ctx, tx, c, v); err != nil {
		return err
	}
	crash.At("crash-delete-uncommitted")
	db.QueuePlans(tx, b, len(c.Members))
	db.AfterCommit(tx, func() { s.Touched(*left) })
	b.QueuedQueries = append(b.QueuedQueries, carried.QueuedQueries...)
	if attached {
		db.AfterCommit(tx, s.Wake) // their triggers may have left work
		if err := db.Stay(ctx, tx, b); err != nil {
			return fmt.Errorf("delete resources: %w", err)
		}
		// after the marks: the triggers of the tables meet no blocker any more
		if err := s.rows.Delete(ctx, tx, gone); err != nil {
			return err
		}
		b = &pgx.Batch{}
	}
	b.QueuedQueries = append(b.QueuedQueries, also.QueuedQueries...)
	db.QueueOwn(tx, b)
	if err := send(ctx, tx, b); err != nil {
		return fmt.Errorf("delete resources: %w", err)
	}
	return nil
}

// CheckRecovered fails with *UnavailableError while a recovery, or a pause, keeps deletions of the members.
func (d Decision) CheckRecovered(ctx context.Context) error {
	return d.recovered.Check(ctx, kindsOf(d.Closure, d.Verdict))
}

// DropKept drops a reference that a locked holder in DELETING keeps, and reports whether there was one.
func (s *Actor) DropKept(ctx context.Context, tx pgx.Tx, holder int64, field int32,
	target int64,
) (dropped bool, err error) {
	var work bool
	err = tx.QueryRow(ctx, dropKeptSQL, db.Named{
		"ids": []int64{holder}, "field": field, "target": target,
		"self": s.SelfID,
	}).Scan(&work, &dropped)
	if work {
		db.AfterCommit(tx, func() { s.Touched(db.WorkFeed) })
	}
	return dropped, err
}

// kindsOf returns the kinds of the members that a decision marks or removes, each once.
func kindsOf(c *plan.Closure, v plan.Verdict) []int32 {
	kinds := []int32{}
	for _, ids := range [][]int64{v.Mark, v.Remove} {
		for _, id := range ids {
			if kind := c.Members[id].Kind; !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
			}
		}
	}
	return kinds
}

// statements returns the statements that mark and remove members, and the feeds beside the feed of changes
// that they write to.
func (s *Actor) statements(d Decision) (b *pgx.Batch, left *feed.Topics) {
	c, v := d.Closure, d.Verdict
	b, left = &pgx.Batch{}, new(feed.Topics)
	if len(v.Mark) > 0 {
		args := reasonsOf(c, v.Mark).parameters(v.Mark, s.SelfID)
		args["notify"], args["hiding"], args["visible"], args["held"] = v.Notify, s.hiding(), v.Visible,
			append([]int64{}, v.Held...)
		args["held_kinds"], args["finalizers"] = finalizerColumns(d.Bonds.Finalizers)
		args["kept_kinds"], args["kept_fields"] = keptColumns(d.Bonds.Kept)
		args["gone"] = hiddenOf(c, v.Mark)
		queueGoing(b, left, markSQL, args)
	}
	if len(v.Remove) > 0 {
		queueGoing(b, left, removeSQL, reasonsOf(c, v.Remove).parameters(v.Remove, s.SelfID))
		if c.Dangling {
			b.Queue(removeDanglingSQL, v.Remove)
		}
	}
	if frozen := frozenOf(d); len(frozen) > 0 {
		b.Queue(thawSQL, frozen)
	}
	return b, left
}

// frozenOf returns the members that a decision marks or removes, and that may be frozen.
func frozenOf(d Decision) (ids []int64) {
	for _, of := range [][]int64{d.Verdict.Mark, d.Verdict.Remove} {
		for _, id := range of {
			if d.Closure.Members[id].Frozen {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// hiddenOf returns the members that a scheduled deletion has hidden: readers have seen them go.
func hiddenOf(c *plan.Closure, ids []int64) (hidden []int64) {
	for _, id := range ids {
		if c.Members[id].Hidden {
			hidden = append(hidden, id)
		}
	}
	return hidden
}

// queueGoing marks or removes resources, and adds the feeds of the work and the notices that they leave: most
// deletions leave none, and the watches of others have nothing to read.
func queueGoing(b *pgx.Batch, left *feed.Topics, sql string, args db.Named) {
	b.Queue(sql, args).QueryRow(func(row pgx.Row) error {
		var work, notices bool
		err := row.Scan(&work, &notices)
		if work {
			*left |= db.WorkFeed
		}
		if notices {
			*left |= db.NoticeFeed
		}
		return err
	})
}

// finalizerColumns are the finalizers of kinds as columns for unnest; no name contains a space.
func finalizerColumns(finalizers map[int32][]string) (kinds []int32, names []string) {
	for _, kind := range slices.Sorted(maps.Keys(finalizers)) {
		kinds, names = append(kinds, kind), append(names, strings.Join(finalizers[kind], " "))
	}
	return kinds, names
}

// keptColumns are the kept fields of kinds as columns for unnest.
func keptColumns(kept map[int32][]int32) (kinds, fields []int32) {
	kinds = []int32{} // no nil, which is no empty array
	for kind, of := range kept {
		for _, field := range of {
			kinds, fields = append(kinds, kind), append(fields, field)
		}
	}
	return kinds, fields
}

// hiding returns the kinds with hide_while_deleting: readers see their resources as gone once nothing blocks
// them.
func (s *Actor) hiding() []int32 {
	if v := s.Version.Load(); v != nil {
		return v.Hiding
	}
	return nil
}

// nameOf returns the name of the target of a reference that is unset.
type nameOf func(targetID int64) schema.FullName

func (s *Actor) memberNames(c *plan.Closure) nameOf {
	return func(id int64) schema.FullName { return schema.FullName{Deployment: s.Self, Name: c.Members[id].Name} }
}

const dropUnsetSQL = `
DELETE FROM dbcontroller.reference r
USING unnest($1::bigint[], $2::int[], $3::bigint[]) AS i (holder_id, field_id, target_id)
WHERE r.holder_id = i.holder_id AND r.field_id = i.field_id AND r.target_id = i.target_id`

var (
	selectBodiesSQL = db.Codes(`
SELECT s.id, s.kind_id, s.name, r.body, ` + gate.RunningColumns + `
FROM dbcontroller.shadow s JOIN dbcontroller.resource r USING (id) CROSS JOIN dbcontroller.meta m
WHERE s.id = ANY ($1) AND s.state = {active}`)

	writeBodiesSQL = db.Codes(`
WITH i AS (
    SELECT * FROM unnest($1::bigint[], $2::text[]) AS i (id, body)
), s AS (
    UPDATE dbcontroller.shadow s
    SET revision = nextval('dbcontroller.revision'), generation = s.generation + 1, updated_at = now()
    FROM i WHERE s.id = i.id
    RETURNING s.id, s.uid, s.kind_id, s.name, s.revision, s.generation, s.created_at, s.block_deletion, s.finalizers, s.hidden
), r AS (
    UPDATE dbcontroller.resource r SET body = i.body::jsonb FROM i WHERE r.id = i.id RETURNING r.id, r.labels, r.body, r.owners, r.status, r.status_generation
)` + db.ChangeTo(`{active}`, `s JOIN r USING (id) WHERE NOT hidden`))
)

// Unset removes the references' values from the holders' bodies. The holders' shadows are locked, so that no
// concurrent update is lost (I10). The edges are sorted by holder. It fails with ErrAborted when another
// process has switched the version: bodies of that version may have values that this one does not take for
// the target's name.
func (s *Actor) Unset(ctx context.Context, tx pgx.Tx, edges []plan.Edge, target nameOf) error {
	if len(edges) == 0 {
		return nil
	}
	byHolder := map[int64][]plan.Edge{}
	var holders, targets []int64
	var fields []int32
	for _, e := range edges {
		byHolder[e.HolderID] = append(byHolder[e.HolderID], e)
		holders, fields, targets = append(holders, e.HolderID), append(fields, e.FieldID), append(targets, e.TargetID)
	}
	v, err := s.Current()
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, selectBodiesSQL, holders)
	if err != nil {
		return fmt.Errorf("read bodies to unset: %w", err)
	}
	before, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h unsetHolder, err error) {
		var stored gate.Running
		if err = row.Scan(append([]any{&h.id, &h.kind, &h.name, &h.body}, stored.Into()...)...); err == nil {
			err = s.gate.CheckVersion(v, stored)
		}
		return h, err
	})
	if err != nil {
		return fmt.Errorf("read bodies to unset: %w", err)
	}
	ids, bodies := make([]int64, len(before)), make([]string, len(before))
	for i, h := range before {
		ids[i] = h.id
		if bodies[i], err = s.withoutValues(ctx, tx, v, h, byHolder[h.id], target); err != nil {
			return fmt.Errorf("unset in %s: %w", h.name, err)
		}
	}
	b := &pgx.Batch{}
	b.Queue(writeBodiesSQL, ids, bodies)
	b.Queue(dropUnsetSQL, holders, fields, targets)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("unset references: %w", err)
	}
	return nil
}

type unsetHolder struct {
	id   int64
	kind int32
	name string
	body []byte
}

func (s *Actor) withoutValues(ctx context.Context, tx pgx.Tx, v *db.Version, h unsetHolder, edges []plan.Edge,
	target nameOf,
) (string, error) {
	kind, err := s.Names.KindOf(ctx, tx, h.kind)
	if err != nil {
		return "", err
	}
	var body map[string]any
	if err := postgres.DecodeJSON(h.body, &body); err != nil {
		return "", err
	}
	for _, e := range edges {
		text, err := s.Names.FieldOf(ctx, tx, e.FieldID)
		if err != nil {
			return "", err
		}
		path, err := schema.ParsePath(text)
		if err != nil {
			return "", err
		}
		name := target(e.TargetID)
		path.Unset(body, func(value string) bool {
			return v.Model.Names(s.Self, kind.Kind, text, value, name)
		})
	}
	changed, err := json.Marshal(body)
	return string(changed), err
}

// notedSQL are common table expressions of a statement that removes or marks the resources in going: they
// insert one cause for each reason and one removal for each resource. Their arguments come from
// reasons.parameters.
const notedSQL = `
causes AS (
    SELECT nextval('dbcontroller.cause_id') AS id, c.*
    FROM unnest(@hows::smallint[], @via_deployments::int[], @via_uids::uuid[], @via_names::text[], @deletions::uuid[], @actors::text[], @roots::text[],
        @root_uids::uuid[], @requests::uuid[], @times::timestamptz[], @traces::text[])
        WITH ORDINALITY AS c (how, via_deployment_id, via_uid, via_name, deletion_id, actor, root, root_uid, request_id, at, trace_parent, n)
), noted_causes AS (
    INSERT INTO dbcontroller.cause (id, how, via_deployment_id, via_uid, via_name, deletion_id, actor, root, root_uid, request_id, at, trace_parent)
    SELECT id, how, via_deployment_id, via_uid, via_name, deletion_id, actor, root, root_uid, request_id, at, trace_parent FROM causes
), noted AS (
    INSERT INTO dbcontroller.removal (name, uid, kind_id, cause_id, brief)
    SELECT going.name, going.uid, going.kind_id, causes.id, going.uid BETWEEN @brief_from AND @brief_until
    FROM going JOIN unnest(@noted::bigint[], @reasons::int[]) AS i (id, n) USING (id) JOIN causes USING (n)
)`

const noteRowsSQL = `
WITH going AS (
    SELECT i.id, i.uid, i.name, @kind::int AS kind_id FROM unnest(@ids::bigint[], @uids::uuid[], @names::text[]) AS i (id, uid, name)
    WHERE NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.kind_id = @kind AND s.name = i.name AND NOT s.hidden)
), ` + notedSQL + ` SELECT 1`

// QueueNoteRows records the removal of rows of an attached table that have no resource. The removal of a
// row with a resource is recorded with the removal of the resource.
func QueueNoteRows(b *pgx.Batch, kind, self int32, names []string, uids []uuid.UUID, why plan.Reason) {
	r := &reasons{}
	r.add(why)
	for i := range names {
		r.ids, r.of = append(r.ids, int64(i)), append(r.of, 1)
	}
	named := r.parameters(r.ids, self)
	named["kind"], named["uids"], named["names"] = kind, uids, names
	delete(named, "self")
	b.Queue(noteRowsSQL, named)
}

// brief is the life of a resource whose removal is recorded as brief.
const brief = time.Hour

// clockSkew is how far the clock of the process that made a uid may be ahead.
const clockSkew = 24 * time.Hour

// briefUIDs returns the bounds of the uids, of version 7 (RFC 9562), that were made less than brief ago. A
// random uid is hardly ever between them.
func briefUIDs(now time.Time) (from, until uuid.UUID) {
	for id, at := range map[*uuid.UUID]time.Time{&from: now.Add(-brief), &until: now.Add(clockSkew)} {
		var ms [8]byte
		binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli())) //nolint:gosec // after 1970
		copy(id[:6], ms[2:])
	}
	return from, until
}

// reasons are the parameters of notedSQL: the distinct reasons, and the number of its reason for each member.
type reasons struct {
	ids     []int64
	of      []int32
	seen    map[reasonKey]int32
	hows    []int16
	viaDeps []*int32
	viaUIDs []*uuid.UUID
	vias    []*string
	roots   causeColumns
}

type reasonKey struct {
	how      peer.How
	via      plan.Link
	deletion uuid.UUID
}

// reasonsOf returns the reasons of ACTIVE members. Reasons of members in DELETING were recorded when they
// were marked.
func reasonsOf(c *plan.Closure, ids []int64) *reasons {
	r := &reasons{seen: map[reasonKey]int32{}}
	for _, id := range ids {
		m := c.Members[id]
		if m.State != peer.Active {
			continue
		}
		key := reasonKey{how: m.Why.How, deletion: m.Why.Cause.ID}
		if m.Why.Via != nil {
			key.via = *m.Why.Via
		}
		n := r.seen[key]
		if n == 0 {
			r.add(m.Why)
			n = int32(len(r.hows)) //nolint:gosec // not more than members of one transaction
			r.seen[key] = n
		}
		r.ids, r.of = append(r.ids, id), append(r.of, n)
	}
	return r
}

func (r *reasons) add(why plan.Reason) {
	var deployment *int32
	var uid *uuid.UUID
	var name *string
	if why.Via != nil {
		deployment, uid, name = &why.Via.DeploymentID, &why.Via.UID, &why.Via.Name
	}
	r.hows, r.viaDeps, r.viaUIDs, r.vias = append(r.hows, int16(why.How)), append(r.viaDeps, deployment),
		append(r.viaUIDs, uid), append(r.vias, name)
	r.roots.add(why.Cause)
}

// parameters returns the arguments of a statement with notedSQL: the ids in going, this deployment, and the
// reasons.
func (r *reasons) parameters(going []int64, self int32) db.Named {
	from, until := briefUIDs(time.Now())
	return db.Named{
		"ids": going, "brief_from": from, "brief_until": until, "self": self, "noted": r.ids, "reasons": r.of,
		"hows": r.hows, "via_deployments": r.viaDeps, "via_uids": r.viaUIDs, "via_names": r.vias,
		"deletions": r.roots.ids, "actors": r.roots.actors, "roots": r.roots.names, "root_uids": r.roots.uids,
		"requests": r.roots.requests, "times": r.roots.times, "traces": r.roots.traces,
	}
}

type causeColumns struct {
	ids           []uuid.UUID
	actors, names []string
	uids          []uuid.UUID
	requests      []*uuid.UUID
	times         []time.Time
	traces        []*string
}

func (c *causeColumns) add(x *schema.Cause) {
	var request *uuid.UUID
	var trace *string
	if x.TraceParent != "" {
		trace = &x.TraceParent
	}
	if x.RequestID != uuid.Nil {
		request = &x.RequestID
	}
	c.ids, c.actors, c.names, c.uids = append(c.ids, x.ID), append(c.actors, x.Actor), append(c.names, x.Root),
		append(c.uids, x.RootUID)
	c.requests, c.times, c.traces = append(c.requests, request), append(c.times, x.At), append(c.traces, trace)
}

// CauseOr returns the reported cause of a deletion; when it is nil, a cause with the deleted resource itself
// as the root.
func CauseOr(told *schema.Cause, deployment schema.DeploymentID, name string, uid uuid.UUID) *schema.Cause {
	if told != nil {
		return told
	}
	return &schema.Cause{
		ID: uid, Root: schema.FullName{Deployment: deployment, Name: name}.String(), RootUID: uid,
		At: time.Now(),
	}
}

// namedHereSQL finds the resources with rows that other rows here may name: this deployment has an entry at
// itself.
const namedHereSQL = `
SELECT e.target_id FROM dbcontroller.holder_entry e JOIN dbcontroller.shadow s ON s.id = e.target_id
WHERE e.target_id = ANY ($1) AND e.deployment_id = $2 AND EXISTS (SELECT FROM dbcontroller.attachment a WHERE a.kind_id = s.kind_id)`

// keepNamed lets the rows of marked members stay that rows of other tables here may name: the naming rows go
// first, since a native key between the tables, which holds in each transaction or at its end, keeps a row
// that is named.
func (s *Actor) keepNamed(ctx context.Context, tx pgx.Tx, d *Decision) error {
	var ids []int64
	for _, id := range d.Verdict.Mark {
		if m := d.Closure.Members[id]; !m.Rowless && !m.Hidden && slices.Contains(d.Bonds.Entered, id) &&
			!slices.Contains(d.Verdict.Visible, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	found, err := tx.Query(ctx, namedHereSQL, ids, s.SelfID)
	if err != nil {
		return fmt.Errorf("look for entries of rows: %w", err)
	}
	kept, err := pgx.CollectRows(found, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("look for entries of rows: %w", err)
	}
	d.Verdict.Visible = append(slices.Clone(d.Verdict.Visible), kept...)
	return nil
}

// rowsOf returns the rows of attached tables that a decision deletes: of members that are removed, and of
// members that are marked and not seen any more. The row of a member with a blocker, or with rows here that
// name it, stays until the member is removed.
func rowsOf(d Decision) (keys []rows.Key) {
	going := slices.DeleteFunc(slices.Concat(d.Verdict.Remove, d.Verdict.Mark), func(id int64) bool {
		m := d.Closure.Members[id]
		return m.Rowless || m.Hidden || slices.Contains(d.Verdict.Visible, id)
	})
	for _, id := range going {
		m := d.Closure.Members[id]
		keys = append(keys, rows.Key{Kind: m.Kind, Name: m.Name})
	}
	return keys
}
