package server

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

const (
	decommissionSQL = `
INSERT INTO dbcontroller_registry.decommissioned (service, region, reason, said_by) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING`

	selectDecommissionedSQL = `SELECT service, region, reason, said_by, said_at FROM dbcontroller_registry.decommissioned`
)

// DecommissionDeployment removes a deployment for ever. A repeated call changes nothing.
func (s *Server) DecommissionDeployment(ctx context.Context,
	req *registryv1.DecommissionDeploymentRequest,
) (*registryv1.DecommissionDeploymentResponse, error) {
	id := schema.DeploymentID{Service: req.GetService(), Region: req.GetRegion()}
	if req.GetReason() == "" || len(req.GetReason()) > 1000 {
		return nil, status.Error(codes.InvalidArgument,
			"reason: want 1 to 1000 characters; it is stored with the decision")
	}
	by, err := s.author(ctx, "DecommissionDeployment", req.GetReason())
	if err == nil {
		err = s.approved(ctx, by, req)
	}
	if err != nil {
		return nil, err
	}
	if _, err := schema.ParseDeploymentID(id.String()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.store.decommission(ctx, id, req.GetUnlisted(), by); err != nil {
		return nil, s.fail(err)
	}
	return &registryv1.DecommissionDeploymentResponse{}, nil
}

func (s *store) decommission(ctx context.Context, id schema.DeploymentID, unlisted bool, by *author) error {
	var changes []string
	var revision int64
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		env, err := readEnvironment(ctx, tx, lockRevisionSQL)
		if err == nil {
			err = by.decides(grant.Compile(env), id)
		}
		if err != nil {
			return err
		}
		if find(env, id) == nil && !unlisted {
			gone, err := decommissioned(ctx, tx)
			if err == nil && gone[id] == "" {
				err = fmt.Errorf("%w: %s", errUnknownDeployment, id)
			}
			return err
		}
		b := &pgx.Batch{}
		b.Queue(moveRevisionSQL)
		b.Queue(removeDeploymentSQL, id.Service, id.Region)
		b.Queue(decommissionSQL, id.Service, id.Region, by.reason, by.who.Audited())
		revision, changes = env.Revision+1, []string{"deployment " + id.String() + ": decommissioned"}
		by.queue(b, revision, changes)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		by.ended(ctx, err)
	}
	if err == nil && len(changes) > 0 {
		by.changed(ctx, revision, changes)
		s.wake.Wake(environmentFeed)
	}
	return err
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// decommissioned describes for each decommissioned deployment who decommissioned it, when and why.
func decommissioned(ctx context.Context, q querier) (map[schema.DeploymentID]string, error) {
	rows, err := q.Query(ctx, selectDecommissionedSQL)
	if err != nil {
		return nil, fmt.Errorf("read the decommissioned deployments: %w", err)
	}
	out := map[schema.DeploymentID]string{}
	var id schema.DeploymentID
	var reason, by string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&id.Service, &id.Region, &reason, &by, &at}, func() error {
		out[id] = fmt.Sprintf("%s was decommissioned by %s on %s (%s)", id, by, at.UTC().Format(time.DateOnly), reason)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the decommissioned deployments: %w", err)
	}
	return out, nil
}

// notDecommissioned refuses the names of decommissioned deployments.
func notDecommissioned(ctx context.Context, q querier, deployments []schema.Deployment) error {
	gone, err := decommissioned(ctx, q)
	if err != nil {
		return err
	}
	var problems schema.Problems
	for _, d := range deployments {
		if said := gone[d.DeploymentID]; said != "" {
			problems = append(problems, schema.Problem{
				Pos: d.Pos, Message: said,
				Remedy: "its name is not used again, since other deployments remember it: give the new deployment another region",
			})
		}
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}
