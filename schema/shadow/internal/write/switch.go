package write

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// stillRuns fails with ErrAborted when the version or the epoch of a write is not the current one, so that it could not commit.
func (s *Writer) stillRuns(ctx context.Context, sv *saving) error {
	var stored gate.Running
	var epoch *uuid.UUID
	err := s.Pool.QueryRow(ctx, `SELECT `+gate.RunningColumns+`, `+gate.EpochNowSQL+` FROM dbcontroller.meta m`).Scan(append(stored.Into(), &epoch)...)
	switch {
	case err != nil:
		return fmt.Errorf("read the version: %w", err)
	case epoch == nil || *epoch != sv.epoch:
		s.gate.SignalEpochChanged()
		return fmt.Errorf("%w: the database failed over or was restored", peer.ErrAborted)
	}
	return s.gate.CheckVersion(sv.version, stored)
}
