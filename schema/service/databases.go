package service

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/service/peers"
)

// databaseCheck refuses calls of deployments from other databases than the known ones.
type databaseCheck struct {
	self  schema.DeploymentID
	known peers.KnownDatabases
}

func (d databaseCheck) check(ctx context.Context, method string) (context.Context, error) {
	who, err := identity.FromContext(ctx)
	if err != nil || who.Role != identity.RoleDeployment || who.Deployment == d.self || !peers.BetweenDeployments(method) {
		return ctx, nil
	}
	database, sent, err := peers.SentDatabase(metadata.ValueFromIncomingContext(ctx, peers.DatabaseKey))
	if err != nil || !sent {
		return ctx, err
	}
	return peer.WithCallerDatabase(ctx, database), outcome.Status(d.known.Logger(), d.known.CheckDatabase(ctx, who.Deployment, database))
}

func (d databaseCheck) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := grpc.SetTrailer(ctx, metadata.Pairs(peers.DatabaseKey, d.known.Database().String())); err != nil {
		return nil, err
	}
	ctx, err := d.check(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (d databaseCheck) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if _, err := d.check(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}
