package server

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
)

// An older copy of the database's files looks like the original: server and timeline are the same. Its revision is smaller than
// one that was seen before. Then deployments may be missing until an operator has applied all of them again, tokens that were
// given out are void, and no revision is used twice.
const beginAgainSQL = `
WITH older AS (
    UPDATE dbcontroller_registry.meta SET revision = GREATEST(revision, $1) + 1, epoch = gen_random_uuid()
    WHERE revision < $1 OR $2 RETURNING revision
), unvouched AS (
    UPDATE dbcontroller_registry.deployment SET applied_in = NULL FROM older
)
SELECT count(*) > 0 FROM older`

// maxSeen is greater than any number of changes.
const maxSeen = 1 << 52

// notOlder compares the revision of the database with the greatest one that this process and its caller have seen. Only deployments
// and operators are believed.
func (s *Server) notOlder(ctx context.Context, seen int64) error {
	if seen < 0 || seen > maxSeen {
		return status.Errorf(codes.InvalidArgument, "seen_revision: want 0 to %d", int64(maxSeen))
	}
	if who, err := identity.FromContext(ctx); err != nil || who.Role != identity.RoleDeployment && who.Role != identity.RoleOperator {
		seen = 0
	}
	return s.store.beginAgain(ctx, max(seen, s.store.seen.Load()), false, s.log)
}

// Restored notes that the database is an older copy, which an operator has declared.
func (s *Server) Restored(ctx context.Context) error {
	return s.store.beginAgain(ctx, 0, true, s.log)
}

func (s *store) beginAgain(ctx context.Context, seen int64, declared bool, log *zap.Logger) error {
	older := declared
	if !declared {
		if err := s.pool.QueryRow(ctx, `SELECT revision < $1 FROM dbcontroller_registry.meta`, seen).Scan(&older); err != nil {
			return fmt.Errorf("read the revision: %w", err)
		}
	}
	if !older {
		return nil
	}
	if err := s.pool.QueryRow(ctx, beginAgainSQL, seen, declared).Scan(&older); err != nil {
		return fmt.Errorf("compare the revision with those that were seen: %w", err)
	}
	if older {
		log.Error("the registry's database is an older copy: deployments may be missing until all of them are applied again", zap.Int64("revision seen", seen))
		s.wake.Wake(environmentFeed)
	}
	return nil
}

// see remembers a revision that is committed.
func (s *store) see(revision int64) {
	for seen := s.seen.Load(); revision > seen && !s.seen.CompareAndSwap(seen, revision); seen = s.seen.Load() {
	}
}
