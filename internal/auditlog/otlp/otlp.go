// Package otlp sends an audit log where the OTEL_… environment variables say.
package otlp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/db-controller/db-controller/internal/auditlog"
)

// sendTimeout bounds the sending of some lines, with the tries of the exporter.
const sendTimeout = 10 * time.Second

// sink sends lines as log records of OpenTelemetry, and waits for the answer.
type sink struct {
	exporter sdklog.Exporter
	logger   log.Logger
	records  *collected
}

// collected keeps the records of one Write, which have the resource of the provider.
type collected struct{ records []sdklog.Record }

func (c *collected) OnEmit(_ context.Context, r *sdklog.Record) error {
	c.records = append(c.records, r.Clone())
	return nil
}

func (c *collected) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }
func (c *collected) Shutdown(context.Context) error                         { return nil }
func (c *collected) ForceFlush(context.Context) error                       { return nil }

// Open returns a sink for the endpoint, the protocol and the resource of the variables. It does not wait for
// the receiver.
func Open(ctx context.Context, version, instance string) (auditlog.Sink, error) {
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("export of the audit log: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "db-controller"), attribute.String("service.version", version),
		attribute.String("service.instance.id", instance),
	), resource.WithFromEnv(), resource.WithTelemetrySDK())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	records := &collected{}
	provider := sdklog.NewLoggerProvider(sdklog.WithResource(about), sdklog.WithProcessor(records))
	return &sink{exporter: exporter, logger: provider.Logger("audit"), records: records}, nil
}

func newExporter(ctx context.Context) (sdklog.Exporter, error) {
	switch cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"),
		"http/protobuf") {
	case "grpc":
		return otlploggrpc.New(ctx)
	case "http/protobuf":
		return otlploghttp.New(ctx)
	}
	return nil, errors.New("OTEL_EXPORTER_OTLP_PROTOCOL: want grpc or http/protobuf")
}

func (s *sink) Last() (auditlog.Chain, error) { return auditlog.Chain{}, nil }

func (s *sink) Write(lines [][]byte) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	s.records.records = nil
	for _, line := range lines {
		var r log.Record
		r.SetSeverity(log.SeverityInfo)
		r.SetEventName("audit")
		r.SetBody(attribute.StringValue(strings.TrimSuffix(string(line), "\n")))
		s.logger.Emit(ctx, r)
	}
	if err := s.exporter.Export(ctx, s.records.records); err != nil {
		return 0, err
	}
	return len(lines), nil
}

func (s *sink) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	return s.exporter.Shutdown(ctx)
}
