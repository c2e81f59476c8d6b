package service

import (
	"context"
	"slices"
	"strings"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/costs"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/service/peers"
)

// applicationRelay makes the calls of an application of this service to other deployments. The application
// has the database of this deployment and no key of it: other deployments see this one.
type applicationRelay struct {
	self   schema.DeploymentID
	peers  connector
	places *costs.Places
	log    *zap.Logger
}

// Other deployments count the calls of applications as calls of this deployment, which needs most of its
// maxCalls there itself: for confirms, watches, and its people. A further call waits.
const (
	maxRelayed      = 50  // of one application
	maxRelayedOfAll = 100 // of all applications together
)

// connector connects to other deployments, and to this one.
type connector interface {
	Conn(id schema.DeploymentID) (grpc.ClientConnInterface, error)
}

// relayed are the methods that a write or a delete needs.
var relayed = []string{
	schemav1.SchemaService_EstablishReferences_FullMethodName,
	schemav1.SchemaService_ResolveBlockades_FullMethodName, schemav1.SchemaService_RecallDelegations_FullMethodName,
	schemav1.SchemaService_PlanDeletion_FullMethodName, schemav1.SchemaService_TraceCascades_FullMethodName,
}

// Unary runs after the policy.
func (r applicationRelay) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	who, err := identity.FromContext(ctx)
	if err != nil || who.Role != identity.RoleApplication || !slices.Contains(relayed, info.FullMethod) {
		return handler(ctx, req)
	}
	if who.ServiceOf() != r.self.Service {
		return nil, status.Errorf(codes.PermissionDenied, "%s is no application of %s", who, r.self.Service)
	}
	to, err := schema.ParseDeploymentID(strings.Join(metadata.ValueFromIncomingContext(ctx, peers.RelayKey), " "))
	if err != nil {
		return nil, outcome.Status(r.log, outcome.Invalid(peers.RelayKey, err))
	}
	conn, err := r.peers.Conn(to)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	out, err := responseOf(info.FullMethod)
	if err != nil {
		return nil, outcome.Status(r.log, err)
	}
	leave, err := r.places.Enter(ctx, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := conn.Invoke(ctx, info.FullMethod, req, out); err != nil {
		return nil, err
	}
	return out, nil
}
