package gate

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// A certificate alone stops nothing: a deployment that is neither in the environment nor has rows here, and whose service may not refer to this one,
// is a stranger. Its epochs are refused, and deletions do not wait for it.

// listed reports whether a deployment is in the last environment, or any described version of its service may refer to resources
// here. Before the first environment nobody is known to be a stranger.
func (s *Gate) listed(who schema.DeploymentID) bool {
	env := s.environment.Load()
	if env == nil || env.MayRefer(who.Service, s.Self.Service) {
		return true
	}
	return slices.ContainsFunc(env.Deployments, func(d schema.Deployment) bool { return d.DeploymentID == who })
}

// hasRowsSQL: it has or had references in either direction, or owners.
const hasRowsSQL = `
SELECT ` + relatedSQL + `
    OR EXISTS (SELECT FROM dbcontroller.blockade WHERE deployment_id = d.id)
    OR EXISTS (SELECT FROM dbcontroller.holder_entry WHERE deployment_id = d.id)
    OR EXISTS (SELECT FROM dbcontroller.notice WHERE deployment_id = d.id)
FROM dbcontroller.deployment d WHERE d.id = $1`

// checkStranger fails with *UnavailableError for a stranger. The registry may list it later: the refusal is not definite.
func (s *Gate) checkStranger(ctx context.Context, tx pgx.Tx, who schema.DeploymentID, id int32) error {
	if s.listed(who) {
		return nil
	}
	var related bool
	if err := tx.QueryRow(ctx, hasRowsSQL, id).Scan(&related); err != nil || related {
		return err
	}
	s.reportStranger(who)
	return &peer.UnavailableError{Deployments: []schema.DeploymentID{s.Self}, Err: errors.New(
		who.String() + " is not in the environment that this deployment last received from the registry, and has nothing here")}
}

// awaitIfConcerned makes recovery wait for a deployment that has called but was unknown when the recovery of the present epoch
// started, unless it is a stranger. Before the first environment of this process that is unknown: the call is refused and repeated.
func (s *Gate) awaitIfConcerned(ctx context.Context, who schema.DeploymentID, id int32) error {
	env := s.environment.Load()
	switch {
	case env == nil:
		return s.RecoveringSelf()
	case env.MayRefer(who.Service, s.Self.Service):
		return s.awaitPeer(ctx, id)
	case !s.listed(who):
		s.reportStranger(who)
	}
	return nil
}

func (s *Gate) reportStranger(who schema.DeploymentID) {
	if _, known := s.strangers.LoadOrStore(who, true); !known {
		s.Log.Warn("a deployment calls that the environment does not list, and that has nothing here: nothing waits for it; if the registry has lost it, apply its description",
			zap.Stringer("deployment", who))
	}
}
