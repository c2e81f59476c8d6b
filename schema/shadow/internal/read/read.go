package read

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/standby"
)

const (
	resourceColumns = `s.uid, s.kind_id, s.name, s.state, s.revision, s.generation, s.created_at, s.updated_at, r.labels, r.body, r.owners, s.block_deletion,
    s.finalizers, r.status, COALESCE(r.status_generation, 0), ` + scheduledSQL

	// The times of the scheduled deletions of a hidden resource: of the first delete, and of the first one
	// that is carried out.
	scheduledSQL = `CASE WHEN s.hidden THEN (
        SELECT ARRAY[min(f.deleted_at), min(f.purge_at)] FROM dbcontroller.frozen m JOIN dbcontroller.freeze f USING (deletion) WHERE m.target_id = s.id AND f.purge_at IS NOT NULL
    ) END`
)

// A resource of a scheduled deletion is read by its name (AIP-164).
var getSQL = db.Codes(`SELECT ` + resourceColumns + `
FROM dbcontroller.shadow s LEFT JOIN dbcontroller.resource r USING (id)
WHERE s.kind_id = $1 AND s.name = $2 AND (s.state = {active} OR NOT s.hidden)`)

var conditionsSQL = db.Codes(`
SELECT 'BLOCKED', d.service || '/' || d.region, count(*), min(CASE WHEN b.holder_uid = s.uid
        THEN 'references of ' || d.service || '/' || d.region || ' under its right to block'
        ELSE '//' || d.service || '/' || d.region || '/' || b.holder_name || ' (' || f.path || ')' END)
FROM dbcontroller.blockade b JOIN dbcontroller.deployment d ON d.id = b.deployment_id JOIN dbcontroller.field f ON f.id = b.field_id
JOIN dbcontroller.shadow s ON s.id = b.target_id
WHERE s.kind_id = $1 AND s.name = $2 AND s.state = {deleting} GROUP BY 2
UNION ALL
SELECT 'BLOCKED', '', count(*), min(h.name || ' (' || f.path || ')' || CASE h.state WHEN {deleting} THEN ', until it is removed' ELSE '' END)
FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id JOIN dbcontroller.field f ON f.id = r.field_id
JOIN dbcontroller.shadow s ON s.id = r.target_id
WHERE s.kind_id = $1 AND s.name = $2 AND s.state = {deleting} AND r.behaviour = {block} HAVING count(*) > 0
UNION ALL
SELECT 'PROTECTED', '', 0, '' FROM dbcontroller.shadow s WHERE s.kind_id = $1 AND s.name = $2 AND s.state = {deleting} AND s.block_deletion
UNION ALL
SELECT 'FINALIZER', f, cardinality(s.finalizers), '' FROM dbcontroller.shadow s JOIN dbcontroller.kind k ON k.id = s.kind_id
    CROSS JOIN unnest(CASE s.finalizers WHEN '{}' THEN k.finalizers ELSE s.finalizers END) AS f WHERE s.kind_id = $1 AND s.name = $2 AND s.state = {deleting}
UNION ALL
SELECT DISTINCT 'WAITING', d.service || '/' || d.region, 0, 'to cascade or unset'
FROM dbcontroller.notice n JOIN dbcontroller.deployment d ON d.id = n.deployment_id
JOIN dbcontroller.shadow s ON s.id = n.target_id
WHERE s.kind_id = $1 AND s.name = $2 AND s.state = {deleting}
UNION ALL
SELECT DISTINCT 'WAITING', d.service || '/' || d.region, 0, 'to drop it as an owner'
FROM dbcontroller.ownee_entry e JOIN dbcontroller.deployment d ON d.id = e.deployment_id
JOIN dbcontroller.shadow s ON s.id = e.owner_id
WHERE s.kind_id = $1 AND s.name = $2 AND s.state = {deleting}
ORDER BY 1, 2`)

type scannedResource struct {
	peer.Resource
	kindID int32
}

func scanResource(row pgx.CollectableRow) (r scannedResource, err error) {
	var labels, owners []byte
	var scheduled []*time.Time
	if err = row.Scan(&r.UID, &r.kindID, &r.Name, &r.State, &r.Revision, &r.Generation, &r.CreatedAt, &r.UpdatedAt,
		&labels, &r.Body, &owners, &r.BlockDeletion,
		&r.Finalizers, &r.Status, &r.StatusGeneration, &scheduled); err != nil {
		return r, err
	}
	if len(scheduled) == 2 && scheduled[0] != nil && scheduled[1] != nil {
		r.DeletedAt, r.PurgeAt = *scheduled[0], *scheduled[1]
	}
	if err = postgres.DecodeJSON(labels, &r.Labels); err != nil {
		return r, err
	}
	return r, postgres.DecodeJSON(owners, &r.Owners)
}

// Get reads one resource. It fails with ErrNotFound, *InvalidError, or ErrAborted when this process is behind
// a switch of the version.
func (s *Reader) Get(ctx context.Context, name string) (*peer.Resource, error) {
	return standby.Read(ctx, s.Cfg.Standby, func(ctx context.Context) (*peer.Resource, error) {
		return gate.UnlessSkewed(ctx, s.gate, s.Pool, func() (*peer.Resource, error) { return s.get(ctx, name) })
	})
}

func (s *Reader) get(ctx context.Context, name string) (*peer.Resource, error) {
	kindID, err := s.KindOfName(ctx, name)
	if err != nil {
		return nil, err
	}
	if t := s.rows.Of(kindID); t != nil {
		return s.row(ctx, t, name)
	}
	return LookUp(ctx, s.DB, s.Pool, kindID, name)
}

// LookUp reads one resource through the pool or a transaction. It fails with ErrNotFound.
func LookUp(ctx context.Context, d *db.DB, q db.Querier, kindID int32, name string) (*peer.Resource, error) {
	rows, err := q.Query(ctx, getSQL, kindID, name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	found, err := pgx.CollectExactlyOneRow(rows, scanResource)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("%s: %w", name, peer.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	kind, err := d.Names.KindOf(ctx, q, found.kindID)
	found.Kind = kind.Kind
	return &found.Resource, err
}

// QueueLookUp reads one resource of a kind in a batch of statements. The result is set when the batch has
// been sent: nil when it is not found.
func QueueLookUp(b *pgx.Batch, kindID int32, kind, name string) **peer.Resource {
	found := new(*peer.Resource)
	b.Queue(getSQL, kindID, name).Query(func(rows pgx.Rows) error {
		all, err := pgx.CollectRows(rows, scanResource)
		for _, r := range all {
			r.Kind = kind
			*found = &r.Resource
		}
		return err
	})
	return found
}

// Condition is a reason why a resource is still DELETING. The types are BLOCKED (by a holder, or by
// block_deletion) and WAITING (for a deployment that has to act upon the deletion, or for the holder of a
// finalizer).
type Condition struct {
	Type    string
	Message string
}

// Conditions returns the reasons why a resource is still DELETING, one for each deployment and type; none for
// a resource in any other state, or that does not exist.
func (s *Reader) Conditions(ctx context.Context, name string) ([]Condition, error) {
	return standby.Read(ctx, s.Cfg.Standby, func(ctx context.Context) ([]Condition, error) {
		return s.conditions(ctx, name)
	})
}

func (s *Reader) conditions(ctx context.Context, name string) ([]Condition, error) {
	kindID, err := s.KindOfName(ctx, name)
	if err != nil {
		return nil, err
	}
	rows, err := s.Pool.Query(ctx, conditionsSQL, kindID, name)
	if err != nil {
		return nil, fmt.Errorf("read conditions of %s: %w", name, err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Condition, err error) {
		var deployment, first string
		var n int
		if err = row.Scan(&c.Type, &deployment, &n, &first); err != nil {
			return c, err
		}
		if c.Type == "WAITING" {
			c.Message = "for " + deployment + " " + first
			return c, nil
		}
		if c.Type == "FINALIZER" {
			if c.Type, c.Message = "WAITING", s.cleans(name, deployment); n == 0 {
				c.Message += ", which begins when nothing blocks the resource any more"
			}
			return c, nil
		}
		if c.Type == "PROTECTED" {
			c.Type, c.Message = "BLOCKED", "by block_deletion, which an operator has to clear"
			return c, nil
		}
		if deployment == "" {
			first = schemaName(s, first)
		}
		if c.Message = "by " + first; n > 1 {
			c.Message = fmt.Sprintf("by %s and %d more", first, n-1)
		}
		return c, nil
	})
}

// cleans returns the message of a finalizer that is left.
func (s *Reader) cleans(name, finalizer string) string {
	holder := ""
	if m := s.Model(); m != nil {
		if kind, err := m.KindOf(name); err == nil {
			holder = kind.FinalizerHolder(finalizer)
		}
	}
	if holder == "" {
		return "for an operator to remove finalizer " + finalizer +
			": the running version does not name who cleans up (db-controller remove-finalizer)"
	}
	return "for " + holder + " to clean up (finalizer " + finalizer + ")"
}

func schemaName(s *Reader, relative string) string { return "//" + s.Self.String() + "/" + relative }

// CauseRow scans CauseColumnsSQL: a row of cause, or nulls.
type CauseRow struct {
	id, rootUID, requestID *uuid.UUID
	actor, root, trace     *string
	at                     *time.Time
}

// Select list and joins for the cause of the deletion of a shadow s in DELETING.
const (
	CauseColumnsSQL = `x.deletion_id, x.actor, x.root, x.root_uid, x.request_id, x.at, x.trace_parent`
	CauseOfSQL      = ` LEFT JOIN dbcontroller.removal r ON r.name = s.name AND r.uid = s.uid LEFT JOIN dbcontroller.cause x ON x.id = r.cause_id `
)

// Dest returns the scan targets of CauseColumnsSQL.
func (r *CauseRow) Dest() []any {
	return []any{&r.id, &r.actor, &r.root, &r.rootUID, &r.requestID, &r.at, &r.trace}
}

// Cause returns nil when no cause is stored.
func (r *CauseRow) Cause() *schema.Cause {
	if r.id == nil {
		return nil
	}
	c := &schema.Cause{ID: *r.id, Actor: *r.actor, Root: *r.root, RootUID: *r.rootUID, At: *r.at}
	if r.requestID != nil {
		c.RequestID = *r.requestID
	}
	if r.trace != nil {
		c.TraceParent = *r.trace
	}
	return c
}

const deletionOfSQL = `
SELECT x.deletion_id FROM dbcontroller.removal r JOIN dbcontroller.cause x ON x.id = r.cause_id WHERE r.name = $1 AND r.uid = $2`

// QueueDeletionOf reads the deletion that has marked a resource in a batch of statements; zero when its
// record is too old.
func QueueDeletionOf(b *pgx.Batch, name string, uid uuid.UUID, to *uuid.UUID) {
	b.Queue(deletionOfSQL, name, uid).QueryRow(func(row pgx.Row) error {
		err := row.Scan(to)
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		return err
	})
}

// Queued adds a statement to a batch. Its rows are set when the batch has been sent.
func Queued[T any](b *pgx.Batch, sql string, args ...any) *[]T {
	found := new([]T)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
	return found
}
