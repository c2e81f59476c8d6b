package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

// Removal records why a resource was or is being deleted.
type Removal struct {
	Kind      string
	Name      string
	UID       uuid.UUID
	How       peer.How
	DecidedAt time.Time
	// Via is the deleted target or owner; its deployment has the next link of the chain. Zero for the root.
	Via    schema.FullName
	ViaUID uuid.UUID     // zero also for an owner whose uid was never known
	Cause  *schema.Cause // nil when its retention has ended
	// Gone: the resource is removed; otherwise it is in DELETING.
	Gone bool

	listedAt time.Time // by which pages are ordered
}

const (
	removalColumnsSQL = `
SELECT r.kind_id, r.name, r.uid, x.how, r.decided_at, r.decided_at, x.via_deployment_id, x.via_uid, x.via_name, s.id IS NULL, ` + read.CauseColumnsSQL

	removalPageSQL = `(@after::timestamptz IS NULL OR (r.decided_at, r.uid) < (@after, @after_uid))
ORDER BY r.decided_at DESC, r.uid DESC LIMIT @at_most`

	selectRemovalsSQL = removalColumnsSQL + `
FROM dbcontroller.removal r
LEFT JOIN dbcontroller.cause x ON x.id = r.cause_id LEFT JOIN dbcontroller.shadow s ON s.uid = r.uid
WHERE r.name = @name AND (@any OR r.uid = @uid) AND ` + removalPageSQL

	// A cause and its removals are written by one statement, at one time: the index of the removals is by
	// time.
	selectRemovalsOfDeletionSQL = removalColumnsSQL + `
FROM dbcontroller.cause x JOIN dbcontroller.removal r ON r.decided_at = x.noted_at AND r.cause_id = x.id LEFT JOIN dbcontroller.shadow s ON s.uid = r.uid
WHERE x.deletion_id = @deletion AND ` + removalPageSQL
)

var (
	// Only what was asked for has an entry in the index.
	selectRemovalsOfRequestSQL = db.Codes(removalColumnsSQL + `
FROM dbcontroller.cause x JOIN dbcontroller.removal r ON r.decided_at = x.noted_at AND r.cause_id = x.id LEFT JOIN dbcontroller.shadow s ON s.uid = r.uid
WHERE x.request_id = @request AND x.how = {requested} AND ` + removalPageSQL)

	// By the change that removed a resource: its removal may have been decided before the position. Changes
	// are kept for a shorter time than records. A resource that was hidden, and shown again, has several.
	selectRemovalsSinceSQL = db.Codes(`
WITH gone AS (
    SELECT DISTINCT ON (uid) kind_id, name, uid, changed_at FROM dbcontroller.change c
    WHERE xid >= pg_snapshot_xmin(@position::text::pg_snapshot) AND NOT pg_visible_in_snapshot(xid, @position::text::pg_snapshot) AND state = {gone}
        AND NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.uid = c.uid AND (s.state = {active} OR NOT s.hidden))
    ORDER BY uid, changed_at DESC
)
SELECT c.kind_id, c.name, c.uid, x.how, COALESCE(r.decided_at, c.changed_at), c.changed_at, x.via_deployment_id, x.via_uid, x.via_name, true, ` + read.CauseColumnsSQL + `
FROM gone c LEFT JOIN dbcontroller.removal r ON r.name = c.name AND r.uid = c.uid LEFT JOIN dbcontroller.cause x ON x.id = r.cause_id
WHERE @after::timestamptz IS NULL OR (c.changed_at, c.uid) < (@after, @after_uid)
ORDER BY c.changed_at DESC, c.uid DESC LIMIT @at_most`)
)

// RemovalQuery selects removals here: of the resources with a name, with a non-zero uid of this resource
// alone; of a deletion; of the resources that a request asked to delete; or all after the token of a watch of
// resources.
type RemovalQuery struct {
	Name     string
	UID      uuid.UUID
	Deletion uuid.UUID
	Request  uuid.UUID
	Since    string
}

// Removals returns a page of removals, newest first, and the token of the next one. It fails with
// *peer.InvalidError, and with peer.ErrReset for a token that is too old.
func (s *Operations) Removals(ctx context.Context, q RemovalQuery, token string,
	limit int,
) (out []Removal, next string, err error) {
	after, err := db.ParsePage(token)
	if err != nil {
		return nil, "", err
	}
	if q.Since == "" {
		out, err = s.removals(ctx, q, after, limit)
	} else {
		out, err = s.removalsSince(ctx, q.Since, after, limit)
	}
	if err == nil && len(out) == limit {
		last := out[limit-1]
		next = db.Page{At: last.listedAt, ID: last.UID}.Token()
	}
	return out, next, err
}

func (s *Operations) removals(ctx context.Context, q RemovalQuery, after db.Page, limit int) ([]Removal, error) {
	sql, named := selectRemovalsSQL, db.Named{"name": q.Name, "any": q.UID == uuid.Nil, "uid": q.UID}
	switch {
	case q.Deletion != uuid.Nil:
		sql, named = selectRemovalsOfDeletionSQL, db.Named{"deletion": q.Deletion}
	case q.Request != uuid.Nil:
		sql, named = selectRemovalsOfRequestSQL, db.Named{"request": q.Request}
	}
	named["after"], named["after_uid"], named["at_most"] = after.After(), after.ID, limit
	all, err := foundRemovals(ctx, s.Pool, sql, named)
	if err != nil {
		return nil, fmt.Errorf("read removals: %w", err)
	}
	return s.removalsOf(ctx, all)
}

// removalsSince reads in one transaction: the next connection may be to a promoted standby, of which the
// position says nothing.
func (s *Operations) removalsSince(ctx context.Context, token string, after db.Page, limit int) ([]Removal, error) {
	var all []foundRemoval
	err := pgx.BeginTxFunc(ctx, s.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		at, err := s.Feeds.OpenIn(ctx, tx, token, read.ResourcesFilter)
		if err != nil {
			return read.Followed(s.gate, err)
		}
		all, err = foundRemovals(ctx, tx, selectRemovalsSinceSQL, db.Named{
			"position": at.Text, "after": after.After(),
			"after_uid": after.ID, "at_most": limit,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read removals: %w", err)
	}
	return s.removalsOf(ctx, all)
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func foundRemovals(ctx context.Context, q querier, sql string, named db.Named) ([]foundRemoval, error) {
	rows, err := q.Query(ctx, sql, named)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (f foundRemoval, err error) {
		return f, row.Scan(append([]any{
			&f.kind, &f.Name, &f.UID, &f.how, &f.DecidedAt, &f.listedAt, &f.viaDeployment,
			&f.viaUID, &f.viaName, &f.Gone,
		}, f.cause.Dest()...)...)
	})
}

func (s *Operations) removalsOf(ctx context.Context, all []foundRemoval) (_ []Removal, err error) {
	out := make([]Removal, len(all))
	for i := range all {
		if out[i], err = s.removal(ctx, &all[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

type foundRemoval struct {
	Removal
	kind          int32
	how           *peer.How
	viaDeployment *int32
	viaUID        *uuid.UUID
	viaName       *string
	cause         read.CauseRow
}

func (s *Operations) removal(ctx context.Context, f *foundRemoval) (r Removal, err error) {
	kind, err := s.Names.KindOf(ctx, s.Pool, f.kind)
	if err != nil {
		return r, err
	}
	r = f.Removal
	r.Kind, r.Cause = s.KindNow(kind.Kind), f.cause.Cause()
	if f.how != nil {
		r.How = *f.how
	}
	if f.viaDeployment != nil {
		r.ViaUID, r.Via.Name = *f.viaUID, *f.viaName
		r.Via.Deployment, err = s.Names.DeploymentOf(ctx, s.Pool, *f.viaDeployment)
	}
	return r, err
}
