package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/identity"
)

// newRefused returns a counter of the connections and calls that were refused because of the limits of an
// identity. Refusals with other reasons are in grpc_server_handled_total, by code.
func newRefused(to *prometheus.Registry) func(what string, who identity.Identity) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dbcontroller_refused_total",
		Help: "Connections and calls that were refused because their identity had too many of them.",
	}, []string{"what", "role"})
	to.MustRegister(refused)
	return func(what string, who identity.Identity) { refused.WithLabelValues(what, string(who.Role)).Inc() }
}

func certificateExpiry(c *identity.Credentials) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dbcontroller_certificate_expiry_timestamp_seconds", Help: "When the certificate of the process expires.",
	}, func() float64 { return float64(c.NotAfter().Unix()) })
}

// expiredError says that the certificate of the process has expired.
type expiredError struct{ at time.Time }

func (e expiredError) Error() string {
	return "the certificate expired at " + e.at.UTC().Format(time.RFC3339) +
		": nobody can connect until there is a new one (docs/certificates.md)"
}

// certificateCheck fails when the certificate of the process has expired: no other deployment and no person
// can connect.
func certificateCheck(c *identity.Credentials) check {
	return check{name: "certificate", run: func(context.Context) error {
		if at := c.NotAfter(); time.Now().After(at) {
			return expiredError{at}
		}
		return nil
	}}
}

// readiness has the verdicts of the checks as metrics, by the names that /readyz uses.
type readiness struct{ checks *checkup }

var readyDesc = prometheus.NewDesc("dbcontroller_ready",
	"Whether a check of /readyz passes, by its name; the process is ready when all do.", []string{"reason"}, nil)

// Describe is prometheus.Collector.
func (r readiness) Describe(to chan<- *prometheus.Desc) { to <- readyDesc }

// Collect is prometheus.Collector.
func (r readiness) Collect(to chan<- prometheus.Metric) {
	for _, v := range r.checks.result() {
		to <- prometheus.MustNewConstMetric(readyDesc, prometheus.GaugeValue, truth(v.err == nil), v.name)
	}
}

// servePprof serves profiles to this machine only: they show the contents of the memory, and cost time.
func servePprof(ctx context.Context, address string, log *zap.Logger) error {
	if address == "" {
		return nil
	}
	if err := onLoopback(address); err != nil {
		return fmt.Errorf("--pprof: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol) // cmdline is left out: it contains the connection string
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	return listenHTTP(ctx, "pprof", address, &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}, log)
}

// onLoopback returns an error for an address that other machines can reach.
func onLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return fmt.Errorf("%s: want a loopback address, such as 127.0.0.1:6060", address)
	}
	return nil
}

// httpStopTimeout bounds the graceful end of an HTTP server, whose answers are short.
const httpStopTimeout = 2 * time.Second

func listenTCP(ctx context.Context, flag, address string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return listener, nil
}

// listenHTTP is serveListener on an address.
func listenHTTP(ctx context.Context, flag, address string, server *http.Server, log *zap.Logger) error {
	listener, err := listenTCP(ctx, flag, address)
	if err != nil {
		return err
	}
	return serveListener(ctx, flag, listener, server, log)
}

// serveListener serves until ctx ends, and returns when the server has stopped.
func serveListener(ctx context.Context, flag string, listener net.Listener, server *http.Server,
	log *zap.Logger,
) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpStopTimeout)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	})
	log.Info("serving "+flag, zap.Stringer("http", listener.Addr()))
	err := server.Serve(newByAddress(listener, maxOfAddress))
	if !stop() {
		<-stopped
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
