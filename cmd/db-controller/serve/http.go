package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/migrations"
)

// check is one line of /readyz?verbose.
type check struct {
	name string
	run  func(context.Context) error
	// note is added to the line of a check that passes; may be nil.
	note func() string
}

func (c check) passed() string {
	if c.note != nil {
		if note := c.note(); note != "" {
			return "[+]" + c.name + " ok: " + note + "\n"
		}
	}
	return "[+]" + c.name + " ok\n"
}

// in returns the check with its context changed.
func (c check) in(change func(context.Context) context.Context) check {
	run := c.run
	c.run = func(ctx context.Context) error { return run(change(ctx)) }
	return c
}

// serveHTTP serves health and metrics. Readiness does not depend on other deployments: a region that is down must not take this
// one out of service.
func serveHTTP(ctx context.Context, address string, checks []check, metrics *prometheus.Registry, log *zap.Logger) error {
	if address == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", healthHandler("livez", nil))
	mux.HandleFunc("GET /readyz", healthHandler("readyz", checks))
	mux.HandleFunc("GET /healthz", healthHandler("healthz", checks))
	mux.Handle("GET /metrics", metricsHandler(metrics))
	return listenHTTP(ctx, "http", address, &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}, log)
}

// healthHandler responds with ok or the failed checks; with ?verbose, with a line for each check.
func healthHandler(name string, checks []check) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		status, text := http.StatusOK, ""
		for _, c := range checks {
			line := c.passed()
			if err := c.run(ctx); err != nil {
				status, line = http.StatusServiceUnavailable, "[-]"+c.name+" failed\n"
				if c.name == "version" || errors.Is(err, migrations.ErrNotReady) {
					line = "[-]" + c.name + ": " + err.Error() + "\n" // messages of this program; other errors may contain host names
				}
			}
			text += line
		}
		word := "passed"
		if status != http.StatusOK {
			word = "failed"
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(status)
		switch {
		case r.URL.Query().Has("verbose") || status != http.StatusOK:
			_, _ = fmt.Fprintf(w, "%s%s check %s\n", text, name, word)
		default:
			_, _ = fmt.Fprintln(w, "ok")
		}
	}
}
