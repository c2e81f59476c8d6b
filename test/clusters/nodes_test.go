package clusters

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/test/wait"
)

const patroniYAML = `
scope: clusters
name: %[1]s
restapi: { listen: %[2]s, connect_address: %[2]s }
etcd3: { host: %[3]s }
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 5
    maximum_lag_on_failover: 33554432
    synchronous_mode: %[4]t
    postgresql: { use_pg_rewind: true, parameters: { max_connections: 200, shared_buffers: 32MB, fsync: "off" } }
  initdb: [ { encoding: UTF8 }, data-checksums ]
  pg_hba:
    - host all all 127.0.0.1/32 scram-sha-256
    - host replication all 127.0.0.1/32 scram-sha-256
postgresql:
  listen: %[5]s
  connect_address: %[5]s
  data_dir: %[6]s/data
  bin_dir: %[7]s
  pgpass: %[6]s/pgpass
  authentication: { superuser: { username: postgres, password: secret }, replication: { username: replicator, password: secret } }
  parameters: { unix_socket_directories: %[6]s }
`

// node is a server of PostgreSQL under Patroni.
type node struct {
	name, dir, rest, address string
	*playground.Process
}

// nodes are a cluster of Patroni, with etcd.
type nodes struct {
	t   *testing.T
	all []*node
}

func startNodes(t *testing.T, synchronous bool) *nodes {
	t.Helper()
	dir := folder(t)
	at, err := playground.FreeAddresses(2 + 2*3)
	require.NoError(t, err)
	client, peer := "http://"+at[0], "http://"+at[1]
	etcd := daemon(t, dir, "etcd", client+"/health", "etcd", "--name", "e", "--data-dir", filepath.Join(dir, "etcd"),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "e="+peer)
	require.NoError(t, etcd.WaitReady(t.Context()))
	c := &nodes{t: t}
	for i := range 3 {
		n := &node{name: fmt.Sprintf("n%d", i+1), dir: folder(t), rest: "http://" + at[2+2*i], address: at[3+2*i]}
		file := write(t, filepath.Join(dir, n.name+".yml"), patroniYAML, n.name, at[2+2*i], at[0], synchronous,
			n.address, n.dir, launcher.Binaries(t.Context()))
		role := map[bool]string{true: "/primary", false: "/replica"}[i == 0]
		n.Process = daemon(t, dir, n.name, n.rest+role, "patroni", file)
		t.Cleanup(func() { n.kill() }) // before Patroni is stopped: PostgreSQL is a process of its own
		c.all = append(c.all, n)
		require.NoError(t, n.WaitReady(t.Context()))
	}
	if synchronous {
		c.eventually("a standby is synchronous", func() bool { return c.answering("/sync") != nil })
	}
	conn, err := pgx.Connect(t.Context(), c.dsn(c.leader().address, "postgres"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	for _, database := range []string{"west", "east"} {
		_, err := conn.Exec(t.Context(), "CREATE DATABASE "+database)
		require.NoError(t, err)
	}
	return c
}

func (c *nodes) eventually(what string, holds func() bool) {
	c.t.Helper()
	require.Eventually(c.t, holds, wait.Limit, wait.Poll, what)
}

// answering returns the node whose page of Patroni says yes: that of a role, for example.
func (c *nodes) answering(path string) *node {
	for _, n := range c.all {
		if strings.HasPrefix(page(n.rest+path), "200 ") {
			return n
		}
	}
	return nil
}

func (c *nodes) leader() (n *node) {
	c.t.Helper()
	c.eventually("there is a leader", func() bool { n = c.answering("/primary"); return n != nil })
	return n
}

func (c *nodes) dsn(addresses, database string) string {
	return "postgres://postgres:secret@" + addresses + "/" + database + "?sslmode=disable"
}

// hosts is the connection string that names all nodes.
func (c *nodes) hosts(database string) string {
	var addresses []string
	for _, n := range c.all {
		addresses = append(addresses, n.address)
	}
	return c.dsn(strings.Join(addresses, ","), database) + "&target_session_attrs=read-write"
}

// proxied starts HAProxy, with the configuration that Patroni's manual has, and returns the connection string
// through it.
func (c *nodes) proxied(database string) string {
	c.t.Helper()
	at, err := playground.FreeAddresses(1)
	require.NoError(c.t, err)
	dir := folder(c.t)
	config := `
defaults
    mode tcp
    retries 2
    timeout client 30m
    timeout connect 4s
    timeout server 30m
    timeout check 5s
listen primary
    bind ` + at[0] + `
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 3s fall 3 rise 2 on-marked-down shutdown-sessions
`
	for _, n := range c.all {
		config += fmt.Sprintf("    server %s %s maxconn 100 check port %s\n", n.name, n.address, port(n.rest))
	}
	daemon(c.t, dir, "haproxy", "", "haproxy", "-db", "-f", write(c.t, filepath.Join(dir, "haproxy.cfg"), "%s", config))
	dsn := c.dsn(at[0], database)
	c.eventually("HAProxy has found the leader", func() bool { // at first it takes every node for one
		var standby bool
		for range 2 * len(c.all) {
			conn, err := pgx.Connect(c.t.Context(), dsn)
			if err == nil {
				err = errors.Join(conn.QueryRow(c.t.Context(), "SELECT pg_is_in_recovery()").Scan(&standby),
					conn.Close(c.t.Context()))
			}
			if err != nil || standby {
				return false
			}
		}
		return true
	})
	return dsn
}

func (c *nodes) switchover() {
	c.t.Helper()
	n := c.leader()
	out := execute(c.t, "patronictl", "-c", strings.TrimSuffix(n.Log(), ".log")+".yml", "switchover", "--force",
		"clusters")
	c.t.Logf("patronictl: %s", out)
	c.eventually("another node leads", func() bool { l := c.answering("/primary"); return l != nil && l != n })
}

// crash ends the leader's machine, so to speak: Patroni and PostgreSQL. Its standbys have got nothing since
// behind was called.
func (c *nodes) crash(n *node, senders []int) {
	_ = n.Kill()
	n.kill()
	for _, pid := range senders { // they stand still
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// behind makes the leader send nothing more to its standbys.
func (c *nodes) behind(n *node) (senders []int) {
	c.t.Helper()
	conn, err := pgx.Connect(c.t.Context(), c.dsn(n.address, "postgres"))
	require.NoError(c.t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	rows, err := conn.Query(c.t.Context(), "SELECT pid FROM pg_stat_replication")
	require.NoError(c.t, err)
	senders, err = pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(c.t, err)
	require.Len(c.t, senders, 2)
	for _, pid := range senders {
		require.NoError(c.t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	return senders
}

// kill ends the node's PostgreSQL. Its sessions notice that their parent has ended.
func (n *node) kill() {
	raw, err := os.ReadFile(filepath.Join(n.dir, "data", "postmaster.pid"))
	if err != nil {
		return
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	if pid, err := strconv.Atoi(first); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
