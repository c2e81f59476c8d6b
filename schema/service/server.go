// Package service has the gRPC services of a deployment over its constraint store, and the connections to the services
// of others. Every service is registered in one place, every method is in one policy table, every error becomes a
// status in one function.
package service

import (
	"context"
	"slices"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha" //nolint:staticcheck // what most clients speak

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

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

	adminv1.AdminService_AcceptDatabase_FullMethodName:  {identity.RoleOperator},
	adminv1.AdminService_WaiveComparison_FullMethodName: {identity.RoleOperator},

	adminv1.AdminService_Verify_FullMethodName:       {identity.RoleOperator},
	adminv1.AdminService_ListRemovals_FullMethodName: {identity.RoleOperator},

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

	// Where Config.Reflection registers it.
	reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName:      people,
	reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: people,
}

// Config of the services of one deployment.
type Config struct {
	Store       *shadow.Store
	Peers       *Peers
	Credentials *identity.Credentials
	Health      *health.Server
	Logger      *zap.Logger
	// Reflection tells clients that were made without our .proto files which services and messages there are.
	Reflection bool
	// Unary and Stream are further interceptors, such as those that count calls.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor
	// Refused hears of connections and calls that were too many; nil for nobody.
	Refused func(what string, who identity.Identity)
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
	cfg.Logger, _ = postgres.LogOutageOnce(cfg.Logger)
	forward := &forwarder{self: cfg.Store.Deployment(), peers: cfg.Peers, log: cfg.Logger}
	barred := bar{cfg.Store} // of who calls, not of whom it speaks for
	known := acquainted{cfg.Store}
	costs := newCosts(cfg.Refused)
	unary := append(slices.Clone(cfg.Unary), barred.Unary, forward.speakUnary, costs.Unary)
	stream := append(slices.Clone(cfg.Stream), barred.Stream, forward.speakStream)
	server := grpc.NewServer(append(ServerOptions(Guard{Credentials: cfg.Credentials, Policy: policy, Refused: cfg.Refused}, unary, stream),
		// After the policy.
		grpc.ChainUnaryInterceptor(known.Unary, forward.Unary), grpc.ChainStreamInterceptor(known.Stream, forward.Stream))...)
	register(server, cfg)
	healthv1.RegisterHealthServer(server, cfg.Health)
	if cfg.Reflection {
		reflection.Register(server)
	}
	channels := newChannels(cfg, forward)
	cfg.Peers.setOwn(channels)
	cfg.Peers.speakFrom(cfg.Store)
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
	schemav1.RegisterSchemaServiceServer(to, &schemas{store: cfg.Store, mayRefer: cfg.Peers.MayRefer, disabled: cfg.Peers.Disabled, log: cfg.Logger})
}

// What one caller may have of a server. docs/security.md has the table of all limits.
const (
	// maxConnections of one identity, and maxCalls of it under way, watches included, on all of them together.
	maxConnections = 200
	maxCalls       = 1000
	// maxForwarded is how many of them a deployment forwards for one person.
	maxForwarded = 100
	// maxCostly is how many costly reads one identity may have under way, and maxCostlyWaiting how many more may wait for
	// that.
	maxCostly        = 4
	maxCostlyWaiting = 32
	// maxHeaderBytes bounds the headers of a call.
	maxHeaderBytes = 16 << 10
	// handshakeTimeout is how long a connection may take until it is known who it is.
	handshakeTimeout = 10 * time.Second
	// connectionAge is how long a connection serves, since certificates are looked at when it begins; connectionGrace is
	// for what is under way then. Watches go on with their tokens.
	connectionAge   = time.Hour
	connectionGrace = 5 * time.Minute
	// callTimeout is the deadline of a call whose caller has set none, or a later one. Watches and verify have none.
	callTimeout = time.Minute
)

// Guard is what every listener needs: certificates, the policy, and who hears of what is refused.
type Guard struct {
	Credentials *identity.Credentials
	Policy      identity.Policy
	// Refused hears of connections and calls that were too many; may be nil.
	Refused func(what string, who identity.Identity)
}

// ServerOptions are those of every listener: certificates, the policy, bounded messages, connections and calls, idle
// connections noticed.
func ServerOptions(g Guard, unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) []grpc.ServerOption {
	door := identity.NewDoor(identity.Limits{Connections: maxConnections, Calls: maxCalls, Forwarded: maxForwarded}, g.Refused)
	return []grpc.ServerOption{
		grpc.Creds(g.Credentials.Server(door)),
		grpc.InTapHandle(door.Tap),
		// Outermost, so that nothing a caller sends can end the process.
		grpc.ChainUnaryInterceptor(append(append([]grpc.UnaryServerInterceptor{boundedUnary, recovery.UnaryServerInterceptor(), withDeadline}, unary...), g.Policy.Unary)...),
		grpc.ChainStreamInterceptor(append(append([]grpc.StreamServerInterceptor{boundedStream, recovery.StreamServerInterceptor()}, stream...), g.Policy.Stream)...),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 20 * time.Second, Timeout: 5 * time.Second, MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: connectionGrace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxRecvMsgSize(identity.MaxMessageBytes),
	}
}

// defaultDeadlines are the calls whose store sets a deadline where the caller has none.
var defaultDeadlines = []string{
	resourcev1.ResourceService_CreateResource_FullMethodName, resourcev1.ResourceService_UpdateResource_FullMethodName,
	resourcev1.ResourceService_PutResource_FullMethodName, resourcev1.ResourceService_BatchWriteResources_FullMethodName,
	resourcev1.ResourceService_MutateAndValidateResource_FullMethodName, resourcev1.ResourceService_DeleteResource_FullMethodName,
	resourcev1.ResourceService_PlanDeletion_FullMethodName,
}

func withDeadline(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, ok := ctx.Deadline(); !ok && slices.Contains(defaultDeadlines, info.FullMethod) {
		return handler(ctx, req)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return handler(ctx, req)
}
