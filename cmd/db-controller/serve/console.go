package serve

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/db-controller/db-controller/internal/console"
	"github.com/db-controller/db-controller/internal/gateway"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// consoleSessions serves the console to people with tokens, who share the slots of the gateway. It shows this deployment alone: a token is
// not sent to others, which could use it.
func (d *deployment) consoleSessions(api *gateway.Handler, conns []grpc.ClientConnInterface) *console.Sessions {
	return console.NewSessions(console.SessionsConfig{
		Verify: d.verified, Enter: api.Enter,
		Of: func(token string) console.Deployments {
			return &ownConsole{self: d.cfg.id, environment: d.peers.Environment, conn: bearer{conns[int(token[len(token)-1])%len(conns)], token}}
		},
	})
}

// ownConsole is this deployment as the bearer of a token sees it.
type ownConsole struct {
	self        schema.DeploymentID
	environment func() *schema.Environment
	conn        grpc.ClientConnInterface
}

// Environment implements console.Deployments.
func (o *ownConsole) Environment(context.Context) (*schema.Environment, error) {
	env := *o.environment()
	d, ok := env.Deployment(o.self)
	if !ok {
		return nil, fmt.Errorf("the environment of this process does not list %s", o.self)
	}
	env.Deployments = []schema.Deployment{d}
	return &env, nil
}

func (o *ownConsole) only(id schema.DeploymentID) error {
	if id != o.self {
		return fmt.Errorf("this console shows %s alone: open that of %s, or use db-controller console", o.self, id)
	}
	return nil
}

// Admin implements console.Deployments.
func (o *ownConsole) Admin(_ context.Context, id schema.DeploymentID) (adminv1.AdminServiceClient, error) {
	return adminv1.NewAdminServiceClient(o.conn), o.only(id)
}

// Resources implements console.Deployments.
func (o *ownConsole) Resources(_ context.Context, id schema.DeploymentID) (resourcev1.ResourceServiceClient, error) {
	return resourcev1.NewResourceServiceClient(o.conn), o.only(id)
}

// bearer sends a token with each call.
type bearer struct {
	grpc.ClientConnInterface
	token string
}

// Invoke implements grpc.ClientConnInterface.
func (b bearer) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return b.ClientConnInterface.Invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+b.token), method, args, reply, opts...)
}
