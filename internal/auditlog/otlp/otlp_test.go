package otlp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/internal/auditlog/otlp"
	"github.com/db-controller/db-controller/schema/peer"
)

// A receiver gets each line as a record; a receiver that refuses them keeps the calls from being carried out.
func TestLinesAreSentAndAnswered(t *testing.T) {
	got := make(chan []byte, 10)
	var refuses atomic.Bool
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		if zipped, err := gzip.NewReader(bytes.NewReader(raw)); err == nil {
			raw, _ = io.ReadAll(zipped)
		}
		if refuses.Load() {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		got <- raw
	}))
	defer receiver.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "")
	t.Setenv("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf")
	t.Setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", receiver.URL+"/v1/logs")
	sink, err := otlp.Open(t.Context(), "v0", "iam.example.com/eu")
	require.NoError(t, err)
	l, err := auditlog.Open(auditlog.Config{
		Source: "iam.example.com/eu", Sink: sink, Classes: auditlog.Classes,
		Required: true, Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	require.Contains(t, string(<-got), `"outcome":"began"`)
	require.NoError(t, l.Record(t.Context(), auditlog.Event{
		Class: auditlog.Deletes, Outcome: auditlog.Allowed,
		Identity: "user/ann",
	}))
	sent := <-got
	require.True(t, bytes.Contains(sent, []byte(`"identity":"user/ann"`)) &&
		bytes.Contains(sent, []byte("service.instance.id")), "%q", sent)
	refuses.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, l.Record(ctx, auditlog.Event{Class: auditlog.Deletes, Outcome: auditlog.Allowed}),
		peer.ErrAuditLog)
	refuses.Store(false)

	t.Setenv("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "pigeon")
	_, err = otlp.Open(t.Context(), "v0", "x")
	require.ErrorContains(t, err, "want grpc or http/protobuf")
}
