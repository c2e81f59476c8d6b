package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/test/wait"
)

func passes(context.Context) error { return nil }

func fails(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

// asked returns the answer of a health endpoint.
func asked(checks []check, query string) (int, string) {
	w := httptest.NewRecorder()
	healthHandler("readyz", &checkup{checks: checks})(w, httptest.NewRequest(http.MethodGet, "/readyz"+query, nil))
	return w.Code, w.Body.String()
}

// The text of a failed check is for strangers: only messages of this program are in it.
func TestReadinessNamesTheFailedChecks(t *testing.T) {
	t.Parallel()
	database := check{name: "postgres", run: passes}
	noted := check{name: "registry", run: passes, note: func() string { return "last heard 3s ago" }}
	quiet := check{name: "lease", run: passes, note: func() string { return "" }}
	for _, c := range []struct {
		checks []check
		query  string
		code   int
		want   string
	}{
		{nil, "", 200, "ok\n"},
		{[]check{database, noted}, "", 200, "ok\n"},
		{
			[]check{database, noted, quiet},
			"?verbose", 200,
			"[+]postgres ok\n[+]registry ok: last heard 3s ago\n[+]lease ok\nreadyz check passed\n",
		},
		{
			[]check{{name: "postgres", run: fails(errors.New("dial db.internal:5432: refused"))}, noted},
			"", 503,
			"[-]postgres failed\n[+]registry ok: last heard 3s ago\nreadyz check failed\n",
		},
		{
			[]check{{name: "writes", run: fails(postgres.ErrDiskFull)}},
			"", 503,
			"[-]writes: the disk of the database is full: nothing is written until it has space\nreadyz check failed\n",
		},
		{
			[]check{{name: "certificate", run: fails(expiredError{time.Unix(0, 0)})}},
			"", 503,
			"[-]certificate: the certificate expired at 1970-01-01T00:00:00Z: nobody can connect until there is a new one (docs/certificates.md)\nreadyz check failed\n",
		},
		{
			[]check{{name: "version", run: fails(errors.New("switching to v2"))}},
			"", 503,
			"[-]version: switching to v2\nreadyz check failed\n",
		},
		{
			[]check{{name: "schema", run: fails(fmt.Errorf("%w: migrate up", migrations.ErrNotReady))}},
			"", 503,
			"[-]schema: " + migrations.ErrNotReady.Error() + ": migrate up\nreadyz check failed\n",
		},
	} {
		code, text := asked(c.checks, c.query)
		require.Equal(t, c.code, code)
		require.Equal(t, c.want, text)
	}
}

// A check that hangs, because a database does not answer, ends with its own time.
func TestAHealthCheckEndsByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		code, _ := asked([]check{{name: "postgres", run: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}}, "")
		require.Equal(t, 503, code)
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}

// Any number of callers that ask for health without end cause ten reads of the database a second together,
// and a caller that goes away changes no answer of others.
func TestHealthReadsTheDatabaseTenTimesASecond_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		handler := healthHandler("readyz",
			&checkup{checks: []check{{name: "postgres", run: func(ctx context.Context) error {
				runs++
				return ctx.Err()
			}}}})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		var g sync.WaitGroup
		for range 200 {
			g.Go(func() {
				for began := time.Now(); time.Since(began) < time.Second; time.Sleep(time.Millisecond) {
					w := httptest.NewRecorder()
					handler(w, httptest.NewRequest(http.MethodGet, "/readyz", nil).WithContext(gone))
					if w.Code != http.StatusOK {
						t.Errorf("code %d", w.Code)
					}
				}
			})
		}
		g.Wait()
		require.InDelta(t, 10, runs, 1)
	})
}

func TestTheContextOfACheckIsChanged(t *testing.T) {
	t.Parallel()
	type key struct{}
	c := check{name: "lane", run: func(ctx context.Context) error { return ctx.Value(key{}).(error) }}
	want := errors.New("of the lane")
	changed := c.in(func(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, want) })
	require.Equal(t, want, changed.run(context.Background()))
	require.Equal(t, "lane", changed.name)
}

// get reads a path of a server that listens at address.
func get(t *testing.T, address, path string) (int, string) {
	t.Helper()
	res, err := http.Get("http://" + address + path) //nolint:noctx // a test
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	var body bytes.Buffer
	_, err = body.ReadFrom(res.Body)
	require.NoError(t, err)
	return res.StatusCode, body.String()
}

// served runs a server until the test ends, and returns its address, which is in the log.
func served(t *testing.T, field string, serve func(ctx context.Context, log *zap.Logger) error) string {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, zap.New(core)) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done, "it ends with its context, without an error")
	})
	require.Eventually(t, func() bool { return logs.Len() > 0 }, wait.Limit, time.Millisecond)
	return logs.All()[0].ContextMap()[field].(string)
}

// Liveness does not depend on the checks: a restart mends no database.
func TestHealthAndMetricsAreServed(t *testing.T) {
	t.Parallel()
	waiting := newStartWait(time.Minute, zap.NewNop())
	core, logs := observer.New(zap.InfoLevel)
	ctx, cancel := context.WithCancel(t.Context())
	m, err := startMonitoring(t.Context(), "127.0.0.1:0", waiting, zap.New(core))
	require.NoError(t, err)
	defer m.close()
	defer func() {
		cancel()
		require.NoError(t, m.run(ctx), "it ends with its context, without an error")
	}()
	require.Eventually(t, func() bool { return logs.Len() > 0 }, wait.Limit, time.Millisecond)
	address := logs.All()[0].ContextMap()["http"].(string)
	for waitsFor, want := range map[string]string{
		"":         "[-]start: starting\n",
		"postgres": "[-]start: waiting for postgres\n",
	} {
		waiting.waits(waitsFor)
		m.health.replace(m.health.checks)
		code, text := get(t, address, "/readyz")
		require.Equal(t, 503, code)
		require.Equal(t, want+"readyz check failed\n", text)
	}
	m.health.replace([]check{{name: "postgres", run: fails(errors.New("away"))}, {name: "schema", run: passes}})
	for path, want := range map[string]int{"/livez": 200, "/readyz": 503, "/healthz": 503, "/metrics": 200, "/": 404} {
		code, text := get(t, address, path)
		require.Equal(t, want, code, path)
		if path == "/metrics" {
			require.Contains(t, text, "dbcontroller_build_info{")
			require.Contains(t, text, "dbcontroller_started 0\n")
			require.Contains(t, text, `dbcontroller_ready{reason="postgres"} 0`+"\n"+
				`dbcontroller_ready{reason="schema"} 1`+"\n")
		}
	}
	m.started.Store(true)
	_, text := get(t, address, "/metrics")
	require.Contains(t, text, "dbcontroller_started 1\n")
	none, err := startMonitoring(t.Context(), "", waiting, zap.NewNop())
	require.NoError(t, err)
	require.NoError(t, none.run(t.Context()), "no address, no server")
	_, err = startMonitoring(t.Context(), address, waiting, zap.NewNop())
	require.ErrorContains(t, err, "--http: ")
}

// Profiles show memory and the command line the connection string: neither leaves the machine.
func TestProfilesAreServedToThisMachineOnly(t *testing.T) {
	t.Parallel()
	address := served(t, "http", func(ctx context.Context, log *zap.Logger) error {
		return servePprof(ctx, "127.0.0.1:0", log)
	})
	code, text := get(t, address, "/debug/pprof/")
	require.Equal(t, 200, code)
	require.Contains(t, text, "goroutine")
	code, _ = get(t, address, "/debug/pprof/cmdline")
	require.Equal(t, 404, code)
	require.NoError(t, servePprof(t.Context(), "", zap.NewNop()))
	for _, elsewhere := range []string{"0.0.0.0:6060", ":6060", "10.0.0.1:6060", "localhost:6060", "6060"} {
		require.ErrorContains(t, servePprof(t.Context(), elsewhere, zap.NewNop()), "--pprof: ", elsewhere)
	}
	require.NoError(t, onLoopback("[::1]:6060"))
}

// gRPC health follows the checks, and says "not serving" before the process ends.
func TestGRPCHealthFollowsTheChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		runs := 0
		server := newGRPCHealth(&checkup{checks: []check{{name: "a", run: func(context.Context) error {
			if runs++; away.Load() {
				return errors.New("away")
			}
			return nil
		}}, {name: "b", run: passes}}})
		const up, down = healthv1.HealthCheckResponse_SERVING, healthv1.HealthCheckResponse_NOT_SERVING
		state := func() healthv1.HealthCheckResponse_ServingStatus {
			time.Sleep(time.Hour)
			answer, err := server.Check(t.Context(), &healthv1.HealthCheckRequest{})
			require.NoError(t, err)
			return answer.GetStatus()
		}
		require.Equal(t, up, state())
		require.Equal(t, 1, runs, "nothing is checked while nobody asks")
		away.Store(true)
		require.Equal(t, down, state())
		list, err := server.List(t.Context(), &healthv1.HealthListRequest{})
		require.NoError(t, err)
		require.Equal(t, down, list.GetStatuses()[""].GetStatus())
		ctx, cancel := context.WithCancel(t.Context())
		watch := &healthWatch{ctx: ctx}
		done := make(chan error)
		go func() { done <- server.Watch(&healthv1.HealthCheckRequest{}, watch) }()
		time.Sleep(time.Minute)
		away.Store(false)
		time.Sleep(1500 * time.Millisecond)
		server.Shutdown()
		synctest.Wait()
		require.Equal(t, []healthv1.HealthCheckResponse_ServingStatus{down, up, down}, watch.sent)
		require.Equal(t, down, state())
		cancel()
		require.Error(t, <-done)
	})
}

type healthWatch struct {
	grpc.ServerStream
	ctx  context.Context
	sent []healthv1.HealthCheckResponse_ServingStatus
}

func (w *healthWatch) Context() context.Context { return w.ctx }

func (w *healthWatch) Send(r *healthv1.HealthCheckResponse) error {
	w.sent = append(w.sent, r.GetStatus())
	return nil
}

// A server that is told to stop ends; calls that go on are cut after the timeout.
func TestAServerStopsWithItsContext(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- serveGRPC(ctx, grpc.NewServer(), listener, func() time.Duration { return time.Minute })
	}()
	cancel()
	require.NoError(t, <-done)
	_, err = net.DialTimeout("tcp", listener.Addr().String(), time.Second)
	require.Error(t, err, "nothing listens any more")
}

// waited returns the log of a start, and its result, after a run in simulated time.
func waited(t *testing.T, timeout time.Duration, checks []check) (took time.Duration, lines int, result error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		w := newStartWait(timeout, zap.New(core))
		began := time.Now()
		passed := false
		result = w.checks(t.Context(), checks, func() string {
			return "the registry does not answer"
		}, func() { passed = true })
		require.Equal(t, result == nil, passed)
		took, lines = time.Since(began), logs.Len()
	})
	return took, lines, result
}

// A start that takes long says why in one line, and ends with the same reasons.
func TestAStartWaitsForItsChecks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		after, timeout, want time.Duration
		lines                int
		says                 string
	}{
		{0, time.Minute, 0, 0, ""},
		{3 * time.Second, time.Minute, 3 * time.Second, 0, ""},
		{16 * time.Second, time.Minute, 16 * time.Second, 1, ""},
		{
			time.Hour, 12 * time.Second, 12 * time.Second, 1,
			"not ready after 12s (--start-timeout): postgres: away; the registry does not answer",
		},
	} {
		var began time.Time
		took, lines, result := waited(t, c.timeout, []check{
			{name: "fine", run: passes},
			{name: "postgres", run: func(context.Context) error {
				if began.IsZero() {
					began = time.Now()
				}
				if time.Since(began) < c.after {
					return errors.New("away")
				}
				return nil
			}},
		})
		if c.says == "" {
			require.NoError(t, result)
		} else {
			require.EqualError(t, result, c.says)
		}
		require.InDelta(t, c.want, took, float64(200*time.Millisecond))
		require.Equal(t, c.lines, lines, "lines of the log of a start that takes %s", c.after)
	}
}

// The log has a line when the names of the reasons change, not for each try.
func TestAStartLogsWhatItWaitsForWhenThatChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		w := newStartWait(time.Minute, zap.New(core))
		for _, reason := range []string{
			"postgres: dial 1", "postgres: dial 2", "registered: no answer 1",
			"registered: no answer 2", "postgres: dial 3",
		} {
			require.NoError(t, w.pause(t.Context(), 6*time.Second, reason))
		}
		var said []any
		for _, line := range logs.All() {
			said = append(said, line.ContextMap()["for"].([]any)[0])
		}
		require.Equal(t, []any{"postgres: dial 1", "registered: no answer 1", "postgres: dial 3"}, said)
	})
}

func TestAnInterruptedStartIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := newStartWait(time.Minute, zap.NewNop())
		require.NoError(t, w.checks(ctx, []check{{name: "postgres", run: fails(errors.New("away"))}}, func() string {
			return ""
		}, func() { t.Error("it has not passed") }))
		require.ErrorIs(t, w.pause(ctx, time.Hour, "r"), errInterrupted)
	})
}

// Waiting changes neither a wrong password nor a missing database.
func TestAStartDoesNotWaitForARefusal(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"28P01": true, "28000": true, "3D000": true, "57P03": false,
		"53300": false,
	} {
		require.Equal(t, want, postgres.Refused(fmt.Errorf("connect: %w", &pgconn.PgError{Code: code})), code)
	}
	require.False(t, postgres.Refused(errors.New("connection refused")))
	err := newStartWait(time.Minute, zap.NewNop()).database(t.Context(), func() error {
		return ready(t.Context(), "postgres://user:secret@host:port/x", migrations.Deployment, false, zap.NewNop())
	})
	require.EqualError(t, err, "not a PostgreSQL connection string")
}

func TestTheGatewayNeedsTokensAndAnAddress(t *testing.T) {
	t.Parallel()
	c := &deploymentConfig{}
	require.NoError(t, c.checkHTTPAPI())
	c.api.listen = "7443"
	require.ErrorContains(t, c.checkHTTPAPI(), "--http-api 7443: want host:port")
	c.api.listen = ":7443"
	require.ErrorContains(t, c.checkHTTPAPI(), "give --tokens")
	c.server.tokens = "tokens.yaml"
	require.NoError(t, c.checkHTTPAPI())
}

// The gateway calls its own process by the listener's address; an address of no machine is replaced.
func TestTheOwnAddressCanBeCalled(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"0.0.0.0:7001": "localhost:7001", "[::]:7001": "localhost:7001",
		"127.0.0.1:7001": "127.0.0.1:7001", "[2001:db8::1]:7001": "[2001:db8::1]:7001",
	} {
		of, err := net.ResolveTCPAddr("tcp", address)
		require.NoError(t, err)
		require.Equal(t, want, ownAddress(of))
	}
}

func TestMigrationsAreListed(t *testing.T) {
	t.Parallel()
	states := []migrations.Status{{Name: "00001_begin", Applied: true}, {Name: "00002_more"}}
	undone := []migrations.Undone{{Name: "00002_more", By: "ops", At: time.Unix(1_700_000_000, 0), Reason: "ticket 7"}}
	for format, want := range map[string]string{
		"table": "applied  00001_begin\nmissing  00002_more\n00002_more was undone by ops on 2023-11-14T22:13:20Z: ticket 7\n",
		"json": `{"migrations": [{"name": "00001_begin", "applied": true}, {"name": "00002_more", "applied": false}],
			"undone": [{"name": "00002_more", "by": "ops", "time": "2023-11-14T22:13:20Z", "reason": "ticket 7"}]}`,
	} {
		var out bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		cli.OutputFlag(cmd)
		require.NoError(t, cmd.Flags().Set("output", format))
		require.NoError(t, printMigrations(cli.PrinterOf(cmd), states, undone))
		if format == "json" {
			require.JSONEq(t, want, out.String())
		} else {
			require.Equal(t, want, out.String())
		}
	}
}

// Each role is named with the command that uses it, and with the next step.
func TestRolesAreNamedWithTheNextStep(t *testing.T) {
	t.Parallel()
	deployment, registry := rolesText(migrations.Deployment, "iam"), rolesText(migrations.Registry, "reg")
	require.Contains(t, deployment, "GRANT iam_api, iam_controller TO <user>")
	require.Contains(t, registry, "reg_api (registry)")
	require.Contains(t, registry, "GRANT reg_api TO <user>")
	require.NotContains(t, registry, "controller")
}
