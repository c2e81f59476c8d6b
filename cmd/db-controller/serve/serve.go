// Package serve builds and runs the processes: a deployment, the registry, and the migration of their
// databases.
package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/envregistry"
	"github.com/db-controller/db-controller/internal/address"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/service/costs"
	"github.com/db-controller/db-controller/schema/shadow"
)

// deploymentConfig is the configuration of a process of a deployment; every field is a flag of serve.
type deploymentConfig struct {
	deployment   string // id as text
	id           schema.DeploymentID
	registration registrationConfig
	authorizer   authorizerConfig
	api          apiConfig
	server       serverConfig
	database     databaseConfig
	share        shareConfig
	store        storeConfig
	audit        auditConfig
}

// registrationConfig has the address of the registry, and the address of this process that the registry gives
// to other deployments.
type registrationConfig struct {
	registry  string // host:port, several separated by commas
	advertise string // host:port; empty: the listener's address
}

// authorizerConfig has the address of an authorization service, empty for none, and the identity that it
// proves.
type authorizerConfig struct{ address, is string }

// apiConfig is of the API as HTTPS and JSON, and of the console beside it.
type apiConfig struct {
	listen                string // host:port; empty: none
	console, actions, all bool
}

// shareConfig is the part of the deployment's work that this process takes.
type shareConfig struct {
	nodes int
	name  string        // among the processes of the deployment; empty: host:port
	lease time.Duration // how long the process may be silent
}

func (c *shareConfig) flags(f *pflag.FlagSet) {
	f.IntVar(&c.nodes, "nodes", 2, "constraint nodes that share the work")
	f.StringVar(&c.name, "name", "",
		"name of this process within the deployment; a process that starts with the name of another replaces it (default: host:port)")
	f.DurationVar(&c.lease, "lease", 5*time.Second,
		"how long this process may be silent before other processes take over its work; at least 1s")
}

func (c *shareConfig) check() error {
	var wrong error
	if c.nodes < 1 || c.nodes > schema.RingSize {
		wrong = fmt.Errorf("--nodes %d: want 1 to %d", c.nodes, schema.RingSize)
	}
	if c.lease < time.Second {
		wrong = errors.Join(wrong,
			fmt.Errorf("--lease %s: want at least 1s, so that a short pause of the process does not move its work",
				c.lease))
	}
	return wrong
}

// storeConfig holds the store's limits; zero means the store's default.
type storeConfig struct {
	tentativeTTL, ownerGrace, missingGrace time.Duration
	changesKept, removalsKept              time.Duration
	quotas                                 peer.Quotas
	maxWritten                             int64 // MiB
	delegations                            bool
	blockRightFrom                         int
	restored                               bool // the operator says that the database is an older copy
}

func (c *storeConfig) flags(f *pflag.FlagSet) {
	f.BoolVar(&c.restored, "restored", false,
		"the database was restored from a copy of its server's files: nothing is deleted until the other deployments have confirmed their references (other restores, and failovers, are detected without this flag)")
	f.BoolVar(&c.delegations, "delegations", true,
		"take and give the rights to refer to a resource of another deployment without asking; all processes of a deployment alike")
	f.IntVar(&c.blockRightFrom, "block-right-from", 0,
		"number of BLOCK references to a resource of another deployment from which on this one asks for the right to block it without asking (0: never)")
	f.DurationVar(&c.tentativeTTL, "tentative-ttl", shadow.DefaultTentativeTTL,
		"how long a tentative blockade stands before its holder must decide")
	f.DurationVar(&c.ownerGrace, "owner-grace", shadow.DefaultOwnerGrace,
		"how long an owner named without its uid may be missing before it counts as deleted")
	f.DurationVar(&c.missingGrace, "missing-grace", shadow.DefaultMissingGrace,
		"how long the target of a row of an attached table may be missing before the row is unset or deleted, where that is declared")
	f.Int64Var(&c.quotas.Tentative, "max-tentative", shadow.DefaultTentativeQuota,
		"tentative references that each other deployment may have here at a time")
	f.Int64Var(&c.quotas.Blocking, "max-blocking", shadow.DefaultBlockingQuota,
		"blocking references that each other deployment may have here")
	f.Int64Var(&c.quotas.Unused, "max-unused-rights", shadow.DefaultUnusedQuota,
		"rights to block resources of one deployment that a database role or caller may ask for before rows use them")
	f.Int64Var(&c.maxWritten, "max-written", costs.DefaultMaxWritten>>20,
		"MiB that each person may write in an hour by this process, with the outcomes that are stored of requests with an id")
	f.DurationVar(&c.changesKept, "changes-kept", shadow.DefaultChangesKept,
		"how long changes are kept, with their bodies, for watches that resume, at least 10m")
	f.DurationVar(&c.removalsKept, "removals-kept", shadow.DefaultRemovalsKept,
		"how long the record of removals is kept, at least 168h; by default 90 days")
	cli.Reloadable(f, cli.OnSignal, "tentative-ttl", "owner-grace", "missing-grace", "max-tentative", "max-blocking",
		"max-unused-rights", "max-written", "changes-kept", "removals-kept")
}

func (c *storeConfig) tuning() shadow.Tuning {
	return shadow.Tuning{
		TentativeTTL: c.tentativeTTL, OwnerGrace: c.ownerGrace, MissingGrace: c.missingGrace,
		ChangesKept: c.changesKept, RemovalsKept: c.removalsKept, Quotas: c.quotas,
	}
}

func (c *storeConfig) check() error {
	var wrong error
	if c.removalsKept != 0 && c.removalsKept < 7*24*time.Hour {
		wrong = fmt.Errorf("--removals-kept %s: want at least 168h", c.removalsKept)
	}
	if c.changesKept != 0 && c.changesKept < 10*time.Minute {
		wrong = errors.Join(wrong,
			fmt.Errorf("--changes-kept %s: want at least 10m, so that a watch resumes after a short outage",
				c.changesKept))
	}
	for flag, d := range map[string]time.Duration{
		"tentative-ttl": c.tentativeTTL, "owner-grace": c.ownerGrace,
		"missing-grace": c.missingGrace,
	} {
		if d < 0 {
			wrong = errors.Join(wrong, fmt.Errorf("--%s %s: want more than 0s; 0 is the default", flag, d))
		}
	}
	for flag, n := range map[string]int64{
		"max-tentative": c.quotas.Tentative, "max-blocking": c.quotas.Blocking,
		"max-unused-rights": c.quotas.Unused, "max-written": c.maxWritten,
	} {
		if n < 0 {
			wrong = errors.Join(wrong, fmt.Errorf("--%s %d: want more than 0; 0 is the default", flag, n))
		}
	}
	if most := int64(math.MaxInt64 >> 20); c.maxWritten > most {
		wrong = errors.Join(wrong, fmt.Errorf("--max-written %d: want at most %d", c.maxWritten, most))
	}
	return wrong
}

type auditConfig struct {
	interval time.Duration // 0: no audits
	rate     int           // rows a second
}

func (c *auditConfig) flags(f *pflag.FlagSet) {
	f.DurationVar(&c.interval, "audit-interval", time.Hour,
		"pause between two comparisons with the other deployments (as verify does, without repairs); 0 for none")
	f.IntVar(&c.rate, "audit-rate", 1000, "rows a second that such a comparison reads")
	cli.Reloadable(f, cli.OnSignal, "audit-interval", "audit-rate")
}

func (c *auditConfig) check() error {
	if c.interval < 0 {
		return fmt.Errorf("--audit-interval %s: want more than 0s, or 0 for no audits", c.interval)
	}
	if c.rate <= 0 {
		return fmt.Errorf("--audit-rate %d: want at least 1; --audit-interval 0 turns audits off", c.rate)
	}
	return nil
}

func (c *deploymentConfig) flags(f *pflag.FlagSet) {
	f.StringVar(&c.deployment, "deployment", "", "service/region")
	f.StringVar(&c.registration.registry, "registry", "",
		"host:port of the registry; several servers are separated by commas")
	f.StringVar(&c.registration.advertise, "advertise", "",
		"host:port under which other deployments reach it (default: the address it listens at)")
	f.StringVar(&c.authorizer.address, "authorizer", "",
		"host:port of an authorization service (dbcontroller.authorization.v1) that is asked beside the grants of the environment (default: none)")
	f.StringVar(&c.authorizer.is, "authorizer-identity", "user/authorizer",
		"identity in the certificate of the authorization service")
	f.StringVar(&c.api.listen, "http-api", "",
		"host:port for the API as HTTPS and JSON, for people who come with --tokens (default: none)")
	f.BoolVar(&c.api.console, "console", false,
		"serve the console with --http-api, at /console/, for people who sign in with a token; it shows this deployment, and only reads")
	f.BoolVar(&c.api.actions, "console-actions", false,
		"with --console: people may pause, resume, retry, delete, detach and undelete from the page, with their own rights")
	f.BoolVar(&c.api.all, "console-all", false,
		"with --console: show all deployments of the environment; the tokens of people who look are sent to each of them")
	c.server.flags(f)
	c.database.flags(f, "the deployment's own",
		"the database answers, the deployment is registered and its version is known")
	c.database.controller.file = cli.SecretFlag(f, &c.database.controller.dsn, "postgres-controller",
		"DSN of the same database by another role, for the work of the process: --postgres then needs the role NAME_api alone, and this one NAME_controller")
	cli.Reloadable(f, cli.Followed, "postgres-controller-file")
	c.database.read.flags(f)
	f.Int32Var(&c.database.connections, "connections", 20, "connections to the database; at least 4")
	c.share.flags(f)
	c.store.flags(f)
	c.audit.flags(f)
}

func (c *deploymentConfig) check() error {
	var named, advertised error
	if c.deployment != "" { // cli.RequireFlags says that it is missing
		if c.id, named = schema.ParseDeploymentID(c.deployment); named != nil {
			named = fmt.Errorf("--deployment: %w", named)
		}
	}
	if c.registration.advertise != "" {
		if err := address.Check(c.registration.advertise); err != nil {
			advertised = fmt.Errorf("--advertise: %w", err)
		}
	} else if c.server.everywhere() {
		advertised = fmt.Errorf(
			"--listen %s is no address at which other deployments reach this one: give --advertise host:port",
			c.server.listen)
	}
	return errors.Join(named, advertised, c.checkOthers(), c.checkHTTPAPI(), c.database.check(), c.checkController(),
		c.database.read.check(c.database.plaintext), c.server.check(), c.share.check(), c.audit.check(),
		c.store.check())
}

// checkController checks the second login: to the same database.
func (c *deploymentConfig) checkController() error {
	if c.database.controller.dsn == "" {
		return nil
	}
	if err := cli.CheckDSN(c.database.controller.dsn, c.database.plaintext); err != nil {
		return fmt.Errorf("--postgres-controller: %w", err)
	}
	calls, err := pgx.ParseConfig(c.database.dsn)
	if err != nil {
		return nil //nolint:nilerr // the check of --postgres names it
	}
	own, err := pgx.ParseConfig(c.database.controller.dsn)
	if err != nil {
		return fmt.Errorf("--postgres-controller: %w", postgres.ErrNotADSN)
	}
	if own.Host != calls.Host || own.Port != calls.Port || own.Database != calls.Database {
		return fmt.Errorf("--postgres-controller is of another database than --postgres: %s:%d/%s, not %s:%d/%s",
			own.Host, own.Port, own.Database, calls.Host, calls.Port, calls.Database)
	}
	return nil
}

// checkOthers checks the addresses of the servers that the process calls.
func (c *deploymentConfig) checkOthers() error {
	var wrong error
	if c.registration.registry != "" {
		if err := envregistry.CheckAddresses(c.registration.registry); err != nil {
			wrong = fmt.Errorf("--registry: %w", err)
		}
	}
	if c.authorizer.address == "" {
		return wrong
	}
	if err := address.Check(c.authorizer.address); err != nil {
		wrong = errors.Join(wrong, fmt.Errorf("--authorizer: %w", err))
	}
	if _, err := identity.ParsePath("/" + c.authorizer.is); err != nil {
		wrong = errors.Join(wrong, fmt.Errorf("--authorizer-identity: %w", err))
	}
	return wrong
}

// following runs a process, and reads its settings again after each SIGHUP. The log has its start, with the
// settings that are not the default, and its end.
func following(cmd *cobra.Command, level zap.AtomicLevel, log *zap.Logger, again cli.Again,
	run func(ctx context.Context) error,
) error {
	log.Info("starting", zap.Any("build", cli.ThisBuild()), zap.Any("configuration", cli.Given(cmd)))
	ctx, cancel := context.WithCancel(cmd.Context())
	var follow sync.WaitGroup
	defer follow.Wait()
	defer cancel()
	follow.Go(func() { cli.FollowReloads(ctx, cmd, level, log, again) })
	follow.Go(func() {
		<-ctx.Done()
		if cmd.Context().Err() != nil {
			log.Info("stopping")
		}
	})
	err := run(ctx)
	if err == nil {
		cancel()
		follow.Wait()
		log.Info("stopped")
	}
	return err
}

// NewServe returns the command serve.
func NewServe() *cobra.Command {
	var cfg deploymentConfig
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the db-controller of one deployment",
		Example: `  db-controller serve --deployment iam.example.com/us-west2 --postgres postgres://…/iam \
    --registry registry:7000 --certs /etc/db-controller --listen :7001 --advertise iam-us-west2:7001 --migrate`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if err := cfg.check(); err != nil {
				return cli.Usage("%w", err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.RequireFlags(cmd, "deployment", "postgres", "registry", "certs", "listen"); err != nil {
				return err
			}
			log, level, err := cli.NewLogger(cmd)
			if err != nil {
				return err
			}
			defer func() { _ = log.Sync() }()
			log = log.With(zap.Stringer("of", cfg.id))
			var changes reloads[deploymentConfig]
			again := func(f *pflag.FlagSet) (check func() error, apply func()) {
				next := &deploymentConfig{}
				next.flags(f)
				return next.check, func() { changes.pass(*next) }
			}
			return following(cmd, level, log, again, func(ctx context.Context) error {
				return runDeployment(ctx, cfg, &changes, log)
			})
		},
	}
	cfg.flags(cmd.Flags())
	cli.Seldom(cmd, "audit-interval", "audit-log-classes", "audit-log-required", "audit-rate", "authorizer",
		"authorizer-identity", "block-right-from", "call-memory",
		"changes-kept", "connections", "console-actions", "console-all", "delegations", "lease", "max-blocking",
		"max-tentative", "max-unused-rights", "max-written", "missing-grace",
		"name", "nodes", "owner-grace", "postgres-plaintext", "postgres-read", "postgres-read-file", "pprof",
		"read-max-lag", "reflection", "removals-kept", "start-timeout", "stop-timeout", "tentative-ttl")
	return cmd
}
