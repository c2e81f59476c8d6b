package test

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

// collector receives spans as an OpenTelemetry collector does.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []span // guarded by mu
}

type span struct {
	instance, scope string
	*tracev1.Span
}

func (c *collector) Export(_ context.Context,
	req *collectorv1.ExportTraceServiceRequest,
) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range req.GetResourceSpans() {
		instance := attribute(of.GetResource().GetAttributes(), "service.instance.id")
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, span{instance, scope.GetScope().GetName(), s})
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func attribute(all []*commonv1.KeyValue, key string) string {
	for _, a := range all {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// of returns the spans of a trace as "instance: name"; statements as "instance: SQL".
func (c *collector) of(traceID string) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if hex.EncodeToString(s.GetTraceId()) != traceID {
			continue
		}
		name := s.GetName()
		if strings.HasSuffix(s.scope, "otelpgx") {
			name = "SQL"
		}
		names = append(names, s.instance+": "+name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (c *collector) roots() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if len(s.GetParentSpanId()) == 0 {
			names = append(names, s.scope+" "+s.GetName())
		}
	}
	return names
}

func newCollector(t *testing.T) (*collector, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c, server := &collector{}, grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return c, "http://" + listener.Addr().String()
}

// Without OTEL_… variables processes make no spans, and connect to no collector: not to one at the addresses
// that OpenTelemetry takes by default either.
func TestNothingIsTracedWithoutItsVariables(t *testing.T) {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "") // which counts as not set
		}
	}
	var connected atomic.Int64
	for _, address := range []string{"127.0.0.1:4317", "127.0.0.1:4318"} {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Skip("another program listens there: ", err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				connected.Add(1)
				_ = conn.Close()
			}
		}()
	}
	f := newFixture(t)
	f.mustPut(aWest+"targets/x", fields{})
	f.mustPut(bEast+"holders/h", fields{"cascade": aWest + "targets/x"})
	name, resources := f.named(aWest + "targets/x")
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	_, err := resources.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: name})
	require.NoError(t, err)
	f.gone(bEast + "holders/h")
	conn, err := pgx.Connect(t.Context(), f.Deployments[f.id(aWest+"x/y")].DSN)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	var stored int
	require.NoError(t,
		conn.QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.cause WHERE trace_parent IS NOT NULL`).
			Scan(&stored))
	require.Zero(t, stored, "the span of a delete is stored where its work continues it")
	for _, p := range append([]*playground.Process{f.Registry}, f.Deployments[f.id(aWest+"x/y")].Process,
		f.Deployments[f.id(bEast+"x/y")].Process) {
		require.NoError(t, p.Stop()) // an exporter sends its last spans now
	}
	require.Zero(t, connected.Load())
}

// A user's delete, its look-ahead, the cascade in another region, and the statements below are one trace;
// work of the processes is none.
func TestADeleteIsOneTraceInAllDeployments(t *testing.T) {
	collected, endpoint := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
	f := newFixture(t)
	f.mustPut(aWest+"targets/x", fields{})
	f.mustPut(bEast+"holders/h", fields{"cascade": aWest + "targets/x"})

	const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	name, resources := f.named(aWest + "targets/x")
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent",
		fmt.Sprintf("00-%s-00f067aa0ba902b7-01", traceID))
	_, err := resources.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: name})
	require.NoError(t, err)
	f.gone(bEast + "holders/h")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Subset(c, collected.of(traceID), []string{
			"a.example.com/us-west2: dbcontroller.resource.v1.ResourceService/DeleteResource",
			"a.example.com/us-west2: SQL",
			"a.example.com/us-west2: dbcontroller.schema.v1.SchemaService/PlanDeletion", // the call of the look-ahead
			"b.example.com/eastus2: dbcontroller.schema.v1.SchemaService/PlanDeletion",  // its answer
			"b.example.com/eastus2: act upon deletions",                                 // the cascade
			"b.example.com/eastus2: SQL",
		})
	}, wait.Limit, 100*time.Millisecond)
	for _, root := range collected.roots() {
		require.NotContains(t, root, "otelpgx", "a statement that belongs to no call is no trace")
	}
}
