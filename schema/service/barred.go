package service

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema/shadow"
)

// bar refuses everything to deployments that an operator has declared gone for ever, whatever certificate they have.
type bar struct {
	store *shadow.Store
}

func (b bar) check(ctx context.Context) error {
	who, err := identity.FromContext(ctx)
	if err == nil && who.Role == identity.RoleDeployment && b.store.Barred(who.Deployment) {
		return status.Errorf(codes.PermissionDenied, "%s is decommissioned: an operator has said that it is gone for ever", who.Deployment)
	}
	return nil // who has no identity is the policy's affair
}

func (b bar) Unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := b.check(ctx); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (b bar) Stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := b.check(stream.Context()); err != nil {
		return err
	}
	return handler(srv, &barredStream{stream, b})
}

// barredStream ends a watch of who is declared gone while it runs: with the next thing that is said, at the latest the
// next bookmark.
type barredStream struct {
	grpc.ServerStream
	bar bar
}

func (s *barredStream) SendMsg(m any) error {
	if err := s.bar.check(s.Context()); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}
