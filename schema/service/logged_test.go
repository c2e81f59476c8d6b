package service_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	registryserver "github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// filled returns a message whose fields have values that pass for names, deployments and ids: most calls get
// as far as the database.
func filled(m protoreflect.Message, depth int) proto.Message {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.IsMap() || f.ContainingOneof() != nil && f.ContainingOneof().Fields().Get(0) != f:
		case f.IsList() && f.Message() != nil && depth > 0:
			list := m.Mutable(f).List()
			list.Append(protoreflect.ValueOfMessage(filled(list.NewElement().Message(), depth-1).ProtoReflect()))
		case f.IsList() && f.Message() == nil:
			m.Mutable(f).List().Append(value(f))
		case f.IsList():
		case f.Message() != nil && depth > 0:
			filled(m.Mutable(f).Message(), depth-1)
		case f.Message() == nil:
			m.Set(f, value(f))
		}
	}
	return m.Interface()
}

// texts are values of fields by the ends of their names.
var texts = map[string]string{
	"name": "targets/t", "service": "a.example.com", "region": "us-west2",
	"deployment": "b.example.com/us-west2", "version": "v1", "token": "", "kind": "Target", "reason": "a test",
	"address": "localhost:7000",
}

func value(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		for end, text := range texts {
			if strings.HasSuffix(string(f.Name()), end) {
				return protoreflect.ValueOfString(text)
			}
		}
		return protoreflect.ValueOfString(uuid.NewString())
	case protoreflect.BytesKind:
		id := uuid.Must(uuid.NewV7())
		return protoreflect.ValueOfBytes(id[:])
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(1)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(1)
	default:
		return f.Default()
	}
}

// called calls a method and returns the first error; a stream is read for a moment.
func called(t *testing.T, conn grpc.ClientConnInterface, id uuid.UUID, method string, request proto.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), requestid.Header, id.String()),
		200*time.Millisecond)
	defer cancel()
	out, err := service.ResponseOf(method)
	require.NoError(t, err)
	if d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(method[1:],
		"/", "."))); err == nil && !d.(protoreflect.MethodDescriptor).IsStreamingServer() {
		_ = conn.Invoke(ctx, method, request, out)
		return
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	require.NoError(t, err)
	if err := stream.SendMsg(request); !errors.Is(err, io.EOF) {
		require.NoError(t, err)
	}
	require.NoError(t, stream.CloseSend())
	for err == nil {
		err = stream.RecvMsg(out)
	}
}

// Each log line of a process during a request, to a deployment or to the registry, has the id of that
// request: with an empty request, with values, and over a database that fails. Nothing else runs in these
// processes.
func TestEveryLineOfARequestHasItsID(t *testing.T) {
	core, said := observer.New(zap.DebugLevel)
	log := zap.New(core)
	self := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	box := harness.NewBox(t, services, func(c *shadow.Config) { c.Logger = log }, self.String())
	env := peers.New(self, nil)
	env.Update(&schema.Environment{Rights: &schema.Rights{Allow: true}})
	channels := service.NewChannels(service.Config{Store: box.Stores[self], Peers: env, Logger: log})
	registryPool := registryDatabase(t)
	operator := identity.Identity{Role: identity.RoleOperator, Name: "eve"}
	asRegistry := service.NewChannel(log, operator, nil, nil)
	registryv1.RegisterRegistryServiceServer(asRegistry, registryserver.New(registryPool, nil, nil, log))

	servers := map[string]grpc.ClientConnInterface{}
	for method, roles := range service.Policy {
		who := identity.Identity{Role: roles[0], Name: "ann"}
		if who.Role == identity.RoleDeployment {
			who = identity.Deployment(schema.DeploymentID{Service: "b.example.com", Region: "us-west2"})
		}
		servers[method] = channels.As(who)
	}
	for method := range registryserver.Policy {
		servers[method] = asRegistry
	}
	_ = said.TakeAll()
	for _, pass := range []string{"empty", "filled", "failing"} {
		if pass == "failing" {
			_, err := box.Pools[self].Exec(t.Context(), "ALTER SCHEMA dbcontroller RENAME TO away")
			require.NoError(t, err)
			_, err = registryPool.Exec(t.Context(), "ALTER SCHEMA dbcontroller_registry RENAME TO away")
			require.NoError(t, err)
		}
		faults := 0
		for method, conn := range servers {
			if strings.HasPrefix(method, "/grpc.") {
				continue // of listeners
			}
			request := requestOf(t, method)
			id := uuid.New()
			if pass != "empty" {
				request = filled(request.ProtoReflect(), 3)
				if f := request.ProtoReflect().Descriptor().Fields().ByName("request_id"); f != nil {
					request.ProtoReflect().Set(f, protoreflect.ValueOfString(id.String()))
				}
				if f := request.ProtoReflect().Descriptor().Fields().ByName("approval"); f != nil {
					request.ProtoReflect().Clear(f) // no signature of another operator
				}
			}
			called(t, conn, id, method, request)
			require.Eventually(t, func() bool {
				return said.FilterMessage("a call is answered").Len() > 0
			}, wait.Limit, time.Millisecond, "%s, %s: debug has a line for each call", method, pass)
			for _, line := range said.TakeAll() {
				require.Equal(t, id.String(), line.ContextMap()["request_id"], "%s, %s: %s %v", method, pass,
					line.Message, line.ContextMap())
				if line.Level > zap.InfoLevel {
					faults++
				}
			}
		}
		if pass == "failing" {
			require.Greater(t, faults, 30, "calls got as far as the database")
		}
	}
}

func registryDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	s := harness.Postgres(t)
	dsn := s.NewDatabase(t, s.Template(t, "registry", func(ctx context.Context, dsn string) error {
		_, err := migrations.Up(ctx, dsn, migrations.Registry)
		return err
	}))
	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}
