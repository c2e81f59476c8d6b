// Package pins finds the references that statements on attached tables wrote under rights, and that are not stored yet.
package pins

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

// The latest statement is the one that has written the present value.
const selectPinsSQL = `
SELECT i.n - 1, f.id, f.uid FROM unnest($1::int[], $2::int[], $3::text[], $4::boolean[], $5::bigint[]) WITH ORDINALITY AS i (deployment_id, kind_id, name, blocks, statement, n)
JOIN (
    SELECT statement, target_id, blocks FROM dbcontroller.pin
    UNION ALL
    SELECT statement, target_id, blocks FROM dbcontroller.captured WHERE target_id IS NOT NULL AND statement IS NOT NULL
) AS p ON p.statement = i.statement AND p.blocks = i.blocks
JOIN dbcontroller.foreign_target f ON f.id = p.target_id AND f.deployment_id = i.deployment_id AND f.kind_id = i.kind_id AND f.name = i.name
ORDER BY p.statement`

// Find sets the targets of the new references that statements wrote under rights: they were committed with the rows, and the end of
// such a right waits until they are stored.
func Find(ctx context.Context, s *db.DB, q db.Querier, sv *prepare.Saving) error {
	if len(sv.Under) == 0 {
		return nil
	}
	var refs []*prepare.NewReference // one for each of its statements
	var deployments, kinds []int32
	var names []string
	var blocks []bool
	var statements []int64
	for d, all := range sv.Foreign {
		id, err := s.Names.Deployment(ctx, d)
		if err != nil {
			return err
		}
		for _, ref := range all {
			for _, statement := range sv.Under[ref.Holder.Name] {
				refs, deployments, kinds = append(refs, ref), append(deployments, id), append(kinds, ref.KindID)
				names, blocks, statements = append(names, ref.Target.Name), append(blocks, ref.Behaviour == schema.Block), append(statements, statement)
			}
		}
	}
	rows, err := q.Query(ctx, selectPinsSQL, deployments, kinds, names, blocks, statements)
	if err != nil {
		return fmt.Errorf("read the rights of statements: %w", err)
	}
	var n int
	var id int64
	var uid uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&n, &id, &uid}, func() error {
		refs[n].Pinned, refs[n].Rights = true, []prepare.DelegatedTarget{{ID: id, UID: uid}}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the rights of statements: %w", err)
	}
	return nil
}
