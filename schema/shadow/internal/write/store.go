package write

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"

	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

const (
	scheduleAttemptSQL = `INSERT INTO dbcontroller.attempt (id) VALUES ($1)`
	commitAttemptsSQL  = `INSERT INTO dbcontroller.attempt (id, committed) SELECT i, true FROM unnest($1::uuid[]) AS i ORDER BY i`

	// Runs after the decision is inserted: an ABORTED decision was either forgotten before, and forgotten
	// shows that, or is still there, and the insert failed. It fails by a division by zero, so that a commit
	// can follow it in one round trip.
	notForgottenSQL    = `SELECT 1 / (forgotten <= $1)::int FROM dbcontroller.meta`
	selectForgottenSQL = `SELECT forgotten FROM dbcontroller.meta`
	deriveSQL          = `UPDATE dbcontroller.shadow SET derivation = derivation + 1 WHERE id = ANY ($1)`

	insertLocalReferencesSQL = `
INSERT INTO dbcontroller.reference (holder_id, target_id, field_id, behaviour)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::smallint[])`

	// A reference that replaces a blocking one after its target was marked needs a notice: the mark wrote
	// none for it.
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
	// One that Tidy has removed since the statement before is missing, and its reference has no target: the
	// statement fails.
	insertForeignReferencesSQL = `
WITH f AS (
    SELECT id, uid, deployment_id FROM dbcontroller.foreign_target
    WHERE uid = ANY (@uids::uuid[]) FOR KEY SHARE
)
INSERT INTO dbcontroller.reference (holder_id, target_id, attempt, field_id, behaviour)
SELECT i.holder_id, f.id, i.attempt, i.field_id, i.behaviour
FROM unnest(@holders::bigint[], @uids::uuid[], @deployments::int[], @fields::int[], @behaviours::smallint[], @attempts::uuid[])
    AS i (holder_id, uid, deployment_id, field_id, behaviour, attempt)
LEFT JOIN f ON f.uid = i.uid AND f.deployment_id = i.deployment_id`
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
        i.labels::jsonb AS labels, i.body::jsonb AS body, i.owners::jsonb AS owners, false AS block_deletion,
        NULL::text[] AS finalizers, NULL::jsonb AS status, NULL::bigint AS status_generation
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
    RETURNING s.id, s.uid, s.kind_id, s.name, s.revision, s.generation, s.created_at, s.block_deletion, s.finalizers, r.status, r.status_generation,
        i.labels::jsonb AS labels, i.body::jsonb AS body, i.owners::jsonb AS owners
), r AS (
    UPDATE dbcontroller.resource r SET labels = i.labels::jsonb, body = i.body::jsonb, owners = i.owners::jsonb FROM i WHERE r.id = i.id
), c AS (` + db.ChangeTo(`{active}`, `s`) + `
)
SELECT id, generation FROM s`)

	// Dropped blocking references are released at foreign targets; local targets are looked at again. When
	// the holder has ownees in the target's deployment, which may require the reference, a let_go is sent
	// there.
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
    WHERE gone.behaviour = {block} AND NOT gone.delegated
), rights AS (` + db.LookAtRights(`gone JOIN dbcontroller.foreign_target f ON f.id = gone.target_id WHERE gone.behaviour = {block} AND gone.delegated`) + `
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

	// The number of established references is stored, or db.ScheduledDeletion: a reference that is dropped
	// before the confirm leaves a blockade for a while, which would stand for a lost one.
	ConfirmWorkSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, established)
SELECT {confirm}, i.shard, i.deployment_id, i.attempt, i.established
FROM unnest($1::smallint[], $2::int[], $3::uuid[], $4::int[]) AS i (shard, deployment_id, attempt, established)`)
)

func queueResources(b *pgx.Batch, savings []*prepare.Saving) {
	var created, updated columns
	var derived []int64
	byID := map[int64]*prepare.Writing{}
	for _, wr := range prepare.AllWrites(savings) {
		switch {
		case wr.Before == nil:
			created.add(wr)
		case wr.Derives:
			derived = append(derived, wr.ID)
		default:
			updated.add(wr)
			byID[wr.ID] = wr
		}
	}
	if len(derived) > 0 {
		b.Queue(deriveSQL, derived)
	}
	if len(created.ids) > 0 {
		c := created
		b.Queue(insertResourcesSQL, db.Named{
			"ids": c.ids, "uids": c.uids, "kinds": c.kinds, "names": c.names, "shards": c.shards,
			"revisions": c.revisions,
			"labels":    c.labels, "bodies": c.bodies, "owners": c.owners,
		})
	}
	if len(updated.ids) > 0 {
		c := updated
		b.Queue(updateResourcesSQL, c.ids, c.revisions, c.labels, c.bodies, c.owners).Query(func(rows pgx.Rows) error {
			var id, generation int64
			_, err := pgx.ForEachRow(rows, []any{&id, &generation}, func() error {
				byID[id].Before.Generation = generation
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

func (c *columns) add(wr *prepare.Writing) {
	c.ids, c.revisions, c.uids = append(c.ids, wr.ID), append(c.revisions, wr.NewRevision), append(c.uids, wr.ShadowUID)
	c.kinds, c.names, c.bodies = append(c.kinds, wr.KindID), append(c.names, wr.Name), append(c.bodies, wr.BodyText)
	c.labels, c.owners = append(c.labels, wr.LabelsText), append(c.owners, wr.OwnersText)
	c.shards = append(c.shards, int16(schema.Shard(wr.Name)))
}

func (s *Writer) queueDrops(b *pgx.Batch, savings []*prepare.Saving) {
	var holders, targets []int64
	var fields []int32
	for _, wr := range prepare.AllWrites(savings) {
		for _, h := range wr.Drop {
			holders, fields, targets = append(holders, h.HolderID), append(fields, h.FieldID),
				append(targets, h.TargetID)
		}
	}
	if len(holders) > 0 {
		b.Queue(dropReferencesSQL, holders, fields, targets, s.SelfID)
	}
}

func (s *Writer) queueReferences(ctx context.Context, b *pgx.Batch, savings []*prepare.Saving) error {
	var local referenceColumns
	foreign := foreignColumns{began: math.MaxInt64}
	var late []int64
	queueDelegated(b, savings)
	for _, sv := range savings {
		deployments, err := foreign.decide(ctx, s, sv)
		if err != nil {
			return err
		}
		for _, wr := range sv.Writes {
			for _, ref := range wr.Add {
				switch {
				case ref.Delegated:
					continue
				case ref.Target.Deployment != s.Self:
					foreign.add(ref, deployments[ref.Target.Deployment], sv.Attempt)
				default:
					local.add(ref)
				}
				if ref.Late && ref.Behaviour != schema.AllowDangling {
					late = append(late, ref.TargetID)
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

func (c *referenceColumns) add(ref *prepare.NewReference) {
	c.holders, c.targets = append(c.holders, ref.Holder.ID), append(c.targets, ref.TargetID)
	c.fields, c.behaviours = append(c.fields, ref.FieldID), append(c.behaviours, int16(ref.Behaviour))
}

// foreignColumns are the columns of references that were established at other deployments, and of their
// attempts.
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
	established        []int32
}

// decide adds the attempt of a saving, and returns the numbers of the deployments.
func (c *foreignColumns) decide(ctx context.Context, s *Writer,
	sv *prepare.Saving,
) (map[schema.DeploymentID]int32, error) {
	if len(sv.Foreign) == 0 {
		return nil, nil //nolint:nilnil // none
	}
	c.decided, c.began = append(c.decided, sv.Attempt), min(c.began, sv.Began)
	deployments := map[schema.DeploymentID]int32{}
	for d, refs := range sv.Foreign {
		id, err := s.Names.Deployment(ctx, d)
		if err != nil {
			return nil, err
		}
		deployments[d] = id
		c.confirmShards, c.confirmDeployments = append(c.confirmShards, int16(schema.Shard(sv.Writes[0].Name))),
			append(c.confirmDeployments, id)
		c.confirmAttempts, c.established = append(c.confirmAttempts, sv.Attempt),
			append(c.established, int32(len(refs)))
	}
	return deployments, nil
}

func (c *foreignColumns) add(ref *prepare.NewReference, deployment int32, attempt peer.AttemptID) {
	c.referenceColumns.add(ref)
	c.uids, c.deployments, c.attempts = append(c.uids, ref.UID), append(c.deployments, deployment),
		append(c.attempts, attempt)
	c.kinds, c.names = append(c.kinds, ref.KindID), append(c.names, ref.Target.Name)
}

func (s *Writer) queueForeign(b *pgx.Batch, c *foreignColumns) {
	QueueDecision(b, c.began, c.decided...)
	b.Queue(insertForeignTargetsSQL, c.uids, c.deployments, c.kinds, c.names)
	b.Queue(insertForeignReferencesSQL, db.Named{
		"holders": c.holders, "uids": c.uids, "deployments": c.deployments, "fields": c.fields,
		"behaviours": c.behaviours, "attempts": c.attempts,
	})
	b.Queue(ConfirmWorkSQL, c.confirmShards, c.confirmDeployments, c.confirmAttempts, c.established)
}

// Wrote fails with db.ErrStale when a statement wrote fewer rows than it was given, since Tidy removed a
// foreign target between two statements. The write is retried.
func Wrote(want int) func(tag pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() != int64(want) {
			return errors.Join(db.ErrStale, fmt.Errorf("%d of %d references were written", tag.RowsAffected(), want))
		}
		return nil
	}
}
