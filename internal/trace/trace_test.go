package trace

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"
)

// traced turns tracing on for one test, and returns the spans that have ended.
func traced(t *testing.T) *tracetest.SpanRecorder {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	TurnOn()
	t.Cleanup(func() { on.Store(false) })
	return spans
}

const (
	parentA = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	parentB = "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"
)

// A process without tracing pays nothing for it.
func TestNothingIsTracedUntilItIsTurnedOn(t *testing.T) {
	require.Nil(t, Server())
	require.Nil(t, Client())
	require.Nil(t, Statements())
	ctx, end := Continue(context.Background(), "act", []string{parentA})
	require.Equal(t, context.Background(), ctx)
	end(errors.New("ignored"))
	traced(t)
	require.NotEmpty(t, Server())
	require.NotEmpty(t, Client())
	require.NotNil(t, Statements())
}

// Spans of watches would have no end; health checks would be the most of all.
func TestWatchesAndHealthChecksHaveNoSpans(t *testing.T) {
	for method, want := range map[string]bool{
		"/dbcontroller.resource.v1.ResourceService/PutResource":               true,
		"/dbcontroller.resource.v1.ResourceService/WatchResources":            false,
		"/dbcontroller.schema.v1.SchemaService/WatchImportedServiceDeletions": false,
		"/dbcontroller.schema.v1.SchemaService/EstablishReferences":           true,
		"/grpc.health.v1.Health/Check":                                        false,
		"/example.com.WatchService/GetX":                                      true,
	} {
		require.Equal(t, want, short(&stats.RPCTagInfo{FullMethodName: method}), method)
	}
}

// The span of a request is named in the work that follows from it, in another process, and continued there.
func TestWorkContinuesTheSpanOfItsRequest(t *testing.T) {
	spans := traced(t)
	request, span := otel.Tracer(scope).Start(context.Background(), "delete")
	parent := Parent(request)
	require.NotEmpty(t, parent)
	span.End()

	ctx, end := Continue(context.Background(), "cascade", []string{"nonsense", parent, parentA, parent, parentB})
	require.Equal(t, span.SpanContext().TraceID(), trace.SpanContextFromContext(ctx).TraceID())
	end(errors.New("unreachable"))
	ended := spans.Ended()
	require.Len(t, ended, 2)
	work := ended[1]
	require.Equal(t, "cascade", work.Name())
	require.Equal(t, span.SpanContext().SpanID(), work.Parent().SpanID())
	require.Equal(t, codes.Error, work.Status().Code)
	require.Len(t, work.Links(), 2, "one for each other trace")
	require.Equal(t, spanOf(parentA).TraceID(), work.Links()[0].SpanContext.TraceID())
	require.Equal(t, spanOf(parentB).TraceID(), work.Links()[1].SpanContext.TraceID())

	_, end = Continue(context.Background(), "cascade", []string{parentA})
	end(nil)
	require.Equal(t, codes.Unset, spans.Ended()[2].Status().Code)
}

func TestWorkOfUnknownRequestsHasNoSpan(t *testing.T) {
	spans := traced(t)
	for _, parents := range [][]string{nil, {""}, {"nonsense", "00-0-0-01"}} {
		ctx, end := Continue(context.Background(), "cascade", parents)
		end(nil)
		require.Empty(t, Parent(ctx))
	}
	require.Empty(t, spans.Ended())
	notSampled := trace.ContextWithSpanContext(context.Background(),
		spanOf("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"))
	require.Empty(t, Parent(notSampled), "others do not follow a trace that is not recorded")
}

// Statements of leases and watches belong to no request: each would be a trace of its own.
func TestStatementsOutsideOfASpanAreNotTraced(t *testing.T) {
	spans := traced(t)
	s, ok := Statements().(statements)
	require.True(t, ok)
	ctx := context.Background()
	require.Equal(t, ctx, s.TraceQueryStart(ctx, nil, pgx.TraceQueryStartData{SQL: "SELECT 1"}))
	require.Equal(t, ctx, s.TraceBatchStart(ctx, nil, pgx.TraceBatchStartData{Batch: &pgx.Batch{}}))
	require.Equal(t, ctx, s.TracePrepareStart(ctx, nil, pgx.TracePrepareStartData{SQL: "SELECT 1"}))
	require.Equal(t, ctx, s.TraceConnectStart(ctx, pgx.TraceConnectStartData{}))
	require.Empty(t, spans.Started())

	within, span := otel.Tracer(scope).Start(ctx, "put")
	defer span.End()
	statement := s.TraceQueryStart(within, nil, pgx.TraceQueryStartData{SQL: "SELECT 1"})
	s.TraceQueryEnd(statement, nil, pgx.TraceQueryEndData{})
	require.Len(t, spans.Ended(), 1)
	require.Equal(t, span.SpanContext().SpanID(), spans.Ended()[0].Parent().SpanID())
}
