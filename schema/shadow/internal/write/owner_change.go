package write

import (
	"github.com/google/uuid"
)

// OwnerKey is the primary key of owner_reference.
type OwnerKey struct {
	OwneeID      int64
	DeploymentID int32
	KindID       int32
	Name         string
	UID          uuid.UUID
}

func (r OwnerRow) Key() OwnerKey {
	return OwnerKey{r.OwneeID, r.DeploymentID, r.KindID, r.Name, r.UID}
}
