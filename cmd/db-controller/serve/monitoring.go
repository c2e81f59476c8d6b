package serve

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// monitoring answers about the health and the metrics of a process over HTTP, from its first moment on: a
// process that waits for its database is seen to live, and to wait. It ends with its context, or by close.
type monitoring struct {
	metrics *prometheus.Registry
	health  *checkup
	started *atomic.Bool // the process has been ready once
	end     context.CancelFunc
	ended   chan struct{} // closed when the server has stopped
	err     error         // of the server; read after ended
}

// startError is the result of the check "start" while a process builds its parts.
type startError struct{ waitsFor string }

func (e startError) Error() string {
	if e.waitsFor == "" {
		return "starting"
	}
	return "waiting for " + e.waitsFor
}

// startMonitoring listens at an address, or at none.
func startMonitoring(ctx context.Context, address string, waiting *startWait, log *zap.Logger) (*monitoring, error) {
	m := &monitoring{metrics: newPrometheus(), started: &atomic.Bool{}, ended: make(chan struct{})}
	newStarted(m.metrics, m.started.Load)
	m.health = &checkup{checks: []check{{name: "start", run: func(context.Context) error {
		return startError{waiting.waitsFor()}
	}}}}
	m.metrics.MustRegister(readiness{m.health})
	ctx, m.end = context.WithCancel(ctx)
	if address == "" {
		close(m.ended)
		return m, nil
	}
	listener, err := listenTCP(ctx, "http", address)
	if err != nil {
		m.end()
		return nil, err
	}
	go func() {
		defer close(m.ended)
		m.err = serveListener(ctx, "http", listener, newMonitor(m.health, m.metrics), log)
	}()
	return m, nil
}

// newStarted makes the metric of a start. It is 0 from the first moment on: an alert sees a process that
// never becomes ready.
func newStarted(to *prometheus.Registry, started func() bool) {
	to.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dbcontroller_started",
		Help: "Whether the process has been ready since its start; 0 while it waits for its database or for its registration.",
	}, func() float64 { return truth(started()) }))
}

// newMonitor serves health and metrics. Readiness does not depend on other deployments: a region that is down
// must not take this one out of service.
func newMonitor(health *checkup, metrics prometheus.Gatherer) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", healthHandler("livez", &checkup{}))
	mux.HandleFunc("GET /readyz", healthHandler("readyz", health))
	mux.HandleFunc("GET /healthz", healthHandler("healthz", health))
	mux.Handle("GET /metrics", metricsHandler(metrics))
	return &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
}

// run returns when the server has stopped, because ctx has ended or by itself.
func (m *monitoring) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, m.end)
	defer stop()
	<-m.ended
	if m.err != nil {
		return fmt.Errorf("--http: %w", m.err)
	}
	return nil
}

// close ends the server of a process that has not begun to run, and waits for it.
func (m *monitoring) close() {
	m.end()
	<-m.ended
}
