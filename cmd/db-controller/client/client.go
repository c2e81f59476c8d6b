// Package client finds deployments by the registry and speaks to them, as the command line does.
package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/envregistry"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/schema/wire"
)

// File says how to reach an installation: client.yaml.
type File struct {
	// Registry is host:port of the registry, or of several servers of it, separated by commas.
	Registry string `yaml:"registry"`
	// Certs is a folder with tls.crt, tls.key and ca.crt of a user or an operator.
	Certs string `yaml:"certs"`
}

// DefaultFile is where `db-controller dev` writes it.
func DefaultFile() string {
	home, err := os.UserHomeDir()
	if err != nil {
		home = os.TempDir()
	}
	return filepath.Join(home, ".db-controller", "dev", "client.yaml")
}

// Client is safe for concurrent use.
type Client struct {
	Registry    registryv1.RegistryServiceClient
	credentials *identity.Credentials
	registry    *grpc.ClientConn
	// kept is where the last environment is kept, for when the registry is away.
	kept string

	mu    sync.Mutex
	env   *schema.Environment // guarded by mu
	conns map[schema.DeploymentID]*grpc.ClientConn
}

// Open reads a file.
func Open(path string) (*Client, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is not there: start `db-controller dev` in another terminal, or name a file with --context", path)
	}
	if err != nil {
		return nil, err
	}
	var f File
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return New(f, path+".environment")
}

// New makes a client; kept names a file for the last environment, empty for none.
func New(f File, kept string) (*Client, error) {
	credentials, err := identity.Load(identity.InDir(f.Certs))
	if err != nil {
		return nil, err
	}
	conn, err := envregistry.Dial(f.Registry, service.DialOptions(credentials, identity.Identity{Role: identity.RoleRegistry})...)
	if err != nil {
		return nil, fmt.Errorf("connect to the registry: %w", err)
	}
	return &Client{
		Registry: registryv1.NewRegistryServiceClient(conn), credentials: credentials, registry: conn, kept: kept,
		conns: map[schema.DeploymentID]*grpc.ClientConn{},
	}, nil
}

// Close closes every connection.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	_ = c.registry.Close()
}

// Environment asks the registry, once; while it is away, what it said last counts.
func (c *Client) Environment(ctx context.Context) (*schema.Environment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.env != nil {
		return c.env, nil
	}
	asked, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	answer, err := c.Registry.GetEnvironment(asked, &registryv1.GetEnvironmentRequest{})
	if err == nil {
		if raw, merr := proto.Marshal(answer.GetEnvironment()); merr == nil && c.kept != "" {
			_ = os.WriteFile(c.kept, raw, 0o600) // only for when the registry is away
		}
		c.env = wire.Environment(answer.GetEnvironment())
		return c.env, nil
	}
	raw, rerr := os.ReadFile(c.kept)
	if rerr != nil {
		return nil, fmt.Errorf("the registry does not answer: %w", err)
	}
	kept := &registryv1.Environment{}
	if err := proto.Unmarshal(raw, kept); err != nil {
		return nil, fmt.Errorf("%s: %w", c.kept, err)
	}
	c.env = wire.Environment(kept)
	return c.env, nil
}

// Resources speaks to a deployment.
func (c *Client) Resources(ctx context.Context, id schema.DeploymentID) (resourcev1.ResourceServiceClient, error) {
	conn, err := c.conn(ctx, id)
	if err != nil {
		return nil, err
	}
	return resourcev1.NewResourceServiceClient(conn), nil
}

// Admin speaks to a deployment as its operators do.
func (c *Client) Admin(ctx context.Context, id schema.DeploymentID) (adminv1.AdminServiceClient, error) {
	conn, err := c.conn(ctx, id)
	if err != nil {
		return nil, err
	}
	return adminv1.NewAdminServiceClient(conn), nil
}

func (c *Client) conn(ctx context.Context, id schema.DeploymentID) (grpc.ClientConnInterface, error) {
	env, err := c.Environment(ctx)
	if err != nil {
		return nil, err
	}
	d, ok := env.Deployment(id)
	if !ok || d.Address == "" {
		var known string
		for _, d := range env.Deployments {
			known += " " + d.String()
		}
		return nil, fmt.Errorf("deployment %s is not registered: known are%s", id, known)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.conns[id]
	if conn == nil {
		if conn, err = grpc.NewClient(d.Address, service.DialOptions(c.credentials, identity.Deployment(id))...); err != nil {
			return nil, fmt.Errorf("connect to %s: %w", id, err)
		}
		c.conns[id] = conn
	}
	return conn, nil
}

// Named reads a full name and speaks to the deployment that owns it.
func (c *Client) Named(ctx context.Context, full string) (schema.FullName, resourcev1.ResourceServiceClient, error) {
	name, err := schema.ParseFullName(full)
	if err != nil {
		return name, nil, err
	}
	resources, err := c.Resources(ctx, name.Deployment)
	return name, resources, err
}

// PutMany puts prefix1, prefix2, … prefixN, all with one body, in batches.
func (c *Client) PutMany(ctx context.Context, id schema.DeploymentID, prefix string, n int, body map[string]any) error {
	resources, err := c.Resources(ctx, id)
	if err != nil {
		return err
	}
	s, err := structpb.NewStruct(body)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for first := 1; first <= n; first += service.MaxBatch {
		g.Go(func() error {
			req := &resourcev1.BatchWriteResourcesRequest{}
			for i := first; i < first+service.MaxBatch && i <= n; i++ {
				req.Writes = append(req.Writes, PutWrite(&resourcev1.Resource{Name: fmt.Sprint(prefix, i), Body: s}))
			}
			_, err := resources.BatchWriteResources(ctx, req)
			return err
		})
	}
	return g.Wait()
}

// PutWrite is a put in a batch of writes.
func PutWrite(r *resourcev1.Resource) *resourcev1.BatchWriteResourcesRequest_Write {
	return &resourcev1.BatchWriteResourcesRequest_Write{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: r}}
}

// Query says which resources are listed, and in which order; zero: all.
type Query struct {
	Kind, Filter, OrderBy string
}

// Each calls visit for every resource of a deployment that fits a query, page by page.
func (c *Client) Each(ctx context.Context, id schema.DeploymentID, q Query, visit func(*resourcev1.Resource) error) error {
	resources, err := c.Resources(ctx, id)
	if err != nil {
		return err
	}
	for token := ""; ; {
		page, err := resources.ListResources(ctx, &resourcev1.ListResourcesRequest{
			Kind: q.Kind, Filter: q.Filter, OrderBy: q.OrderBy, PageSize: 1000, PageToken: token,
		})
		if err != nil {
			return err
		}
		for _, r := range page.GetResources() {
			if err := visit(r); err != nil {
				return err
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return nil
		}
	}
}

// WaitGone waits until the incarnation of a resource with the uid is gone.
func (c *Client) WaitGone(ctx context.Context, name schema.FullName, uid string) error {
	resources, err := c.Resources(ctx, name.Deployment)
	if err != nil {
		return err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		r, err := resources.GetResource(ctx, &resourcev1.GetResourceRequest{Name: name.Name})
		switch {
		case status.Code(err) == codes.NotFound, err == nil && r.GetUid() != uid:
			return nil
		case err != nil && status.Code(err) != codes.Unavailable:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}
