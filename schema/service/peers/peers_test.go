package peers

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/wait"
)

func TestOnlyWhoImportsAServiceMayReferToIt(t *testing.T) {
	id := func(s string) schema.DeploymentID {
		d, err := schema.ParseDeploymentID(s)
		require.NoError(t, err)
		return d
	}
	version := func(service, version string, imports ...string) *schema.Descriptor {
		d := &schema.Descriptor{ServiceVersion: schema.ServiceVersion{Service: service, Version: version}}
		for _, imported := range imports {
			d.Imports = append(d.Imports, schema.Import{ServiceVersion: schema.ServiceVersion{
				Service: imported,
				Version: "v1",
			}})
		}
		return d
	}
	p := New(id("iam.example.com/us-west2"), nil)
	_, err := p.MayRefer(id("devices.example.com/us-west2"), false)
	require.Error(t, err, "unknown before the first environment")
	p.Update(&schema.Environment{
		Services: []*schema.Descriptor{version("iam.example.com", "v1"), version("devices.example.com", "v1",
			"iam.example.com"), version("devices.example.com", "v2")},
		Deployments: []schema.Deployment{
			{DeploymentID: id("iam.example.com/eastus2"), Version: "v1"},
			{DeploymentID: id("devices.example.com/us-west2"), Version: "v1"},
			{DeploymentID: id("devices.example.com/eastus2"), Version: "v2"}, // its version imports nothing
			{DeploymentID: id("devices.example.com/asia1"), Version: "v1", Disabled: true},
		},
	})
	for holder, want := range map[string]bool{
		"iam.example.com/eastus2": true, "devices.example.com/us-west2": true, "devices.example.com/eastus2": false,
		"devices.example.com/asia1": false,
	} {
		got, err := p.MayRefer(id(holder), false)
		require.NoError(t, err)
		require.Equal(t, want, got, holder)
	}
	_, err = p.MayRefer(id("devices.example.com/mars"), false)
	require.Error(t, err, "unknown is not no")
}

// A call that was not sent cannot have established a reference. A call that was sent, and not answered, may
// have.
func TestACallThatWasNotSentDiffersFromOneWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	self, other := schema.DeploymentID{Service: "a.example.com", Region: "west"},
		schema.DeploymentID{Service: "b.example.com", Region: "west"}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		return status.Error(codes.Unavailable, "broken")
	}))
	go func() { _ = server.Serve(listener) }()
	p := New(self, nil)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	p.Update(&schema.Environment{Deployments: []schema.Deployment{{
		DeploymentID: other,
		Address:      listener.Addr().String(),
	}}})
	p.conns[connectionKey{to: other}] = &connection{address: listener.Addr().String(), conn: conn}
	establish := func() error {
		_, err := p.Establish(t.Context(), other, uuid.Must(uuid.NewV7()), nil)
		require.Error(t, err)
		return err
	}
	require.NotErrorIs(t, establish(), peer.ErrNotSent, "it was sent, and its answer decides nothing")
	server.Stop()
	require.Eventually(t, func() bool {
		return errors.Is(establish(), peer.ErrNotSent)
	}, wait.Limit, 10*time.Millisecond)
}
