package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/token"
	"github.com/db-controller/db-controller/schema/shadow"
)

const (
	// maxConnections bounds the open connections of a listener, including those without a verified identity.
	maxConnections = 4000
	// certificatesInterval is the pause between two reads of the certificate files.
	certificatesInterval = 5 * time.Second
	// mostPooled bounds the pool of one process; PostgreSQL has a process for each connection.
	mostPooled = 1000
)

// serverConfig has the addresses and options of the servers of a deployment and of the registry.
type serverConfig struct {
	certs, listen, http, pprof string
	tokens                     string // a file; empty: everybody needs a certificate
	reflection                 bool
	stopTimeout                time.Duration // of calls under way; watches have no end of their own
	memory                     int64         // of requests and answers, in MiB
	audit                      auditLogConfig
}

func (c *serverConfig) flags(f *pflag.FlagSet) {
	f.StringVar(&c.certs, "certs", "",
		"folder with tls.crt, tls.key and ca.crt, or the address of a SPIFFE Workload API (unix:///run/spire/agent/public/api.sock)")
	f.StringVar(&c.tokens, "tokens", "",
		"`FILE` with the issuers and shared keys whose tokens users may come with instead of a certificate (default: none)")
	f.StringVar(&c.listen, "listen", "", "host:port for gRPC")
	f.StringVar(&c.http, "http", "", "host:port for /livez, /readyz and /metrics (default: none)")
	f.StringVar(&c.pprof, "pprof", "", "loopback host:port for profiles (default: none)")
	f.Int64Var(&c.memory, "call-memory", 512,
		"MiB of memory for the requests and answers of all callers together, at least 64; one caller has 40 at most")
	f.DurationVar(&c.stopTimeout, "stop-timeout", 2*time.Second,
		"how long calls under way may go on after the signal to stop; watches are ended then")
	f.BoolVar(&c.reflection, "reflection", false,
		"serve gRPC reflection, which lists services and messages, to users and operators")
	c.audit.flags(f)
	cli.Reloadable(f, cli.OnSignal, "stop-timeout")
	cli.Reloadable(f, cli.Followed, "certs", "tokens")
}

func (c *serverConfig) check() error {
	var wrong error
	if c.stopTimeout < 0 || c.stopTimeout > time.Hour {
		wrong = fmt.Errorf("--stop-timeout %s: want 0s to 1h", c.stopTimeout)
	}
	wrong = errors.Join(wrong, c.audit.check())
	if c.memory < 64 {
		wrong = errors.Join(wrong, fmt.Errorf("--call-memory %d: want at least 64, since one caller may have 40",
			c.memory))
	}
	for flag, address := range map[string]string{"listen": c.listen, "http": c.http} {
		if _, port, err := net.SplitHostPort(address); address != "" && (err != nil || port == "") {
			wrong = errors.Join(wrong, fmt.Errorf("--%s %s: want host:port, or :port for every address of this machine",
				flag, address))
		}
	}
	if c.pprof != "" {
		if err := onLoopback(c.pprof); err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("--pprof: %w", err))
		}
	}
	return wrong
}

// everywhere reports whether it listens on every address of the machine, which is no address to reach it at.
func (c *serverConfig) everywhere() bool {
	host, _, err := net.SplitHostPort(c.listen)
	ip := net.ParseIP(host)
	return err == nil && (host == "" || ip != nil && ip.IsUnspecified())
}

// databaseConfig is the database of a process, and how the process starts with it.
type databaseConfig struct {
	login
	controller   login // for the own work of serve; empty: the same login
	read         readConfig
	connections  int32 // in each pool
	plaintext    bool
	migrate      bool
	startTimeout time.Duration // until the process is ready for the first time
}

// readConfig is a standby of the database that answers reads of people; an empty DSN: none.
type readConfig struct {
	login
	maxLag time.Duration
}

func (c *readConfig) flags(f *pflag.FlagSet) {
	c.file = cli.SecretFlag(f, &c.dsn, "postgres-read",
		"DSN of one standby of the same database, at its own address, which answers gets and lists of people; the primary answers while it is away or too late (default: none)")
	cli.Reloadable(f, cli.Followed, "postgres-read-file")
	f.DurationVar(&c.maxLag, "read-max-lag", shadow.DefaultReadMaxLag,
		"with --postgres-read: the greatest age of the state that a read may show, at least 100ms")
}

func (c *readConfig) check(plaintext bool) error {
	var wrong error
	if c.maxLag < shadow.MinReadMaxLag {
		wrong = fmt.Errorf("--read-max-lag %s: want at least %s", c.maxLag, shadow.MinReadMaxLag)
	}
	if c.dsn != "" {
		if err := cli.CheckDSN(c.dsn, plaintext); err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("--postgres-read: %w", err))
		} else if severalServers(c.dsn) {
			wrong = errors.Join(wrong,
				errors.New(
					"--postgres-read names several servers: name one standby, since the age of its state is measured for all connections"))
		}
	}
	return wrong
}

// severalServers reports whether the connections of a DSN may be to different servers.
func severalServers(dsn string) bool {
	cfg, err := pgx.ParseConfig(dsn)
	return err == nil && slices.ContainsFunc(cfg.Fallbacks, func(f *pgconn.FallbackConfig) bool {
		return f.Host != cfg.Host || f.Port != cfg.Port
	})
}

func (c *databaseConfig) flags(f *pflag.FlagSet, whose, ready string) {
	c.file = cli.SecretFlag(f, &c.dsn, "postgres", "DSN of "+whose+" database")
	cli.PlaintextFlag(f, &c.plaintext)
	f.BoolVar(&c.migrate, "migrate", false, "bring the database to the newest schema first")
	startTimeoutFlag(f, &c.startTimeout, ready)
	cli.Reloadable(f, cli.Followed, "postgres-file")
}

func (c *databaseConfig) check() error {
	var wrong error
	if c.startTimeout <= 0 {
		wrong = fmt.Errorf("--start-timeout %s: want more than 0s", c.startTimeout)
	}
	if c.connections < postgres.MinConnections || c.connections > mostPooled {
		wrong = errors.Join(wrong, fmt.Errorf("--connections %d: want %d to %d", c.connections, postgres.MinConnections,
			mostPooled))
	}
	if c.dsn != "" { // cli.RequireFlags says that it is missing
		wrong = errors.Join(cli.CheckDSN(c.dsn, c.plaintext), wrong)
	}
	return wrong
}

// endpoints are the servers of a process: gRPC, and over HTTP health, metrics and profiles.
type endpoints struct {
	cfg         serverConfig
	log         *zap.Logger
	credentials *identity.Credentials
	tokens      *token.Verifier // nil: everybody needs a certificate
	listener    net.Listener
	monitoring  *monitoring
	metrics     *prometheus.Registry // of monitoring
	calls       *grpcprom.ServerMetrics
	refused     func(what string, who identity.Identity)
	health      *grpcHealth
	stopTimeout atomic.Int64  // of cfg, in nanoseconds; it can change
	audit       *auditlog.Log // nil: none
}

// newEndpoints opens the audit log of a source and listens for gRPC; start serves; close closes the log and
// the listener.
func newEndpoints(ctx context.Context, source string, cfg serverConfig, credentials *identity.Credentials,
	monitoring *monitoring, log *zap.Logger,
) (*endpoints, error) {
	var tokens *token.Verifier
	if cfg.tokens != "" {
		var err error
		if tokens, err = token.Load(cfg.tokens); err != nil {
			return nil, fmt.Errorf("--tokens: %w", err)
		}
	}
	audit, err := cfg.audit.open(ctx, source, log)
	if err != nil {
		return nil, err
	}
	listener, err := listenTCP(ctx, "listen", cfg.listen)
	if err != nil {
		return nil, errors.Join(err, audit.Close())
	}
	metrics := monitoring.metrics
	calls := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(
		grpcprom.WithHistogramBuckets(prometheus.ExponentialBuckets(0.001, 4, 9))))
	metrics.MustRegister(certificateExpiry(credentials), calls, auditLogFailing(audit))
	e := &endpoints{
		cfg: cfg, log: log, credentials: credentials, tokens: tokens, listener: listener, monitoring: monitoring,
		metrics: metrics, calls: calls,
		refused: newRefused(metrics), health: newGRPCHealth(monitoring.health), audit: audit,
	}
	e.reload(cfg)
	return e, nil
}

func (e *endpoints) close() {
	_ = e.listener.Close()
	if err := e.audit.Close(); err != nil {
		e.log.Warn("the audit log was not closed", zap.Error(err))
	}
}

func (e *endpoints) unary() []grpc.UnaryServerInterceptor {
	return []grpc.UnaryServerInterceptor{e.calls.UnaryServerInterceptor()}
}

func (e *endpoints) stream() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{e.calls.StreamServerInterceptor()}
}

// start serves with the group. The checks decide about readiness, and so do the writes that the database
// refuses and the certificate.
func (e *endpoints) start(ctx context.Context, g *errgroup.Group, server *grpc.Server, outage *postgres.Outage,
	checks []check,
) {
	checks = append(checks, check{name: "writes", run: outage.Refuses}, certificateCheck(e.credentials))
	e.calls.InitializeMetrics(server)
	g.Go(func() error {
		return serveGRPC(ctx, server, e.listener, func() time.Duration { return time.Duration(e.stopTimeout.Load()) })
	})
	e.monitoring.health.replace(checks)
	g.Go(func() error { return e.monitoring.run(ctx) })
	g.Go(func() error { return servePprof(ctx, e.cfg.pprof, e.log) })
	g.Go(func() error { <-ctx.Done(); e.health.Shutdown(); return nil })
	g.Go(func() error { return e.credentials.Follow(ctx, certificatesInterval, e.log) })
	if e.tokens != nil {
		g.Go(func() error { return e.tokens.Follow(ctx, certificatesInterval, e.log) })
	}
}

// serveGRPC serves until ctx ends, and returns when the server has stopped.
func serveGRPC(ctx context.Context, server *grpc.Server, listener net.Listener,
	stopTimeout func() time.Duration,
) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		cut := time.AfterFunc(stopTimeout(), server.Stop)
		defer cut.Stop()
		server.GracefulStop()
	})
	err := server.Serve(newByAddress(netutil.LimitListener(listener, maxConnections), maxUnproven))
	if !stop() {
		<-stopped
	}
	return err
}

// grpcHealth answers by the checks. They run when somebody asks, and every second for those who watch.
type grpcHealth struct {
	*health.Server
	checks *checkup
}

func newGRPCHealth(checks *checkup) *grpcHealth { return &grpcHealth{health.NewServer(), checks} }

func (h *grpcHealth) look() {
	status := healthv1.HealthCheckResponse_SERVING
	if failed(h.checks.result()) {
		status = healthv1.HealthCheckResponse_NOT_SERVING
	}
	h.SetServingStatus("", status)
}

// Check implements the service.
func (h *grpcHealth) Check(ctx context.Context,
	req *healthv1.HealthCheckRequest,
) (*healthv1.HealthCheckResponse, error) {
	h.look() //nolint:contextcheck // for all who ask
	return h.Server.Check(ctx, req)
}

// List implements the service.
func (h *grpcHealth) List(ctx context.Context, req *healthv1.HealthListRequest) (*healthv1.HealthListResponse, error) {
	h.look() //nolint:contextcheck // for all who ask
	return h.Server.List(ctx, req)
}

// Watch implements the service.
func (h *grpcHealth) Watch(req *healthv1.HealthCheckRequest, stream healthv1.Health_WatchServer) error {
	h.look()
	ctx, cancel := context.WithCancel(stream.Context())
	var looks sync.WaitGroup
	defer looks.Wait()
	defer cancel()
	looks.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
				h.look() //nolint:contextcheck // for all who ask
			}
		}
	})
	return h.Server.Watch(req, stream)
}
