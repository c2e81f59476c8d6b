// Package peers has the calls of a deployment to the services of other deployments: the connections, and one
// method for each call, which implement the interfaces of packages schema/peer and handlers.
package peers

import (
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/internal/address"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// Peers are the connections to other deployments, at the addresses of the newest environment, and the
// in-process channels to this deployment. There are at most two connections to a deployment; a new address
// replaces them.
type Peers struct {
	self        schema.DeploymentID
	credentials Credentials

	mu            sync.Mutex
	own           ownServices                   // guarded by mu; without channels until SetSelf
	known         KnownDatabases                // guarded by mu; nil until SetKnown, as decommissions
	decommissions Decommissions                 // guarded by mu
	kept          *positions                    // guarded by mu; nil until SetPositions
	env           *schema.Environment           // guarded by mu
	newer         chan struct{}                 // guarded by mu; closed by the next Update
	conns         map[connectionKey]*connection // guarded by mu

	togethers map[schema.DeploymentID]*together // guarded by mu
}

// Credentials are the identity of this deployment. DialOptions returns the options of a connection to a
// server that has to prove an identity.
type Credentials interface {
	DialOptions(expected identity.Identity) []grpc.DialOption
}

// ownServices are the in-process channels to this deployment: one that shares messages with the services, and
// one that copies them.
type ownServices struct{ shared, copied grpc.ClientConnInterface }

// connectionKey names a connection. Forwarded requests of people have a connection of their own, so that they
// cannot delay the calls that deployments make to one another.
type connectionKey struct {
	to      schema.DeploymentID
	forward bool
}

type connection struct {
	address string
	conn    *grpc.ClientConn
}

// New returns Peers without connections: each is made when it is first needed.
func New(self schema.DeploymentID, credentials Credentials) *Peers {
	return &Peers{
		self: self, credentials: credentials, env: &schema.Environment{}, newer: make(chan struct{}),
		conns: map[connectionKey]*connection{}, togethers: map[schema.DeploymentID]*together{},
	}
}

// Update takes a newer environment, and closes the connections to deployments that moved, were disabled, or
// were removed.
func (p *Peers) Update(env *schema.Environment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.env = env
	close(p.newer)
	p.newer = make(chan struct{})
	for key, c := range p.conns {
		if d, ok := env.Deployment(key.to); !ok || d.Disabled || d.Address != c.address {
			_ = c.conn.Close()
			delete(p.conns, key)
		}
	}
}

// MayRefer reports whether the current version of a deployment is of this service or imports it; for
// references that were established before and are established again, whether any version of its service does.
// It fails while the deployment is not known here: unknown is not "no".
func (p *Peers) MayRefer(holder schema.DeploymentID, again bool) (bool, error) {
	env := p.Environment()
	d, ok := env.Deployment(holder)
	if !ok {
		return false, fmt.Errorf("%s is not in the environment that this deployment last received from the registry",
			holder)
	}
	if d.Disabled {
		return false, nil
	}
	if d.Service == p.self.Service {
		return true, nil
	}
	if again {
		return env.MayRefer(d.Service, p.self.Service), nil
	}
	return slices.ContainsFunc(env.Services, func(s *schema.Descriptor) bool {
		return s.Service == d.Service && s.Version == d.Version &&
			slices.ContainsFunc(s.Imports, func(i schema.Import) bool { return i.Service == p.self.Service })
	}), nil
}

// Changed returns a channel that is closed when a newer environment arrives.
func (p *Peers) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.newer
}

// Environment returns the newest environment, which is never changed.
func (p *Peers) Environment() *schema.Environment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.env
}

// Disabled fails while a deployment is disabled in the registry. It can be enabled again, so this is never a
// final "no".
func (p *Peers) Disabled(id schema.DeploymentID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d, ok := p.env.Deployment(id); ok && d.Disabled {
		return fmt.Errorf("%s is disabled in the registry: enable it, or wait until it is enabled", id)
	}
	return nil
}

// Knows reports whether a deployment is in the environment; true before the first environment.
func (p *Peers) Knows(id schema.DeploymentID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.env.Deployment(id)
	return ok || len(p.env.Deployments) == 0
}

// Close closes all connections.
func (p *Peers) Close() {
	p.Update(&schema.Environment{})
}

// Reconnect ends the back-offs of the connections to a deployment, or to all for the zero one.
func (p *Peers) Reconnect(to schema.DeploymentID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, c := range p.conns {
		if to.IsZero() || key.to == to {
			c.conn.ResetConnectBackoff()
		}
	}
}

// SetSelf sets the in-process channels to this deployment: one that shares messages with the services, and
// one that copies them.
func (p *Peers) SetSelf(shared, copied grpc.ClientConnInterface) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own = ownServices{shared, copied}
}

// SetKnown sets the known databases, with which the databases of other deployments are compared from then on,
// and what is notified of deployments that have decommissioned this one.
func (p *Peers) SetKnown(known KnownDatabases, decommissions Decommissions) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known, p.decommissions = known, decommissions
}

// Client returns a client of a deployment; of this one over its in-process channel.
func (p *Peers) Client(id schema.DeploymentID) (schemav1.SchemaServiceClient, error) {
	conn, err := p.Conn(id)
	if err != nil {
		return nil, err
	}
	return schemav1.NewSchemaServiceClient(conn), nil
}

// shared returns a client of this deployment over the in-process channel that does not copy messages.
func (p *Peers) shared() schemav1.SchemaServiceClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	return schemav1.NewSchemaServiceClient(p.own.shared)
}

// Conn returns the connection to a deployment for calls between deployments; for this one the in-process
// channel that copies messages.
func (p *Peers) Conn(id schema.DeploymentID) (grpc.ClientConnInterface, error) {
	return p.conn(connectionKey{to: id})
}

// Forwarding returns the connection to another deployment for forwarded requests of people.
func (p *Peers) Forwarding(id schema.DeploymentID) (grpc.ClientConnInterface, error) {
	return p.conn(connectionKey{to: id, forward: true})
}

// forwardWindow bounds the bytes of a forwarded watch that have arrived and are not passed on yet. (For an
// answer that has begun there is room.)
const forwardWindow = 64 << 10

// peerWindow is the window of a call of this deployment's own: 1 MiB in each round trip. With a window of
// fixed size gRPC does not measure the round trip, with a ping for each bookmark of each idle watch.
const peerWindow = 1 << 20

func (p *Peers) conn(key connectionKey) (grpc.ClientConnInterface, error) {
	id := key.to
	p.mu.Lock()
	defer p.mu.Unlock()
	if id == p.self {
		return p.own.copied, nil
	}
	if c, ok := p.conns[key]; ok {
		return c.conn, nil
	}
	d, ok := p.env.Deployment(id)
	switch {
	case !ok:
		return nil, fmt.Errorf("deployment %s is not known to the registry", id)
	case d.Disabled:
		return nil, fmt.Errorf("deployment %s is disabled", id)
	}
	target, err := address.Target(d)
	if err != nil {
		return nil, err
	}
	options := append(p.credentials.DialOptions(identity.Deployment(id)), p.interceptors(id)...)
	window := int32(peerWindow)
	if key.forward {
		window = forwardWindow
	}
	options = append(options, grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(16*window))
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", id, err)
	}
	p.conns[key] = &connection{address: d.Address, conn: conn}
	return conn, nil
}
