package gate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// VersionLock is the advisory lock that writers hold shared, and a switch of the version exclusively.
const VersionLock int64 = 0x6462_6374_6c01

const (
	LockVersionSQL  = `SELECT pg_advisory_xact_lock($1)`
	ShareVersionSQL = `SELECT pg_advisory_xact_lock_shared($1)`

	SelectRunningSQL = `SELECT ` + RunningColumns + ` FROM dbcontroller.meta m`

	// RunningColumns are of a row m of meta.
	RunningColumns = `m.version, m.generation, m.digest`

	SelectVersionSQL = `SELECT version, generation FROM dbcontroller.meta`
)

// ReadRunning returns the version stored in the database.
func ReadRunning(ctx context.Context, q db.Querier) (Running, error) {
	var stored Running
	rows, err := q.Query(ctx, SelectRunningSQL)
	if err == nil {
		stored, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Running])
	}
	if err != nil {
		return stored, fmt.Errorf("read the version: %w", err)
	}
	return stored, nil
}

// Runs reports whether the database has the version of the model. If not, another process has switched the
// version.
func (s *Gate) Runs(ctx context.Context, model *schema.Model) (bool, error) {
	stored, err := ReadRunning(ctx, s.Pool)
	return err == nil && model.Says(stored.Version, stored.Digest), err
}

// RunningVersion returns the name of the version stored in the database.
func (s *Gate) RunningVersion(ctx context.Context) (string, error) {
	stored, err := ReadRunning(ctx, s.Pool)
	return stored.Version, err
}

// Superseded receives after a transaction, or a look, has met another version than this process has switched
// to, and after a look has found other referenced deployments than the node manager has read. Capacity one;
// never closed.
func (s *Gate) Superseded() <-chan struct{} { return s.superseded }
