package service_test

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const services = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
    references: [{ path: soon, targets: [Target], behaviour: ASYNC_CASCADE_DELETE }]
`

// channels returns the channels of a deployment's services over a real store.
func channels(t testing.TB) (*service.TestChannels, *shadow.Store) {
	t.Helper()
	self := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	store := harness.NewBox(t, services, nil, self.String()).Stores[self]
	env := peers.New(self, nil)
	env.Update(&schema.Environment{Rights: &schema.Rights{Allow: true}})
	return service.NewChannels(service.Config{Store: store, Peers: env, Logger: zap.NewNop()}), store
}

// The channels that a deployment makes share and copy as their names say, and its own calls are copied: two
// watches of the same changes receive one message in memory on the one, and two on the other.
func TestTheChannelsOfADeploymentShareAndCopy(t *testing.T) {
	self := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	store, own := harness.NewBox(t, services, nil, self.String()).Stores[self], peers.New(self, nil)
	c := service.NewChannels(service.Config{Store: store, Peers: own, Logger: zap.NewNop()})
	conn, err := own.Conn(self)
	require.NoError(t, err)
	require.Same(t, c.Copied, conn)
	watch := func(conn grpc.ClientConnInterface) (next func() *resourcev1.Resource) {
		stream, err := resourcev1.NewResourceServiceClient(conn).WatchResources(t.Context(),
			&resourcev1.WatchResourcesRequest{})
		require.NoError(t, err)
		next = func() *resourcev1.Resource {
			for {
				event, err := stream.Recv()
				require.NoError(t, err)
				if event.GetEndOfSnapshot() != nil || event.GetUpsert() != nil {
					return event.GetUpsert()
				}
			}
		}
		require.Nil(t, next())
		return next
	}
	watches := []func() *resourcev1.Resource{watch(c.Shared), watch(c.Shared), watch(c.Copied), watch(c.Copied)}
	shared := 0
	for n := range 20 { // a watch that falls behind the others reads for itself
		_, err := store.Write.Save(t.Context(), []peer.Write{{Name: "targets/t", Body: map[string]any{"n": n}}})
		require.NoError(t, err)
		var got []*resourcev1.Resource
		for _, next := range watches {
			got = append(got, next())
		}
		if got[0] == got[1] {
			shared++
		}
		for i, copied := range got[2:] {
			require.False(t, slices.Contains(got[:2], copied) || got[3-i] == copied)
		}
	}
	require.Positive(t, shared)
}

// requestOf returns an empty request of a method.
func requestOf(t *testing.T, method string) proto.Message {
	t.Helper()
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(method[1:],
		"/", ".")))
	require.NoError(t, err)
	m, err := protoregistry.GlobalTypes.FindMessageByName(d.(protoreflect.MethodDescriptor).Input().FullName())
	require.NoError(t, err)
	return m.New().Interface()
}

// Every channel has every method; on the channel with rights the policy decides.
func TestEveryMethodIsOnEveryChannelByThePolicy(t *testing.T) {
	c, _ := channels(t)
	user, operator := identity.Identity{Role: identity.RoleUser, Name: "ann"},
		identity.Identity{Role: identity.RoleOperator, Name: "eve"}
	peer := identity.Deployment(schema.DeploymentID{Service: "b.example.com", Region: "us-west2"})
	call := func(conn grpc.ClientConnInterface, method string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		out, err := service.ResponseOf(method)
		require.NoError(t, err)
		if strings.Contains(method, "/Watch") || strings.Contains(method, "/Verify") { // streams
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
			require.NoError(t, err)
			// EOF: it was refused already, and RecvMsg has the error
			if err := stream.SendMsg(requestOf(t, method)); !errors.Is(err, io.EOF) {
				require.NoError(t, err)
			}
			require.NoError(t, stream.CloseSend())
			return stream.RecvMsg(out)
		}
		return conn.Invoke(ctx, method, requestOf(t, method), out)
	}
	for method, roles := range service.Policy {
		if strings.HasPrefix(method, "/grpc.") {
			continue // of listeners
		}
		for name, conn := range map[string]grpc.ClientConnInterface{"shared": c.Shared, "copied": c.Copied} {
			require.NotEqual(t, codes.Unimplemented, status.Code(call(conn, method)), "%s on %s", method, name)
		}
		for _, who := range []identity.Identity{user, operator, peer} {
			denied := true
			for _, role := range roles {
				denied = denied && role != who.Role
			}
			err := call(c.As(who), method)
			if denied {
				require.Equal(t, codes.PermissionDenied, status.Code(err), "%s for %s", method, who)
				require.ErrorContains(t, err, "may not call")
			} else {
				require.NotContains(t, status.Convert(err).Message(), "may not call", "%s for %s", method, who)
			}
		}
	}
	// On a channel with rights only deployments of the service may act on behalf of another identity.
	ctx := metadata.AppendToOutgoingContext(t.Context(), service.OnBehalfOf, operator.Path())
	_, err := resourcev1.NewResourceServiceClient(c.As(user)).SetBlockDeletion(ctx,
		&resourcev1.SetBlockDeletionRequest{Name: "targets/t"})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
}

// The policy applies to watches on the channel with rights too.
func TestAWatchOnTheChannelWithRights(t *testing.T) {
	c, store := channels(t)
	_, err := store.Write.Save(t.Context(), []peer.Write{{Name: "targets/t"}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := resourcev1.NewResourceServiceClient(c.As(identity.Identity{Role: identity.RoleUser, Name: "ann"})).
		WatchResources(ctx, &resourcev1.WatchResourcesRequest{})
	require.NoError(t, err)
	event, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "targets/t", event.GetUpsert().GetName())
}

// The position of an event is sent right after its items, and not with the next periodic bookmark: an
// acknowledgement waits for it.
func TestAPositionFollowsItsItems(t *testing.T) {
	c, store := channels(t)
	_, err := store.Write.Save(t.Context(), []peer.Write{
		{Name: "targets/t"}, {Name: "targets/h", Body: map[string]any{"soon": "//" + store.Deployment().String() +
			"/targets/t"}},
	})
	require.NoError(t, err)
	stream, err := schemav1.NewSchemaServiceClient(c.Copied).WatchImportedServiceDeletions(t.Context(),
		&schemav1.WatchImportedServiceDeletionsRequest{})
	require.NoError(t, err)
	event, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, event.GetEndOfSnapshot())
	_, err = store.Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/t"})
	require.NoError(t, err)
	event, err = stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "targets/t", event.GetUpsert().GetResources()[0].GetName())
	event, err = stream.Recv()
	require.NoError(t, err)
	require.NotEmpty(t, event.GetBookmark().GetResumeToken())
}
