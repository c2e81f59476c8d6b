package identity

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Policy lists the roles that may call each method, by the method's full name. A method without an entry is
// denied.
type Policy map[string][]Role

// Anybody has the roles of all identities with a certificate, except applications, which may call a few
// methods only.
var Anybody = []Role{RoleDeployment, RoleUser, RoleOperator, RoleRegistry}

// Covers returns an error when the server has a method without an entry.
func (p Policy) Covers(server *grpc.Server) error {
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			if name := "/" + service + "/" + method.Name; p[name] == nil {
				return fmt.Errorf("method %s has no entry in the policy", name)
			}
		}
	}
	return nil
}

func (p Policy) check(ctx context.Context, method string) error {
	id, err := FromContext(ctx)
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if !slices.Contains(p[method], id.Role) {
		return status.Errorf(codes.PermissionDenied, "%s may not call %s", id,
			method[strings.LastIndexByte(method, '/')+1:])
	}
	return nil
}

// Unary and Stream enforce the policy.
func (p Policy) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	if err := p.check(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// Stream is Unary for streams.
func (p Policy) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) error {
	if err := p.check(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}
