package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/google/uuid"
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/envregistry"
	registryserver "github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/nodemanager"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// maxOpen is how many connections a listener has, before anybody knows of whom they are.
const maxOpen = 4000

// certificatesInterval is how often the files of certificates are looked at.
const certificatesInterval = 5 * time.Second

type deploymentConfig struct {
	deployment   schema.DeploymentID
	dsn          string
	registry     string
	certs        string
	listen       string
	advertise    string
	http         string
	pprof        string
	reflection   bool
	migrate      bool
	nodes        int
	connections  int32
	tentativeTTL time.Duration
	ownerGrace   time.Duration
	removalsKept time.Duration
	quotas       shadow.Quotas
	// name is this process, among those of the deployment; lease is for how long it may be silent.
	name  string
	lease time.Duration
	// auditInterval is the pause between two audits (0: none), auditRate how many rows a second one compares.
	auditInterval time.Duration
	auditRate     int
	// restored is an operator's word that the database is one of before.
	restored bool
	// startTimeout is how long the process may take to become ready for the first time.
	startTimeout time.Duration
}

// fenced is a node whose transactions take effect only as long as its process is a member.
type fenced struct {
	*constraint.Node
	leases *shadow.Leases
	member uuid.UUID
}

func (n fenced) Run(ctx context.Context) error { return n.Node.Run(n.leases.Fenced(ctx, n.member)) }

// runDeployment joins the parts of one deployment and runs them until ctx ends or one fails:
// registry client → node manager → nodes → handlers → store, with the gRPC services over the store.
func runDeployment(ctx context.Context, cfg deploymentConfig, log *zap.Logger) error {
	log, outage := postgres.LogOutageOnce(log)
	log = log.With(zap.Stringer("of", cfg.deployment))
	credentials, err := identity.Load(identity.InDir(cfg.certs))
	if err != nil {
		return err
	}
	if credentials.Identity != identity.Deployment(cfg.deployment) {
		return fmt.Errorf("the certificate in %s is of %s, not of %s", cfg.certs, credentials.Identity, cfg.deployment)
	}
	waiting := newPatience(cfg.startTimeout, log)
	var pool *pgxpool.Pool
	if err := waiting.database(ctx, cfg.dsn, func() error {
		err := ready(ctx, cfg.dsn, migrations.Deployment, cfg.migrate, log)
		if err == nil {
			pool, err = postgres.Connect(ctx, cfg.dsn, "db-controller "+cfg.deployment.String(), cfg.connections)
		}
		return err
	}); err != nil || pool == nil {
		return err
	}
	defer pool.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if cfg.advertise == "" {
		cfg.advertise = listener.Addr().String()
	}
	if cfg.name == "" {
		host, _ := os.Hostname()
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		cfg.name = host + ":" + port
	}
	peers := service.NewPeers(cfg.deployment, credentials)
	defer peers.Close()
	var store *shadow.Store
	err = waiting.database(ctx, cfg.dsn, func() (err error) {
		store, err = shadow.Open(ctx, shadow.Config{Pool: pool, Deployment: cfg.deployment, Peers: peers, Logger: log, TentativeTTL: cfg.tentativeTTL, OwnerGrace: cfg.ownerGrace, RemovalsKept: cfg.removalsKept, Quotas: cfg.quotas})
		if err == nil && cfg.restored {
			err = store.ForgetServer(ctx)
		}
		return err
	})
	if err != nil || store == nil {
		return err
	}
	metrics := newMetrics(store)
	metrics.registry.MustRegister(certificateExpiry(credentials))
	calls := grpcprom.NewServerMetrics()
	metrics.registry.MustRegister(calls)
	healthServer := health.NewServer()
	server, err := service.NewServer(service.Config{
		Store: store, Peers: peers, Credentials: credentials, Health: healthServer, Reflection: cfg.reflection, Logger: log, Failures: metrics.failures.list, Refused: newRefused(metrics.registry),
		Unary:  []grpc.UnaryServerInterceptor{calls.UnaryServerInterceptor()},
		Stream: []grpc.StreamServerInterceptor{calls.StreamServerInterceptor()},
	})
	if err != nil {
		return err
	}
	calls.InitializeMetrics(server.Server)
	registryConn, err := envregistry.Dial(cfg.registry, credentials.DialOptions(identity.Identity{Role: identity.RoleRegistry})...)
	if err != nil {
		return fmt.Errorf("--registry: %w", err)
	}
	defer func() { _ = registryConn.Close() }()
	client, err := envregistry.New(envregistry.Config{
		Deployment: cfg.deployment, Address: cfg.advertise, Registry: registryConn, Keeper: keeper{store}, Logger: log,
	})
	if err != nil {
		return err
	}
	// One place, which holds the newest environment, as the client's own channel.
	environments := make(chan *schema.Environment, 1)
	// One place: that the database is another one. Sent by followEpochs, received by the manager.
	renewed := make(chan struct{}, 1)
	leases := &shadow.Leases{Store: store, Name: cfg.name, TTL: cfg.lease}
	owned, err := ownedHandlers(store, peers)
	if err != nil {
		return err
	}
	manager, err := nodemanager.New(nodemanager.Config{
		Deployment: cfg.deployment, Environments: environments, Nodes: cfg.nodes, Switch: store.Switch, Refresh: store.Refresh, PointedTo: store.PointedTo, Logger: log,
		Renewed: renewed, Runs: store.Runs, Outrun: store.Outrun(), Kept: keeper{store}.LoadEnvironment, Follows: peers.Update, Leases: leases, LeaseTTL: cfg.lease, Leads: client.Lead,
		NewNode: func(share nodemanager.Share) (nodemanager.Runner, error) {
			node, err := constraint.New(constraint.Config{
				Name: share.Name, Deployment: cfg.deployment, Shards: share.Shards, Subscriptions: share.Subscriptions,
				Watches: peers, Observer: metrics, Logger: log, Sweeps: share.First,
				Owned:      owned,
				Resolver:   &handlers.Resolve{Store: store, Peers: peers},
				Subscribed: &handlers.SubscribedDeleting{Store: store, Peers: peers},
			})
			return fenced{node, leases, share.Member}, err
		},
	})
	if err != nil {
		return err
	}
	checks := []check{{"postgres", pool.Ping}, schemaCheck(pool, migrations.Deployment), {"version", func(context.Context) error { return manager.Ready() }}, {"registered", func(context.Context) error { return client.Registered() }}}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return client.Run(ctx) })
	g.Go(func() error { return forward(ctx, client.Environments(), environments, peers.Update) })
	g.Go(func() error { return manager.Run(ctx) })
	g.Go(func() error { return serveGRPC(ctx, server.Server, listener) })
	g.Go(func() error { return serveHTTP(ctx, cfg.http, checks, metrics.registry, log) })
	g.Go(func() error { return servePprof(ctx, cfg.pprof, log) })
	g.Go(func() error { return reportHealth(ctx, healthServer, checks) })
	g.Go(func() error { return waiting.checks(ctx, checks, client.Problem) })
	g.Go(func() error { return outage.Follow(ctx, takesWrites(pool)) })
	g.Go(func() error { return store.RunNotifications(ctx) })
	g.Go(func() error { return credentials.Follow(ctx, certificatesInterval, log) })
	g.Go(func() error { return tidy(ctx, store.Tidy, log) })
	g.Go(func() error {
		return followEpochs(ctx, store, renewed, client.Ask, keeper{store}.LoadEnvironment, peers.Environment, log)
	})
	g.Go(func() error {
		return audit(ctx, auditConfig{Interval: cfg.auditInterval, Rate: cfg.auditRate, Leads: client.Leads, Verify: store.Verify, Observer: metrics, Log: log})
	})
	log.Info("serving", zap.Stringer("grpc", listener.Addr()), zap.String("advertised", cfg.advertise))
	return g.Wait()
}

// ownedHandlers are the handlers of the outstanding work of a deployment.
func ownedHandlers(store *shadow.Store, peers *service.Peers) (*handlers.Table, error) {
	return handlers.NewTable(handlers.Actions{
		Confirm:         &handlers.Confirm{Store: store, Peers: peers},
		Release:         &handlers.Release{Store: store, Peers: peers},
		LetGo:           &handlers.LetGo{Store: store, Peers: peers},
		CheckOwners:     &handlers.CheckOwners{Store: store, Peers: peers},
		UpgradeOwners:   &handlers.UpgradeOwners{Store: store, Peers: peers},
		Derive:          &handlers.Derive{Store: store},
		Retire:          &handlers.Retire{Store: store},
		AnnounceEpoch:   &handlers.AnnounceEpoch{Store: store, Peers: peers},
		ConfirmAgain:    &handlers.ConfirmAgain{Store: store, Peers: peers},
		VerifyBlockades: &handlers.VerifyBlockades{Store: store},
		Finalise:        &handlers.Finalise{Store: store},
		DropOwners:      &handlers.DropOwners{Store: store, Peers: peers},
	})
}

// forward tells the peers of each environment before the node manager acts upon it; the newest replaces an older one
// that was not taken yet.
func forward(ctx context.Context, from <-chan *schema.Environment, to chan *schema.Environment, update func(*schema.Environment)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case env := <-from:
			update(env)
			select {
			case <-to:
			default:
			}
			to <- env
		}
	}
}

func serveGRPC(ctx context.Context, server *grpc.Server, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() {
		cut := time.AfterFunc(2*time.Second, server.Stop) // watches never end by themselves
		defer cut.Stop()
		server.GracefulStop()
	})
	defer stop()
	return server.Serve(netutil.LimitListener(listener, maxOpen))
}

func reportHealth(ctx context.Context, server *health.Server, checks []check) error {
	server.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	for {
		status := healthv1.HealthCheckResponse_SERVING
		for _, c := range checks {
			if c.run(ctx) != nil {
				status = healthv1.HealthCheckResponse_NOT_SERVING
			}
		}
		server.SetServingStatus("", status)
		select {
		case <-ctx.Done():
			server.Shutdown()
			return nil
		case <-time.After(time.Second):
		}
	}
}

// tidy removes what nobody needs any more, a little at a time.
func tidy(ctx context.Context, some func(context.Context) (more bool, err error), log *zap.Logger) error {
	for wait := time.Minute; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		more, err := some(ctx)
		if wait = time.Minute; more {
			wait = time.Second
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("old rows could not be removed, it is tried again", zap.Error(err))
		}
	}
}

// keeper keeps the environment in the deployment's own database.
type keeper struct{ store *shadow.Store }

func (k keeper) LoadEnvironment(ctx context.Context) (*schema.Environment, error) {
	raw, err := k.store.KeptEnvironment(ctx)
	if err != nil || raw == nil {
		return nil, err
	}
	env := &registryv1.Environment{}
	if err := proto.Unmarshal(raw, env); err != nil {
		return nil, err
	}
	return wire.Environment(env), nil
}

func (k keeper) KeepEnvironment(ctx context.Context, env *schema.Environment) error {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(wire.EnvironmentProto(env))
	if err != nil {
		return err
	}
	return k.store.KeepEnvironment(ctx, raw)
}

type registryConfig struct {
	dsn, certs, listen, http, pprof string
	migrate, reflection             bool
	startTimeout                    time.Duration
}

func runRegistry(ctx context.Context, cfg registryConfig, log *zap.Logger) error {
	log, outage := postgres.LogOutageOnce(log)
	credentials, err := identity.Load(identity.InDir(cfg.certs))
	if err != nil {
		return err
	}
	var pool *pgxpool.Pool
	if err := newPatience(cfg.startTimeout, log).database(ctx, cfg.dsn, func() error {
		err := ready(ctx, cfg.dsn, migrations.Registry, cfg.migrate, log)
		if err == nil {
			pool, err = postgres.Connect(ctx, cfg.dsn, "db-controller registry", 8)
		}
		return err
	}); err != nil || pool == nil {
		return err
	}
	defer pool.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	calls := grpcprom.NewServerMetrics()
	registry := newPrometheus()
	registry.MustRegister(certificateExpiry(credentials))
	registry.MustRegister(calls)
	refused := newRefused(registry)
	server := grpc.NewServer(service.ServerOptions(service.Guard{Credentials: credentials, Policy: registryserver.Policy, Refused: refused},
		[]grpc.UnaryServerInterceptor{calls.UnaryServerInterceptor()}, []grpc.StreamServerInterceptor{calls.StreamServerInterceptor()})...)
	environment := registryserver.New(pool, log)
	registryv1.RegisterRegistryServiceServer(server, environment)
	healthServer := health.NewServer()
	healthv1.RegisterHealthServer(server, healthServer)
	if cfg.reflection {
		reflection.Register(server)
	}
	if err := registryserver.Policy.Covers(server); err != nil {
		return err
	}
	calls.InitializeMetrics(server)
	checks := []check{{"postgres", pool.Ping}, schemaCheck(pool, migrations.Registry)}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return outage.Follow(ctx, takesWrites(pool)) })
	g.Go(func() error { return serveGRPC(ctx, server, listener) })
	g.Go(func() error { return serveHTTP(ctx, cfg.http, checks, registry, log) })
	g.Go(func() error { return servePprof(ctx, cfg.pprof, log) })
	g.Go(func() error { return reportHealth(ctx, healthServer, checks) })
	g.Go(func() error { return credentials.Follow(ctx, certificatesInterval, log) })
	g.Go(func() error {
		return tidy(ctx, func(ctx context.Context) (bool, error) { return false, environment.Tidy(ctx) }, log)
	})
	log.Info("serving", zap.Stringer("grpc", listener.Addr()))
	return g.Wait()
}
