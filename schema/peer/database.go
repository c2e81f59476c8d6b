package peer

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// A database has an identity: a UUID that is created with it. Failovers and restored backups keep it; an empty database,
// or another deployment's, has another one. A deployment stores the identity of another's database as soon as the two are
// related: references or owner references exist, or existed, between them. The answer of a different database is treated
// as unknown, never as "gone" (I15).

// DatabaseError reports that a deployment calls or answers from another database (Spoken) than the stored one (Known).
type DatabaseError struct {
	Deployment    schema.DeploymentID
	Known, Spoken uuid.UUID
}

func (e *DatabaseError) Error() string {
	return fmt.Sprintf("%s runs over the database %s, and not over %s, which is known of it: start it over the right one, or restore a backup of that; "+
		"if it is lost for good, say so: db-controller accept-database %s", e.Deployment, e.Spoken, e.Known, e.Deployment)
}

type CallerDatabase struct{}

// WithCallerDatabase stores in ctx the database from which a call is made, for transactions that relate the two
// deployments: another database may have been accepted since the call was admitted.
func WithCallerDatabase(ctx context.Context, database uuid.UUID) context.Context {
	return context.WithValue(ctx, CallerDatabase{}, database)
}
