package access

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/peer"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// Unary checks the rights that a request needs, and redacts the answer.
func (a *Access) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	who, limited, err := a.limited(ctx)
	switch {
	case err != nil:
		return nil, err
	case !limited && info.FullMethod == schemav1.SchemaService_EstablishReferences_FullMethodName:
		in := req.(*schemav1.EstablishReferencesRequest)
		if a.cfg.Outside != nil && len(in.GetAttempts()) > 1 { // its answers take their time, each for itself
			return nil, status.Error(codes.Unimplemented, "attempts are established one by one here")
		}
		return a.establish(ctx, who, info.FullMethod, in, handler)
	case !limited:
		return handler(ctx, req)
	}
	ctx, d, err := a.enter(ctx, who, info.FullMethod, req)
	if err != nil {
		return nil, a.status(err)
	}
	if ctx, who, err = a.approved(ctx, who, info.FullMethod, req); err != nil {
		return nil, err
	}
	if req, err = a.pages.open(ctx, info.FullMethod, req); err != nil {
		return nil, a.status(err)
	}
	reads := classOf(info.FullMethod, d.verb) == auditlog.Reads
	if !reads {
		if err := a.record(ctx, who, info.FullMethod, d); err != nil {
			a.failed(ctx, who, info.FullMethod, d, codes.Unavailable)
			return nil, a.status(err)
		}
	}
	returned := false
	defer func() {
		if !returned { // a panic, which an interceptor outside turns into an error
			a.failed(ctx, who, info.FullMethod, d, codes.Internal)
		}
	}()
	out, err := handler(ctx, req)
	returned = true
	if err == nil && reads { // a read that fails has one line alone, of which each caller has few
		if err = a.record(ctx, who, info.FullMethod, d); err != nil {
			out, err = nil, a.status(err)
		}
	}
	if err == nil {
		if err = a.pages.seal(ctx, info.FullMethod, out); err != nil {
			out, err = nil, a.status(err)
		}
	}
	if err != nil {
		a.failed(ctx, who, info.FullMethod, d, status.Code(err))
	}
	return a.redacted(ctx, who, info.FullMethod, out, err)
}

// Operate checks the right to operate on a resource of another deployment. It runs before requests are
// forwarded: requests that need this right are not, and a caller without the right is denied here as there.
func (a *Access) Operate(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	who, limited, err := a.limited(ctx)
	if err != nil {
		return nil, err
	}
	if in, ok := req.(*resourcev1.SetBlockDeletionRequest); ok && limited {
		if name, err := schema.ParseFullName(in.GetName()); err == nil && name.Deployment != a.cfg.Deployment {
			if err := a.demand(ctx, who, info.FullMethod,
				demand{verb: schema.Operate, names: []schema.FullName{name}}); err != nil {
				return nil, a.status(err)
			}
		}
	}
	return handler(ctx, req)
}

// Forward demands of an operator with limits the right that a request needs at the deployment to which it is
// forwarded, where the caller is the user of the same name.
func (a *Access) Forward(ctx context.Context, who identity.Caller, method string, req any,
	to schema.DeploymentID,
) error {
	rights := a.current()
	if !rights.Limited() || !Covers(method) && method != resourcev1.ResourceService_WatchResources_FullMethodName {
		return nil
	}
	d := demand{verb: schema.Read}
	if Covers(method) {
		verb, names := demands[method](req)
		for _, name := range names {
			if full, err := schema.ParseFullName(name); err == nil && full.Deployment == to {
				d.names = append(d.names, full)
			}
		}
		d.verb = verb
	}
	if method == resourcev1.ResourceService_AcquireDelegations_FullMethodName {
		d.verb = schema.Refer
	}
	switch {
	case rights.Operator(subject(who), d.verb, to):
		return nil
	case len(d.names) > 0:
		return a.demand(ctx, who, method, d) // a grant may name the operator
	}
	return a.beyond(ctx, who, method, d.verb, to)
}

// beyond is the error of an operator whose limits do not allow a verb at a deployment.
func (a *Access) beyond(ctx context.Context, who identity.Caller, method string, verb schema.Verb,
	at schema.DeploymentID,
) error {
	a.denied(ctx, who, method, demand{verb: verb, names: []schema.FullName{{Deployment: at}}})
	return status.Errorf(codes.PermissionDenied, "%s may not %s at %s: ask an operator who may grant for it",
		who.Identity, verb, at)
}

// limited returns the caller, and whether grants apply: to users and operators.
func (a *Access) limited(ctx context.Context) (who identity.Caller, limited bool, err error) {
	who, err = identity.CallerFromContext(ctx)
	if err != nil {
		return who, false, status.Error(codes.Unauthenticated, err.Error())
	}
	return who, who.Role == identity.RoleUser || who.Role == identity.RoleOperator, nil
}

// enter demands the right that a request needs, and returns a context for its handler.
func (a *Access) enter(ctx context.Context, who identity.Caller, method string,
	req any,
) (context.Context, demand, error) {
	if !Covers(method) {
		// The policy allows the methods that are left to operators; health and reflection, which tell nothing
		// of resources, to others.
		if !strings.HasPrefix(method, "/dbcontroller.") {
			return ctx, demand{verb: schema.Operate}, nil
		}
		if who.Role == identity.RoleOperator {
			return ctx, demand{verb: schema.Operate}, a.operates(ctx, who, method, req)
		}
		return ctx, demand{}, status.Errorf(codes.PermissionDenied, "%s may not call %s", who.Identity, method)
	}
	d := a.demandOf(method, req)
	switch is, err := a.holds(ctx, who, req, d.names); {
	case err != nil && who.Role != identity.RoleOperator:
		return ctx, d, a.status(err)
	case is:
		d.verb = schema.Read
	}
	if err := a.demand(ctx, who, method, d); err != nil {
		return ctx, d, err
	}
	switch req.(type) {
	case *resourcev1.ListResourcesRequest, *resourcev1.ListReferrersRequest:
		within, err := a.Within(ctx, who)
		if err != nil {
			return ctx, d, err
		}
		ctx = withNames(ctx, within)
	}
	ctx = peer.WithPerson(ctx, peer.Person{
		Refer: func(ctx context.Context, names []schema.FullName) ([]bool, error) { return a.refers(ctx, who, names) },
		Delete: func(ctx context.Context, names []schema.FullName) ([]bool, error) {
			return a.deletes(ctx, who, names)
		},
		DeleteKind: func(ctx context.Context, at schema.DeploymentID, kind string) (bool, error) {
			return a.deletesKind(ctx, who, at, kind)
		},
		CascadeNeedsDelete: a.current().CascadeNeedsDelete(subject(who)),
		MaxRemovals:        a.current().MaxRemovals,
	})
	return context.WithValue(ctx, readableKey{}, func(names []schema.FullName) []bool {
		return a.readable(ctx, who, names)
	}), d, nil
}

// operates demands of an operator with limits the verb that a method for operators needs here: read for lists
// and comparisons, operate for others.
func (a *Access) operates(ctx context.Context, who identity.Caller, method string, req any) error {
	verb := schema.Operate
	verify, is := req.(*adminv1.VerifyRequest)
	if classOf(method, verb) == auditlog.Reads || is && !verify.GetRepair() {
		verb = schema.Read
	}
	if a.current().Operator(subject(who), verb, a.cfg.Deployment) {
		return nil
	}
	return a.beyond(ctx, who, method, verb, a.cfg.Deployment)
}

// holds reports whether a request removes a finalizer that the caller is the holder of: the descriptor gives
// the right to that. The answer is for callers who may read the resource.
func (a *Access) holds(ctx context.Context, who identity.Caller, req any, names []schema.FullName) (bool, error) {
	in, ok := req.(*resourcev1.RemoveFinalizerRequest)
	if !ok || a.cfg.FinalizerHolder == nil || len(names) != 1 {
		return false, nil
	}
	holder, err := a.cfg.FinalizerHolder(ctx, names[0].Name, in.GetFinalizer())
	return err == nil && holder == who.Identity.String(), err
}

// Stream is Unary for streams: the watch of resources, whose names it limits. The watch ends when the rights
// of its caller change, and its token is of no use then: the next one begins with a snapshot.
func (a *Access) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) error {
	who, limited, err := a.limited(stream.Context())
	switch {
	case err != nil:
		return err
	case !limited:
		return handler(srv, stream)
	case info.FullMethod != resourcev1.ResourceService_WatchResources_FullMethodName:
		if who.Role == identity.RoleOperator && strings.HasPrefix(info.FullMethod, "/dbcontroller.") {
			return handler(srv, &operatorStream{ServerStream: stream, check: func(req any) error {
				if err := a.operates(stream.Context(), who, info.FullMethod, req); err != nil {
					return err
				}
				return a.record(stream.Context(), who, info.FullMethod, demand{verb: schema.Operate})
			}})
		}
		return handler(srv, stream)
	}
	if err := a.record(stream.Context(), who, info.FullMethod, demand{verb: schema.Read}); err != nil {
		return a.status(err)
	}
	changed := a.cfg.Environments.Changed() // before the rights are read
	granted := a.granted(who)
	within, err := a.Within(stream.Context(), who)
	if err != nil {
		return a.status(err)
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	if !who.Expires.IsZero() {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, who.Expires, errTokenExpired)
		defer stop()
	}
	go a.follow(ctx, who, followed{granted, within, changed}, cancel)
	if who.Withdrawn != nil {
		go func() {
			if err := who.Withdrawn(ctx); err != nil {
				cancel(status.Error(codes.Unauthenticated, err.Error()))
			}
		}()
	}
	err = handler(srv, &ownStream{ServerStream: stream, ctx: withNames(ctx, within)})
	if cause := context.Cause(ctx); ctx.Err() != nil && stream.Context().Err() == nil && cause != nil {
		return a.status(cause)
	}
	return err
}

var (
	errRightsChanged = fmt.Errorf("the rights of the caller have changed: %w: begin without it", schema.ErrReset)
	errTokenExpired  = status.Error(codes.Unauthenticated,
		"the token of the watch has expired: open it again with a new one, and the last resume token")
)

// outsidePace is the least time between two questions of one watch to the authorization service: an
// environment may change every second, as addresses do, and a process has hundreds of watches.
const outsidePace = 30 * time.Second

// followed is the state in which a watch began.
type followed struct {
	granted grant.Within    // by the grants alone
	within  grant.Within    // with the answer of the authorization service
	changed <-chan struct{} // of the environment from before
}

// same reports whether names are the same ones; nil is all.
func same(a, b grant.Within) bool { return (a == nil) == (b == nil) && fmt.Sprint(a) == fmt.Sprint(b) }

// follow ends a watch when its caller may read other names: by the grants at once, by the authorization
// service within outsidePace of a change of the environment.
func (a *Access) follow(ctx context.Context, who identity.Caller, was followed, end context.CancelCauseFunc) {
	changed, asked := was.changed, time.Now()
	var due <-chan time.Time // nil: nothing to ask
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			changed = a.cfg.Environments.Changed()
			if !same(a.granted(who), was.granted) {
				end(errRightsChanged)
				return
			}
			if a.cfg.Outside != nil && due == nil {
				due = time.After(outsidePace - time.Since(asked))
			}
		case <-due:
			due, asked = nil, time.Now()
			if now, err := a.Within(ctx, who); err != nil || !same(now, was.within) {
				end(errRightsChanged)
				return
			}
		}
	}
}

// status returns the gRPC status of an error of this package.
func (a *Access) status(err error) error { return outcome.Status(a.cfg.Logger, err) }

type namesKey struct{}

// Names returns the names that a list or a watch is limited to; nil for all.
func Names(ctx context.Context) grant.Within {
	within, _ := ctx.Value(namesKey{}).(grant.Within)
	return within
}

func withNames(ctx context.Context, within grant.Within) context.Context {
	return context.WithValue(ctx, namesKey{}, within)
}

// operatorStream checks the request of a stream when it is received.
type operatorStream struct {
	grpc.ServerStream
	check func(req any) error
}

func (s *operatorStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.check(m)
}

// ownStream is a stream with another context.
type ownStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream is its context
}

func (s *ownStream) Context() context.Context { return s.ctx }
