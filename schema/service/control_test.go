package service

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/costs"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/schema/shadow"
)

// controlStore is a resourceControls.
type controlStore struct {
	removeFinalizer func(name string, uid uuid.UUID, finalizer string) (*peer.Resource, error)
	updateStatus    func(name string, uid uuid.UUID, status []byte, generation *int64) (*peer.Resource, error)
}

func (s *controlStore) RemoveFinalizer(_ context.Context, name string, uid uuid.UUID,
	finalizer string,
) (*peer.Resource, error) {
	return s.removeFinalizer(name, uid, finalizer)
}

func (s *controlStore) UpdateStatus(_ context.Context, name string, uid uuid.UUID, status []byte,
	generation *int64,
) (*peer.Resource, error) {
	return s.updateStatus(name, uid, status, generation)
}

func newControls(s *controlStore) *resources {
	r := newResourceService(&resourceStore{conditions: func(string) ([]shadow.Condition, error) { return nil, nil }})
	r.controls = s
	return r
}

func TestAFinalizerIsRemovedFromOneUID(t *testing.T) {
	t.Parallel()
	r := newControls(
		&controlStore{removeFinalizer: func(name string, id uuid.UUID, finalizer string) (*peer.Resource, error) {
			require.Equal(t, []any{"devices/d", uid(1), "calendar"}, []any{name, id, finalizer})
			found := stored(name)
			found.State, found.Finalizers = peer.Deleting, []string{"mail"}
			return found, nil
		}})
	got, err := r.RemoveFinalizer(as(t, operator), &resourcev1.RemoveFinalizerRequest{
		Name: "devices/d",
		Uid:  uid(1).String(), Finalizer: "calendar",
	})
	require.NoError(t, err)
	require.Equal(t, []string{"mail"}, got.GetFinalizers())
	require.Equal(t, resourcev1.Resource_STATE_DELETING, got.GetState())
	for want, req := range map[string]*resourcev1.RemoveFinalizerRequest{
		"uid: is missing": {Name: "devices/d", Finalizer: "calendar"},
		"uid: ":           {Name: "devices/d", Uid: "x", Finalizer: "calendar"},
		"belongs to":      {Name: "//" + other.String() + "/devices/d", Uid: uid(1).String()},
	} {
		_, err := r.RemoveFinalizer(as(t, operator), req)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", req)
		require.ErrorContains(t, err, want)
	}
	r = newControls(&controlStore{removeFinalizer: func(string, uuid.UUID, string) (*peer.Resource, error) {
		return nil, peer.ErrNotFound
	}})
	_, err = r.RemoveFinalizer(as(t, operator), &resourcev1.RemoveFinalizerRequest{
		Name: "devices/d",
		Uid:  uid(1).String(),
	})
	require.Equal(t, codes.NotFound, status.Code(err))
}

func TestAStatusIsReplacedOrRemoved(t *testing.T) {
	t.Parallel()
	generation := int64(7)
	object, err := structpb.NewStruct(map[string]any{"ready": true, "n": 3})
	require.NoError(t, err)
	for _, c := range []struct {
		req  *resourcev1.UpdateResourceStatusRequest
		text string // empty: none
	}{
		{&resourcev1.UpdateResourceStatusRequest{
			Name: "devices/d", Uid: uid(1).String(), Status: object,
			StatusGeneration: &generation,
		}, `{"n":3,"ready":true}`},
		{&resourcev1.UpdateResourceStatusRequest{Name: "devices/d"}, ""},
	} {
		r := newControls(
			&controlStore{updateStatus: func(name string, id uuid.UUID, status []byte,
				got *int64,
			) (*peer.Resource, error) {
				require.Equal(t, "devices/d", name)
				require.Equal(t, c.req.GetUid() == "", id == uuid.Nil)
				require.Equal(t, c.req.StatusGeneration, got, "absent is not 0") //nolint:protogetter // as said
				require.Equal(t, c.text, string(status))
				found := stored(name)
				found.Status, found.StatusGeneration = status, 8
				return found, nil
			}})
		got, err := r.UpdateResourceStatus(as(t, operator), c.req)
		require.NoError(t, err)
		require.Equal(t, int64(8), got.GetStatusGeneration())
		require.Equal(t, c.req.GetStatus().AsMap(), got.GetStatus().AsMap())
		require.Equal(t, c.text == "", got.GetStatus() == nil)
	}
}

func TestAStatusIsBounded_I21(t *testing.T) {
	t.Parallel()
	deep := structpb.NewStringValue("x")
	for range shadow.MaxBodyDepth + 1 {
		deep = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"a": deep}})
	}
	large := structpb.NewStringValue(string(make([]byte, shadow.MaxStatusBytes+1)))
	r := newControls(&controlStore{}) // not called
	for what, value := range map[string]*structpb.Value{
		"levels": deep, "bytes": large,
		"not a number": structpb.NewNumberValue(math.NaN()),
	} {
		_, err := r.UpdateResourceStatus(as(t, operator), &resourcev1.UpdateResourceStatusRequest{
			Name: "devices/d", Status: &structpb.Struct{Fields: map[string]*structpb.Value{"a": value}},
		})
		require.Equal(t, codes.InvalidArgument, status.Code(err), what)
		require.ErrorContains(t, err, "status", what)
	}
	_, err := r.UpdateResourceStatus(as(t, operator), &resourcev1.UpdateResourceStatusRequest{
		Name: "devices/d",
		Uid:  "x",
	})
	require.ErrorContains(t, err, "uid: ")
	_, err = r.UpdateResourceStatus(as(t, operator), &resourcev1.UpdateResourceStatusRequest{Name: "//" +
		other.String() + "/devices/d"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

// relayPeers connects to other deployments by function calls.
type relayPeers struct {
	conn   func(id schema.DeploymentID) error
	invoke func(method string, req, out any) error
}

func (p *relayPeers) Conn(id schema.DeploymentID) (grpc.ClientConnInterface, error) {
	return p, p.conn(id)
}

func (p *relayPeers) Invoke(_ context.Context, method string, req, out any, _ ...grpc.CallOption) error {
	return p.invoke(method, req, out)
}

func (p *relayPeers) NewStream(context.Context, *grpc.StreamDesc, string,
	...grpc.CallOption,
) (grpc.ClientStream, error) {
	return nil, errors.New("no stream is relayed")
}

func TestCallsOfAnApplicationAreRelayed(t *testing.T) {
	t.Parallel()
	const method = schemav1.SchemaService_EstablishReferences_FullMethodName
	application := identity.Identity{Role: identity.RoleApplication, Name: self.Service + "/booking"}
	handled := false
	handler := func(context.Context, any) (any, error) { handled = true; return "handled", nil }
	answer := &schemav1.EstablishReferencesResponse{Outcomes: []*schemav1.EstablishReferencesResponse_Outcome{{}, {}}}
	reach := &relayPeers{
		conn: func(id schema.DeploymentID) error {
			if id != other {
				return errors.New("is not known")
			}
			return nil
		},
		invoke: func(got string, _, out any) error {
			require.Equal(t, method, got)
			out.(*schemav1.EstablishReferencesResponse).Outcomes = answer.GetOutcomes()
			return nil
		},
	}
	relay := applicationRelay{
		self: self, peers: reach, places: costs.NewPlaces(maxRelayed, maxRelayedOfAll),
		log: zap.NewNop(),
	}
	call := func(who identity.Identity, method, to string) (any, error) {
		handled = false
		ctx := metadata.NewIncomingContext(as(t, who), metadata.Pairs(peers.RelayKey, to))
		return relay.Unary(ctx, &schemav1.EstablishReferencesRequest{}, &grpc.UnaryServerInfo{FullMethod: method},
			handler)
	}
	got, err := call(application, method, other.String())
	require.NoError(t, err)
	require.False(t, handled, "the other deployment answers")
	require.Len(t, got.(*schemav1.EstablishReferencesResponse).GetOutcomes(), 2)

	for _, who := range []identity.Identity{ann, operator, identity.Deployment(other)} {
		_, err = call(who, method, other.String())
		require.NoError(t, err)
		require.True(t, handled, "%s is no application", who)
	}
	_, err = call(application, schemav1.SchemaService_ReleaseBlockades_FullMethodName, other.String())
	require.NoError(t, err)
	require.True(t, handled, "the policy decides about other methods")

	for want, c := range map[codes.Code]func() (any, error){
		codes.PermissionDenied: func() (any, error) {
			return call(identity.Identity{Role: identity.RoleApplication, Name: other.Service + "/booking"}, method,
				other.String())
		},
		codes.InvalidArgument: func() (any, error) { return call(application, method, "nowhere") },
		codes.Unavailable:     func() (any, error) { return call(application, method, sibling.String()) },
	} {
		_, err = c()
		require.Equal(t, want, status.Code(err), "%v", err)
		require.False(t, handled)
	}
	reach = &relayPeers{conn: reach.conn, invoke: func(string, any, any) error {
		return status.Error(codes.FailedPrecondition, "refused there")
	}}
	relay.peers = reach
	_, err = call(application, method, other.String())
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "the refusal is passed on")
}

// Applications whose calls do not end leave their deployment most of its calls at the other one, and each
// other a part.
func TestApplicationsLeaveTheirDeploymentItsCalls_I20(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var running atomic.Int64
	reached := make(chan struct{}, 10*maxRelayedOfAll)
	relay := applicationRelay{
		self: self, places: costs.NewPlaces(maxRelayed, maxRelayedOfAll), log: zap.NewNop(),
		peers: &relayPeers{
			conn: func(schema.DeploymentID) error { return nil },
			invoke: func(string, any, any) error {
				running.Add(1)
				reached <- struct{}{}
				<-ctx.Done()
				return nil
			},
		},
	}
	call := func(ctx context.Context, name string) error {
		who := identity.NewContext(ctx, identity.Identity{Role: identity.RoleApplication, Name: self.Service +
			"/" + name})
		_, err := relay.Unary(metadata.NewIncomingContext(who, metadata.Pairs(peers.RelayKey, other.String())),
			&schemav1.TraceCascadesRequest{},
			&grpc.UnaryServerInfo{FullMethod: schemav1.SchemaService_TraceCascades_FullMethodName}, nil)
		return err
	}
	var g sync.WaitGroup
	flood := func(name string) {
		for range maxCalls {
			g.Go(func() { _ = call(ctx, name) })
		}
	}
	flood("hostile")
	for range maxRelayed {
		<-reached
	}
	flood("other")
	for range maxRelayedOfAll - maxRelayed {
		<-reached
	}
	late, stop := context.WithCancel(t.Context())
	stop()
	require.Equal(t, codes.Canceled, status.Code(call(late, "third")), "a further call waits until its context ends")
	require.EqualValues(t, maxRelayedOfAll, running.Load())
	cancel()
	g.Wait()
}
