package peers

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

func environmentOf(deployments ...schema.Deployment) *schema.Environment {
	return &schema.Environment{Deployments: deployments}
}

// A connection stays as long as its deployment is registered, enabled, and at the same address.
func TestConnectionsFollowTheEnvironment(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.1:1"
	for name, c := range map[string]struct {
		next  schema.Deployment
		stays bool
	}{
		"unchanged":   {schema.Deployment{DeploymentID: other, Address: address}, true},
		"a version":   {schema.Deployment{DeploymentID: other, Address: address, Version: "v2", Generation: 5}, true},
		"an address":  {schema.Deployment{DeploymentID: other, Address: "127.0.0.1:2"}, false},
		"disabled":    {schema.Deployment{DeploymentID: other, Address: address, Disabled: true}, false},
		"removed":     {schema.Deployment{DeploymentID: sibling, Address: address}, false},
		"unreachable": {schema.Deployment{DeploymentID: other}, false},
	} {
		p := New(self, nil)
		p.Update(environmentOf(schema.Deployment{DeploymentID: other, Address: address}))
		var conns []*grpc.ClientConn
		for _, forward := range []bool{false, true} {
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			p.conns[connectionKey{to: other, forward: forward}] = &connection{address: address, conn: conn}
			conns = append(conns, conn)
		}
		before, err := p.Conn(other)
		require.NoError(t, err)
		require.Same(t, conns[0], before)
		forwarding, err := p.Forwarding(other)
		require.NoError(t, err)
		require.Same(t, conns[1], forwarding, "requests of people have a connection of their own")
		p.Update(environmentOf(c.next))
		for _, conn := range conns {
			require.Equal(t, !c.stays, conn.GetState() == connectivity.Shutdown, name)
		}
		require.Equal(t, c.stays, len(p.conns) == 2, name)
		p.Close()
		require.Empty(t, p.conns, name)
		require.Equal(t, connectivity.Shutdown, conns[0].GetState())
	}
}

func TestDeploymentsWithoutAnAddressHaveNoConnection(t *testing.T) {
	t.Parallel()
	p := New(self, nil)
	copied := &grpc.ClientConn{}
	p.SetSelf(&grpc.ClientConn{}, copied)
	p.Update(environmentOf(schema.Deployment{DeploymentID: sibling}, schema.Deployment{
		DeploymentID: other,
		Address:      "127.0.0.1:1", Disabled: true,
	}))
	for id, says := range map[schema.DeploymentID]string{
		sibling: "deployment a.example.com/eastus2 has not registered yet",
		other:   "deployment b.example.com/us-west2 is disabled",
		{
			Service: "c.example.com",
			Region:  "us-west2",
		}: "deployment c.example.com/us-west2 is not known to the registry",
	} {
		_, err := p.Conn(id)
		require.EqualError(t, err, says)
		_, err = p.Forwarding(id)
		require.EqualError(t, err, says)
		_, err = p.Client(id)
		require.EqualError(t, err, says)
	}
	conn, err := p.Conn(self)
	require.NoError(t, err)
	require.Same(t, copied, conn, "this deployment is called over its channel")
}

// called counts the calls of a channel, and fails them.
type called struct{ calls, streams int }

var errCalled = errors.New("called")

func (c *called) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	c.calls++
	return errCalled
}

func (c *called) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	c.streams++
	return nil, errCalled
}

// The watches that fill caches are over the channel that shares messages, calls over the one that copies
// them.
func TestOwnWatchesShareAndOwnCallsCopy(t *testing.T) {
	t.Parallel()
	p, shared, copied := New(self, nil), &called{}, &called{}
	p.SetSelf(shared, copied)
	require.ErrorIs(t, p.WatchShadows(t.Context(), nil, nil), errCalled)
	require.ErrorIs(t, p.WatchDeletions(t.Context(), self, nil), errCalled)
	_, err := p.Confirm(t.Context(), self, peer.Confirm{})
	require.Error(t, err)
	require.Equal(t, called{streams: 2}, *shared)
	require.Equal(t, called{calls: 1}, *copied)
}

func TestADisabledDeploymentIsNamed(t *testing.T) {
	t.Parallel()
	p := New(self, nil)
	require.NoError(t, p.Disabled(other), "before the first environment")
	require.True(t, p.Knows(other), "before the first environment every deployment may exist")
	p.Update(environmentOf(schema.Deployment{DeploymentID: other, Disabled: true},
		schema.Deployment{DeploymentID: sibling}))
	require.ErrorContains(t, p.Disabled(other), "b.example.com/us-west2 is disabled in the registry: enable it")
	require.NoError(t, p.Disabled(sibling))
	require.NoError(t, p.Disabled(self), "a deployment that is not registered is not disabled")
	require.True(t, p.Knows(other))
	require.False(t, p.Knows(self))
	require.Len(t, p.Environment().Deployments, 2)
}

// References that were established before stay allowed while any version of the holder's service imports this
// one.
func TestEarlierVersionsCountForEstablishedReferences(t *testing.T) {
	t.Parallel()
	version := func(v string, imports ...string) *schema.Descriptor {
		d := &schema.Descriptor{ServiceVersion: schema.ServiceVersion{Service: other.Service, Version: v}}
		for _, imported := range imports {
			d.Imports = append(d.Imports, schema.Import{ServiceVersion: schema.ServiceVersion{
				Service: imported,
				Version: "v1",
			}})
		}
		return d
	}
	for name, c := range map[string]struct {
		services   []*schema.Descriptor
		runs       string
		fresh, was bool
	}{
		"imported by its version": {[]*schema.Descriptor{version("v1", self.Service)}, "v1", true, true},
		"imported by an earlier version": {
			[]*schema.Descriptor{version("v1", self.Service), version("v2")},
			"v2",
			false, true,
		},
		"imported by a later version": {
			[]*schema.Descriptor{version("v1"), version("v2", self.Service)},
			"v1",
			false, true,
		},
		"never imported":                   {[]*schema.Descriptor{version("v1", "c.example.com")}, "v1", false, false},
		"its version has no descriptor":    {[]*schema.Descriptor{version("v1", self.Service)}, "v9", false, true},
		"nothing is described at all here": {nil, "v1", false, false},
	} {
		p := New(self, nil)
		env := environmentOf(schema.Deployment{DeploymentID: other, Version: c.runs},
			schema.Deployment{DeploymentID: sibling, Version: "v7"})
		env.Services = c.services
		p.Update(env)
		got, err := p.MayRefer(other, false)
		require.NoError(t, err)
		require.Equal(t, c.fresh, got, name)
		got, err = p.MayRefer(other, true)
		require.NoError(t, err)
		require.Equal(t, c.was, got, name)
		got, err = p.MayRefer(sibling, false)
		require.NoError(t, err)
		require.True(t, got, "deployments of one service may refer to one another")
	}
}
