package serve

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	registryserver "github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/migrations"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/schema/service/costs"
)

// registryConnections is the size of the registry's pool.
const registryConnections = 8

type registryConfig struct {
	server   serverConfig
	database databaseConfig
	restored bool // the operator says that the database is an older copy
	apply    []string
}

// NewRegistry returns the command registry.
func NewRegistry() *cobra.Command {
	var cfg registryConfig
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Run the registry of services, regions and deployments",
		Args:  cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if err := cfg.check(); err != nil {
				return cli.Usage("%w", err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.RequireFlags(cmd, "postgres", "certs", "listen"); err != nil {
				return err
			}
			log, level, err := cli.NewLogger(cmd)
			if err != nil {
				return err
			}
			defer func() { _ = log.Sync() }()
			var changes reloads[registryConfig]
			again := func(f *pflag.FlagSet) (check func() error, apply func()) {
				next := &registryConfig{}
				next.flags(f)
				return next.check, func() { changes.pass(*next) }
			}
			return following(cmd, level, log, again, func(ctx context.Context) error {
				return runRegistry(ctx, cfg, &changes, log)
			})
		},
	}
	cfg.flags(cmd.Flags())
	return cmd
}

func (c *registryConfig) flags(f *pflag.FlagSet) {
	c.database.connections = registryConnections
	c.server.flags(f)
	c.database.flags(f, "the registry's", "the database answers")
	f.StringSliceVar(&c.apply, "apply", nil,
		"files, and folders of files *.yaml and *.yml, that this server applies at its start and when they change, as db-controller apply does; changes by operators stay until then")
	f.BoolVar(&c.restored, "restored", false,
		"the database was restored from a copy of its server's files: its list of deployments does not count as complete until all are applied again (other restores, and failovers, are detected without this flag)")
}

func (c *registryConfig) check() error { return errors.Join(c.database.check(), c.server.check()) }

// runRegistry runs a registry until ctx ends or a part fails, and returns when all parts have returned.
func runRegistry(ctx context.Context, cfg registryConfig, changes *reloads[registryConfig], log *zap.Logger) error {
	stop, err := beginTraces(ctx, "registry", log)
	if err != nil {
		return err
	}
	defer stop()
	log, outage := postgres.LogOutageOnce(log)
	waiting := newStartWait(cfg.database.startTimeout, log)
	monitoring, err := startMonitoring(ctx, cfg.server.http, waiting, log)
	if err != nil {
		return err
	}
	defer monitoring.close()
	waiting.waits("certificates")
	credentials, closeCredentials, err := loadCredentials(ctx, cfg.server.certs,
		identity.Identity{Role: identity.RoleRegistry}, cfg.database.startTimeout)
	if errors.Is(err, errInterrupted) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeCredentials()
	if own := (identity.Identity{Role: identity.RoleRegistry}); credentials.Identity != own {
		return fmt.Errorf("the certificate in %s has the identity %s, not %s: nobody would believe this process",
			cfg.server.certs, credentials.Identity, own)
	}
	pool, err := connect(ctx, waiting, cfg.database, migrations.Registry, "db-controller registry")
	if errors.Is(err, errInterrupted) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pool.Close()
	endpoints, err := newEndpoints(ctx, "registry", cfg.server, credentials, monitoring, log)
	if err != nil {
		return err
	}
	defer endpoints.close()
	endpoints.metrics.MustRegister(poolCollector{[]*pgxpool.Pool{pool}})
	environment := registryserver.New(pool, endpoints.audit, credentials, log)
	if cfg.restored {
		if err := environment.Restored(ctx); err != nil {
			return err
		}
	}
	if err := environment.Begin(ctx); err != nil {
		return err
	}
	server, err := newRegistryServer(environment, endpoints)
	if err != nil {
		return err
	}
	endpoints.metrics.MustRegister(&cachedCollector{Collector: environmentCollector{environment, log}})
	changes.to(func(c registryConfig) { endpoints.reload(c.server) })
	g, ctx := errgroup.WithContext(ctx)
	endpoints.start(ctx, g, server, outage, []check{
		{name: "postgres", run: pool.Ping},
		schemaCheck(pool, migrations.Registry),
	})
	g.Go(func() error { return outage.Follow(ctx, takesWrites(pool)) })
	g.Go(func() error { return environment.RunTidy(ctx) })
	if len(cfg.apply) > 0 {
		g.Go(func() error { return environment.Files(cfg.apply).Follow(ctx) })
	}
	monitoring.started.Store(true)
	log.Info("serving", zap.Stringer("grpc", endpoints.listener.Addr()))
	return g.Wait()
}

// newRegistryServer registers the services of the registry.
func newRegistryServer(environment *registryserver.Server, e *endpoints) (*grpc.Server, error) {
	guard := service.Guard{
		Credentials: e.credentials, Policy: registryserver.Policy, Refused: e.refused,
		Memory: e.cfg.memory << 20, Logger: e.log,
	}
	if e.tokens != nil {
		guard.Tokens = e.tokens
	}
	server := grpc.NewServer(service.ServerOptions(guard, append(e.unary(), costs.New(e.refused).Unary), e.stream())...)
	to := service.Weighed(server)
	registryv1.RegisterRegistryServiceServer(to, environment)
	healthv1.RegisterHealthServer(to, e.health)
	if e.cfg.reflection {
		reflection.Register(server)
	}
	return server, registryserver.Policy.Covers(server)
}
