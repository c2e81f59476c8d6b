package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

// Stuck is a resource in DELETING that waits.
type Stuck struct {
	Kind, Name string
	UID        uuid.UUID
	Since      time.Time
	Conditions []read.Condition
}

var (
	stuckSQL = db.Codes(`
SELECT kind_id, name, uid, updated_at FROM dbcontroller.shadow
WHERE state = {deleting} AND updated_at < now() - $1::interval AND ($3::timestamptz IS NULL OR (updated_at, uid) > ($3, $4)) ORDER BY updated_at, uid LIMIT $2`)

	countStuckSQL = db.Codes(
		`SELECT count(*) FROM dbcontroller.shadow WHERE state = {deleting} AND updated_at < now() - $1::interval`)
)

// StuckPage is a page of the resources that wait.
type StuckPage struct {
	Resources []Stuck
	Next      string // page token; empty: it is the last page
	Total     int64  // of all pages
}

// Stuck returns a page of the resources that have been in DELETING for longer than a time, the oldest first,
// with the reasons. It fails with *peer.InvalidError.
func (s *Operations) Stuck(ctx context.Context, longer time.Duration, token string,
	limit int,
) (page StuckPage, err error) {
	after, err := db.ParsePage(token)
	if err != nil {
		return page, err
	}
	if page.Resources, err = s.stuck(ctx, longer, after, limit); err != nil {
		return page, err
	}
	page.Total = int64(len(page.Resources))
	if len(page.Resources) == limit {
		last := page.Resources[limit-1]
		page.Next = db.Page{At: last.Since, ID: last.UID}.Token()
	}
	if page.Next != "" || token != "" {
		if err := s.Pool.QueryRow(ctx, countStuckSQL, longer).Scan(&page.Total); err != nil {
			return page, fmt.Errorf("count the stuck resources: %w", err)
		}
	}
	return page, nil
}

func (s *Operations) stuck(ctx context.Context, longer time.Duration, after db.Page, limit int) ([]Stuck, error) {
	rows, err := s.Pool.Query(ctx, stuckSQL, longer, limit, after.After(), after.ID)
	if err != nil {
		return nil, fmt.Errorf("read the stuck resources and work: %w", err)
	}
	var kinds []int32
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (x Stuck, err error) {
		var kind int32
		err = row.Scan(&kind, &x.Name, &x.UID, &x.Since)
		kinds = append(kinds, kind)
		return x, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the stuck resources and work: %w", err)
	}
	for i := range found {
		kind, err := s.Names.KindOf(ctx, s.Pool, kinds[i])
		if err != nil {
			return nil, err
		}
		found[i].Kind = s.KindNow(kind.Kind)
		if found[i].Conditions, err = s.read.Conditions(ctx, found[i].Name); err != nil {
			return nil, err
		}
	}
	return found, nil
}
