package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/envregistry"
	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/trace/export"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/nodemanager"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// deployment is a process of a deployment: its parts, which newDeployment builds, run runs and close closes.
// Data flows registry client → peers → node manager → nodes → handlers → store; the gRPC services are beside
// it, over the store.
type deployment struct {
	cfg     deploymentConfig
	log     *zap.Logger
	outage  *postgres.Outage
	waiting *startWait

	monitoring  *monitoring
	credentials *identity.Credentials
	// closeCredentials is nil before they are loaded.
	closeCredentials func()
	pool             *postgres.Lanes
	standby          *shadow.Standby // nil: none
	peers            *peers.Peers
	store            *shadow.Store
	metrics          *metrics
	endpoints        *endpoints
	server           *service.Server
	registryConn     *grpc.ClientConn
	// authorizerConn is nil without an authorization service.
	authorizerConn *grpc.ClientConn
	registry       *envregistry.Client
	owned          *handlers.Table
	manager        *nodemanager.Manager
	auditing       *auditing

	// environments carries the newest environment from the peers to the node manager. One place; never
	// closed.
	environments chan *schema.Environment
	// renewed says that the database has a new epoch. One place; sent by the store, received by the node
	// manager.
	renewed chan struct{}
}

// runDeployment runs a process of a deployment until ctx ends or a part fails, and returns when all parts
// have returned.
func runDeployment(ctx context.Context, cfg deploymentConfig, changes *reloads[deploymentConfig],
	log *zap.Logger,
) error {
	stop, err := beginTraces(ctx, cfg.id.String(), log)
	if err != nil {
		return err
	}
	defer stop()
	d, err := newDeployment(ctx, cfg, log)
	defer d.close() //nolint:contextcheck // the last counts are stored also when ctx has ended
	if errors.Is(err, errInterrupted) {
		return nil
	}
	if err != nil {
		return err
	}
	changes.to(d.reload)
	return d.run(ctx)
}

// beginTraces exports the spans of the process if the environment says where.
func beginTraces(ctx context.Context, instance string, log *zap.Logger) (stop func(), err error) {
	stop, err = export.Begin(ctx, cli.ThisBuild().Version, instance, func(err error) {
		log.Warn("spans could not be exported", zap.Error(err))
	})
	if err != nil {
		return nil, cli.Usage("%w", err)
	}
	return stop, nil
}

// newDeployment builds the parts, in the order of their dependencies. It returns the deployment with an error
// as well: the parts that exist are closed.
func newDeployment(ctx context.Context, cfg deploymentConfig, log *zap.Logger) (*deployment, error) {
	d := &deployment{
		cfg: cfg, environments: make(chan *schema.Environment, 1), renewed: make(chan struct{}, 1),
		auditing: newAuditing(cfg.audit),
	}
	d.log, d.outage = postgres.LogOutageOnce(log)
	d.waiting = newStartWait(cfg.database.startTimeout, d.log)
	for _, build := range []func(context.Context) error{
		d.beginMonitoring, d.loadCredentials, d.connect, d.listen, d.openStore, d.loadEnvironment, d.connectAuthorizer,
		d.buildServer, d.buildRegistryClient, d.buildManager,
	} {
		if err := build(ctx); err != nil {
			return d, err
		}
	}
	return d, nil
}

func (d *deployment) beginMonitoring(ctx context.Context) (err error) {
	d.monitoring, err = startMonitoring(ctx, d.cfg.server.http, d.waiting, d.log)
	return err
}

func (d *deployment) loadCredentials(ctx context.Context) (err error) {
	d.waiting.waits("certificates")
	if d.credentials, d.closeCredentials, err = loadCredentials(ctx, d.cfg.server.certs, identity.Deployment(d.cfg.id),
		d.cfg.database.startTimeout); err != nil {
		return err
	}
	if d.credentials.Identity != identity.Deployment(d.cfg.id) {
		return fmt.Errorf("the certificate in %s has the identity %s, not %s", d.cfg.server.certs,
			d.credentials.Identity, identity.Deployment(d.cfg.id))
	}
	return nil
}

func (d *deployment) connect(ctx context.Context) error {
	name := "db-controller " + d.cfg.id.String()
	if d.cfg.database.controller.dsn == "" {
		pool, err := connect(ctx, d.waiting, d.cfg.database, migrations.Deployment, name)
		if err == nil {
			d.pool = postgres.NewLanes(pool)
		}
		return err
	}
	pool, err := connect(ctx, d.waiting, d.cfg.database, migrations.Deployment, name, migrations.API)
	if err != nil {
		return err
	}
	d.pool = postgres.NewLanes(pool) // which is closed if the other one cannot be opened
	return d.waiting.database(ctx, func() error {
		own, err := d.cfg.database.controller.pool(ctx, name, d.cfg.database.connections, d.log)
		if err == nil {
			d.pool = postgres.NewLanesOfRoles(pool, own)
		}
		return err
	})
}

// connect waits for a database, migrates it or checks its schema, and opens a pool.
func connect(ctx context.Context, waiting *startWait, cfg databaseConfig, set migrations.Set, name string,
	of ...migrations.Role,
) (pool *pgxpool.Pool, err error) {
	err = waiting.database(ctx, func() error {
		began := time.Now()
		if cfg.migrate {
			waiting.waits("postgres, or its migrations")
		}
		err := ready(ctx, cfg.dsn, set, cfg.migrate, waiting.log, of...)
		if err == nil {
			waiting.began = waiting.began.Add(time.Since(began)) // the timeout excludes migrations
			pool, err = cfg.pool(ctx, name, cfg.connections, waiting.log)
		}
		return err
	})
	if errors.Is(err, migrations.ErrNotReady) || errors.As(err, new(*migrations.RefusedError)) ||
		errors.As(err, new(*postgres.SettingError)) {
		err = cli.WithCode(cli.Refused, err)
	}
	return pool, err
}

// listen completes the configuration with the address that the listener has.
func (d *deployment) listen(ctx context.Context) (err error) {
	if d.endpoints, err = newEndpoints(ctx, d.cfg.id.String(), d.cfg.server, d.credentials, d.monitoring,
		d.log); err != nil {
		return err
	}
	address := d.endpoints.listener.Addr().String()
	if d.cfg.registration.advertise == "" {
		d.cfg.registration.advertise = address
	}
	if d.cfg.share.name == "" {
		host, _ := os.Hostname()
		_, port, _ := net.SplitHostPort(address)
		d.cfg.share.name = host + ":" + port
	}
	return nil
}

// newStandby returns the standby that answers reads; nil when there is none. It may be away: Run of the
// standby connects.
func (d *deployment) newStandby() *shadow.Standby {
	read := d.cfg.database.read
	if read.dsn == "" {
		return nil
	}
	s := shadow.NewStandby(shadow.StandbyConfig{
		Primary: d.pool, MaxLag: read.maxLag, Logger: d.log,
		Connect: func(ctx context.Context) (*pgxpool.Pool, error) {
			return read.pool(ctx, "db-controller "+d.cfg.id.String()+" reads", d.cfg.database.connections, d.log)
		},
	})
	d.endpoints.metrics.MustRegister(standbyCollector{s})
	return s
}

func (d *deployment) openStore(ctx context.Context) error {
	d.standby = d.newStandby()
	d.peers = peers.New(d.cfg.id, d.credentials)
	limits := d.cfg.store
	ended := newDeletionEnded(d.endpoints.metrics)
	measured := newMeasuredPeers(d.endpoints.metrics, d.peers)
	return d.waiting.database(ctx, func() (err error) {
		d.store, err = shadow.Open(ctx, shadow.Config{
			Pool: d.pool, Standby: d.standby, Deployment: d.cfg.id, Peers: peer.PeersOf(measured), Logger: d.log,
			Times: shadow.Times{
				TentativeTTL: limits.tentativeTTL, OwnerGrace: limits.ownerGrace,
				MissingGrace: limits.missingGrace,
			},
			Limits: shadow.Limits{
				Quotas: limits.quotas, QuotaOf: quotaOf(d.peers.Environment, d.cfg.id),
				BlockRightFrom: limits.blockRightFrom,
			},
			Retention:   shadow.Retention{Changes: limits.changesKept, Removals: limits.removalsKept},
			Delegations: limits.delegations, DeletionEnded: ended,
		})
		if err == nil && limits.restored {
			err = d.store.Gate.ForgetServer(ctx)
		}
		return err
	})
}

// quotaOf returns the quotas of the newest environment for the holders of one deployment here.
func quotaOf(environment func() *schema.Environment, self schema.DeploymentID) func(schema.DeploymentID) peer.Quotas {
	return func(holder schema.DeploymentID) peer.Quotas {
		env := environment()
		if env == nil {
			return peer.Quotas{}
		}
		blocking, tentative := env.Rights.Quota(holder, self)
		return peer.Quotas{Blocking: blocking, Tentative: tentative}
	}
}

// loadEnvironment takes the environment that was kept, before anything is served: its rights are in force
// from the first request on.
func (d *deployment) loadEnvironment(ctx context.Context) error {
	return d.waiting.database(ctx, func() error {
		env, err := keeper{d.store}.LoadEnvironment(ctx)
		if err != nil {
			return fmt.Errorf("the kept environment, whose rights are needed before anything is served: %w", err)
		}
		if env != nil {
			d.peers.Update(env)
		}
		return nil
	})
}

// connectAuthorizer connects to the authorization service, if there is one.
func (d *deployment) connectAuthorizer(context.Context) error {
	if d.cfg.authorizer.address == "" {
		return nil
	}
	is, err := identity.ParsePath("/" + d.cfg.authorizer.is)
	if err != nil {
		return fmt.Errorf("--authorizer-identity: %w", err)
	}
	if d.authorizerConn, err = grpc.NewClient(d.cfg.authorizer.address, d.credentials.DialOptions(is)...); err != nil {
		return fmt.Errorf("--authorizer: %w", err)
	}
	return nil
}

func (d *deployment) buildServer(context.Context) (err error) {
	d.metrics = newMetrics(d.store)
	d.metrics.process = d.cfg.share.name
	d.endpoints.metrics.MustRegister(poolCollector{d.pool.Pools()})
	cfg := service.Config{
		Store: d.store, Peers: d.peers, Logger: d.log, Deleted: newDeletes(d.endpoints.metrics),
		GRPC: service.GRPC{
			Credentials: d.credentials, Health: d.endpoints.health, Reflection: d.cfg.server.reflection,
			Unary: d.endpoints.unary(), Stream: d.endpoints.stream(), Memory: d.cfg.server.memory << 20,
		},
		Callers: service.Callers{
			MaxWritten: d.cfg.store.maxWritten << 20, AuditLog: d.endpoints.audit,
			Refused: d.endpoints.refused,
		},
		Process: service.Process{NotReady: d.notReady, Failures: d.failures, Watches: d.metrics.watchList},
	}
	if d.endpoints.tokens != nil {
		cfg.Callers.Tokens = d.endpoints.tokens
	}
	if d.authorizerConn != nil {
		cfg.Callers.Authorizer = access.Outside(d.authorizerConn)
	}
	d.server, err = service.NewServer(cfg)
	return err
}

func (d *deployment) buildRegistryClient(context.Context) (err error) {
	d.registryConn, err = envregistry.Dial(d.cfg.registration.registry,
		d.credentials.DialOptions(identity.Identity{Role: identity.RoleRegistry})...)
	if err != nil {
		return fmt.Errorf("--registry: %w", err)
	}
	d.registry, err = envregistry.New(envregistry.Config{
		Deployment: d.cfg.id, Address: d.cfg.registration.advertise, Database: d.store.Gate.Database(),
		Registry: d.registryConn, Keeper: keeper{d.store}, Logger: d.log,
	})
	if err == nil {
		d.endpoints.metrics.MustRegister(registryCollector{d.registry})
	}
	return err
}

func (d *deployment) buildManager(context.Context) (err error) {
	if d.owned, err = ownedHandlers(d.store, d.peers); err != nil {
		return err
	}
	leases := d.store.Leases(d.cfg.share.name, d.cfg.share.lease)
	d.manager, err = nodemanager.New(nodemanager.Config{
		Deployment: d.cfg.id, Environments: d.environments, Logger: d.log,
		Store: nodemanager.Store{
			Switch: d.store.Admin.Switch, Refresh: d.store.Admin.Refresh,
			PointedTo: d.store.Attempts.ReferencedDeployments, Renewed: d.renewed,
		},
		Others: nodemanager.Others{
			Look: d.store.Attempts.Look, Superseded: d.store.Gate.Superseded(),
			Kept: keeper{d.store}.LoadEnvironment, Follows: d.peers.Update,
		},
		Sharing: nodemanager.Sharing{
			Leases: leases, TTL: d.cfg.share.lease, Nodes: d.cfg.share.nodes,
			Leads: d.registry.Lead, CanLead: d.registry.CanLead,
		},
		NewNode: func(share nodemanager.Share) (nodemanager.Runner, error) { return d.newNode(leases, share) },
	})
	return err
}

func (d *deployment) newNode(leases *shadow.Leases, share nodemanager.Share) (nodemanager.Runner, error) {
	var expired <-chan struct{}
	if share.First {
		expired = d.store.Gate.Expired()
	}
	node, err := constraint.New(constraint.Config{
		Name: share.Name, Deployment: d.cfg.id, Shards: share.Shards, Subscriptions: share.Subscriptions,
		Watches: d.peers, Observer: d.metrics, Logger: d.log, Expired: expired, Retries: d.store.Operate.ListenRetries,
		Handlers: constraint.Handlers{
			Owned: handlers.PausableTable{Table: d.owned, Pauses: d.store.Operate},
			Resolver: handlers.PausableResolve{Handler: &handlers.Resolve{
				Store: d.store.Targets, Peers: d.peers,
				Self: d.cfg.id, Scheduled: d.store.Deletions,
			}, Pauses: d.store.Operate},
			Subscribed: handlers.PausableSubscribedDeleting{SubscribedDeleting: &handlers.SubscribedDeleting{
				Store: d.store.Follow, Epoch: d.store.Gate, Peers: d.peers,
			}, Pauses: d.store.Operate},
		},
	})
	return fenced{node, leases, share.Member}, err
}

// ownedHandlers returns the handlers of the outstanding work of a deployment.
func ownedHandlers(store *shadow.Store, peers *peers.Peers) (*handlers.Table, error) {
	return handlers.NewTable(handlers.Actions{
		Confirm: &handlers.Confirm{
			Store: store.Targets, Repair: store.Verify, Peers: peers,
			Rights: store.Rights, Scheduled: store.Deletions,
		},
		Release:               &handlers.Release{Store: store.Targets, Peers: peers},
		ReleaseOwner:          &handlers.ReleaseOwner{Store: store.Targets, Peers: peers},
		CheckOwners:           &handlers.CheckOwners{Store: store.Owners, Peers: peers},
		UpgradeOwners:         &handlers.UpgradeOwners{Store: store.Owners, Peers: peers},
		Derive:                &handlers.Derive{Store: store.Admin},
		CleanUpDecommissioned: &handlers.CleanUpDecommissioned{Store: store.Admin},
		AnnounceEpoch:         &handlers.AnnounceEpoch{Store: store.Gate, Peers: peers},
		ConfirmAgain:          &handlers.ConfirmAgain{Store: store.Verify, Peers: peers},
		VerifyBlockades:       &handlers.VerifyBlockades{Store: store.Verify},
		LookAtRight:           &handlers.LookAtRight{Store: store.Rights},
		EndRights:             &handlers.EndRights{Store: store.Operate, Peers: peers},
		LookAtEntry:           &handlers.LookAtEntry{Store: store.Targets, Peers: peers},
		Finalise:              &handlers.Finalise{Store: store.Cascade},
		DropOwners:            &handlers.DropOwners{Store: store.Owners, Peers: peers},
	})
}

// fenced is a node whose transactions take effect only while its process is a member.
type fenced struct {
	*constraint.Node
	leases *shadow.Leases
	member uuid.UUID
}

func (n fenced) Run(ctx context.Context) error { return n.Node.Run(n.leases.Fenced(ctx, n.member)) }

// schemaCheck checks each login.
func (d *deployment) schemaCheck() check {
	if d.cfg.database.controller.dsn == "" {
		return schemaCheck(d.pool, migrations.Deployment)
	}
	calls, own := schemaCheck(d.pool, migrations.Deployment, migrations.API).in(inReads),
		schemaCheck(d.pool, migrations.Deployment, migrations.Controller)
	return check{name: own.name, run: func(ctx context.Context) error {
		if err := calls.run(ctx); err != nil {
			return err
		}
		if err := own.run(ctx); err != nil {
			return fmt.Errorf("--postgres-controller: %w", err)
		}
		return nil
	}}
}

// inReads returns a context for statements with the login of the calls.
func inReads(ctx context.Context) context.Context {
	return postgres.WithCaller(ctx, postgres.Caller{Lane: postgres.Reads})
}

// run blocks until ctx ends or a part fails, and returns when all parts have returned.
func (d *deployment) run(ctx context.Context) error {
	defer raiseHeapFloor()()
	checks := []check{
		{name: "postgres", run: d.pool.Answers},
		d.schemaCheck(),
		{name: "version", run: func(context.Context) error { return d.manager.Ready() }},
		{name: "registered", run: func(context.Context) error { return d.registry.Registered() }, note: d.unlisted},
	}
	for i := range checks {
		checks[i] = checks[i].in(postgres.InControl)
	}
	d.metrics.audits = func() (here bool, pause time.Duration) {
		pause, _ = d.auditing.pace()
		return d.registry.Leads(), pause
	}
	d.metrics.register(d.endpoints.metrics)
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range []func(context.Context) error{
		d.registry.Run, d.followEnvironments, d.manager.Run, d.store.RunNotifications, d.store.Admin.RunTidy,
		d.store.Admin.RunStatistics, d.followEpochs, d.audit, d.deleteRows, d.answerRequests,
		d.store.Progress.RunProgress, d.reconnect, d.standby.Run,
	} {
		g.Go(func() error { return part(ctx) })
	}
	d.endpoints.start(ctx, g, d.server.Server, d.outage, checks)
	g.Go(func() error { return d.serveGateway(ctx) })
	g.Go(func() error {
		return d.waiting.checks(ctx, checks, d.registry.Problem, func() {
			d.monitoring.started.Store(true)
			d.tellExposures(postgres.InControl(ctx))
		})
	})
	g.Go(func() error { return d.outage.Follow(postgres.InControl(ctx), takesWrites(d.pool)) })
	d.log.Info("serving", zap.Stringer("grpc", d.endpoints.listener.Addr()),
		zap.String("advertised", d.cfg.registration.advertise))
	return g.Wait()
}

// unlistedText explains an environment without this deployment to operators.
const unlistedText = "the registry does not list this deployment; it goes on with the last environment that did: apply the environment again, or stop the process if the deployment was removed"

func (d *deployment) unlisted() string {
	if _, unlisted := d.registry.Unlisted(); unlisted {
		return unlistedText
	}
	return ""
}

// notReady returns the checks that fail, with their reasons.
func (d *deployment) notReady() (out []service.NotReady) {
	for _, v := range d.monitoring.health.result() {
		if v.err != nil {
			out = append(out, service.NotReady{Check: v.name, Reason: v.err.Error()})
		}
	}
	return out
}

// failures returns the failures of the handlers and of the registry. The services call it; they serve after
// the registry's client exists.
func (d *deployment) failures() []service.Failure {
	out := d.metrics.failures.list()
	if since, unlisted := d.registry.Unlisted(); unlisted {
		out = append(out, service.Failure{Handler: "registry", Deployment: d.cfg.id, Error: unlistedText, Time: since})
	}
	if why, since := d.registry.AnotherDatabase(); why != "" {
		out = append(out, service.Failure{Handler: "registry", Deployment: d.cfg.id, Error: why, Time: since})
	}
	return out
}

func (d *deployment) followEnvironments(ctx context.Context) error {
	return d.peers.Follow(ctx, d.registry.Environments(), d.environments)
}

func (d *deployment) followEpochs(ctx context.Context) error {
	return d.store.Admin.FollowEpochs(ctx, shadow.EpochConfig{
		Ask: d.registry.Ask, Kept: keeper{d.store}.LoadEnvironment, Latest: d.peers.Environment, Renewed: d.renewed,
	})
}

func (d *deployment) audit(ctx context.Context) error {
	return d.store.Admin.RunAudits(ctx, shadow.AuditConfig{
		Pace: d.auditing.pace, Repaced: d.auditing.changed, Leads: d.registry.Leads, Audited: d.metrics.audited,
	})
}

func (d *deployment) deleteRows(ctx context.Context) error {
	return d.store.DeletedRows.RunDeletedRows(ctx, d.registry.Leads)
}

func (d *deployment) answerRequests(ctx context.Context) error {
	return d.store.RightRequests.RunRequests(ctx, d.registry.Leads)
}

// reconnect ends the back-offs of connections to other deployments when an operator has their work tried at
// once.
func (d *deployment) reconnect(ctx context.Context) error {
	for retries := d.store.Operate.ListenRetries(ctx); ; {
		select {
		case <-ctx.Done():
			return nil
		case of := <-retries:
			d.peers.Reconnect(of)
		}
	}
}

// close closes the parts that exist.
func (d *deployment) close() {
	if d.registryConn != nil {
		_ = d.registryConn.Close()
	}
	if d.authorizerConn != nil {
		_ = d.authorizerConn.Close()
	}
	if d.peers != nil {
		d.peers.Close()
	}
	if d.endpoints != nil {
		d.endpoints.close()
	}
	if d.store != nil {
		d.store.Close()
	}
	d.standby.Close()
	if d.pool != nil {
		d.pool.Close()
	}
	if d.closeCredentials != nil {
		d.closeCredentials()
	}
	if d.monitoring != nil {
		d.monitoring.close()
	}
}

// keeper keeps the environment in the deployment's own database.
type keeper struct{ store *shadow.Store }

func (k keeper) LoadEnvironment(ctx context.Context) (*schema.Environment, error) {
	raw, err := k.store.Admin.KeptEnvironment(ctx)
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
	return k.store.Admin.KeepEnvironment(ctx, raw)
}
