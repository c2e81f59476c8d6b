package peers

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// DatabaseKey is the metadata key with the identity of the sender's database: in each call between
// deployments, and in the trailer of each answer. A deployment whose version does not send it is not
// compared.
const DatabaseKey = "dbcontroller-database"

// RelayKey is the metadata key with the deployment, service/region, that a deployment calls for an
// application.
const RelayKey = "dbcontroller-relay"

// KnownDatabases are the identities of this deployment's database, and of the others' as they were first
// seen. CheckDatabase fails with a *peer.DatabaseError when a deployment uses another database than the known
// one. Both checks fail with peer.ErrStranger.
type KnownDatabases interface {
	Database() uuid.UUID
	CheckCaller(ctx context.Context, who schema.DeploymentID) error
	CheckDatabase(ctx context.Context, with schema.DeploymentID, database uuid.UUID) error
	Logger() *zap.Logger
}

// Decommissions ends what this deployment has at others.
type Decommissions interface {
	// DecommissionedBy is called when a deployment refuses this one because an operator has decommissioned it
	// there.
	DecommissionedBy(ctx context.Context, by schema.DeploymentID) error
}

// BetweenDeployments reports whether deployments call a method on one another.
func BetweenDeployments(method string) bool {
	return strings.HasPrefix(method, "/"+schemav1.SchemaService_ServiceDesc.ServiceName+"/")
}

// SentDatabase reads the identity of a database in the metadata of a call or an answer.
func SentDatabase(values []string) (database uuid.UUID, sent bool, err error) {
	if len(values) == 0 {
		return database, false, nil
	}
	if database, err = uuid.Parse(values[0]); err != nil {
		return database, false, outcome.Because("INVALID", errors.New(DatabaseKey+": want a UUID"))
	}
	return database, true, nil
}

// checkAnswers sends the identity of this deployment's database with each call, and refuses every answer,
// errors included, from another database than the known one of the called deployment.
func (p *Peers) checkAnswers(to schema.DeploymentID) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		known := p.knownFor(method)
		if known == nil {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		var trailer metadata.MD
		ctx = metadata.AppendToOutgoingContext(ctx, DatabaseKey, known.Database().String())
		err := invoke(ctx, method, req, reply, cc, append(opts, grpc.Trailer(&trailer))...)
		database, sent, unreadable := SentDatabase(trailer.Get(DatabaseKey))
		if unreadable != nil {
			return unreadable
		}
		if sent {
			if other := known.CheckDatabase(ctx, to, database); other != nil {
				return outcome.Status(known.Logger(), other)
			}
		}
		return err
	}
}

// sendDatabase sends the identity of this deployment's database when a watch is opened. The events of a watch
// need no comparison: nothing here refers to resources of another database, so its deletions have no effect.
func (p *Peers) sendDatabase(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if known := p.knownFor(method); known != nil {
		ctx = metadata.AppendToOutgoingContext(ctx, DatabaseKey, known.Database().String())
	}
	return open(ctx, desc, cc, method, opts...)
}

// knownFor returns the known databases for the methods of deployments; nil for other methods, and before
// SetKnown.
func (p *Peers) knownFor(method string) KnownDatabases {
	if !BetweenDeployments(method) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known
}

// hearTimeout bounds the call that a refusal causes.
const hearTimeout = 5 * time.Second

// hear returns the error of a call to a deployment. A refusal because this deployment is decommissioned there
// ends the rights to refer to its resources without asking.
func (p *Peers) hear(from schema.DeploymentID, method string, err error) error {
	if err == nil || outcome.ReasonOf(err) != "DECOMMISSIONED" {
		return err
	}
	if known := p.knownFor(method); known != nil {
		ctx, cancel := context.WithTimeout(context.Background(), hearTimeout) // the call has ended
		defer cancel()
		p.mu.Lock()
		decommissions := p.decommissions
		p.mu.Unlock()
		if failed := decommissions.DecommissionedBy(ctx, from); failed != nil {
			known.Logger().Warn("delegations of a deployment that refuses this one have not ended",
				zap.Stringer("by", from), zap.Error(failed))
		}
	}
	return err
}
