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

	"github.com/db-controller/db-controller/internal/budget"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/schema/service/writes"
	"github.com/db-controller/db-controller/schema/violation"
)

// onBehalfOf is the header with the identity (its path) of the person whose request a deployment forwards.
const onBehalfOf = identity.OnBehalfOf

// forwarded lists the methods that are forwarded, and that a deployment may therefore call on behalf of a
// user.
var forwarded = []string{
	resourcev1.ResourceService_GetResource_FullMethodName,
	resourcev1.ResourceService_ListResources_FullMethodName,
	resourcev1.ResourceService_ListReferrers_FullMethodName,
	resourcev1.ResourceService_CreateResource_FullMethodName,
	resourcev1.ResourceService_UpdateResource_FullMethodName,
	resourcev1.ResourceService_PutResource_FullMethodName,
	resourcev1.ResourceService_DeleteResource_FullMethodName,
	resourcev1.ResourceService_BatchDeleteResources_FullMethodName,
	resourcev1.ResourceService_UndeleteResource_FullMethodName,
	resourcev1.ResourceService_WatchResources_FullMethodName,
	resourcev1.ResourceService_BatchWriteResources_FullMethodName,
	resourcev1.ResourceService_MutateAndValidateResource_FullMethodName,
	resourcev1.ResourceService_PlanDeletion_FullMethodName,
	resourcev1.ResourceService_RemoveFinalizer_FullMethodName,
	resourcev1.ResourceService_UpdateResourceStatus_FullMethodName,
	resourcev1.ResourceService_AcquireDelegations_FullMethodName,
	adminv1.AdminService_Explain_FullMethodName,
}

// forwarder forwards requests for another region of the service there, once, with the identity of the caller.
type forwarder struct {
	self  schema.DeploymentID
	peers *peers.Peers
	// tokens verifies the tokens of people whom other regions speak for; nil without tokens.
	tokens access.Tokens
	rights *access.Access // the limits of operators; nil in tests without any
	log    *zap.Logger
}

func newForwarder(cfg Config) *forwarder {
	return &forwarder{
		self: cfg.Store.Deployment(), peers: cfg.Peers, tokens: cfg.Callers.Tokens,
		rights: newAccess(cfg), log: cfg.Logger,
	}
}

// forwardedKey is the context key of the deployment that forwarded a request.
type forwardedKey struct{}

// actForUnary and actForStream run before the policy, which applies to the person and not to the forwarding
// deployment.
func (f *forwarder) actForUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	ctx, err := f.actFor(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (f *forwarder) actForStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) error {
	ctx, err := f.actFor(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return handler(srv, &ownStream{ServerStream: ss, ctx: ctx})
}

// actFor replaces the identity of a forwarding deployment by the identity for which it forwards. Only
// deployments of the same service may forward, only for users, and only the forwarded methods: a deployment
// that an attacker controls cannot act as an operator of another region.
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
		return ctx, status.Errorf(codes.PermissionDenied, "%s may not act on behalf of another identity in this call",
			by)
	}
	// The database check of calls between deployments, which refuses strangers, does not see a forwarded
	// call. The refusal is not definite: the environment here may be older than the deployment.
	if d, listed := f.peers.Environment().Deployment(by.Deployment); !listed || d.Disabled {
		return ctx, status.Errorf(codes.Unavailable,
			"%s may not act on behalf of others: the environment that this deployment last received does not list it, or it is disabled", by)
	}
	caller, err := access.Believe(ctx, f.tokens, by.Deployment, personOf(ctx, values[0]))
	if err != nil {
		return ctx, status.Error(codes.Unauthenticated, err.Error())
	}
	return context.WithValue(identity.NewCallerContext(ctx, caller), forwardedKey{}, by), nil
}

// actor returns the text that identifies the caller in records of removals; for a forwarded request also the
// region that forwarded it.
func actor(ctx context.Context) (string, error) {
	who, err := identity.CallerFromContext(ctx)
	if err != nil {
		return "", err
	}
	by, forwarded := ctx.Value(forwardedKey{}).(identity.Identity)
	switch {
	case forwarded && who.Token == "": // its own word is all the proof
		return who.Identity.String() + " by way of " + by.Deployment.Region, nil
	case forwarded:
		return who.Audited() + " by way of " + by.Deployment.Region, nil
	}
	return who.Audited(), nil
}

// The headers of a forwarded call with the groups of the caller, separated by commas, and with the caller's
// own token.
const (
	groupsOfCaller = "dbcontroller-groups"
	tokenOfCaller  = "dbcontroller-token"
)

// personOf returns the person for whom a call was forwarded.
func personOf(ctx context.Context, path string) access.Person {
	p := access.Person{Identity: path}
	if groups := metadata.ValueFromIncomingContext(ctx, groupsOfCaller); len(groups) > 0 {
		p.Groups = strings.Split(groups[0], ",")
	}
	if token := metadata.ValueFromIncomingContext(ctx, tokenOfCaller); len(token) > 0 {
		p.Token = token[0]
	}
	return p
}

// onBehalf returns a context for a call that is made for a person: with the person's own token, or with the
// groups.
func onBehalf(ctx context.Context, who identity.Caller) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, onBehalfOf, who.Path())
	switch {
	case who.Token != "":
		return metadata.AppendToOutgoingContext(ctx, tokenOfCaller, who.Token)
	case len(who.Groups) > 0:
		return metadata.AppendToOutgoingContext(ctx, groupsOfCaller, strings.Join(who.Groups, ","))
	}
	return ctx
}

// addressed returns the names of the resources that a request is about, or the region that it names.
func addressed(req any) (names []string, region string) {
	if in, is := writes.Of(req); is {
		return in.Names(), ""
	}
	switch req := req.(type) {
	case *resourcev1.PlanDeletionRequest:
		return append([]string{req.GetName()}, req.GetMore()...), ""
	case *resourcev1.BatchDeleteResourcesRequest:
		for _, one := range req.GetRequests() {
			names = append(names, one.GetName())
		}
		return names, ""
	case *resourcev1.GetResourceRequest, *resourcev1.SetBlockDeletionRequest,
		*resourcev1.DeleteResourceRequest, *resourcev1.UndeleteResourceRequest, *adminv1.ExplainRequest,
		*resourcev1.RemoveFinalizerRequest, *resourcev1.UpdateResourceStatusRequest:
		return []string{req.(interface{ GetName() string }).GetName()}, ""
	case *resourcev1.ListResourcesRequest, *resourcev1.WatchResourcesRequest, *resourcev1.ListReferrersRequest,
		*resourcev1.AcquireDelegationsRequest:
		return nil, req.(interface{ GetRegion() string }).GetRegion()
	}
	return nil, "" // about this deployment; or of several ones, and the handler itself forwards
}

// ofName returns an error about the i-th name of a request with the field that holds it.
func ofName(req any, i int, err error) error {
	field, named := "", violation.Of(err)
	switch req.(type) {
	case *resourcev1.BatchDeleteResourcesRequest:
		field = fmt.Sprintf("requests[%d].name", i)
	case *resourcev1.PlanDeletionRequest:
		if i > 0 {
			field = fmt.Sprintf("more[%d]", i-1)
		}
	}
	if field == "" || len(named) == 0 {
		return writes.OfRequest(req, i, err)
	}
	return violation.InFields(err, violation.Field{Path: field, Problem: named[0].Problem})
}

// forwardTarget returns the deployment that a request has to be forwarded to; zero when it is for this one.
func (f *forwarder) forwardTarget(ctx context.Context, req any) (schema.DeploymentID, error) {
	names, region := addressed(req)
	to, i, err := f.destination(names, region)
	switch {
	case err != nil:
		return to, ofName(req, i, err)
	case to == f.self:
		return schema.DeploymentID{}, nil
	case to.Service != f.self.Service:
		return to, ofName(req, 0,
			outcome.Invalid("name", fmt.Errorf("%s belongs to another service: ask %s, this is %s", names[0],
				to, f.self)))
	case !f.peers.Knows(to):
		err := outcome.Invalid("region", fmt.Errorf("%s has no deployment in region %s", to.Service, to.Region))
		if len(names) > 0 {
			err = violation.In("name", err)
		}
		return to, ofName(req, 0, err)
	case ctx.Value(forwardedKey{}) != nil:
		return to, fmt.Errorf("a request for %s was forwarded to %s", to, f.self)
	}
	return to, nil
}

// destination returns the one deployment of some names, or of a region of this service. i is the index of the
// name that an error is about.
func (f *forwarder) destination(names []string, region string) (to schema.DeploymentID, i int, err error) {
	to = f.self
	if region != "" {
		if err := schema.CheckRegion(region); err != nil {
			return to, 0, outcome.Invalid("region", err)
		}
		to.Region = region
	}
	for i, name := range names {
		at := f.self
		if strings.HasPrefix(name, "//") {
			full, err := schema.ParseFullName(name)
			if err != nil {
				return to, i, outcome.Invalid("name", err)
			}
			at = full.Deployment
		}
		if i > 0 && at != to {
			return to, i,
				outcome.Invalid("name",
					fmt.Errorf("%s belongs to %s, others belong to %s: one request writes in one deployment",
						name, at, to))
		}
		to = at
	}
	return to, 0, nil
}

// Unary and Stream forward the requests for other regions. They run after the policy.
func (f *forwarder) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	to, err := f.forwardTarget(ctx, req)
	switch {
	case err != nil:
		return nil, outcome.Status(f.log, err)
	case to.IsZero():
		return handler(ctx, req)
	case !slices.Contains(forwarded, info.FullMethod):
		return nil, outcome.Status(f.log,
			outcome.Invalid("name",
				fmt.Errorf("belongs to %s: this request is for operators and is not forwarded, so ask that deployment",
					to)))
	}
	out, err := responseOf(info.FullMethod)
	if err != nil {
		return nil, outcome.Status(f.log, err)
	}
	conn, ctx, err := f.dial(ctx, info.FullMethod, req, to)
	if err != nil {
		return nil, outcome.Status(f.log, err)
	}
	return out, conn.Invoke(ctx, info.FullMethod, req, out, asReceived(ctx)...)
}

// get forwards a GetResource for one of the names of a batch.
func (f *forwarder) get(ctx context.Context, to schema.DeploymentID,
	req *resourcev1.GetResourceRequest,
) (*resourcev1.Resource, error) {
	conn, ctx, err := f.dial(ctx, resourcev1.ResourceService_GetResource_FullMethodName, req, to)
	if err != nil {
		return nil, err
	}
	return resourcev1.NewResourceServiceClient(conn).GetResource(ctx, req, asReceived(ctx)...)
}

// asReceived are the options of a call whose answer is passed on as it is: it is not decoded where it will be
// encoded again.
func asReceived(ctx context.Context) []grpc.CallOption {
	if !identity.Received(ctx) {
		return nil
	}
	return []grpc.CallOption{grpc.ForceCodecV2(identity.Undecoded())}
}

// dial returns a connection, and a context with the identity of the caller for the other side. Forwarded
// methods need no more than the rights of a user, and the other side accepts no other role from a deployment:
// an operator is forwarded as the user of the same name, if the limits of the operator allow it.
func (f *forwarder) dial(ctx context.Context, method string, req any,
	to schema.DeploymentID,
) (grpc.ClientConnInterface, context.Context, error) {
	who, err := identity.CallerFromContext(ctx)
	if err != nil {
		return nil, ctx, status.Error(codes.Unauthenticated, err.Error())
	}
	if who.Role == identity.RoleOperator {
		if f.rights != nil {
			if err := f.rights.Forward(ctx, who, method, req, to); err != nil {
				return nil, ctx, err
			}
		}
		who.Role = identity.RoleUser
	}
	conn, err := f.peers.Forwarding(to)
	if err != nil {
		return nil, ctx, &peer.UnavailableError{Deployments: []schema.DeploymentID{to}, Err: err}
	}
	f.connect(ctx, conn)
	return conn, onBehalf(ctx, who), nil
}

// connectTimeout is longer than the longest pause between two attempts to connect
// (identity.Credentials.DialOptions).
const connectTimeout = 3 * time.Second

// connect waits for a lost connection to return, so that callers here do not notice a restart in another
// region. After connectTimeout the call is made all the same, and its error has the reason.
func (f *forwarder) connect(ctx context.Context, conn grpc.ClientConnInterface) {
	c, ok := conn.(*grpc.ClientConn)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for state := c.GetState(); state != connectivity.Ready && state != connectivity.Shutdown; state = c.GetState() {
		c.Connect() // an idle connection does not connect by itself
		if !c.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// Stream forwards a watch: one request, then each event when it arrives.
func (f *forwarder) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) error {
	if info.FullMethod != resourcev1.ResourceService_WatchResources_FullMethodName {
		return handler(srv, stream)
	}
	req := &resourcev1.WatchResourcesRequest{}
	if err := stream.RecvMsg(req); err != nil {
		return err
	}
	to, err := f.forwardTarget(stream.Context(), req)
	switch {
	case err != nil:
		return outcome.Status(f.log, err)
	case to.IsZero():
		return handler(srv, &readAhead{ServerStream: stream, req: req})
	}
	conn, ctx, err := f.dial(stream.Context(), info.FullMethod, req, to)
	if err != nil {
		return outcome.Status(f.log, err)
	}
	options := asReceived(ctx)
	hold, fits := budget.FromContext(ctx).TakeHalf(budget.Watching, largeEvent)
	defer hold.Release()
	if !fits {
		options = append(options, grpc.MaxCallRecvMsgSize(smallEvent))
	}
	from, err := resourcev1.NewResourceServiceClient(conn).WatchResources(ctx, req, options...)
	if err != nil {
		return err
	}
	err = relay(from, stream)
	if !fits && status.Code(err) == codes.ResourceExhausted && stream.Context().Err() == nil {
		return outcome.Because("TOO_MANY_CALLS",
			fmt.Errorf("%s: large events may come in some forwarded watches of a caller only: watch at %s",
				status.Convert(err).Message(), to))
	}
	return err
}

// A forwarded watch has the memory of a call, in which a small event has room. Only some watches of each
// caller have it for a large one: an event arrives as a whole, and its size is not known before.
const (
	smallEvent = 32 << 10
	largeEvent = 3 << 19
)

func relay(from grpc.ServerStreamingClient[resourcev1.WatchResourcesResponse], to grpc.ServerStream) error {
	for {
		event, err := from.Recv()
		if err != nil {
			return err
		}
		if err := to.SendMsg(event); err != nil {
			return err
		}
	}
}

// readAhead is a stream whose first message, the request, was already received: RecvMsg returns it once more.
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

// responseOf returns an empty response message of a method.
func responseOf(fullMethod string) (proto.Message, error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(fullMethod, "/"), "/", "."))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, err
	}
	method, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, errors.New(fullMethod + " is not a method")
	}
	m, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	if err != nil {
		return nil, err
	}
	return m.New().Interface(), nil
}
