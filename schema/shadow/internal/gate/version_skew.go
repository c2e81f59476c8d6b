package gate

import (
	"cmp"
	"context"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// UnlessSkewed returns an answer by the version of this process, with the error of Judged.
func UnlessSkewed[T any](ctx context.Context, s *Gate, q db.Querier, answer func() (T, error)) (T, error) {
	v := s.Version.Load() // before the answer: the process may adopt the other version meanwhile
	out, err := answer()
	return out, s.Judged(ctx, q, v, err)
}

// Judged returns the error of an answer by the version v, or nil. A definite refusal becomes ErrAborted when
// another process has switched the version: a process that is behind knows of no name that nothing has it,
// and of no value that it is wrong.
func (s *Gate) Judged(ctx context.Context, q db.Querier, v *db.Version, err error) error {
	if v == nil || !peer.Definite(err) {
		return err
	}
	return cmp.Or(s.CheckRuns(ctx, q, v), err)
}

// KindOfName is DB.KindOfName, with the error of Judged.
func (s *Gate) KindOfName(ctx context.Context, name string) (int32, error) {
	return UnlessSkewed(ctx, s, s.Pool, func() (int32, error) { return s.DB.KindOfName(ctx, name) })
}

// CheckRuns fails with ErrAborted when the database has another version than v.
func (s *Gate) CheckRuns(ctx context.Context, q db.Querier, v *db.Version) error {
	stored, err := ReadRunning(postgres.Over(ctx, nil), q) // the process adopts it
	if err != nil {
		return err
	}
	return s.CheckVersion(v, stored)
}
