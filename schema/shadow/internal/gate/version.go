package gate

import (
	"context"
	"fmt"

	"github.com/db-controller/db-controller/schema"
)

// VersionLock is the advisory lock that writers hold shared, and a switch of the version exclusively.
const VersionLock int64 = 0x6462_6374_6c01

const (
	LockVersionSQL  = `SELECT pg_advisory_xact_lock($1)`
	ShareVersionSQL = `SELECT pg_advisory_xact_lock_shared($1)`

	SelectRunningSQL = `SELECT ` + RunningColumns + ` FROM dbcontroller.meta m`

	// RunningColumns are of a row m of meta.
	RunningColumns = `m.version, m.generation, m.digest`
)

// Runs reports whether the version stored in the database is that of the model. If not, another process has switched the version.
func (s *Gate) Runs(ctx context.Context, model *schema.Model) (bool, error) {
	var stored Running
	if err := s.Pool.QueryRow(ctx, SelectRunningSQL).Scan(stored.Into()...); err != nil {
		return false, fmt.Errorf("read the version: %w", err)
	}
	return model.Says(stored.Version, stored.Digest), nil
}

// RunningVersion returns the name of the version stored in the database.
func (s *Gate) RunningVersion(ctx context.Context) (string, error) {
	var stored Running
	if err := s.Pool.QueryRow(ctx, SelectRunningSQL).Scan(stored.Into()...); err != nil {
		return "", fmt.Errorf("read the version: %w", err)
	}
	return stored.Version, nil
}

// Superseded receives after a transaction met another version than this process has switched to. Its capacity is one, since one
// signal means the same as several; it is never closed.
func (s *Gate) Superseded() <-chan struct{} { return s.superseded }

const (
	SelectVersionSQL = `SELECT version, generation FROM dbcontroller.meta`
)
