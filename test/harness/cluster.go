package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/test/wait"
)

// Cluster is a PostgreSQL server for one test, whose folder can be copied while it does not run: for restored
// backups and standbys. It needs the PostgreSQL binaries on this machine; without them the test is skipped or
// fails, as with Postgres.
type Cluster struct {
	t        testing.TB
	dir      string
	settings map[string]string // beside those of every server
	server   *launcher.Server
}

// NewCluster starts a server in a new folder.
func NewCluster(t testing.TB) *Cluster {
	t.Helper()
	c := newCluster(t)
	c.Start()
	if _, err := os.Stat(filepath.Join(c.dir, "data", "PG_VERSION")); err != nil {
		refuse(t, choiceFromEnvironment(), errors.New("no binaries of PostgreSQL are on this machine"))
	}
	return c
}

// migrated is a server that has stopped, with a migrated database "a" of a deployment.
var migrated struct {
	once        sync.Once
	parent, dir string
}

// NewMigratedCluster starts a server with a migrated database "a" of a deployment. All of them are copies of
// one server: they have the same system identifier, as a primary and its standbys have.
func NewMigratedCluster(t testing.TB) *Cluster {
	t.Helper()
	migrated.once.Do(func() {
		c := NewCluster(t)
		c.CreateDatabase("a")
		_, err := migrations.Up(t.Context(), c.DSN("a"), migrations.Deployment)
		require.NoError(t, err)
		c.Stop()
		migrated.parent, err = os.MkdirTemp(clusterFolder(), "db-controller-cluster-")
		require.NoError(t, err)
		require.NoError(t, os.Chmod(migrated.parent, 0o755)) //nolint:gosec // the server's user enters it
		dir := filepath.Join(migrated.parent, "server")
		require.NoError(t, copyFolder(t.Context(), c.dir, dir))
		migrated.dir = dir
	})
	if migrated.dir == "" {
		refuse(t, choiceFromEnvironment(), errors.New("the server to copy could not be made"))
	}
	c := newCluster(t)
	require.NoError(t, copyFolder(t.Context(), migrated.dir, c.dir))
	c.Start()
	return c
}

func copyFolder(ctx context.Context, from, to string) error {
	out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// NewClusterWith starts a server with the certificate of a folder (tls.crt and tls.key).
func NewClusterWith(t testing.TB, certs string) *Cluster {
	t.Helper()
	c := newCluster(t)
	tlsDir := filepath.Join(filepath.Dir(c.dir), "tls")
	require.NoError(t, os.Mkdir(tlsDir, 0o755)) //nolint:gosec // as newCluster says
	for _, name := range []string{"tls.crt", "tls.key"} {
		raw, err := os.ReadFile(filepath.Join(certs, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(tlsDir, name), raw, 0o600))
	}
	// The key has to belong to the server's user, which is known once the server has run.
	c.Start()
	data, err := os.Stat(filepath.Join(c.dir, "data"))
	if err != nil {
		refuse(t, choiceFromEnvironment(), errors.New("no binaries of PostgreSQL are on this machine"))
	}
	c.Stop()
	user := data.Sys().(*syscall.Stat_t)
	for _, name := range []string{"tls.crt", "tls.key"} {
		require.NoError(t, os.Chown(filepath.Join(tlsDir, name), int(user.Uid), int(user.Gid)))
	}
	c.settings = map[string]string{"ssl": "on", "ssl_cert_file": filepath.Join(tlsDir, "tls.crt"), "ssl_key_file": filepath.Join(tlsDir, "tls.key")}
	c.Start()
	return c
}

func newCluster(t testing.TB) *Cluster {
	t.Helper()
	return &Cluster{t: t, dir: filepath.Join(clusterParent(t), "server")}
}

// clusterFolder is in memory where there is room: a server is a thousand files.
func clusterFolder() string { return cmp.Or(launcher.MemoryFolder(), "/tmp") }

// clusterParent is a folder that the server's user can enter.
func clusterParent(t testing.TB) string {
	t.Helper()
	parent, err := os.MkdirTemp(clusterFolder(), "db-controller-cluster-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	require.NoError(t, os.Chmod(parent, 0o755)) //nolint:gosec // as said
	return parent
}

// NewSmallCluster starts a server on a disk of a given size in bytes, in memory. The test is skipped when it
// cannot be mounted.
func NewSmallCluster(t testing.TB, bytes int64) (c *Cluster, disk string) {
	t.Helper()
	parent := clusterParent(t)
	if err := mountSmallDisk(parent, bytes); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unmountSmallDisk(parent) })
	c = &Cluster{t: t, dir: filepath.Join(parent, "server")}
	c.Start()
	return c, parent
}

// Start runs the server, until Stop or the end of the test.
func (c *Cluster) Start() {
	c.t.Helper()
	settings := map[string]string{
		"fsync": "off", "shared_buffers": "16MB", "max_connections": "100", // safe as long as the machine itself does not crash
	}
	maps.Copy(settings, c.settings)
	server, err := launcher.Start(c.t.Context(), launcher.Config{Dir: c.dir, Settings: settings})
	if err != nil {
		refuse(c.t, choiceFromEnvironment(), err)
	}
	c.server = server
	c.t.Cleanup(func() { _ = server.Stop() })
}

// Stop shuts the server down: all commits are in its folder.
func (c *Cluster) Stop() {
	c.t.Helper()
	require.NoError(c.t, c.server.Stop())
}

// Crash ends the server at once: log records that were not flushed are lost.
func (c *Cluster) Crash() {
	c.t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.dir, "data", "postmaster.pid"))
	require.NoError(c.t, err)
	first, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(first)
	require.NoError(c.t, err)
	require.NoError(c.t, syscall.Kill(pid, syscall.SIGQUIT))
	require.Eventually(c.t, func() bool { return syscall.Kill(pid, 0) != nil }, wait.Limit, 5*time.Millisecond)
	_ = c.server.Stop()
}

// Runs reports whether the server runs; it may have ended by itself.
func (c *Cluster) Runs() bool {
	raw, err := os.ReadFile(filepath.Join(c.dir, "data", "postmaster.pid"))
	if err != nil {
		return false
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(first)
	return err == nil && syscall.Kill(pid, 0) == nil
}

// Restart starts a server that has ended by itself.
func (c *Cluster) Restart() {
	c.t.Helper()
	_ = c.server.Stop()
	c.Start()
}

// DSN returns the connection string of a database.
func (c *Cluster) DSN(database string) string { return c.server.DSN(database) }

// Address returns the address at which the server accepts connections.
func (c *Cluster) Address() string {
	c.t.Helper()
	cfg, err := pgx.ParseConfig(c.DSN(""))
	require.NoError(c.t, err)
	return net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
}

// CreateDatabase creates an empty database.
func (c *Cluster) CreateDatabase(name string) {
	c.t.Helper()
	require.NoError(c.t, c.server.CreateDatabase(c.t.Context(), name))
}

// Copy copies the folder of a server that does not run, or that writes nothing meanwhile: then the copy
// equals a snapshot of its volume, and recovers when it starts.
func (c *Cluster) Copy() *Cluster {
	c.t.Helper()
	out := newCluster(c.t)
	require.NoError(c.t, copyFolder(c.t.Context(), c.dir, out.dir))
	if err := os.Remove(filepath.Join(out.dir, "data", "postmaster.pid")); !errors.Is(err, os.ErrNotExist) {
		require.NoError(c.t, err)
	}
	return out
}

// StartPromoted starts a copy as a standby without a connection to its primary, and promotes it: a failover
// that loses the primary's commits since the copy.
func (c *Cluster) StartPromoted() {
	c.t.Helper()
	c.signal()
	c.Start()
	ctx, cancel := context.WithTimeout(c.t.Context(), wait.Limit)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.DSN(""))
	require.NoError(c.t, err)
	defer func() { _ = conn.Close(ctx) }()
	var standby, promoted bool
	require.NoError(c.t, conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby))
	require.True(c.t, standby)
	require.NoError(c.t, conn.QueryRow(ctx, `SELECT pg_promote()`).Scan(&promoted))
	require.True(c.t, promoted)
}

// StartStandby starts a copy as a standby that follows its primary.
func (c *Cluster) StartStandby(primary *Cluster) {
	c.t.Helper()
	c.signal()
	of, err := pgx.ParseConfig(primary.DSN(""))
	require.NoError(c.t, err)
	c.settings = map[string]string{"primary_conninfo": fmt.Sprintf("host=%s port=%d user=%s password=%s", of.Host, of.Port, of.User, of.Password)}
	c.Start()
}

// signal makes the server begin as a standby.
func (c *Cluster) signal() {
	c.t.Helper()
	signal := filepath.Join(c.dir, "data", "standby.signal")
	require.NoError(c.t, os.WriteFile(signal, nil, 0o644)) //nolint:gosec // the server's user reads and removes it
	owner, err := exec.CommandContext(c.t.Context(), "chown", "--reference", filepath.Join(c.dir, "data", "PG_VERSION"), signal).CombinedOutput()
	require.NoError(c.t, err, "%s", owner)
}
