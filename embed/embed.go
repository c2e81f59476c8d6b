package embed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// Config of an Application.
type Config struct {
	// Deployment in whose database the application writes.
	Deployment schema.DeploymentID
	// Pool of the application, in that database; its user is a member of the role <prefix>_application. Its
	// sessions keep their settings. A second pool of at most Connections (default 4) connections, with the
	// address and the credentials of the first, reads with settings of its own. Behind a pooler of
	// connections both need pgx.QueryExecModeCacheDescribe or DescribeExec.
	Pool        *pgxpool.Pool
	Connections int32
	// Certs is a folder with tls.crt, tls.key and ca.crt of application/SERVICE/NAME.
	Certs string
	// Logger; nil for none.
	Logger *zap.Logger
}

func (c *Config) validate() error {
	var faults []error
	if c.Deployment.IsZero() {
		faults = append(faults, errors.New("the deployment is missing"))
	}
	if c.Pool == nil {
		faults = append(faults, errors.New("the pool is missing"))
	} else if mode := c.Pool.Config().ConnConfig.DefaultQueryExecMode; mode == pgx.QueryExecModeExec ||
		mode == pgx.QueryExecModeSimpleProtocol {
		faults = append(faults,
			fmt.Errorf(
				"the pool sends statements without asking for the types of their parameters (%s): behind a pooler of connections use cache_describe or describe_exec", mode))
	}
	if c.Certs == "" {
		faults = append(faults, errors.New("the folder of the certificate is missing"))
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return errors.Join(faults...)
}

// Application writes resources of one deployment in transactions of its own. It is safe for concurrent use.
// Run has to run.
type Application struct {
	cfg         Config
	credentials *identity.Credentials
	pool        *pgxpool.Pool // with the settings of the store
	store       *shadow.Store
	peers       *peers.Peers

	// The last values that follow has read; it runs in one goroutine at a time.
	kept    []byte
	version string

	closed atomic.Bool

	mu   sync.Mutex
	home *grpc.ClientConn // guarded by mu; to the deployment's own process
	at   string           // guarded by mu; its address
}

// New checks the certificate and the database, and adopts the version that the deployment runs. It starts
// nothing in the background.
func New(ctx context.Context, cfg Config) (*Application, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("embed: %w", err)
	}
	credentials, err := identity.Load(identity.InDir(cfg.Certs))
	if err != nil {
		return nil, err
	}
	if who := credentials.Identity; who.Role != identity.RoleApplication || who.ServiceOf() != cfg.Deployment.Service {
		return nil, fmt.Errorf("the certificate in %s has the identity %s: want application/%s/NAME", cfg.Certs, who,
			cfg.Deployment.Service)
	}
	a := &Application{cfg: cfg, credentials: credentials}
	a.peers = peers.New(cfg.Deployment, byWayOf{a})
	if err := a.open(ctx); err != nil {
		a.Close() //nolint:contextcheck // it ends whatever ctx says
		return nil, err
	}
	return a, nil
}

func (a *Application) open(ctx context.Context) (err error) {
	name := "db-controller " + a.credentials.Identity.String()
	if a.pool, err = postgres.ConnectBeside(ctx, a.cfg.Pool.Config(), name, a.cfg.Connections); err != nil {
		return err
	}
	a.store, err = shadow.Open(ctx, shadow.Config{
		Pool: postgres.NewLanes(a.pool), Deployment: a.cfg.Deployment, Peers: peer.PeersOf(a.peers),
		Logger: a.cfg.Logger, Guest: true, Delegations: true,
	})
	if err != nil {
		return err
	}
	return a.follow(ctx)
}

// Close closes the connections. Call it when Run has returned and nothing writes: calls fail with ErrClosed
// from then on.
func (a *Application) Close() {
	if a.closed.Swap(true) {
		return
	}
	a.peers.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.home != nil {
		_ = a.home.Close()
	}
	if a.store != nil {
		a.store.Close()
	}
	if a.pool != nil {
		a.pool.Close()
	}
}

// followInterval is the time after which a switch of the version is noticed when no write meets it.
const followInterval = time.Second

// Run follows switches of the version, epochs of the database and addresses until ctx ends, and returns nil.
func (a *Application) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.store.RunNotifications(ctx) })
	g.Go(func() error { return a.credentials.Follow(ctx, 10*time.Second, a.cfg.Logger) })
	g.Go(func() error { return a.keepFollowing(ctx) })
	return g.Wait()
}

func (a *Application) keepFollowing(ctx context.Context) error {
	ticker := time.NewTicker(followInterval)
	defer ticker.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-a.store.Gate.Superseded():
		case <-a.store.Gate.EpochChanged():
		}
		text := ""
		if err := a.follow(ctx); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != last && text != "" {
			a.cfg.Logger.Warn("the deployment's version and addresses could not be read, it is tried again",
				zap.String("error", text))
		}
		last = text
	}
}

// follow adopts the epoch, the addresses and the version that are stored in the database.
func (a *Application) follow(ctx context.Context) error {
	if _, err := a.store.Gate.NoticeEpoch(ctx); err != nil {
		return err
	}
	kept, err := a.store.Admin.KeptEnvironment(ctx)
	if err != nil {
		return err
	}
	version, err := a.store.Gate.RunningVersion(ctx)
	if err != nil || version == a.version && bytes.Equal(kept, a.kept) {
		return err
	}
	if err := a.adopt(ctx, kept, version); err != nil {
		return err
	}
	a.kept, a.version = kept, version
	return nil
}

// adopt takes the addresses of a kept environment, and the version that the database says.
func (a *Application) adopt(ctx context.Context, kept []byte, version string) error {
	env, err := a.environment(kept)
	if err != nil {
		return err
	}
	if err := a.reach(env); err != nil {
		return err
	}
	model, err := schema.NewModel(schema.ServiceVersion{Service: a.cfg.Deployment.Service, Version: version},
		env.Services)
	if err != nil {
		return fmt.Errorf("version %s of %s: %w", version, a.cfg.Deployment, err)
	}
	if present := a.store.Model(); present != nil && present.Digest == model.Digest {
		a.store.Admin.Refresh(model)
		return nil
	}
	return a.store.Admin.Adopt(ctx, model)
}

// environment decodes the environment that the deployment's processes keep.
func (a *Application) environment(raw []byte) (*schema.Environment, error) {
	if raw == nil {
		return nil, fmt.Errorf("%s has not run yet: its database has no environment", a.cfg.Deployment)
	}
	env := &registryv1.Environment{}
	if err := proto.Unmarshal(raw, env); err != nil {
		return nil, fmt.Errorf("the stored environment: %w", err)
	}
	return wire.Environment(env), nil
}

// Save stores resources and runs fn in one transaction: all of it is stored, or nothing. New references to
// other deployments are established before. fn uses the transaction, and does not end it; it may run again,
// in another transaction, when the first one met a concurrent write. The resources are stored before fn runs,
// and are visible to its statements. nil: none. A Save within fn is another transaction, which stays when
// this one is rolled back.
//
// It fails with the error of fn, *RefusedError, *InvalidError, ErrNotFound, ErrExists, ErrConflict,
// ErrDeleting, ErrAborted, ErrUnknown, ErrTransaction or ErrClosed. It repeats temporary failures until the
// deadline of ctx, 10 s by default.
func (a *Application) Save(ctx context.Context, writes []Write, fn func(tx pgx.Tx) error) ([]Resource, error) {
	all, err := a.peerWrites(writes)
	if err != nil {
		return nil, err
	}
	saved, err := a.store.Write.SaveIn(ctx, a.within(fn), all)
	if err != nil {
		return nil, a.errorOf(err)
	}
	stored := resourcesOf(saved)
	a.wrote(ctx, stored...)
	return stored, nil
}

// wrote reports writes to the controller whose run has made them.
func (a *Application) wrote(ctx context.Context, all ...Resource) {
	for _, r := range all {
		client.Wrote(ctx, client.Written{
			Name:    schema.FullName{Deployment: a.cfg.Deployment, Name: r.Name},
			Version: client.Version{UID: r.UID.String(), Revision: r.Revision},
		})
	}
}

// Delete selects the resource to delete, by its relative or full name. UID and Revision select one
// incarnation, or one state of it; zero selects any.
type Delete struct {
	Name     string
	UID      uuid.UUID
	Revision int64
}

// DeleteIn deletes a resource with its cascade in this database, and runs fn in the same transaction.
// Blockers in other deployments are asked about before. The cascade in other deployments follows after the
// commit. It fails with the error of fn, *BlockedError, *InvalidError, ErrNotFound, ErrConflict,
// ErrUnavailable, ErrAborted, ErrUnknown, ErrTransaction or ErrClosed.
func (a *Application) DeleteIn(ctx context.Context, del Delete, fn func(tx pgx.Tx) error) (Deleted, error) {
	name, err := a.relative(del.Name)
	if err != nil {
		return Deleted{}, err
	}
	deleted, err := a.store.Deletions.DeleteIn(ctx, a.within(fn), shadow.DeleteRequest{
		Name: name, UID: del.UID, Revision: peer.Revision(del.Revision), Actor: a.credentials.Identity.String(),
	})
	made := deletedOf(deleted)
	switch {
	case err != nil:
	case made.Resource != nil:
		a.wrote(ctx, *made.Resource)
	default:
		gone := client.Written{Name: schema.FullName{Deployment: a.cfg.Deployment, Name: name}, Gone: true}
		if del.UID != uuid.Nil {
			gone.UID = del.UID.String()
		}
		client.Wrote(ctx, gone)
	}
	return made, a.errorOf(err)
}

// errorOf converts an error of the store.
func (a *Application) errorOf(err error) error {
	if err != nil && a.closed.Load() {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return errorOf(err)
}

func (a *Application) within(fn func(tx pgx.Tx) error) *shadow.UserTransaction {
	if fn == nil {
		fn = func(pgx.Tx) error { return nil }
	}
	return &shadow.UserTransaction{Pool: a.cfg.Pool, Also: fn}
}
