package service

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// decommissions reports whether an operator has decommissioned a deployment.
type decommissions interface {
	IsDecommissioned(id schema.DeploymentID) bool
}

// decommissionCheck refuses every call of decommissioned deployments, also with valid certificates.
type decommissionCheck struct {
	decommissions decommissions
}

func (d decommissionCheck) check(ctx context.Context) error {
	who, err := identity.FromContext(ctx)
	if err == nil && who.Role == identity.RoleDeployment && d.decommissions.IsDecommissioned(who.Deployment) {
		return outcome.Because("DECOMMISSIONED",
			fmt.Errorf("%s is decommissioned: an operator has removed this deployment for good", who.Deployment))
	}
	return nil // the policy refuses callers without an identity
}

func (d decommissionCheck) Unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	if err := d.check(ctx); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (d decommissionCheck) Stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) error {
	if err := d.check(stream.Context()); err != nil {
		return err
	}
	return handler(srv, &checkedStream{stream, d})
}

// checkedStream ends the watch of a deployment that is decommissioned while the watch runs: with the next
// message, at the latest the next bookmark.
type checkedStream struct {
	grpc.ServerStream
	check decommissionCheck
}

func (s *checkedStream) SendMsg(m any) error {
	if err := s.check.check(s.Context()); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}
