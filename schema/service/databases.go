package service

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// databaseKey names, in the metadata of each call between deployments and in the trailer of its answer, the database that a
// side speaks from. A version that does not say it is taken at its word.
const databaseKey = "dbcontroller-database"

// betweenDeployments tells whether a method is what deployments say to one another.
func betweenDeployments(method string) bool {
	return strings.HasPrefix(method, "/"+schemav1.SchemaService_ServiceDesc.ServiceName+"/")
}

// acquainted lets deployments call only from the databases that are known of them.
type acquainted struct {
	store *shadow.Store
}

func (a acquainted) check(ctx context.Context, method string) (context.Context, error) {
	who, err := identity.FromContext(ctx)
	if err != nil || who.Role != identity.RoleDeployment || who.Deployment == a.store.Deployment() || !betweenDeployments(method) {
		return ctx, nil
	}
	database, said, err := spokenDatabase(metadata.ValueFromIncomingContext(ctx, databaseKey))
	if err != nil || !said {
		return ctx, err
	}
	return shadow.SpokenFrom(ctx, database), toStatus(a.store.Logger(), a.store.Meet(ctx, who.Deployment, database))
}

func (a acquainted) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	own := a.store.Database()
	if err := grpc.SetTrailer(ctx, metadata.Pairs(databaseKey, own.String())); err != nil {
		return nil, err
	}
	ctx, err := a.check(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (a acquainted) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if _, err := a.check(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}

func spokenDatabase(values []string) (database uuid.UUID, said bool, err error) {
	if len(values) == 0 {
		return database, false, nil
	}
	if database, err = uuid.Parse(values[0]); err != nil {
		return database, false, because("INVALID", errors.New(databaseKey+": want a UUID"))
	}
	return database, true, nil
}

// acquaintUnary says from which database a call is made, and takes no answer from a database that is not the one that is
// known of the deployment, whatever it says: a refusal there means nothing either.
func (p *Peers) acquaintUnary(to schema.DeploymentID) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		store := p.storeOf(method)
		if store == nil {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		var trailer metadata.MD
		ctx = metadata.AppendToOutgoingContext(ctx, databaseKey, store.Database().String())
		err := invoke(ctx, method, req, reply, cc, append(opts, grpc.Trailer(&trailer))...)
		database, said, unreadable := spokenDatabase(trailer.Get(databaseKey))
		if unreadable != nil {
			return unreadable
		}
		if said {
			if strange := store.Meet(ctx, to, database); strange != nil {
				return toStatus(store.Logger(), strange)
			}
		}
		return err
	}
}

// acquaintStream says from which database a watch is opened. What it delivers needs no comparison: a database that is
// another one has nothing that would be acted upon here.
func (p *Peers) acquaintStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if store := p.storeOf(method); store != nil {
		ctx = metadata.AppendToOutgoingContext(ctx, databaseKey, store.Database().String())
	}
	return open(ctx, desc, cc, method, opts...)
}

// storeOf is whose database speaks, of methods of deployments; nil of others, and before there is one.
func (p *Peers) storeOf(method string) *shadow.Store {
	if !betweenDeployments(method) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.store
}
