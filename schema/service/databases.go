package service

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/service/peers"
)

// databaseCheck refuses calls of deployments from other databases than the known ones, and calls of
// strangers.
type databaseCheck struct {
	self  schema.DeploymentID
	known peers.KnownDatabases
}

func (d databaseCheck) check(ctx context.Context, method string) (context.Context, error) {
	who, err := identity.FromContext(ctx)
	if err != nil || who.Role != identity.RoleDeployment || who.Deployment == d.self ||
		!peers.BetweenDeployments(method) {
		return ctx, nil
	}
	database, sent, err := peers.SentDatabase(metadata.ValueFromIncomingContext(ctx, peers.DatabaseKey))
	switch {
	case err != nil:
		return ctx, err
	case !sent: // an earlier version
		return ctx, d.known.CheckCaller(ctx, who.Deployment)
	}
	return peer.WithCallerDatabase(ctx, database), d.known.CheckDatabase(ctx, who.Deployment, database)
}

func (d databaseCheck) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	if err := grpc.SetTrailer(ctx, metadata.Pairs(peers.DatabaseKey, d.known.Database().String())); err != nil {
		return nil, err
	}
	ctx, err := d.check(ctx, info.FullMethod)
	if err != nil {
		return nil, outcome.Status(d.known.Logger(), err)
	}
	return handler(ctx, req)
}

func (d databaseCheck) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) error {
	ctx, err := d.check(stream.Context(), info.FullMethod)
	if errors.Is(err, peer.ErrStranger) &&
		info.FullMethod == schemav1.SchemaService_WatchImportedServiceDeletions_FullMethodName {
		err = nil // the stored position that the watch begins with may show that the database has lost the caller
	}
	if err != nil {
		return outcome.Status(d.known.Logger(), err)
	}
	return handler(srv, &streamOfDatabase{stream, ctx})
}

// streamOfDatabase has the identity of its caller's database in its context.
type streamOfDatabase struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // of the stream
}

func (s *streamOfDatabase) Context() context.Context { return s.ctx }
