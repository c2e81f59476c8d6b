package service

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// databaseKey is the metadata key with the identity of the sender's database: in each call between deployments, and in
// the trailer of each answer. A deployment whose version does not send it is not compared.
const databaseKey = "dbcontroller-database"

// knownDatabases are the identities of this deployment's database, and of the others' as they were first seen. Meet fails
// with a *peer.DatabaseError when a deployment uses another database than the known one.
type knownDatabases interface {
	Database() uuid.UUID
	CheckDatabase(ctx context.Context, with schema.DeploymentID, database uuid.UUID) error
	Logger() *zap.Logger
}

// betweenDeployments reports whether a method is one of those that deployments call on one another.
func betweenDeployments(method string) bool {
	return strings.HasPrefix(method, "/"+schemav1.SchemaService_ServiceDesc.ServiceName+"/")
}

// databaseCheck refuses calls of deployments from other databases than the known ones.
type databaseCheck struct {
	self  schema.DeploymentID
	known knownDatabases
}

func (d databaseCheck) check(ctx context.Context, method string) (context.Context, error) {
	who, err := identity.FromContext(ctx)
	if err != nil || who.Role != identity.RoleDeployment || who.Deployment == d.self || !betweenDeployments(method) {
		return ctx, nil
	}
	database, sent, err := sentDatabase(metadata.ValueFromIncomingContext(ctx, databaseKey))
	if err != nil || !sent {
		return ctx, err
	}
	return peer.WithCallerDatabase(ctx, database), toStatus(d.known.Logger(), d.known.CheckDatabase(ctx, who.Deployment, database))
}

func (d databaseCheck) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := grpc.SetTrailer(ctx, metadata.Pairs(databaseKey, d.known.Database().String())); err != nil {
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

func sentDatabase(values []string) (database uuid.UUID, sent bool, err error) {
	if len(values) == 0 {
		return database, false, nil
	}
	if database, err = uuid.Parse(values[0]); err != nil {
		return database, false, because("INVALID", errors.New(databaseKey+": want a UUID"))
	}
	return database, true, nil
}

// checkAnswers sends the identity of this deployment's database with each call, and refuses every answer, errors
// included, from another database than the known one of the called deployment.
func (p *Peers) checkAnswers(to schema.DeploymentID) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		known := p.knownFor(method)
		if known == nil {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		var trailer metadata.MD
		ctx = metadata.AppendToOutgoingContext(ctx, databaseKey, known.Database().String())
		err := invoke(ctx, method, req, reply, cc, append(opts, grpc.Trailer(&trailer))...)
		database, sent, unreadable := sentDatabase(trailer.Get(databaseKey))
		if unreadable != nil {
			return unreadable
		}
		if sent {
			if other := known.CheckDatabase(ctx, to, database); other != nil {
				return toStatus(known.Logger(), other)
			}
		}
		return err
	}
}

// sendDatabase sends the identity of this deployment's database when a watch is opened. The events of a watch need no
// comparison: nothing here refers to resources of another database, so its deletions have no effect.
func (p *Peers) sendDatabase(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if known := p.knownFor(method); known != nil {
		ctx = metadata.AppendToOutgoingContext(ctx, databaseKey, known.Database().String())
	}
	return open(ctx, desc, cc, method, opts...)
}

// knownFor returns the known databases for the methods of deployments; nil for other methods, and before NewServer.
func (p *Peers) knownFor(method string) knownDatabases {
	if !betweenDeployments(method) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known
}
