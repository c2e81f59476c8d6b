package service

import (
	"context"

	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// reads are the methods for people that write nothing. The statements of the others are in the lane of
// writes.
var reads = map[string]bool{
	resourcev1.ResourceService_GetResource_FullMethodName:       true,
	resourcev1.ResourceService_ListResources_FullMethodName:     true,
	resourcev1.ResourceService_ListReferrers_FullMethodName:     true,
	resourcev1.ResourceService_BatchGetResources_FullMethodName: true,
	resourcev1.ResourceService_WatchResources_FullMethodName:    true,
	resourcev1.ResourceService_PlanDeletion_FullMethodName:      true,
	adminv1.AdminService_Status_FullMethodName:                  true,
	adminv1.AdminService_Explain_FullMethodName:                 true,
	adminv1.AdminService_Verify_FullMethodName:                  true,
	adminv1.AdminService_ListRemovals_FullMethodName:            true,
	adminv1.AdminService_ListDeletions_FullMethodName:           true,
	adminv1.AdminService_ListStuck_FullMethodName:               true,
	adminv1.AdminService_ListReleasable_FullMethodName:          true,
}

// fromStandby are the reads that a standby may answer. Plans are not: a delete follows them.
var fromStandby = map[string]bool{
	resourcev1.ResourceService_GetResource_FullMethodName:       true,
	resourcev1.ResourceService_ListResources_FullMethodName:     true,
	resourcev1.ResourceService_ListReferrers_FullMethodName:     true,
	resourcev1.ResourceService_BatchGetResources_FullMethodName: true,
}

// callers assigns the statements of a call to a lane of the database's connections, and to the caller's
// identity. Calls over the in-process channels are work of the process itself.
type callers struct {
	refused func(what string, who identity.Identity)
	standby *shadow.Standby
}

// Unary runs after actForUnary: the statements of a forwarded call are the person's.
func (c callers) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	ctx, caller := c.assign(ctx, info.FullMethod, req)
	if caller.Lane == postgres.Writes || fromStandby[info.FullMethod] && !caller.Standby {
		defer c.standby.Saw(caller.Who) // a write, or a read of the latest state
	}
	return handler(ctx, req)
}

// Stream is Unary for watches.
func (c callers) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, _ := c.assign(ss.Context(), info.FullMethod, nil)
	return handler(srv, &ownStream{ServerStream: ss, ctx: ctx})
}

func (c callers) assign(ctx context.Context, method string, req any) (context.Context, postgres.Caller) {
	who, err := identity.FromContext(ctx)
	if err != nil {
		return ctx, postgres.Caller{} // the policy refuses it
	}
	caller := postgres.Caller{Lane: laneOf(who, method), Who: who, Refused: func() { c.refused("statements", who) }}
	if wants, ok := req.(interface{ GetLatest() bool }); ok && caller.Lane == postgres.Reads {
		caller.Standby = fromStandby[method] && !wants.GetLatest()
	}
	return postgres.WithCaller(ctx, caller), caller
}

func laneOf(who identity.Identity, method string) postgres.Lane {
	switch {
	case who.Role == identity.RoleDeployment:
		return postgres.Peers
	case reads[method]:
		return postgres.Reads
	}
	return postgres.Writes
}
