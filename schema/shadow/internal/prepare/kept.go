package prepare

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const selectKeptNameSQL = `
SELECT i.name, k.kind
FROM unnest($2::int[], $3::text[]) AS i (kind_id, name)
JOIN dbcontroller.kind k ON k.service = $1 AND k.id <> i.kind_id
JOIN dbcontroller.shadow s ON s.kind_id = k.id AND s.name = i.name
WHERE NOT EXISTS (SELECT FROM dbcontroller.shadow o WHERE o.kind_id = i.kind_id AND o.name = i.name)
ORDER BY i.name LIMIT 1`

// free fails with peer.ErrExists when a write would create a resource under a name under which a resource of
// another kind is kept: users address resources by names alone, and could neither read nor delete the kept
// one any more.
func (p *Preparer) free(ctx context.Context, q db.Querier, sv *Saving) error {
	if !sv.Version.Keeps {
		return nil
	}
	kinds, names := make([]int32, len(sv.Writes)), make([]string, len(sv.Writes))
	for i, wr := range sv.Writes {
		kinds[i], names[i] = wr.KindID, wr.Name
	}
	rows, err := q.Query(ctx, selectKeptNameSQL, p.Self.Service, kinds, names)
	if err != nil {
		return fmt.Errorf("look up kept resources: %w", err)
	}
	type kept struct{ Name, Kind string }
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[kept])
	if err != nil {
		return fmt.Errorf("look up kept resources: %w", err)
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w: an earlier version stored it as %s, which can be read and deleted", found[0].Name,
		peer.ErrExists, p.KindNow(found[0].Kind))
}
