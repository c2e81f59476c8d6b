// Package service has the gRPC services of a deployment over its constraint store, and the connections to the services
// of others. Every service is registered in one place, every method is in one policy table, every error becomes a
// status in one function.
package service

import (
	"context"
	"time"

	"github.com/fullstorydev/grpchan/inprocgrpc"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/db-controller/db-controller/schema/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

var people = []identity.Role{identity.RoleUser, identity.RoleOperator}

// policy has every method of every service that a deployment serves.
var policy = identity.Policy{
	resourcev1.ResourceService_GetResource_FullMethodName:       people,
	resourcev1.ResourceService_ListResources_FullMethodName:     people,
	resourcev1.ResourceService_CreateResource_FullMethodName:    people,
	resourcev1.ResourceService_UpdateResource_FullMethodName:    people,
	resourcev1.ResourceService_PutResource_FullMethodName:       people,
	resourcev1.ResourceService_BatchPutResources_FullMethodName: people,
	resourcev1.ResourceService_DeleteResource_FullMethodName:    people,
	resourcev1.ResourceService_WatchResources_FullMethodName:    people,

	schemav1.SchemaService_EstablishReferences_FullMethodName:           {identity.RoleDeployment},
	schemav1.SchemaService_ConfirmBlockades_FullMethodName:              {identity.RoleDeployment},
	schemav1.SchemaService_ResolveBlockades_FullMethodName:              {identity.RoleDeployment},
	schemav1.SchemaService_ReleaseBlockades_FullMethodName:              {identity.RoleDeployment},
	schemav1.SchemaService_WatchImportedServiceDeletions_FullMethodName: {identity.RoleDeployment},
	schemav1.SchemaService_AcknowledgeDeletions_FullMethodName:          {identity.RoleDeployment},
	schemav1.SchemaService_PlanDeletion_FullMethodName:                  {identity.RoleDeployment},
	schemav1.SchemaService_WatchResourceShadows_FullMethodName:          {identity.RoleDeployment},

	healthv1.Health_Check_FullMethodName: identity.Anybody,
	healthv1.Health_Watch_FullMethodName: identity.Anybody,
	healthv1.Health_List_FullMethodName:  identity.Anybody,
}

// Config of the services of one deployment.
type Config struct {
	Store       *shadow.Store
	Peers       *Peers
	Credentials *identity.Credentials
	Health      *health.Server
	Logger      *zap.Logger
	// Unary and Stream are further interceptors, such as those that count calls.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor
}

// NewServer registers everything, on a listener's server and on the in-process channel that Peers give for this
// deployment. It fails when a method is missing in the policy.
func NewServer(cfg Config) (*grpc.Server, error) {
	server := grpc.NewServer(ServerOptions(cfg.Credentials, policy, cfg.Unary, cfg.Stream)...)
	register(server, cfg)
	healthv1.RegisterHealthServer(server, cfg.Health)
	self := identity.Deployment(cfg.Store.Deployment())
	own := (&inprocgrpc.Channel{}).
		WithServerUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return handler(identity.NewContext(ctx, self), req)
		}).
		WithServerStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return handler(srv, &ownStream{ServerStream: ss, ctx: identity.NewContext(ss.Context(), self)})
		})
	register(own, cfg)
	cfg.Peers.setOwn(own)
	return server, policy.Covers(server)
}

// register is the one place where services are registered, whatever the channel.
func register(to grpc.ServiceRegistrar, cfg Config) {
	resourcev1.RegisterResourceServiceServer(to, &resources{store: cfg.Store, log: cfg.Logger})
	schemav1.RegisterSchemaServiceServer(to, &schemas{store: cfg.Store, mayRefer: cfg.Peers.MayRefer, log: cfg.Logger})
}

// ownStream carries the identity of an in-process call.
type ownStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream is its context
}

func (s *ownStream) Context() context.Context { return s.ctx }

// ServerOptions are those of every listener: certificates, the policy, bounded messages, idle connections noticed.
func ServerOptions(c *identity.Credentials, p identity.Policy, unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(c.Server()),
		// Outermost, so that nothing a caller sends can end the process.
		grpc.ChainUnaryInterceptor(append(append([]grpc.UnaryServerInterceptor{recovery.UnaryServerInterceptor()}, unary...), p.Unary)...),
		grpc.ChainStreamInterceptor(append(append([]grpc.StreamServerInterceptor{recovery.StreamServerInterceptor()}, stream...), p.Stream)...),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(16 << 20),
	}
}
