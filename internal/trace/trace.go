// Package trace has the spans of calls, of SQL statements, and of work for a deletion that began elsewhere.
// It does nothing until package export turns it on.
package trace

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

const scope = "github.com/db-controller/db-controller"

var on atomic.Bool

// TurnOn makes the spans of processes that start their parts afterwards, with the provider of package otel.
func TurnOn() { on.Store(true) }

// Server returns the options of a gRPC server.
func Server() []grpc.ServerOption {
	if !on.Load() {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithFilter(short)))}
}

// Client returns the options of a gRPC connection.
func Client() []grpc.DialOption {
	if !on.Load() {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithFilter(short)))}
}

// short leaves out watches, whose spans would have no end, and health checks.
func short(call *stats.RPCTagInfo) bool {
	_, method, _ := strings.Cut(strings.TrimPrefix(call.FullMethodName, "/"), "/")
	return !strings.HasPrefix(method, "Watch") && !strings.HasPrefix(call.FullMethodName, "/grpc.health.")
}

// Statements returns the tracer of PostgreSQL connections; nil when tracing is off.
func Statements() pgx.QueryTracer {
	if !on.Load() {
		return nil
	}
	return statements{otelpgx.NewTracer(otelpgx.WithDisableConnectionDetailsInAttributes())}
}

// statements leaves out statements that belong to no span: each statement of leases, watches and other work
// of the process would be a trace of its own.
type statements struct{ *otelpgx.Tracer }

func (s statements) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !within(ctx) {
		return ctx
	}
	return s.Tracer.TraceQueryStart(ctx, conn, data)
}

func (s statements) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	if !within(ctx) {
		return ctx
	}
	return s.Tracer.TraceBatchStart(ctx, conn, data)
}

func (s statements) TracePrepareStart(ctx context.Context, conn *pgx.Conn,
	data pgx.TracePrepareStartData,
) context.Context {
	if !within(ctx) {
		return ctx
	}
	return s.Tracer.TracePrepareStart(ctx, conn, data)
}

func (s statements) TraceConnectStart(ctx context.Context, data pgx.TraceConnectStartData) context.Context {
	if !within(ctx) {
		return ctx
	}
	return s.Tracer.TraceConnectStart(ctx, data)
}

func within(ctx context.Context) bool { return trace.SpanContextFromContext(ctx).IsSampled() }

// Parent names the span of a context, as the header traceparent of W3C Trace Context does; empty when it is
// not sampled.
func Parent(ctx context.Context) string {
	if !within(ctx) {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

func spanOf(parent string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent})
	return trace.SpanContextFromContext(ctx)
}

// Continue begins a span of work for requests that began elsewhere: below the first of their spans, with
// links to the others. It returns ctx when none of them is known. end ends the span.
func Continue(ctx context.Context, name string, parents []string) (_ context.Context, end func(error)) {
	first := trace.SpanContext{}
	var links []trace.Link
	for _, parent := range parents {
		span := spanOf(parent)
		switch {
		case !span.IsValid() || span.TraceID() == first.TraceID():
		case !first.IsValid():
			first = span
		default:
			links = append(links, trace.Link{SpanContext: span})
		}
	}
	if !on.Load() || !first.IsValid() {
		return ctx, func(error) {}
	}
	ctx, span := otel.Tracer(scope).Start(trace.ContextWithRemoteSpanContext(ctx, first), name,
		trace.WithLinks(links...))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}
