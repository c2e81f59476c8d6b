// Package service has the gRPC services of a deployment over its constraint store, and the connections to the services
// of others. Every service is registered in one place, every method is in one policy table, every error becomes a
// status in one function.
package service

import (
	"slices"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/db-controller/db-controller/schema/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// maxMessageBytes bounds a message, in either direction.
const maxMessageBytes = 16 << 20

var people = []identity.Role{identity.RoleUser, identity.RoleOperator}

// policy has every method of every service that a deployment serves.
var policy = identity.Policy{
	resourcev1.ResourceService_GetResource_FullMethodName:    people,
	resourcev1.ResourceService_ListResources_FullMethodName:  people,
	resourcev1.ResourceService_CreateResource_FullMethodName: people,
	resourcev1.ResourceService_UpdateResource_FullMethodName: people,
	resourcev1.ResourceService_PutResource_FullMethodName:    people,
	resourcev1.ResourceService_DeleteResource_FullMethodName: people,
	resourcev1.ResourceService_WatchResources_FullMethodName: people,

	resourcev1.ResourceService_BatchGetResources_FullMethodName:         people,
	resourcev1.ResourceService_BatchWriteResources_FullMethodName:       people,
	resourcev1.ResourceService_MutateAndValidateResource_FullMethodName: people,
	resourcev1.ResourceService_PlanDeletion_FullMethodName:              people,
	resourcev1.ResourceService_SetBlockDeletion_FullMethodName:          {identity.RoleOperator},

	adminv1.AdminService_Status_FullMethodName:       people,
	adminv1.AdminService_Explain_FullMethodName:      people,
	adminv1.AdminService_Decommission_FullMethodName: {identity.RoleOperator},
	adminv1.AdminService_Verify_FullMethodName:       {identity.RoleOperator},

	schemav1.SchemaService_EstablishReferences_FullMethodName:           {identity.RoleDeployment},
	schemav1.SchemaService_ConfirmBlockades_FullMethodName:              {identity.RoleDeployment},
	schemav1.SchemaService_ResolveBlockades_FullMethodName:              {identity.RoleDeployment},
	schemav1.SchemaService_ReleaseBlockades_FullMethodName:              {identity.RoleDeployment},
	schemav1.SchemaService_WatchImportedServiceDeletions_FullMethodName: {identity.RoleDeployment},
	schemav1.SchemaService_AcknowledgeDeletions_FullMethodName:          {identity.RoleDeployment},
	schemav1.SchemaService_PlanDeletion_FullMethodName:                  {identity.RoleDeployment},
	schemav1.SchemaService_WatchResourceShadows_FullMethodName:          {identity.RoleDeployment},
	schemav1.SchemaService_TraceCascades_FullMethodName:                 {identity.RoleDeployment},
	schemav1.SchemaService_CheckOwners_FullMethodName:                   {identity.RoleDeployment},
	schemav1.SchemaService_DropOwners_FullMethodName:                    {identity.RoleDeployment},
	schemav1.SchemaService_AnnounceEpoch_FullMethodName:                 {identity.RoleDeployment},
	schemav1.SchemaService_ConfirmEpoch_FullMethodName:                  {identity.RoleDeployment},
	schemav1.SchemaService_CheckReferences_FullMethodName:               {identity.RoleDeployment},
	schemav1.SchemaService_UpgradeOwnerReferences_FullMethodName:        {identity.RoleDeployment},
	schemav1.SchemaService_ListResourceShadows_FullMethodName:           {identity.RoleDeployment, identity.RoleOperator},
	schemav1.SchemaService_ListBlockades_FullMethodName:                 {identity.RoleDeployment, identity.RoleOperator},

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
	// Failures are the last ones of the handlers, for operators; nil for none.
	Failures func() []Failure
}

// Server has the services of one deployment, for all who may reach them.
type Server struct {
	// Of connections.
	*grpc.Server
	// Of this process.
	Channels *Channels
}

// NewServer registers everything, on a server for listeners and on the channels of this process, and gives Peers those.
// It fails when a method is missing in the policy.
func NewServer(cfg Config) (*Server, error) {
	forward := &forwarder{self: cfg.Store.Deployment(), peers: cfg.Peers, log: cfg.Logger}
	barred := bar{cfg.Store} // of who calls, not of whom it speaks for
	unary := append(slices.Clone(cfg.Unary), barred.Unary, forward.speakUnary)
	stream := append(slices.Clone(cfg.Stream), barred.Stream, forward.speakStream)
	server := grpc.NewServer(append(ServerOptions(cfg.Credentials, policy, unary, stream),
		// After the policy.
		grpc.ChainUnaryInterceptor(forward.Unary), grpc.ChainStreamInterceptor(forward.Stream))...)
	register(server, cfg)
	healthv1.RegisterHealthServer(server, cfg.Health)
	channels := newChannels(cfg, forward)
	cfg.Peers.setOwn(channels)
	return &Server{Server: server, Channels: channels}, policy.Covers(server)
}

// register is the one place where services are registered, whatever the channel.
func register(to grpc.ServiceRegistrar, cfg Config) {
	r := &resources{store: cfg.Store, forward: &forwarder{self: cfg.Store.Deployment(), peers: cfg.Peers, log: cfg.Logger}, log: cfg.Logger}
	failures := cfg.Failures
	if failures == nil {
		failures = func() []Failure { return nil }
	}
	resourcev1.RegisterResourceServiceServer(to, r)
	adminv1.RegisterAdminServiceServer(to, &admin{resources: r, store: cfg.Store, failures: failures, log: cfg.Logger})
	schemav1.RegisterSchemaServiceServer(to, &schemas{store: cfg.Store, mayRefer: cfg.Peers.MayRefer, log: cfg.Logger})
}

// ServerOptions are those of every listener: certificates, the policy, bounded messages, idle connections noticed.
func ServerOptions(c *identity.Credentials, p identity.Policy, unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(c.Server()),
		// Outermost, so that nothing a caller sends can end the process.
		grpc.ChainUnaryInterceptor(append(append([]grpc.UnaryServerInterceptor{recovery.UnaryServerInterceptor()}, unary...), p.Unary)...),
		grpc.ChainStreamInterceptor(append(append([]grpc.StreamServerInterceptor{recovery.StreamServerInterceptor()}, stream...), p.Stream)...),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(maxMessageBytes),
	}
}
