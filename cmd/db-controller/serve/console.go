package serve

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/console"
	"github.com/db-controller/db-controller/internal/gateway"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// consoleSessions serves the console to people with tokens, who share the slots of the gateway. It shows this
// deployment alone unless --console-all says otherwise: a token is sent to no other, which could use it.
func (d *deployment) consoleSessions(api *gateway.Handler, conns []grpc.ClientConnInterface,
	others *tokenConns,
) *console.Sessions {
	return console.NewSessions(console.SessionsConfig{
		Verify: d.verified, Enter: api.Enter, Actions: d.cfg.api.actions,
		Of: func(token string) console.Deployments {
			own := &ownConsole{
				self: d.cfg.id, environment: d.peers.Environment, token: token,
				conn: conns[int(token[len(token)-1])%len(conns)],
				bounded: func(conn grpc.ClientConnInterface) grpc.ClientConnInterface {
					return api.Bounded(conn, token)
				},
			}
			if d.cfg.api.all {
				own.others = others
			}
			return own
		},
	})
}

// ownConsole is this deployment as the bearer of a token sees it, with the other deployments if others is
// set.
type ownConsole struct {
	self        schema.DeploymentID
	environment func() *schema.Environment
	token       string
	conn        grpc.ClientConnInterface
	others      *tokenConns
	bounded     func(grpc.ClientConnInterface) grpc.ClientConnInterface // answers take memory of the gateway
}

// Environment implements console.Deployments.
func (o *ownConsole) Environment(context.Context) (*schema.Environment, error) {
	env := *o.environment()
	d, ok := env.Deployment(o.self)
	if !ok {
		return nil, fmt.Errorf("the environment of this process does not list %s", o.self)
	}
	if o.others == nil {
		env.Deployments = []schema.Deployment{d}
	}
	return &env, nil
}

func (o *ownConsole) to(id schema.DeploymentID) (grpc.ClientConnInterface, error) {
	if id == o.self {
		return bearer{o.bounded(o.conn), o.token}, nil
	}
	if o.others == nil {
		return nil, status.Errorf(codes.PermissionDenied,
			"this console shows %s alone: open that of %s, use db-controller console, or start it with --console-all",
			o.self, id)
	}
	d, ok := o.environment().Deployment(id)
	if !ok || d.Address == "" {
		return nil, fmt.Errorf("the environment has no address of %s", id)
	}
	conn, err := o.others.to(id, d.Address)
	if err != nil {
		return nil, err
	}
	return bearer{o.bounded(conn), o.token}, nil
}

// Admin implements console.Deployments.
func (o *ownConsole) Admin(_ context.Context, id schema.DeploymentID) (adminv1.AdminServiceClient, error) {
	conn, err := o.to(id)
	return adminv1.NewAdminServiceClient(conn), err
}

// Resources implements console.Deployments.
func (o *ownConsole) Resources(_ context.Context, id schema.DeploymentID) (resourcev1.ResourceServiceClient, error) {
	conn, err := o.to(id)
	return resourcev1.NewResourceServiceClient(conn), err
}

// tokenConns are connections to other deployments without a certificate of this one: tokens are the only
// identity on them. The servers prove theirs.
type tokenConns struct {
	credentials *identity.Credentials

	mu    sync.Mutex
	conns map[schema.DeploymentID]tokenConn // guarded by mu
}

type tokenConn struct {
	*grpc.ClientConn
	address string
}

func newTokenConns(credentials *identity.Credentials) *tokenConns {
	return &tokenConns{credentials: credentials, conns: map[schema.DeploymentID]tokenConn{}}
}

// to returns the connection to a deployment, a new one when its address has changed.
func (c *tokenConns) to(id schema.DeploymentID, address string) (grpc.ClientConnInterface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.conns[id]
	if ok && known.address == address {
		return known, nil
	}
	conn, err := grpc.NewClient(address, c.credentials.DialOptionsForTokens(identity.Deployment(id))...)
	if err != nil {
		return nil, err
	}
	if ok {
		_ = known.Close()
	}
	c.conns[id] = tokenConn{conn, address}
	return conn, nil
}

func (c *tokenConns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// bearer sends a token with each call.
type bearer struct {
	grpc.ClientConnInterface
	token string
}

// Invoke implements grpc.ClientConnInterface. The memory of an answer is free when it returns: a page asks
// several questions, one after another.
func (b bearer) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return b.ClientConnInterface.Invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+b.token),
		method, args, reply, opts...)
}
