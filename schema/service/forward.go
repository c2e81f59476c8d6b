package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// onBehalfOf is the header in which a deployment that forwards a request says who made it: the path of its identity.
const onBehalfOf = identity.OnBehalfOf

// forwarded lists the methods that are forwarded, and on which a deployment may therefore speak for a user.
var forwarded = []string{
	resourcev1.ResourceService_GetResource_FullMethodName,
	resourcev1.ResourceService_ListResources_FullMethodName,
	resourcev1.ResourceService_CreateResource_FullMethodName,
	resourcev1.ResourceService_UpdateResource_FullMethodName,
	resourcev1.ResourceService_PutResource_FullMethodName,
	resourcev1.ResourceService_DeleteResource_FullMethodName,
	resourcev1.ResourceService_WatchResources_FullMethodName,
	resourcev1.ResourceService_BatchWriteResources_FullMethodName,
	resourcev1.ResourceService_MutateAndValidateResource_FullMethodName,
	resourcev1.ResourceService_PlanDeletion_FullMethodName,
	adminv1.AdminService_Explain_FullMethodName,
}

// forwarder sends what belongs to another region of the service there, once, with the identity of the caller.
type forwarder struct {
	self  schema.DeploymentID
	peers *Peers
	log   *zap.Logger
}

type forwardedKey struct{}

// speakUnary and speakStream come before the policy, which is about the caller and not about who forwards.
func (f *forwarder) speakUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := f.actFor(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (f *forwarder) speakStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := f.actFor(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return handler(srv, &ownStream{ServerStream: ss, ctx: ctx})
}

// actFor takes the identity that a forwarding deployment speaks for. Only deployments of the same service may, only for
// users, and only on the methods that are forwarded: a sibling that was taken over is nobody's operator.
func (f *forwarder) actFor(ctx context.Context, method string) (context.Context, error) {
	values := metadata.ValueFromIncomingContext(ctx, onBehalfOf)
	if len(values) == 0 {
		return ctx, nil
	}
	by, err := identity.FromContext(ctx)
	if err != nil {
		return ctx, status.Error(codes.Unauthenticated, err.Error())
	}
	who, err := identity.ParsePath(values[0])
	if err != nil || len(values) > 1 || by.Role != identity.RoleDeployment || by.Deployment.Service != f.self.Service ||
		who.Role != identity.RoleUser || !slices.Contains(forwarded, method) {
		return ctx, status.Errorf(codes.PermissionDenied, "%s may not speak for another", by)
	}
	return context.WithValue(identity.NewContext(ctx, who), forwardedKey{}, by), nil
}

// actor is who asks, for the record of what they remove: a forwarded request also names the region that says so.
func actor(ctx context.Context) (string, error) {
	who, err := identity.FromContext(ctx)
	if err != nil {
		return "", err
	}
	if by, ok := ctx.Value(forwardedKey{}).(identity.Identity); ok {
		return who.String() + " by way of " + by.Deployment.Region, nil
	}
	return who.String(), nil
}

// addressed gives the names that a request is about, and the region that it asks for.
func addressed(req any) (names []string, region string) {
	switch req := req.(type) {
	case *resourcev1.GetResourceRequest:
		return []string{req.GetName()}, ""
	case *resourcev1.CreateResourceRequest:
		return []string{req.GetResource().GetName()}, ""
	case *resourcev1.UpdateResourceRequest:
		return []string{req.GetResource().GetName()}, ""
	case *resourcev1.PutResourceRequest:
		return []string{req.GetResource().GetName()}, ""
	case *resourcev1.BatchWriteResourcesRequest:
		for _, w := range req.GetWrites() {
			names = append(names, written(w).GetName())
		}
		return names, ""
	case *resourcev1.MutateAndValidateResourceRequest:
		names = []string{written(req.GetWrite()).GetName()}
		for _, w := range req.GetMore() {
			names = append(names, written(w).GetName())
		}
		return names, ""
	case *resourcev1.SetBlockDeletionRequest:
		return []string{req.GetName()}, ""
	case *resourcev1.PlanDeletionRequest:
		return []string{req.GetName()}, ""
	case *resourcev1.DeleteResourceRequest:
		return []string{req.GetName()}, ""
	case *resourcev1.ListResourcesRequest:
		return nil, req.GetRegion()
	case *resourcev1.WatchResourcesRequest:
		return nil, req.GetRegion()
	case *adminv1.ExplainRequest:
		return []string{req.GetName()}, ""
	}
	return nil, "" // of this deployment, or handled by itself
}

// elsewhere gives the deployment that a request belongs to; zero for this one.
func (f *forwarder) elsewhere(ctx context.Context, req any) (schema.DeploymentID, error) {
	names, region := addressed(req)
	to := f.self
	if region != "" {
		if err := schema.CheckRegion(region); err != nil {
			return to, invalid("region", err)
		}
		to.Region = region
	}
	for i, name := range names {
		at := f.self
		if strings.HasPrefix(name, "//") {
			full, err := schema.ParseFullName(name)
			if err != nil {
				return to, invalid("name", err)
			}
			at = full.Deployment
		}
		if i > 0 && at != to {
			return to, invalid("name", fmt.Errorf("%s is of %s, others are of %s: one transaction is of one deployment", name, at, to))
		}
		to = at
	}
	switch {
	case to == f.self:
		return schema.DeploymentID{}, nil
	case to.Service != f.self.Service:
		return to, invalid("name", fmt.Errorf("%s is of another service: ask %s, this is %s", names[0], to, f.self))
	case !f.peers.knows(to):
		return to, invalid("region", fmt.Errorf("%s has no deployment in region %s", to.Service, to.Region))
	case ctx.Value(forwardedKey{}) != nil:
		return to, fmt.Errorf("a request for %s was forwarded to %s", to, f.self)
	}
	return to, nil
}

// Unary and Stream forward what belongs elsewhere; they come after the policy.
func (f *forwarder) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	to, err := f.elsewhere(ctx, req)
	switch {
	case err != nil:
		return nil, toStatus(f.log, err)
	case to.IsZero():
		return handler(ctx, req)
	case !slices.Contains(forwarded, info.FullMethod):
		return nil, toStatus(f.log, invalid("name", fmt.Errorf("belongs to %s: this request is for operators and is not forwarded, so ask that deployment", to)))
	}
	out, err := responseOf(info.FullMethod)
	if err != nil {
		return nil, toStatus(f.log, err)
	}
	conn, ctx, err := f.dial(ctx, to)
	if err != nil {
		return nil, toStatus(f.log, err)
	}
	return out, conn.Invoke(ctx, info.FullMethod, req, out)
}

// get is Unary for one of many names.
func (f *forwarder) get(ctx context.Context, to schema.DeploymentID, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	conn, ctx, err := f.dial(ctx, to)
	if err != nil {
		return nil, err
	}
	return resourcev1.NewResourceServiceClient(conn).GetResource(ctx, req)
}

// dial returns a connection, and a context that says for whom this deployment speaks. What is forwarded needs no more
// than a user's rights, and the other side takes nothing else from a deployment: an operator is forwarded as the user of
// that name.
func (f *forwarder) dial(ctx context.Context, to schema.DeploymentID) (grpc.ClientConnInterface, context.Context, error) {
	who, err := identity.FromContext(ctx)
	if err != nil {
		return nil, ctx, status.Error(codes.Unauthenticated, err.Error())
	}
	if who.Role == identity.RoleOperator {
		who.Role = identity.RoleUser
	}
	conn, err := f.peers.forwarding(to)
	if err != nil {
		return nil, ctx, &shadow.UnavailableError{Deployments: []schema.DeploymentID{to}, Err: err}
	}
	f.connect(ctx, conn)
	return conn, metadata.AppendToOutgoingContext(ctx, onBehalfOf, who.Path()), nil
}

// connectPatience is longer than the longest pause between two attempts to connect (identity.Credentials.DialOptions).
const connectPatience = 3 * time.Second

// connect waits while a connection is lost, so that the restart of another region is not seen by those who ask here. When
// the patience ends the call goes on, and fails with the reason.
func (f *forwarder) connect(ctx context.Context, conn grpc.ClientConnInterface) {
	c, ok := conn.(*grpc.ClientConn)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	for state := c.GetState(); state != connectivity.Ready && state != connectivity.Shutdown; state = c.GetState() {
		c.Connect() // an idle one does not by itself
		if !c.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// Stream forwards a watch: one request, then its events as they come.
func (f *forwarder) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.FullMethod != resourcev1.ResourceService_WatchResources_FullMethodName {
		return handler(srv, stream)
	}
	req := &resourcev1.WatchResourcesRequest{}
	if err := stream.RecvMsg(req); err != nil {
		return err
	}
	to, err := f.elsewhere(stream.Context(), req)
	switch {
	case err != nil:
		return toStatus(f.log, err)
	case to.IsZero():
		return handler(srv, &readAhead{ServerStream: stream, req: req})
	}
	conn, ctx, err := f.dial(stream.Context(), to)
	if err != nil {
		return toStatus(f.log, err)
	}
	from, err := resourcev1.NewResourceServiceClient(conn).WatchResources(ctx, req)
	if err != nil {
		return err
	}
	for {
		event, err := from.Recv()
		if err != nil {
			return err
		}
		if err := stream.SendMsg(event); err != nil {
			return err
		}
	}
}

// readAhead gives back a request that was read from a stream.
type readAhead struct {
	grpc.ServerStream
	req proto.Message
}

func (r *readAhead) RecvMsg(m any) error {
	into, ok := m.(proto.Message)
	if !ok || r.req == nil {
		return r.ServerStream.RecvMsg(m)
	}
	proto.Merge(into, r.req)
	r.req = nil
	return nil
}

// responseOf makes the message that a method answers with.
func responseOf(fullMethod string) (proto.Message, error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(fullMethod, "/"), "/", "."))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, err
	}
	method, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, errors.New(fullMethod + " is no method")
	}
	m, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	if err != nil {
		return nil, err
	}
	return m.New().Interface(), nil
}
