// Package export sends the spans of a process where the OTEL_… environment variables say.
package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/db-controller/db-controller/internal/trace"
)

// stopTimeout bounds the sending of the last spans.
const stopTimeout = 2 * time.Second

// Begin turns tracing on if the environment says so: OTEL_TRACES_EXPORTER is otlp, or an endpoint is set. The
// OpenTelemetry SDK reads the variables of the exporter, the sampler, the batches and the resource. stop
// sends the last spans.
func Begin(ctx context.Context, version, instance string, log func(error)) (stop func(), err error) {
	wanted, err := wanted()
	if err != nil || !wanted {
		return func() {}, err
	}
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("export of traces: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "db-controller"), attribute.String("service.version", version),
		attribute.String("service.instance.id", instance),
	), resource.WithFromEnv(), resource.WithTelemetrySDK())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(log))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	trace.TurnOn()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log(err)
		}
	}, nil
}

func wanted() (bool, error) {
	to := os.Getenv("OTEL_TRACES_EXPORTER")
	switch {
	case strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || to == "none":
		return false, nil
	case to == "otlp":
		return true, nil
	case to != "":
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER %s: want otlp or none", to)
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "", nil
}

func newExporter(ctx context.Context) (*otlptrace.Exporter, error) {
	switch cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"),
		"http/protobuf") {
	case "grpc":
		return otlptracegrpc.New(ctx)
	case "http/protobuf":
		return otlptracehttp.New(ctx)
	}
	return nil, errors.New("OTEL_EXPORTER_OTLP_PROTOCOL: want grpc or http/protobuf")
}
