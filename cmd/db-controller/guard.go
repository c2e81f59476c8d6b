package main

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
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
)

// newRefused counts what was refused because one identity had too much of it. What a call is refused for stands in the
// codes of grpc_server_handled_total.
func newRefused(to *prometheus.Registry) func(what string, who identity.Identity) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dbcontroller_refused_total", Help: "Connections and calls of an identity that had too many of them.",
	}, []string{"what", "role"})
	to.MustRegister(refused)
	return func(what string, who identity.Identity) { refused.WithLabelValues(what, string(who.Role)).Inc() }
}

func certificateExpiry(c *identity.Credentials) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dbcontroller_certificate_expiry_timestamp_seconds", Help: "When the process's certificate ends to be valid.",
	}, func() float64 { return float64(c.NotAfter().Unix()) })
}

// plaintextFlag is for networks that are trusted.
func plaintextFlag(f *pflag.FlagSet, to *bool) {
	f.BoolVar(to, "postgres-plaintext", false, "allow a database on another host without TLS that verifies it (sslmode=verify-full)")
}

// reflectionFlag is for clients that are made without our .proto files.
func reflectionFlag(f *pflag.FlagSet, to *bool) {
	f.BoolVar(to, "reflection", false, "tell users and operators which services and messages there are, by gRPC reflection")
}

// checkDSN refuses connections that others could read, or answer.
func checkDSN(dsn string, plaintext bool) error {
	if plaintext {
		return nil
	}
	if err := postgres.CheckTLS(dsn); err != nil {
		return fmt.Errorf("--postgres: %w; on a network that you trust, say --postgres-plaintext", err)
	}
	return nil
}

// servePprof serves profiles to this machine and nobody else: they show what is in memory, and cost time.
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
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol) // not cmdline, which has the connection string
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	return listenHTTP(ctx, "pprof", address, &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}, log)
}

// onLoopback refuses addresses that others than this machine can reach.
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

// listenHTTP serves until ctx ends.
func listenHTTP(ctx context.Context, flag, address string, server *http.Server, log *zap.Logger) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = server.Shutdown(ctx)
	})
	defer stop()
	log.Info("serving "+flag, zap.Stringer("http", listener.Addr()))
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
