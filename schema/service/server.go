// Package service has the gRPC services of a deployment over its constraint store. All services are
// registered in one function (register), all methods are in one policy table (policy), and all errors become
// statuses in one function (outcome.Status).
//
// Each handler declares the small interfaces of the store that it uses; the constructors fill them with the
// rooms of the *shadow.Store of Config. Interceptors run in this order: bounds of errors, request ids,
// panics, deadlines, decommissionCheck, the identity of forwarded calls, lanes, costs, the policy,
// databaseCheck, forwarding, access (the rights by resource).
package service

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha" // most clients use it
	"google.golang.org/grpc/tap"

	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/internal/trace"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/costs"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/schema/shadow"
)

// people may use the services for people.
var people = []identity.Role{identity.RoleUser, identity.RoleOperator}

// policy has the roles of each method that a deployment serves.
var policy = identity.Policy{
	resourcev1.ResourceService_GetResource_FullMethodName:          people,
	resourcev1.ResourceService_ListResources_FullMethodName:        people,
	resourcev1.ResourceService_CreateResource_FullMethodName:       people,
	resourcev1.ResourceService_UpdateResource_FullMethodName:       people,
	resourcev1.ResourceService_PutResource_FullMethodName:          people,
	resourcev1.ResourceService_UndeleteResource_FullMethodName:     people,
	resourcev1.ResourceService_DeleteResource_FullMethodName:       people,
	resourcev1.ResourceService_BatchDeleteResources_FullMethodName: people,
	resourcev1.ResourceService_WatchResources_FullMethodName:       people,
	resourcev1.ResourceService_ListReferrers_FullMethodName:        people,

	resourcev1.ResourceService_AcquireDelegations_FullMethodName:        people,
	resourcev1.ResourceService_BatchGetResources_FullMethodName:         people,
	resourcev1.ResourceService_BatchWriteResources_FullMethodName:       people,
	resourcev1.ResourceService_MutateAndValidateResource_FullMethodName: people,
	resourcev1.ResourceService_PlanDeletion_FullMethodName:              people,
	resourcev1.ResourceService_SetBlockDeletion_FullMethodName:          people, // users need the right to operate

	resourcev1.ResourceService_UpdateResourceStatus_FullMethodName: people,
	// users need to be the holder, or the right to operate
	resourcev1.ResourceService_RemoveFinalizer_FullMethodName: people,

	adminv1.AdminService_Status_FullMethodName:        people,
	adminv1.AdminService_Explain_FullMethodName:       people,
	adminv1.AdminService_ListDeletions_FullMethodName: people,
	adminv1.AdminService_Decommission_FullMethodName:  {identity.RoleOperator},

	adminv1.AdminService_AcceptDatabase_FullMethodName:  {identity.RoleOperator},
	adminv1.AdminService_WaiveComparison_FullMethodName: {identity.RoleOperator},

	adminv1.AdminService_ListStuck_FullMethodName: people,
	adminv1.AdminService_Pause_FullMethodName:     {identity.RoleOperator},
	adminv1.AdminService_Resume_FullMethodName:    {identity.RoleOperator},

	adminv1.AdminService_Retry_FullMethodName:          {identity.RoleOperator},
	adminv1.AdminService_ListReleasable_FullMethodName: {identity.RoleOperator},
	adminv1.AdminService_ForceRelease_FullMethodName:   {identity.RoleOperator},

	adminv1.AdminService_Verify_FullMethodName:       {identity.RoleOperator},
	adminv1.AdminService_ListRemovals_FullMethodName: {identity.RoleOperator},
	adminv1.AdminService_Purge_FullMethodName:        {identity.RoleOperator},

	schemav1.SchemaService_EstablishReferences_FullMethodName: {
		identity.RoleDeployment,
		identity.RoleApplication,
	},
	schemav1.SchemaService_ConfirmBlockades_FullMethodName: {identity.RoleDeployment},
	schemav1.SchemaService_ResolveBlockades_FullMethodName: {
		identity.RoleDeployment,
		identity.RoleApplication,
	},
	schemav1.SchemaService_RecallDelegations_FullMethodName: {
		identity.RoleDeployment,
		identity.RoleApplication,
	},
	schemav1.SchemaService_ReleaseBlockades_FullMethodName:              {identity.RoleDeployment},
	schemav1.SchemaService_WatchImportedServiceDeletions_FullMethodName: {identity.RoleDeployment},
	schemav1.SchemaService_AcknowledgeDeletions_FullMethodName:          {identity.RoleDeployment},
	schemav1.SchemaService_PlanDeletion_FullMethodName: {
		identity.RoleDeployment,
		identity.RoleApplication,
	},
	schemav1.SchemaService_WatchResourceShadows_FullMethodName: {identity.RoleDeployment},
	schemav1.SchemaService_TraceCascades_FullMethodName: {
		identity.RoleDeployment,
		identity.RoleApplication,
	},
	schemav1.SchemaService_CheckOwners_FullMethodName:            {identity.RoleDeployment},
	schemav1.SchemaService_DropOwners_FullMethodName:             {identity.RoleDeployment},
	schemav1.SchemaService_AnnounceEpoch_FullMethodName:          {identity.RoleDeployment},
	schemav1.SchemaService_GetEpoch_FullMethodName:               {identity.RoleDeployment},
	schemav1.SchemaService_ConfirmEpoch_FullMethodName:           {identity.RoleDeployment},
	schemav1.SchemaService_CheckReferences_FullMethodName:        {identity.RoleDeployment},
	schemav1.SchemaService_UpgradeOwnerReferences_FullMethodName: {identity.RoleDeployment},
	schemav1.SchemaService_ListResourceShadows_FullMethodName: {
		identity.RoleDeployment,
		identity.RoleOperator,
	},
	schemav1.SchemaService_ListBlockades_FullMethodName: {
		identity.RoleDeployment,
		identity.RoleOperator,
	},

	healthv1.Health_Check_FullMethodName: identity.Anybody,
	healthv1.Health_Watch_FullMethodName: identity.Anybody,
	healthv1.Health_List_FullMethodName:  identity.Anybody,

	// With Config.Reflection.
	reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName:      people,
	reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: people,
}

// Config of the services of one deployment.
type Config struct {
	Store   *shadow.Store
	Peers   *peers.Peers
	Logger  *zap.Logger
	GRPC    GRPC
	Callers Callers
	Process Process
	// Deleted is called with the result of each delete of a user; may be nil.
	Deleted func(result outcome.DeleteResult, took time.Duration)
	written *costs.Written // nil: nothing is counted
}

// GRPC has the parts of the gRPC server.
type GRPC struct {
	Credentials *identity.Credentials
	Health      healthv1.HealthServer
	// Reflection serves gRPC reflection, for clients without the .proto files.
	Reflection bool
	// Unary and Stream are further interceptors, such as counters of calls.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor
	// Memory is of the requests and answers of all callers together, in bytes; 0: 512 MiB.
	Memory int64
}

// Callers has the proofs and the limits of callers. Their rights are the grants of the environment.
type Callers struct {
	// Tokens verifies the tokens of people; nil: every person needs a certificate.
	Tokens access.Tokens
	// Authorizer is the authorization service that is asked beside the grants of the environment; nil for
	// none.
	Authorizer access.Authorizer
	// AuditLog records calls; nil: none.
	AuditLog *auditlog.Log
	// MaxWritten is the number of bytes that one person may write in an hour; 0: costs.DefaultMaxWritten.
	MaxWritten int64
	// Refused is called for each connection and call that is refused because the caller has too many; may be
	// nil.
	Refused func(what string, who identity.Identity)
}

// Process has the state of the process, for Status.
type Process struct {
	// Watches returns the watches of the process; nil for none.
	Watches func() []Watch
	// NotReady returns the checks of readiness that fail at the process; nil: none does.
	NotReady func() []NotReady
	// Failures returns the last failure of each handler and deployment; nil for none.
	Failures func() []Failure
}

// Server has the services of one deployment: on a gRPC server for listeners, and on in-process channels.
type Server struct {
	*grpc.Server
	Channels *Channels
	Written  *costs.Written // of Callers.MaxWritten
}

// NewServer registers all services, on the gRPC server and on the in-process channels, which Peers uses from
// then on. It fails when a method is missing in the policy.
func NewServer(cfg Config) (*Server, error) {
	cfg.Logger, _ = postgres.LogOutageOnce(cfg.Logger)
	forward := newForwarder(cfg)
	decommissioned := decommissionCheck{cfg.Store.Gate} // before actFor: it is about the deployment that forwards
	databases := databaseCheck{cfg.Store.Deployment(), cfg.Store.Gate}
	rights := newAccess(cfg)
	lanes, written := callers{refusals(cfg), cfg.Store.Standby}, costs.NewWritten(cfg.Callers.MaxWritten,
		cfg.Callers.Refused)
	cfg.written = written
	unary := append(slices.Clone(cfg.GRPC.Unary), decommissioned.Unary, forward.actForUnary, lanes.Unary,
		costs.New(cfg.Callers.Refused).Unary)
	stream := append(slices.Clone(cfg.GRPC.Stream), decommissioned.Stream, forward.actForStream, lanes.Stream)
	server := grpc.NewServer(append(ServerOptions(Guard{
		Credentials: cfg.GRPC.Credentials, Policy: policy,
		Tokens: verifier(cfg.Callers.Tokens), Refused: cfg.Callers.Refused, Memory: cfg.GRPC.Memory,
		Logger: cfg.Logger,
	}, unary, stream),
		// These run after the policy.
		grpc.ChainUnaryInterceptor(databases.Unary, applicationRelay{
			cfg.Store.Deployment(), cfg.Peers,
			costs.NewPlaces(maxRelayed, maxRelayedOfAll),
			cfg.Logger,
		}.Unary, rights.Operate, forward.Unary, rights.Unary, written.Unary), grpc.ChainStreamInterceptor(
			databases.Stream, forward.Stream, rights.Stream))...)
	register(Weighed(server), cfg)
	healthv1.RegisterHealthServer(Weighed(server), cfg.GRPC.Health)
	if cfg.GRPC.Reflection {
		reflection.Register(server)
	}
	channels := newChannels(cfg)
	cfg.Peers.SetKnown(cfg.Store.Gate, cfg.Store.Targets)
	cfg.Peers.SetPositions(cfg.Store.Follow)
	return &Server{Server: server, Channels: channels, Written: written}, policy.Covers(server)
}

// refusals returns the configured function for refused calls, never nil.
func refusals(cfg Config) func(what string, who identity.Identity) {
	if cfg.Callers.Refused == nil {
		return func(string, identity.Identity) {}
	}
	return cfg.Callers.Refused
}

func newAccess(cfg Config) *access.Access {
	return access.New(access.Config{
		Deployment: cfg.Store.Deployment(), Environments: cfg.Peers, Outside: cfg.Callers.Authorizer,
		Tokens: cfg.Callers.Tokens, Credentials: cfg.GRPC.Credentials, Logger: cfg.Logger,
		AuditLog:        cfg.Callers.AuditLog,
		FinalizerHolder: finalizerHolder(cfg.Store), TokenKeys: cfg.Store.Gate.TokenKeys,
	})
}

// verifier returns a nil interface for nil tokens.
func verifier(tokens access.Tokens) identity.TokenVerifier {
	if tokens == nil {
		return nil
	}
	return tokens
}

// register registers the services of a deployment on the gRPC server or on an in-process channel.
func register(to grpc.ServiceRegistrar, cfg Config) {
	resourcev1.RegisterResourceServiceServer(to, newResources(cfg))
	adminv1.RegisterAdminServiceServer(to, newAdmin(cfg))
	schemav1.RegisterSchemaServiceServer(to, newSchemas(cfg))
}

// Limits of one caller. docs/access.md has the table of all limits.
const (
	// maxConnections is the number of connections of one identity, maxCalls the number of its calls in
	// progress on all connections together, watches included.
	maxConnections = 64
	maxCalls       = 250
	// maxForwarding is the number of calls that a deployment forwards, for all persons together.
	maxForwarding = 1000
	// maxForwarded is the number of calls of a deployment that may be forwarded for the same person.
	maxForwarded = 100
	// streamWorkers is the number of goroutines that calls share: a stack that has run a call is large enough
	// for the next one. Further calls have goroutines of their own.
	streamWorkers = 32
	// maxHeaderBytes bounds the headers of a call.
	maxHeaderBytes = 16 << 10
	// handshakeTimeout bounds the time until the certificate of a new connection is verified.
	handshakeTimeout = 10 * time.Second
	// connectionAge is the time for which a connection accepts calls: certificates are verified only when it
	// begins. connectionGrace is the time that calls in progress still have; watches go on with their tokens
	// on another connection.
	connectionAge   = time.Hour
	connectionGrace = 5 * time.Minute
	// callTimeout is the deadline of a call without one, or with a later one. Watches and verify have none.
	callTimeout = time.Minute
)

// Guard has the access rules of a listener: certificates, policy, and the report of refusals.
type Guard struct {
	Credentials *identity.Credentials
	Policy      identity.Policy
	// Tokens verifies the tokens of people, who then need no certificate; nil: every person needs one.
	Tokens identity.TokenVerifier
	// Refused is called for each connection and call that is refused because the caller has too many; may be
	// nil.
	Refused func(what string, who identity.Identity)
	// Memory is of the requests and answers of all callers together, in bytes; 0: 512 MiB.
	Memory int64
	Logger *zap.Logger
}

// uncompressed refuses compressed requests: decompressed, they take a thousand times the memory of the
// received bytes, before the request is known and counts.
type uncompressed struct{}

func (uncompressed) Type() string { return "gzip" }

func (uncompressed) Do(io.Reader) ([]byte, error) {
	return nil, errors.New("compressed requests are not accepted: send them as they are")
}

// ServerOptions returns the options of every listener: certificates, the policy, bounds of messages,
// connections and calls, and pings that notice dead connections.
func ServerOptions(g Guard, unary []grpc.UnaryServerInterceptor,
	stream []grpc.StreamServerInterceptor,
) []grpc.ServerOption {
	limiter := identity.NewLimiter(identity.Limits{
		Connections: maxConnections, Calls: maxCalls, Forwarding: maxForwarding, Forwarded: maxForwarded,
		Memory: g.Memory,
	}, g.Refused)
	creds := g.Credentials.Server(limiter)
	if g.Tokens != nil {
		creds = g.Credentials.ServerForTokens(limiter)
	}
	return append(trace.Server(),
		grpc.Creds(creds),
		grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
			ctx, err := identity.Authenticate(ctx, info.Header, g.Tokens)
			if err != nil {
				return ctx, err
			}
			return limiter.Tap(ctx, info)
		}),
		// The outermost interceptors, so that no request can end the process.
		grpc.ChainUnaryInterceptor(
			append(append([]grpc.UnaryServerInterceptor{
				identity.Memory{}.Unary, outcome.BoundedUnary,
				requestid.Unary(g.Logger), recovery.UnaryServerInterceptor(),
				withDeadline,
			}, unary...), g.Policy.Unary)...),
		grpc.ChainStreamInterceptor(
			append(append([]grpc.StreamServerInterceptor{
				identity.Memory{}.Stream, outcome.BoundedStream,
				requestid.Stream(g.Logger), recovery.StreamServerInterceptor(),
			}, stream...), g.Policy.Stream)...),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 20 * time.Second, Timeout: 5 * time.Second, MaxConnectionAge: connectionAge,
			MaxConnectionAgeGrace: connectionGrace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             10 * time.Second,
			PermitWithoutStream: true,
		}),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(maxForwarding),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxRecvMsgSize(identity.MaxRequestBytes),
		grpc.RPCDecompressor(uncompressed{}), //nolint:staticcheck // there is no other way to refuse a codec that an exporter of traces has registered
		// Bytes that a call may send before its request is read, and buffers of connections.
		grpc.StaticStreamWindowSize(identity.WindowBytes), grpc.StaticConnWindowSize(16*identity.WindowBytes),
		grpc.ReadBufferSize(16<<10),
		grpc.StatsHandler(identity.Memory{}), grpc.ForceServerCodecV2(identity.Codec()),
	)
}

// defaultDeadlines are the methods for which the store sets a deadline when the caller has none.
var defaultDeadlines = []string{
	resourcev1.ResourceService_CreateResource_FullMethodName, resourcev1.ResourceService_UpdateResource_FullMethodName,
	resourcev1.ResourceService_PutResource_FullMethodName,
	resourcev1.ResourceService_BatchWriteResources_FullMethodName,
	resourcev1.ResourceService_MutateAndValidateResource_FullMethodName,
	resourcev1.ResourceService_DeleteResource_FullMethodName,
	resourcev1.ResourceService_BatchDeleteResources_FullMethodName,
	resourcev1.ResourceService_UndeleteResource_FullMethodName, resourcev1.ResourceService_PlanDeletion_FullMethodName,
}

// withDeadline bounds a call by callTimeout.
func withDeadline(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, ok := ctx.Deadline(); !ok && slices.Contains(defaultDeadlines, info.FullMethod) {
		return handler(ctx, req)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return handler(ctx, req)
}
