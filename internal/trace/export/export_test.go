package export

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
)

// environment sets the variables of one case, and empties all others.
func environment(t *testing.T, set map[string]string) {
	t.Helper()
	for _, name := range []string{
		"OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
		"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_RESOURCE_ATTRIBUTES",
	} {
		t.Setenv(name, set[name])
	}
}

func TestTheEnvironmentTurnsTracingOn(t *testing.T) {
	for _, c := range []struct {
		set  map[string]string
		want bool
	}{
		{nil, false},
		{map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, true},
		{map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, false},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, true},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, true},
		{map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, false},
		{map[string]string{"OTEL_SDK_DISABLED": "True", "OTEL_TRACES_EXPORTER": "otlp"}, false},
	} {
		environment(t, c.set)
		got, err := wanted()
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%v", c.set)
	}
}

func TestWrongVariablesEndTheStart(t *testing.T) {
	for says, set := range map[string]map[string]string{
		"OTEL_TRACES_EXPORTER zipkin: want otlp or none": {"OTEL_TRACES_EXPORTER": "zipkin"},
		"OTEL_EXPORTER_OTLP_PROTOCOL: want grpc or http/protobuf": {
			"OTEL_TRACES_EXPORTER":        "otlp",
			"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
		},
		"OTEL_RESOURCE_ATTRIBUTES: ": {
			"OTEL_TRACES_EXPORTER":     "otlp",
			"OTEL_RESOURCE_ATTRIBUTES": "no-value",
		},
	} {
		environment(t, set)
		_, err := Begin(context.Background(), "v", "i", func(error) {})
		require.ErrorContains(t, err, says)
	}
}

// The last spans are sent when the process ends, with the program's name, version and instance.
func TestTheLastSpansAreSentAtTheEnd(t *testing.T) {
	bodies := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- r.URL.Path + " " + string(body)
	}))
	defer collector.Close()
	environment(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL,
		"OTEL_RESOURCE_ATTRIBUTES":    "team=blue",
	})
	stop, err := Begin(context.Background(), "v7.7", "iam.example.com/us-west2", func(err error) { t.Error(err) })
	require.NoError(t, err)
	_, span := otel.Tracer("test").Start(context.Background(), "put-of-a-resource")
	span.End()
	stop()
	sent := <-bodies
	require.True(t, strings.HasPrefix(sent, "/v1/traces "), sent)
	for _, part := range []string{
		"put-of-a-resource", "db-controller", "v7.7", "iam.example.com/us-west2",
		"team", "blue",
	} {
		require.Contains(t, sent, part)
	}
}

// An environment without a collector neither traces nor fails.
func TestNoCollectorIsNoError(t *testing.T) {
	environment(t, nil)
	before := otel.GetTracerProvider()
	stop, err := Begin(context.Background(), "v", "i", func(err error) { t.Error(err) })
	require.NoError(t, err)
	stop()
	require.Equal(t, before, otel.GetTracerProvider())
}
