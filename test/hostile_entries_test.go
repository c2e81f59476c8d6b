package test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// rawCodec sends and receives bytes.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (rawCodec) Name() string                       { return "proto" }

// maxRequest is the size of the requests below, which is almost the largest allowed size.
const maxRequest = 4<<20 - 4096

// hostileRequests returns requests of a message of the greatest size: each field of it, and of the messages
// in it, as long as it can be, or as often.
func hostileRequests(of protoreflect.MessageDescriptor, levels int) map[string][]byte {
	out := map[string][]byte{}
	for i := range of.Fields().Len() {
		field := of.Fields().Get(i)
		name, number := string(field.Name()), field.Number()
		long := func(value []byte) []byte {
			return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
		}
		switch {
		case field.Message() != nil:
			if field.Cardinality() == protoreflect.Repeated {
				out[name+" very often"] = bytes.Repeat(long(nil), maxRequest/len(long(nil)))
			}
			if levels > 0 {
				for what, request := range hostileRequests(field.Message(), levels-1) {
					out[name+"."+what] = long(request)
				}
			}
		case field.Kind() == protoreflect.StringKind, field.Kind() == protoreflect.BytesKind:
			out[name+" very long"] = long([]byte(strings.Repeat("a.", (maxRequest-64)/2)))
			if field.Cardinality() == protoreflect.Repeated {
				some := long([]byte("sixteen-bytes-16"))
				out[name+" very often"] = bytes.Repeat(some, maxRequest/len(some))
			}
		case field.Cardinality() == protoreflect.Repeated:
			one := protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1)
			out[name+" very often"] = bytes.Repeat(one, maxRequest/len(one))
		}
	}
	return out
}

// Every method of every service gets requests of the greatest size, with each field as long, or as often, as
// it can be: each costs little, and is refused as the caller's mistake or answered.
func TestHostileRequestsOfEveryMethodCostLittle_I20_I21(t *testing.T) {
	hostile(t)
	t.Parallel()
	const deployment = "a.example.com/us-west2"
	f := newFixture(t)
	operator := f.as(f.ClientCerts(), deployment)
	peer := f.as(f.Deployments[f.id(bWest+"x/y")].Certs, deployment)
	registry, err := grpc.NewClient(f.RegistryAddress,
		f.credentials(f.ClientCerts()).DialOptions(identity.Identity{Role: identity.RoleRegistry})...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = registry.Close() })
	before, calls, slowest := f.liveHeap(deployment), 0, 0.0
	for _, file := range []struct {
		services protoreflect.ServiceDescriptors
		conn     *grpc.ClientConn
	}{
		{resourcev1.File_dbcontroller_resource_v1_resource_proto.Services(), operator},
		{adminv1.File_dbcontroller_admin_v1_admin_proto.Services(), operator},
		{schemav1.File_dbcontroller_schema_v1_schema_proto.Services(), peer},
		{registryv1.File_dbcontroller_registry_v1_registry_proto.Services(), registry},
	} {
		service := file.services.Get(0)
		for i := range service.Methods().Len() {
			m := service.Methods().Get(i)
			method := "/" + string(service.FullName()) + "/" + string(m.Name())
			for what, request := range hostileRequests(m.Input(), 2) {
				began := f.metric("//"+deployment+"/x/y", "process_cpu_seconds_total")
				err := callRaw(t.Context(), file.conn, method, request)
				took := f.metric("//"+deployment+"/x/y", "process_cpu_seconds_total") - began
				calls, slowest = calls+1, max(slowest, took)
				require.NotContains(t, []codes.Code{codes.Internal, codes.Unknown, codes.Unavailable, codes.DataLoss},
					status.Code(err), "%s: %s: %.300v", method, what, err)
				require.Less(t, len(status.Convert(err).Message()), 1100, "%s: %s", method, what)
				require.Less(t, took, 1.0, "%s: %s", method, what)
			}
		}
	}
	grown := f.liveHeap(deployment) - before
	t.Logf("%d requests: at most %.2f s CPU each; the heap grew by %.0f MB", calls, slowest, grown/1e6)
	require.Less(t, grown, maxGrown)
	f.mustPut(aWest+"targets/after", nil)
}

// callRaw sends a request, and waits at most a second for the first message of an answer.
func callRaw(ctx context.Context, conn *grpc.ClientConn, method string, request []byte) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodec(rawCodec{}))
	if err == nil {
		err = stream.SendMsg(request)
	}
	if err == nil {
		_ = stream.CloseSend()
	}
	var answer []byte
	return stream.RecvMsg(&answer)
}

// A deployment that announces epochs without end, and releases attempts that it has made up: the others
// write, delete and keep their leases, and it leaves as many rows as its quota allows. Then a user who reads
// the whole environment without end: the registry goes on to serve others.
//
//nolint:paralleltest // the flood alone may not take a lease: beside other tests, their load adds to it
func TestADeploymentThatFloodsStopsNobody_I15_I20(t *testing.T) {
	const deployment, quota = "a.example.com/us-west2", 1000
	f := newFixture(t, "--max-tentative", "1000")
	f.mustPut(aWest+"targets/t", nil)
	f.mustPut(bWest+"holders/first", fields{"block": aWest + "targets/t"})
	f.settled()
	before := f.members(aWest)
	hostile := schemav1.NewSchemaServiceClient(f.as(f.Deployments[f.id(bEast+"x/y")].Certs, deployment))
	flood, stop := context.WithCancel(t.Context())
	var g sync.WaitGroup
	full := newFlag()
	for i := range 100 {
		g.Go(func() {
			for flood.Err() == nil {
				if i%2 == 0 {
					_, _ = hostile.AnnounceEpoch(flood,
						&schemav1.AnnounceEpochRequest{Epoch: raw(uuid.Must(uuid.NewV7()))})
					continue
				}
				req := &schemav1.ReleaseBlockadesRequest{Epoch: raw(uuid.Must(uuid.NewV7()))}
				for range 500 {
					req.Attempts = append(req.Attempts, raw(uuid.Must(uuid.NewV7())))
				}
				if _, err := hostile.ReleaseBlockades(t.Context(), req); strings.Contains(status.Convert(err).Message(),
					"quota") {
					full.set()
				}
			}
		})
	}
	f.others(func() {
		for _, holder := range []string{"h1", "h2", "h3"} {
			f.mustPut(bWest+"holders/"+holder, fields{"block": aWest + "targets/t"})
			f.mustDelete(bWest + "holders/" + holder)
		}
	})
	<-full
	stop()
	g.Wait()
	require.Equal(t, before, f.members(aWest), "no lease was lost")
	rows := f.closedAttempts(aWest)
	t.Logf("%d rows of attempts that were made up", rows)
	require.LessOrEqual(t, rows, quota+100)
	f.floodRegistry()
}

// flag is closed once.
type flag chan struct{}

func newFlag() flag { return make(flag, 1) }

func (f flag) set() {
	select {
	case f <- struct{}{}:
	default:
	}
}

// floodRegistry reads the environment without end, until the registry refuses it. Others read and change it
// meanwhile.
func (f *fixture) floodRegistry() {
	f.t.Helper()
	certs, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "hostile"})
	require.NoError(f.t, err)
	conn, err := grpc.NewClient(f.RegistryAddress,
		f.credentials(certs).DialOptions(identity.Identity{Role: identity.RoleRegistry})...)
	require.NoError(f.t, err)
	defer func() { _ = conn.Close() }()
	hostile, refused := registryv1.NewRegistryServiceClient(conn), newFlag()
	flood, stop := context.WithCancel(f.t.Context())
	var g sync.WaitGroup
	for range 200 {
		g.Go(func() {
			for flood.Err() == nil {
				if _, err := hostile.GetEnvironment(flood, &registryv1.GetEnvironmentRequest{}); status.Code(
					err) == codes.ResourceExhausted {
					refused.set()
					<-time.After(50 * time.Millisecond)
				}
			}
		})
	}
	<-refused
	for _, region := range []string{"flooded-1", "flooded-2", "flooded-3"} {
		_, err := f.Client.Registry().
			Apply(f.t.Context(), &registryv1.ApplyRequest{Regions: []*registryv1.Region{{Name: region}}})
		require.NoError(f.t, err)
		_, err = f.Client.Registry().GetEnvironment(f.t.Context(), &registryv1.GetEnvironmentRequest{})
		require.NoError(f.t, err)
	}
	stop()
	g.Wait()
}

// closedAttempts counts the rows of attempts that are closed.
func (f *fixture) closedAttempts(deployment string) (n int) {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.Deployments[f.id(deployment+"x/y")].DSN)
	require.NoError(f.t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	require.NoError(f.t, conn.QueryRow(f.t.Context(), "SELECT count(*) FROM dbcontroller.closed_attempt").Scan(&n))
	return n
}

// credentials loads certificates.
func (f *fixture) credentials(certs string) *identity.Credentials {
	f.t.Helper()
	c, err := identity.Load(identity.InDir(certs))
	require.NoError(f.t, err)
	return c
}
