package gate

import (
	"context"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// A certificate alone stops nothing: a deployment that is not in the environment, and that has nothing here,
// is a stranger. Its calls are refused, deletions do not wait for it, and no row is stored for it. A restored
// database and a restored registry can both have lost a deployment with references to resources here; it
// opens its watch of deletions with a position that this database has issued to it, which no stranger has.

// listed reports whether a deployment is in the last environment. Before the first one no deployment is known
// to be a stranger.
func (s *Gate) listed(who schema.DeploymentID) bool {
	newest, recovered := s.newest(), s.environment.Load()
	return newest == nil || lists(newest, who) || recovered != nil && lists(recovered, who)
}

// hasRowsSQL: it has or had references in either direction, or owners, or is decommissioned.
const hasRowsSQL = `
SELECT EXISTS (
    SELECT FROM dbcontroller.deployment d WHERE service = $1 AND region = $2 AND (
        ` + relatedSQL + `
        OR EXISTS (SELECT FROM dbcontroller.blockade WHERE deployment_id = d.id)
        OR EXISTS (SELECT FROM dbcontroller.holder_entry WHERE deployment_id = d.id)
        OR EXISTS (SELECT FROM dbcontroller.notice WHERE deployment_id = d.id)
        OR EXISTS (SELECT FROM dbcontroller.decommissioned WHERE deployment_id = d.id)
    )
)`

// CheckCaller fails with *UnavailableError and ErrStranger for a stranger. The registry may list it later:
// the refusal is not definite.
func (s *Gate) CheckCaller(ctx context.Context, who schema.DeploymentID) error {
	if _, checked := s.checkedDatabases.Load(who); checked || s.listed(who) {
		return nil
	}
	var hasRows bool
	if err := s.Pool.QueryRow(ctx, hasRowsSQL, who.Service, who.Region).Scan(&hasRows); err != nil || hasRows {
		return err
	}
	if _, known := s.strangers.LoadOrStore(who, true); !known {
		s.Log.Warn(
			"a deployment calls that the environment does not list, and that has nothing here: it is refused, and nothing waits for it; "+
				"if the registry has lost it, apply its description", zap.Stringer("deployment", who),
			requestid.Field(ctx))
	}
	return &peer.UnavailableError{Deployments: []schema.DeploymentID{s.Self}, Err: peer.StrangerError(who)}
}

// Readmit makes recovery wait for a stranger that has shown a position which this database has issued to it:
// the database has lost it. It returns false when the database has lost nothing; then the deployment has
// nothing here.
func (s *Gate) Readmit(ctx context.Context, who schema.DeploymentID) (bool, error) {
	ctx = postgres.InControl(ctx) // the recovery is work of the process, and needs its login
	var mayHaveLost bool
	if err := s.Pool.QueryRow(ctx, `SELECT `+mayHaveLostSQL+` FROM dbcontroller.meta m`).
		Scan(&mayHaveLost); err != nil || !mayHaveLost {
		return false, err
	}
	id, err := s.Names.Deployment(ctx, who)
	if err != nil {
		return false, err
	}
	s.Log.Warn(
		"a deployment that neither the environment nor this database knows has shown a position of this database: nothing is deleted until it has compared its references; "+
			"apply its description, so that it can be called, or end the wait (db-controller force-release --comparison-of)", zap.Stringer("deployment", who), requestid.Field(ctx))
	if err := s.awaitPeer(ctx, id); err != nil {
		return false, err
	}
	if database, sent := ctx.Value(peer.CallerDatabase{}).(uuid.UUID); sent {
		err = s.CheckDatabase(ctx, who, database)
	}
	return true, err
}

// awaitIfConcerned makes recovery wait for a deployment that has called but was unknown when the recovery of
// the present epoch started, and is no stranger. Before the first environment of this process that is
// unknown: the call is refused and repeated. Of a deployment that is not listed it is unknown whether it
// refers to resources here.
func (s *Gate) awaitIfConcerned(ctx context.Context, who schema.DeploymentID, id int32) error {
	env := s.environment.Load()
	if env == nil {
		return s.RecoveringSelf()
	}
	if s.listed(who) && !env.MayRefer(who.Service, s.Self.Service) {
		return nil
	}
	return s.awaitPeer(ctx, id)
}
