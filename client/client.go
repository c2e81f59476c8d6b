// Package client reads, writes and watches the resources of an installation of db-controller.
//
//	c, err := client.Open("client.yaml")
//	...
//	defer c.Close()
//	device, err := c.Put(ctx, &resourcev1.Resource{Name: "//devices.example.com/eu/devices/d1", Body: body})
//	if errors.Is(err, client.ErrRefused) { ... }
//	for e, err := range c.Watch(ctx, deployment, client.WatchQuery{Kind: "Device"}) { ... }
//
// A client finds the deployments through the registry, and authenticates with the certificate of a user or an
// operator, or with the token of a user. Names of resources are full ones, //SERVICE/REGION/NAME, in
// requests; answers have the deployment and the name relative to it (FullName joins them). Bodies are JSON
// objects; Kind converts them from and to Go types.
//
// Calls are repeated until their answer is definite: the request has taken effect, or it is refused for good.
// They end with their context, after a minute if it has no deadline. All tries of a write have one request
// id, so that it takes effect at most once. Errors of deployments are *Error, with a class for errors.Is.
package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/envregistry"
	"github.com/db-controller/db-controller/internal/address"
	"github.com/db-controller/db-controller/internal/atomicfile"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/strictyaml"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// MaxBatch is the number of writes that Batch and Validate take at most; more are ErrInvalid.
const MaxBatch = 1000

// maxPageSize is the number of resources in a page at most.
const maxPageSize = 1000

// registryTimeout bounds a call for the environment; after it the cached environment is used.
const registryTimeout = 2 * time.Second

// File says how to reach an installation; its usual name is client.yaml. Open takes relative paths in it as
// relative to its folder.
type File struct {
	// Registry is host:port of the registry; several servers are separated by commas.
	Registry string `yaml:"registry"`
	// Certs is a folder with tls.crt, tls.key and ca.crt of a user or an operator; with ca.crt alone for a
	// user with a token.
	Certs string `yaml:"certs"`
	// TokenFile is a file with the token of a user, which is read again for each call; empty: the certificate
	// identifies the caller.
	TokenFile string `yaml:"token_file"`
	// Region is the region through whose deployments Get, Put, List and the other calls of Client go, when
	// the service has one there: each deployment of a service is a door to all of its regions. Empty: through
	// the resource's own deployment. When a door does not answer, the others are tried.
	Region string `yaml:"region"`
}

// relativeTo makes the paths of a file that lies in dir relative to dir.
func (f File) relativeTo(dir string) File {
	for _, path := range []*string{&f.Certs, &f.TokenFile} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
	return f
}

// DefaultFile is the path of the file that `db-controller dev` writes.
func DefaultFile() string {
	home, err := os.UserHomeDir()
	if err != nil {
		home = os.TempDir()
	}
	return filepath.Join(home, ".db-controller", "dev", "client.yaml")
}

// Client calls the deployments of an installation. It is safe for concurrent use.
type Client struct {
	credentials *identity.Credentials
	dial        []grpc.DialOption // beside the credentials' options
	registry    *grpc.ClientConn  // nil: there is none (Over)
	region      string            // the preferred door; may be empty
	// cache is the path of a file with the last environment, for times without the registry; empty: none.
	cache string

	mu sync.Mutex
	// guarded by mu; nil: it is read by the next call that needs it
	env   *schema.Environment
	read  time.Time                                        // guarded by mu; when env was read
	conns map[schema.DeploymentID]connection               // guarded by mu
	over  map[schema.DeploymentID]grpc.ClientConnInterface // of Over; nil: connections are made from the environment

	closed bool // guarded by mu
}

// connection is a connection and its address, which the registry may replace.
type connection struct {
	*grpc.ClientConn
	target string
}

// environmentAge is how long an environment counts when a deployment does not answer.
const environmentAge = 2 * time.Second

// Open reads a File in YAML and returns a client. It writes the last environment to path + ".environment",
// for times without the registry. It fails when the file, or the certificate that it names, cannot be read;
// it makes no call.
func Open(path string, options ...Option) (*Client, error) {
	f, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	for _, set := range options {
		set(&f)
	}
	return New(f, path+".environment")
}

// ReadFile reads a File in YAML. Its relative paths are relative to the folder of the file.
func ReadFile(path string) (f File, err error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return f, err
	}
	if err := strictyaml.Decode(raw, &f); err != nil {
		return f, fmt.Errorf("%s: %w", path, err)
	}
	return f.relativeTo(filepath.Dir(path)), nil
}

// Option changes the settings that Open has read from a File.
type Option func(*File)

// WithTokenFile makes calls with the token in a file.
func WithTokenFile(path string) Option { return func(f *File) { f.TokenFile = path } }

// load returns the credentials of a file: a token needs no certificate.
func (f File) load() (*identity.Credentials, []grpc.DialOption, error) {
	files := identity.InDir(f.Certs)
	if f.TokenFile == "" {
		credentials, err := identity.Load(files)
		return credentials, nil, err
	}
	credentials, err := identity.LoadAuthorities(files)
	return credentials, []grpc.DialOption{grpc.WithPerRPCCredentials(identity.TokenFile(f.TokenFile))}, err
}

// New returns a client. cache is the path of a file for the last environment, which counts while the registry
// does not answer; empty: none. It fails when the certificate cannot be read; it makes no call.
func New(f File, cache string) (*Client, error) {
	credentials, dial, err := f.load()
	if err != nil {
		return nil, err
	}
	conn, err := envregistry.Dial(f.Registry,
		slices.Concat(credentials.DialOptions(identity.Identity{Role: identity.RoleRegistry}),
			unreached("the registry "+f.Registry), dial)...)
	if err != nil {
		return nil, fmt.Errorf("connect to the registry: %w", err)
	}
	dial = append(dial, grpc.WithChainUnaryInterceptor(checkSize))
	return &Client{
		credentials: credentials, dial: dial, registry: conn, cache: cache,
		region: f.Region, conns: map[schema.DeploymentID]connection{},
	}, nil
}

// Over returns a client over connections that the caller has made, such as channels inside a process, in an
// environment that stays as it is. It has no registry, and Close leaves the connections open.
func Over(env *schema.Environment, conns map[schema.DeploymentID]grpc.ClientConnInterface) *Client {
	return &Client{env: env, over: conns}
}

// Close closes every connection. Calls fail with ErrClosed from then on.
func (c *Client) Close() {
	if c.over != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	_ = c.registry.Close()
}

// Environment returns the services with their versions, the regions, and the deployments with their
// addresses. It is the answer of the registry to an earlier call, and is read again when a deployment does
// not answer; when the registry does not answer, it is the last one, from the cache file. The caller must not
// change it.
func (c *Client) Environment(ctx context.Context) (*schema.Environment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if c.env != nil {
		return c.env, nil
	}
	found, err := c.readEnvironment(ctx)
	if err != nil {
		return nil, err
	}
	c.env, c.read = wire.Environment(found), time.Now()
	return c.env, nil
}

// Refresh is Environment, read from the registry again.
func (c *Client) Refresh(ctx context.Context) (*schema.Environment, error) {
	if c.over == nil {
		c.mu.Lock()
		c.env = nil
		c.mu.Unlock()
	}
	return c.Environment(ctx)
}

// forgetEnvironment makes the next call read the environment again, unless it is young: an address may have
// changed.
func (c *Client) forgetEnvironment() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over == nil && time.Since(c.read) > environmentAge {
		c.env = nil
	}
}

func (c *Client) readEnvironment(ctx context.Context) (*registryv1.Environment, error) {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	answer, err := c.Registry().GetEnvironment(ctx, &registryv1.GetEnvironmentRequest{})
	if err == nil {
		if raw, err := proto.Marshal(answer.GetEnvironment()); err == nil && c.cache != "" {
			_ = atomicfile.Write(c.cache, raw) // the cache is optional
		}
		return answer.GetEnvironment(), nil
	}
	raw, missing := os.ReadFile(c.cache)
	if missing != nil {
		return nil, errorOf(err, schema.DeploymentID{})
	}
	cached := &registryv1.Environment{}
	if wrong := proto.Unmarshal(raw, cached); wrong != nil {
		return nil, fmt.Errorf("%s: %w", c.cache, wrong)
	}
	if len(cached.GetDeployments()) == 0 { // an empty file is no environment
		return nil, errorOf(err, schema.DeploymentID{})
	}
	return cached, nil
}

// ErrNoRegistry is the error of calls to the registry by a client that has none (Over).
var ErrNoRegistry = errors.New("the client has no registry: it was made with client.Over")

// Registry returns the RegistryService, in which operators describe services, regions, deployments and
// rights. Its calls are made once, and fail with a status of gRPC, or with ErrNoRegistry.
func (c *Client) Registry() registryv1.RegistryServiceClient {
	if c.registry == nil {
		return registryv1.NewRegistryServiceClient(noRegistry{})
	}
	return registryv1.NewRegistryServiceClient(c.registry)
}

type noRegistry struct{}

func (noRegistry) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return ErrNoRegistry
}

func (noRegistry) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, ErrNoRegistry
}

// Resources returns the ResourceService of a deployment. Its calls are made once, through that deployment,
// and fail with a status of gRPC.
func (c *Client) Resources(ctx context.Context, id schema.DeploymentID) (resourcev1.ResourceServiceClient, error) {
	conn, err := c.conn(ctx, id)
	if err != nil {
		return nil, err
	}
	return resourcev1.NewResourceServiceClient(conn), nil
}

// Admin returns the AdminService of a deployment, which is for operators. Its calls are made once, and fail
// with a status of gRPC.
func (c *Client) Admin(ctx context.Context, id schema.DeploymentID) (adminv1.AdminServiceClient, error) {
	conn, err := c.conn(ctx, id)
	if err != nil {
		return nil, err
	}
	return adminv1.NewAdminServiceClient(conn), nil
}

func (c *Client) conn(ctx context.Context, id schema.DeploymentID) (grpc.ClientConnInterface, error) {
	if conn, ok := c.over[id]; ok {
		return conn, nil
	}
	env, err := c.Environment(ctx)
	if err != nil {
		return nil, err
	}
	d, ok := env.Deployment(id)
	if !ok || !c.reaches(d) {
		return nil, unregistered(env, id)
	}
	target, err := address.Target(d)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if held, ok := c.conns[id]; ok && held.target == target {
		return held.ClientConn, nil
	}
	conn, err := grpc.NewClient(target, slices.Concat(c.credentials.DialOptions(identity.Deployment(id)),
		unreached(id.String()), c.dial)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", id, err)
	}
	c.replace(id, connection{conn, target})
	return conn, nil
}

// reaches reports whether a deployment can be called.
func (c *Client) reaches(d schema.Deployment) bool {
	if c.over == nil {
		return d.Address != ""
	}
	_, ok := c.over[d.DeploymentID]
	return ok
}

// replace closes the connection to a former address: its calls are repeated. The caller has locked mu.
func (c *Client) replace(id schema.DeploymentID, by connection) {
	if held, ok := c.conns[id]; ok {
		_ = held.Close()
	}
	c.conns[id] = by
}

// UnregisteredError reports that the environment has no deployment of this name, or that the deployment has
// no address. Known has the names of all deployments of the environment.
type UnregisteredError struct {
	Deployment schema.DeploymentID
	Known      []string
}

func (e *UnregisteredError) Error() string {
	if slices.Contains(e.Known, e.Deployment.String()) {
		return fmt.Sprintf(
			"deployment %s has no address: none of its processes has registered; start them with db-controller serve",
			e.Deployment)
	}
	known := "none"
	if len(e.Known) > 0 {
		known = strings.Join(e.Known, ", ")
	}
	return fmt.Sprintf("deployment %s is not registered; known deployments: %s", e.Deployment, known)
}

func unregistered(env *schema.Environment, id schema.DeploymentID) error {
	e := &UnregisteredError{Deployment: id}
	for _, d := range env.Deployments {
		e.Known = append(e.Known, d.String())
	}
	return e
}
