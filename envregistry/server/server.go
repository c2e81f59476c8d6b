// Package server is the environment registry, over PostgreSQL. Several servers may run over one database: all
// state is there, and a watch reads it again after a change by its own server, and at least every second.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha" // most clients use it
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/address"
	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// Policy has every method of the registry.
var Policy = identity.Policy{
	registryv1.RegistryService_Apply_FullMethodName:                  {identity.RoleOperator},
	registryv1.RegistryService_Remove_FullMethodName:                 {identity.RoleOperator},
	registryv1.RegistryService_SetDeploymentVersion_FullMethodName:   {identity.RoleOperator},
	registryv1.RegistryService_DecommissionDeployment_FullMethodName: {identity.RoleOperator},
	registryv1.RegistryService_AcceptDatabase_FullMethodName:         {identity.RoleOperator},
	registryv1.RegistryService_ListRevisions_FullMethodName:          {identity.RoleOperator},
	registryv1.RegistryService_GetEnvironment_FullMethodName:         identity.Anybody,
	registryv1.RegistryService_WatchEnvironment_FullMethodName:       identity.Anybody,
	registryv1.RegistryService_RegisterDeployment_FullMethodName:     {identity.RoleDeployment},

	healthv1.Health_Check_FullMethodName: identity.Anybody,
	healthv1.Health_Watch_FullMethodName: identity.Anybody,
	healthv1.Health_List_FullMethodName:  identity.Anybody,

	// Where it is registered.
	reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName:      {identity.RoleUser, identity.RoleOperator},
	reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: {identity.RoleUser, identity.RoleOperator},
}

// Server is the RegistryService.
type Server struct {
	registryv1.UnimplementedRegistryServiceServer
	store *store
	pace  *pace
	audit *auditlog.Log // nil: none
	// authorities verify the signatures of operators; nil: none is accepted.
	authorities *identity.Credentials
	log         *zap.Logger
	// followers is the number of watches that are served.
	followers atomic.Int64
}

// New makes a server over a migrated database. The audit log, which may be nil, records changes. The
// authorities verify the signatures of operators; nil accepts none.
func New(pool *pgxpool.Pool, audit *auditlog.Log, authorities *identity.Credentials, log *zap.Logger) *Server {
	log, _ = postgres.LogOutageOnce(log)
	return &Server{store: newStore(pool), pace: newPace(), audit: audit, authorities: authorities, log: log}
}

func (s *Server) fail(err error) error {
	var problems schema.Problems
	switch {
	case err == nil:
		return nil
	case errors.As(err, &problems):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, errUnknownDeployment):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, feed.ErrReset):
		return status.Error(codes.OutOfRange, err.Error())
	case errors.Is(err, feed.ErrUnnoticed):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, feed.ErrSlow):
		return status.Error(codes.Aborted, err.Error())
	case errors.Is(err, errSuperseded), errors.Is(err, errDecommissioned):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	out := &requestid.Fault{
		Log: s.log, Level: zap.ErrorLevel, Message: "request failed", Cause: err,
		Told: status.Error(codes.Internal, "internal error: the registry's log says more"),
	}
	if postgres.Unavailable(err) || postgres.Busy(err) {
		out.Level, out.Message = zap.WarnLevel, "a request needs the database"
		out.Told = status.Error(codes.Unavailable, "the registry's database is unavailable: try again")
	}
	return out
}

// Apply sets the given regions, services, deployments and rights, and leaves all others. The result is
// checked as a whole.
func (s *Server) Apply(ctx context.Context, req *registryv1.ApplyRequest) (*registryv1.ApplyResponse, error) {
	in := wire.Environment(&registryv1.Environment{
		Regions: req.GetRegions(), Services: req.GetServices(),
		Deployments: req.GetDeployments(), Rights: req.GetRights(),
	})
	by, err := s.author(ctx, "Apply", "")
	if err != nil {
		return nil, err
	}
	changes, err := s.store.change(ctx, change{
		by: by, unused: patternsOf(req.GetPatternsUnused()),
		validateOnly: req.GetValidateOnly(), vouches: in.Deployments, edit: applied(in),
	})
	if err == nil && !req.GetValidateOnly() {
		err = s.store.vouch(ctx, in.Deployments)
	}
	if err != nil {
		return nil, s.fail(err)
	}
	return &registryv1.ApplyResponse{Changes: changes}, nil
}

// GetEnvironment returns the whole environment; to a person, of the rights the own ones.
func (s *Server) GetEnvironment(ctx context.Context,
	req *registryv1.GetEnvironmentRequest,
) (*registryv1.GetEnvironmentResponse, error) {
	if _, err := s.check(ctx, seen{req.GetSeenRevision(), req.GetSeenHistory()}); err != nil {
		return nil, s.fail(err)
	}
	env, err := s.store.read(ctx)
	if err == nil {
		env.History, err = s.store.stamp(ctx, seen{env.Revision, env.History})
	}
	if err != nil {
		return nil, s.fail(err)
	}
	out := &registryv1.GetEnvironmentResponse{
		Environment: wire.EnvironmentProto(env), Incomplete: env.Incomplete,
		Unheard: env.Unheard,
	}
	all := out.GetEnvironment().GetRights()
	if out.Environment.Rights, err = visible(ctx, out.GetEnvironment().GetRights()); err != nil {
		return nil, s.fail(err)
	}
	out.OwnGrantsOnly = out.GetEnvironment().GetRights() != all
	return out, nil
}

// SetDeploymentVersion switches a deployment to another described version.
func (s *Server) SetDeploymentVersion(ctx context.Context,
	req *registryv1.SetDeploymentVersionRequest,
) (*registryv1.Deployment, error) {
	id := schema.DeploymentID{Service: req.GetService(), Region: req.GetRegion()}
	by, err := s.author(ctx, "SetDeploymentVersion", "")
	if err != nil {
		return nil, err
	}
	_, err = s.store.change(ctx, change{
		by: by, unused: patternsOf(req.GetPatternsUnused()),
		edit: func(env *schema.Environment) error {
			d := find(env, id)
			if d == nil {
				return fmt.Errorf("%w: %s", errUnknownDeployment, id)
			}
			d.Version = req.GetVersion()
			return nil
		},
	})
	if err != nil {
		return nil, s.fail(err)
	}
	return s.deployment(ctx, id)
}

// RegisterDeployment stores the address of the caller's own deployment.
func (s *Server) RegisterDeployment(ctx context.Context,
	req *registryv1.RegisterDeploymentRequest,
) (*registryv1.Deployment, error) {
	id := schema.DeploymentID{Service: req.GetService(), Region: req.GetRegion()}
	who, err := identity.FromContext(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if who.Deployment != id {
		return nil, status.Errorf(codes.PermissionDenied, "%s may not register %s", who, id)
	}
	if err := s.pace.check(id); err != nil {
		return nil, err
	}
	if err := address.Check(req.GetAddress()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	database, err := databaseOf(req.GetDatabase())
	if err != nil {
		return nil, err
	}
	_, err = s.store.change(ctx, change{edit: func(env *schema.Environment) error {
		d := find(env, id)
		if d == nil {
			gone, err := decommissioned(ctx, s.store.pool)
			if err == nil && gone[id] != "" {
				err = fmt.Errorf("%w: %s", errDecommissioned, gone[id])
			}
			return cmp.Or(err, fmt.Errorf("%w: %s: apply a file that lists it under deployments",
				errUnknownDeployment, id))
		}
		d.Database = cmp.Or(d.Database, database) // another one needs an operator: AcceptDatabase
		return register(d, req.GetAddress(), req.GetGeneration())
	}})
	if err != nil {
		return nil, s.fail(err)
	}
	return s.deployment(ctx, id)
}

// register sets the address of a deployment, if the generation is the next one: otherwise another process has
// registered since the caller read the environment.
func register(d *schema.Deployment, address string, generation int64) error {
	switch {
	case d.Address == address && generation == d.Generation:
		return nil // repeated
	case generation != d.Generation+1:
		return fmt.Errorf(
			"%w: the registration of %s has generation %d, at %q: read the environment, and register with the next one",
			errSuperseded, d.DeploymentID, d.Generation, d.Address)
	}
	d.Address, d.Generation = address, generation
	return nil
}

// databaseOf parses the identity of a database; uuid.Nil for none.
func databaseOf(s string) (uuid.UUID, error) {
	if s == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return uuid.Nil, status.Error(codes.InvalidArgument, "database: want the identity of a database, a UUID")
	}
	return id, nil
}

// AcceptDatabase stores that another database has replaced a deployment's database for good. A repeated call
// changes nothing.
func (s *Server) AcceptDatabase(ctx context.Context,
	req *registryv1.AcceptDatabaseRequest,
) (*registryv1.Deployment, error) {
	id := schema.DeploymentID{Service: req.GetService(), Region: req.GetRegion()}
	database, err := databaseOf(req.GetDatabase())
	if err == nil && database == uuid.Nil {
		err = status.Error(codes.InvalidArgument, "database: want the identity of the new database, a UUID")
	}
	if err != nil {
		return nil, err
	}
	by, err := s.author(ctx, "AcceptDatabase", "")
	if err == nil {
		err = s.approved(ctx, by, req)
	}
	if err != nil {
		return nil, err
	}
	_, err = s.store.change(ctx, change{by: by, edit: func(env *schema.Environment) error {
		d := find(env, id)
		if d == nil {
			return fmt.Errorf("%w: %s", errUnknownDeployment, id)
		}
		d.Database = database
		return nil
	}})
	if err != nil {
		return nil, s.fail(err)
	}
	return s.deployment(ctx, id)
}

func (s *Server) deployment(ctx context.Context, id schema.DeploymentID) (*registryv1.Deployment, error) {
	env, err := s.store.read(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	if d := find(env, id); d != nil {
		return wire.DeploymentProto(*d), nil
	}
	return nil, s.fail(fmt.Errorf("%w: %s", errUnknownDeployment, id))
}

func find(env *schema.Environment, id schema.DeploymentID) *schema.Deployment {
	for i := range env.Deployments {
		if env.Deployments[i].DeploymentID == id {
			return &env.Deployments[i]
		}
	}
	return nil
}
