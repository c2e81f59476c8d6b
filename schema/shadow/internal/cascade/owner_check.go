package cascade

import (
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

const SelectOwnerRowsSQL = `
SELECT ownee_id, deployment_id, kind_id, name, uid, flags, checked, generation, created_at, created_at + $3 <= now()
FROM dbcontroller.owner_reference WHERE ownee_id = ANY ($1) AND ($2::int IS NULL OR deployment_id = $2)`

func ScanOwnerRow(row pgx.CollectableRow) (r write.OwnerRow, err error) {
	err = row.Scan(&r.OwneeID, &r.DeploymentID, &r.KindID, &r.Name, &r.UID, &r.Flags, &r.Checked, &r.Generation, &r.CreatedAt, &r.Over)
	return r, err
}
