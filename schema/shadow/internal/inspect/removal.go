package inspect

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
}

const selectRemovalsSQL = `
SELECT r.kind_id, r.name, r.uid, x.how, r.decided_at, x.via_deployment_id, x.via_uid, x.via_name, s.id IS NULL, ` + read.CauseColumnsSQL + `
FROM dbcontroller.removal r
LEFT JOIN dbcontroller.cause x ON x.id = r.cause_id LEFT JOIN dbcontroller.shadow s ON s.uid = r.uid
WHERE r.name = @name AND (@any OR r.uid = @uid) AND (@after::timestamptz IS NULL OR (r.decided_at, r.uid) < (@after, @after_uid))
ORDER BY r.decided_at DESC, r.uid DESC LIMIT @at_most`

// Removals returns a page of the removals of the resources with a name, newest first, and the token of the next one; with a non-zero uid only
// that of this resource. It fails with *peer.InvalidError.
func (s *Inspector) Removals(ctx context.Context, name string, uid uuid.UUID, token string, limit int) (out []Removal, next string, err error) {
	after, err := db.ParsePage(token)
	if err != nil {
		return nil, "", err
	}
	if out, err = s.removals(ctx, name, uid, after, limit); err == nil && len(out) == limit {
		last := out[limit-1]
		next = db.Page{At: last.DecidedAt, ID: last.UID}.Token()
	}
	return out, next, err
}

func (s *Inspector) removals(ctx context.Context, name string, uid uuid.UUID, after db.Page, limit int) ([]Removal, error) {
	rows, err := s.Pool.Query(ctx, selectRemovalsSQL, db.Named{
		"name": name, "any": uid == uuid.Nil, "uid": uid, "after": after.After(), "after_uid": after.ID, "at_most": limit,
	})
	if err != nil {
		return nil, fmt.Errorf("read removals: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f foundRemoval, err error) {
		return f, row.Scan(append([]any{&f.kind, &f.Name, &f.UID, &f.how, &f.DecidedAt, &f.viaDeployment, &f.viaUID, &f.viaName, &f.Gone}, f.cause.Dest()...)...)
	})
	if err != nil {
		return nil, fmt.Errorf("read removals: %w", err)
	}
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

func (s *Inspector) removal(ctx context.Context, f *foundRemoval) (r Removal, err error) {
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
