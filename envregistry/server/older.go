package server

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
)

// An older copy of the database's files looks like the original: server and timeline are the same. It is
// revealed by revisions that were seen before: a greater revision, or a part of the history (see history.go)
// that the copy lacks or had ended earlier. Then deployments may be missing until an operator has applied all
// of them again, tokens that were given out are void, and no revision is used twice.
const beginAgainSQL = `
WITH again AS (
    UPDATE dbcontroller_registry.meta SET revision = GREATEST(revision, $1) + 1, epoch = gen_random_uuid()
)
UPDATE dbcontroller_registry.deployment SET applied_in = NULL`

// maxSeen is greater than any number of changes.
const maxSeen = 1 << 52

// seen is the newest state of the registry that a caller, or this process, has read: the greatest revision,
// and the part of the history in which it was read; empty if unknown.
type seen struct {
	revision int64
	history  string
}

// check compares the database with the revisions that this process and its caller have seen, and notes that
// the caller, if it is a deployment, has told it. Only deployments and operators are believed, and only about
// revisions that a registry has sent them, which are returned.
func (s *Server) check(ctx context.Context, claimed seen) (told seen, err error) {
	if err := s.store.noticeServer(ctx); err != nil {
		return told, err
	}
	if claimed.revision < 0 || claimed.revision > maxSeen {
		return told, status.Errorf(codes.InvalidArgument, "seen_revision: want 0 to %d", int64(maxSeen))
	}
	if who, err := identity.FromContext(ctx); err == nil && (who.Role == identity.RoleDeployment ||
		who.Role == identity.RoleOperator) {
		keys, err := tokenKeys(ctx, s.store.pool)
		if err != nil {
			return told, err
		}
		told = stamped(keys, claimed.history)
	}
	return told, s.compare(ctx, told)
}

// compare is check of an authentic revision.
func (s *Server) compare(ctx context.Context, told seen) error {
	if err := s.store.compare(ctx, seen{revision: s.store.seen.Load()}, s.log); err != nil {
		return err
	}
	if err := s.store.compare(ctx, told, s.log); err != nil {
		return err
	}
	if who, err := identity.FromContext(ctx); err == nil && who.Role == identity.RoleDeployment {
		return s.store.hear(ctx, who.Deployment)
	}
	return nil
}

// Restored notes that the database is an older copy, which an operator has declared.
func (s *Server) Restored(ctx context.Context) error {
	return s.store.beginAgain(ctx, seen{}, true, s.log)
}

// compare begins again when the database has not reached the seen mark.
func (s *store) compare(ctx context.Context, what seen, log *zap.Logger) error {
	if (what == seen{}) {
		return nil
	}
	older, err := s.isOlder(ctx, s.pool, what)
	if err != nil || !older {
		return err
	}
	return s.beginAgain(ctx, what, false, log)
}

const revisionBelowSQL = `SELECT revision < $1 FROM dbcontroller_registry.meta`

func (s *store) isOlder(ctx context.Context, q queryRower, what seen) (older bool, err error) {
	if err := q.QueryRow(ctx, revisionBelowSQL, what.revision).Scan(&older); err != nil {
		return false, fmt.Errorf("read the revision: %w", err)
	}
	if older || what.history == "" {
		return older, nil
	}
	return isForked(ctx, q, what)
}

// beginAgain holds the lock of the revision when it looks: of two callers who know the same, the second finds
// that it is known.
func (s *store) beginAgain(ctx context.Context, what seen, declared bool, log *zap.Logger) error {
	again := false
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockRevisionSQL); err != nil {
			return err
		}
		if again = declared; !again {
			var err error
			if again, err = s.isOlder(ctx, tx, what); err != nil || !again {
				return err
			}
		}
		if err := fork(ctx, tx, what); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, beginAgainSQL, what.revision)
		return err
	})
	if err != nil {
		return fmt.Errorf("compare the registry's database with the revisions that were seen: %w", err)
	}
	if again {
		log.Error(
			"the registry's database is an older copy: deployments may be missing until all of them are applied again",
			zap.Int64("revision_seen", what.revision), requestid.Field(ctx))
		s.wake.Wake(environmentFeed)
	}
	return nil
}

// see remembers a revision that is committed.
func (s *store) see(revision int64) {
	for seen := s.seen.Load(); revision > seen && !s.seen.CompareAndSwap(seen, revision); seen = s.seen.Load() {
	}
}

const (
	heardSQL = `
UPDATE dbcontroller_registry.deployment d SET heard_in = m.history FROM dbcontroller_registry.meta m
WHERE d.service = $1 AND d.region = $2 AND d.heard_in <> m.history`

	// Deployments that have run and are not disabled. An empty history, before the first server that begins
	// one, has been heard of.
	unheardSQL = `
SELECT r.service || '/' || r.region FROM dbcontroller_registry.deployment r, dbcontroller_registry.meta m
WHERE ` + unheardOfSQL + ` ORDER BY 1`

	unheardOfSQL = runsSQL + ` AND r.heard_in <> m.history`
)

// hear notes that a deployment has reported its revision since the present part of the history began.
func (s *store) hear(ctx context.Context, from schema.DeploymentID) error {
	if _, err := s.pool.Exec(ctx, heardSQL, from.Service, from.Region); err != nil {
		return fmt.Errorf("record the report of %s: %w", from, err)
	}
	return nil
}

// complete reads whether deployments may be missing in an environment, and the present history.
func complete(ctx context.Context, tx pgx.Tx, env *schema.Environment) error {
	if err := tx.QueryRow(ctx, selectHistorySQL).Scan(&env.History); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, incompleteSQL).Scan(&env.Incomplete); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, unheardSQL)
	if err != nil {
		return err
	}
	env.Unheard, err = pgx.CollectRows(rows, pgx.RowTo[string])
	env.Incomplete = env.Incomplete || len(env.Unheard) > 0
	return err
}
