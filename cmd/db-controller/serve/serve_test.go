package serve

import (
	"errors"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/schema"
)

// configured returns the configuration of a deployment with the defaults of the flags and a change.
func configured(change func(c *deploymentConfig)) *deploymentConfig {
	c := &deploymentConfig{}
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.flags(f)
	c.server.listen, c.database.dsn = "127.0.0.1:7001", "postgres://localhost/iam"
	if change != nil {
		change(c)
	}
	return c
}

func TestServeChecksItsConfiguration(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(c *deploymentConfig)
		wrong  string
	}{
		"the defaults": {nil, ""},
		"an address for others": {func(c *deploymentConfig) {
			c.server.listen, c.registration.advertise = ":7001", "iam:7001"
		}, ""},
		"no address for others": {func(c *deploymentConfig) {
			c.server.listen = ":7001"
		}, "give --advertise host:port"},
		"a wrong address for others": {func(c *deploymentConfig) { c.registration.advertise = "iam" }, "--advertise"},
		"a listener without a port": {func(c *deploymentConfig) {
			c.server.listen = "localhost"
		}, "--listen localhost: want host:port"},
		"HTTP without a port": {func(c *deploymentConfig) {
			c.server.http = "localhost:"
		}, "--http localhost:: want host:port"},
		"profiles for everybody":   {func(c *deploymentConfig) { c.server.pprof = ":6060" }, "--pprof"},
		"profiles on this machine": {func(c *deploymentConfig) { c.server.pprof = "127.0.0.1:6060" }, ""},
		"an hour and more to stop": {func(c *deploymentConfig) {
			c.server.stopTimeout = 2 * time.Hour
		}, "--stop-timeout"},
		"memory for less than callers": {func(c *deploymentConfig) { c.server.memory = 10 }, "--call-memory 10"},
		"no nodes":                     {func(c *deploymentConfig) { c.share.nodes = 0 }, "--nodes 0"},
		"more nodes than shards":       {func(c *deploymentConfig) { c.share.nodes = schema.RingSize + 1 }, "--nodes"},
		"a lease that a pause ends": {func(c *deploymentConfig) {
			c.share.lease = 100 * time.Millisecond
		}, "--lease 100ms"},
		"removals kept too short": {func(c *deploymentConfig) {
			c.store.removalsKept = time.Hour
		}, "--removals-kept"},
		"changes kept too short": {func(c *deploymentConfig) {
			c.store.changesKept = time.Minute
		}, "--changes-kept 1m0s: want at least 10m"},
		"the default of removals":    {func(c *deploymentConfig) { c.store.removalsKept = 0 }, ""},
		"a negative expiry":          {func(c *deploymentConfig) { c.store.tentativeTTL = -1 }, "--tentative-ttl"},
		"a negative bound of writes": {func(c *deploymentConfig) { c.store.maxWritten = -1 }, "--max-written -1"},
		"a bound of writes too large": {func(c *deploymentConfig) {
			c.store.maxWritten = 1 << 43
		}, "--max-written 8796093022208: want at most 8796093022207"},
		"a negative quota": {func(c *deploymentConfig) {
			c.store.quotas.Blocking = -1
		}, "--max-blocking -1"},
		"no audits": {func(c *deploymentConfig) { c.audit.interval = 0 }, ""},
		"audits of nothing": {func(c *deploymentConfig) {
			c.audit.rate = 0
		}, "--audit-interval 0 turns audits off"},
		"a second login": {func(c *deploymentConfig) {
			c.database.controller.dsn = "postgres://own@localhost/iam"
		}, ""},
		"of another database": {func(c *deploymentConfig) {
			c.database.controller.dsn = "postgres://own@localhost/devices"
		}, "--postgres-controller is of another database than --postgres: localhost:5432/devices"},
		"no DSN": {func(c *deploymentConfig) {
			c.database.controller.dsn = "postgres://["
		}, "--postgres-controller: "},
		"a second login without TLS": {func(c *deploymentConfig) {
			c.database.controller.dsn = "postgres://own@db.example.org/iam"
		}, "sslmode=verify-full"},
		"audits backwards": {func(c *deploymentConfig) {
			c.audit.interval = -time.Second
		}, "--audit-interval"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := configured(c.change).check()
			if c.wrong == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.wrong)
		})
	}
}

func TestAllWrongFlagsAreReportedTogether(t *testing.T) {
	t.Parallel()
	err := configured(func(c *deploymentConfig) {
		c.share.nodes, c.share.lease, c.audit.rate, c.server.memory = 0, 0, 0, 0
	}).check()
	for _, flag := range []string{"--nodes", "--lease", "--audit-rate", "--call-memory"} {
		require.ErrorContains(t, err, flag)
	}
}

func TestAFailureIsListedUntilItsHandlerSucceeds(t *testing.T) {
	t.Parallel()
	west, east := schema.DeploymentID{Service: "a.example.com", Region: "west"},
		schema.DeploymentID{Service: "a.example.com", Region: "east"}
	var f failures
	f.ran("confirm", west, nil, time.Time{})
	require.Empty(t, f.list())
	f.ran("release", west, errors.New("first"), time.Time{})
	f.ran("confirm", west, errors.New("refused"), time.Time{})
	f.ran("confirm", east, errors.New("refused"), time.Time{})
	f.ran("release", west, errors.New("second"), time.Time{})
	var got []string
	for _, failure := range f.list() {
		got = append(got, failure.Handler+" "+failure.Deployment.Region+" "+failure.Error)
	}
	require.Equal(t, []string{"confirm east refused", "confirm west refused", "release west second"}, got)
	f.ran("confirm", west, nil, time.Time{})
	require.Len(t, f.list(), 2)
}

// A deletion that fails beside new ones is done by the task that does failed ones again.
func TestAFailureEndsWithTheSuccessOfAnotherTry(t *testing.T) {
	t.Parallel()
	west := schema.DeploymentID{Service: "a.example.com", Region: "west"}
	m := newMetrics(nil)
	m.HandlerRan("subscribed_deleting", west, constraint.HandlerRun{Failed: errors.New("a native key keeps a row")})
	require.Len(t, m.failures.list(), 1)
	m.HandlerRan("subscribed_deleting_again", west, constraint.HandlerRun{})
	require.Empty(t, m.failures.list())
}
