package campaign

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
)

// World is a registry and four deployments as processes, with lines and proxies for faults: all calls to a
// deployment, users' too, pass a line that can be cut and a proxy that can lose, delay and repeat them; the
// connections of a deployment to its database pass a line as well.
type World struct {
	*harness.Processes
	t      testing.TB
	binary string
	calm   bool // no faults
	// truce is held for reading by each fault, and for writing by an operation that needs all deployments.
	truce sync.RWMutex
	// cleaner is the folder with the certificate of the holder of finalizers.
	cleaner string

	mu     sync.Mutex
	wanted map[schema.DeploymentID]string // guarded by mu; the version in the registry
	sites  map[schema.DeploymentID]*site
	hidden map[string]bool // guarded by mu; uids, and full names, that scheduled deletions may have hidden
	// cluster is a separate server for the first deployment's database; nil when all databases are on one.
	cluster *harness.Cluster
}

// site is one deployment.
type site struct {
	*playground.Deployment
	id       schema.DeploymentID
	calls    *harness.RPCProxy
	line, db *harness.Proxy
	// clock is the offset of the process's clock.
	clock string
	// admin is a connection to the database without faults, with all rights.
	admin    *pgxpool.Pool
	side     *harness.Proxy
	database string
}

const (
	leaseTTL     = time.Second
	tentativeTTL = 500 * time.Millisecond
)

// NewWorld starts everything: a program with points at which it can be killed, with clocks an hour apart.
// With cluster, the first deployment has a database server of its own, for faults of servers. More are
// further flags of each deployment's serve.
func NewWorld(t testing.TB, binary string, cluster bool, more ...string) *World {
	t.Helper()
	if binary == "" {
		binary = harness.CrashingBinary(t)
	}
	w := &World{t: t, binary: binary, sites: map[schema.DeploymentID]*site{}, wanted: map[schema.DeploymentID]string{}}
	dsns := map[schema.DeploymentID]string{}
	for i, id := range deployments {
		var direct, serving string
		if i == 0 && cluster {
			w.cluster = harness.NewCluster(t)
			w.cluster.CreateDatabase("own")
			direct = w.cluster.DSN("own")
			serving = harness.ServingDatabase(t, direct)
		} else {
			direct = harness.DeploymentDatabase(t)
			serving = harness.AsServing(direct)
		}
		s := &site{
			id: id, clock: "DBCONTROLLER_CLOCK=" + []string{"1h", "0s", "-1h", "30m"}[i],
			db: harness.NewProxy(t, hostOf(t, direct)), side: harness.NewProxy(t, hostOf(t, direct)),
		}
		dsns[id] = through(t, s.db, serving)
		cfg, err := pgxpool.ParseConfig(through(t, s.side, direct))
		require.NoError(t, err)
		s.database = cfg.ConnConfig.Database
		// it also mends a database that the nemesis has made read-only
		cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "off"
		s.admin, err = pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(s.admin.Close)
		w.sites[id] = s
	}
	w.Processes = harness.DescribeProcesses(t, services, playground.Config{
		Binary:    binary,
		Databases: playground.Databases{DSNs: dsns}, Args: append([]string{
			"--tentative-ttl", tentativeTTL.String(), "--owner-grace", "1s", "--lease", leaseTTL.String(),
			"--audit-interval", "3s", "--delegations", "--block-right-from", "2",
		}, more...),
	})
	w.issueCleaner() // the proxies have the certificates of all callers
	for id, s := range w.sites {
		s.Deployment = w.Deployments[id]
		s.calls = harness.NewRPCProxy(t, filepath.Dir(w.ClientCerts()), s.Certs, s.Address)
		s.line = harness.NewProxy(t, s.calls.Address())
		s.Environment(s.clock)
		s.Add("--advertise")
		s.Add(s.line.Address())
	}
	w.Begin(t)
	return w
}

// through returns a connection string by way of a proxy.
func through(t testing.TB, p *harness.Proxy, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.Host = p.Address()
	return u.String()
}

func hostOf(t testing.TB, dsn string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	return net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
}

func (w *World) resources(ctx context.Context, id schema.DeploymentID) resourcev1.ResourceServiceClient {
	r, err := w.Client.Resources(ctx, id)
	require.NoError(w.t, err)
	return r
}

func (w *World) status(ctx context.Context, id schema.DeploymentID) (*adminv1.StatusResponse, error) {
	admin, err := w.Client.Admin(ctx, id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return admin.Status(ctx, &adminv1.StatusRequest{})
}

// switchVersion sets the version in the registry; the deployment follows by itself.
func (w *World) switchVersion(ctx context.Context, id schema.DeploymentID, version string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err := w.Client.Registry().SetDeploymentVersion(ctx, &registryv1.SetDeploymentVersionRequest{
		Service: id.Service,
		Region:  id.Region, Version: version,
	})
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wanted[id] = version
	}
	return err
}

// wants returns the last version set in the registry for a deployment; empty: its first one.
func (w *World) wants(id schema.DeploymentID) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wanted[id]
}

func (w *World) pools() map[schema.DeploymentID]*pgxpool.Pool {
	out := map[schema.DeploymentID]*pgxpool.Pool{}
	for id, s := range w.sites {
		out[id] = s.admin
	}
	return out
}

// said returns the lines with a text in the logs of all processes.
func (w *World) said(text string) (lines []string) {
	for id, s := range w.sites {
		raw, err := os.ReadFile(s.Log())
		require.NoError(w.t, err)
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(line, text) {
				lines = append(lines, id.String()+": "+line)
			}
		}
	}
	return lines
}

// mayHide notes resources that a scheduled deletion may hide, by uid, or by full name where that is not
// known.
func (w *World) mayHide(resources ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hidden == nil {
		w.hidden = map[string]bool{}
	}
	for _, r := range resources {
		w.hidden[r] = true
	}
}

// mayBeHidden reports whether a resource that a watch sees go may come back.
func (w *World) mayBeHidden(name, uid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hidden[name] || w.hidden[uid]
}
