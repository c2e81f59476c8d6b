package test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	registryserver "github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/internal/identity"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/test/harness"
)

func (f *fixture) apply(text string) {
	f.t.Helper()
	file := filepath.Join(f.t.TempDir(), "more.yaml")
	require.NoError(f.t, os.WriteFile(file, []byte(text), 0o600))
	out, err := run(f.t, "apply", file, "--context", f.Context)
	require.NoError(f.t, err, out)
}

// lost counts how often a deployment opened its watch of another one's deletions again.
func (f *fixture) lost(at, of string) float64 {
	f.t.Helper()
	return f.metric("//"+at+"/x/y", fmt.Sprintf(`dbcontroller_watch_lost_total{deployment=%q,watch="deletions"}`, of))
}

// Two registry servers over one database, and every change of deployments and regions while all runs: only
// the affected subscriptions change.
func TestDeploymentsComeAndGoWhileAllRuns(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts six processes")
	}
	f := &fixture{t: t, Processes: harness.NewProcessesWith(t, everything, playground.Config{
		Registries: 2,
		Args:       []string{"--tentative-ttl", "1s", "--owner-grace", "1s"},
	})}
	const at, east = "b.example.com/us-west2", "a.example.com/eastus2"
	f.mustPut(aEast+"targets/t", nil)
	f.mustPut(bWest+"holders/h", fields{"block": aEast + "targets/t"})
	f.mustPut(bWest+"holders/owned", nil, ownedBy("Target", aEast+"targets/t"))
	f.settled()
	others := func() float64 { return f.lost(at, "a.example.com/us-west2") + f.lost(at, "b.example.com/eastus2") }
	before := others()

	// One registry server dies: the other one continues.
	require.NoError(t, f.Registries[0].Kill())
	moved := f.Deployments[f.id(aEast+"x/y")]
	// It moves: another process, at another address.
	addresses, err := playground.FreeAddresses(2)
	require.NoError(t, err)
	require.NoError(t, moved.Stop())
	second := playground.NewProcess("moved", harness.Binary(t), append([]string{
		"serve", "--deployment", east, "--postgres", moved.DSN, "--registry", f.RegistryAddress, "--certs", moved.Certs,
		"--listen", addresses[0], "--http", addresses[1], "--tentative-ttl", "1s",
	}, harness.DatabaseArgs(t)...), filepath.Join(t.TempDir(), "moved.log"), "http://"+addresses[1]+"/readyz")
	require.NoError(t, second.Start())
	t.Cleanup(func() { _ = second.Kill() })
	f.eventually("others reach it there", func() bool {
		_, err := f.put(bWest+"holders/again", fields{"block": aEast + "targets/t"})
		return err == nil
	})
	require.Equal(t, before, others(), "nothing else was subscribed to again")

	// Removed, it counts as unreachable: references to it stay, and owners are not gone.
	require.NoError(t, f.Registries[0].Start())
	out, err := run(t, "remove", east, "--context", f.Context)
	require.NoError(t, err, out)
	require.Equal(t, "deployment "+east+": removed\n", out)
	tries := 0
	f.eventually("others know it", func() bool {
		tries++
		_, err := f.put(fmt.Sprintf("%sholders/try%d", bWest, tries), fields{"block": aEast + "targets/t"})
		return status.Code(err) == codes.Unavailable
	})
	require.NotNil(t, f.get(bWest+"holders/h"))
	require.NotNil(t, f.get(bWest+"holders/owned"))
	// Created again, over its former database.
	f.apply("deployments: [{deployment: " + east + ", version: v1}]\n")
	f.eventually("others reach it again", func() bool {
		_, err := f.put(bWest+"holders/late", fields{"block": aEast + "targets/t"})
		return err == nil
	})
	require.Equal(t, before, others(), "nothing else was subscribed to again")

	// A region is added, with a deployment, and removed.
	f.apply("regions: [asia1]\n---\ndeployments: [{deployment: a.example.com/asia1, version: v1}]\n")
	f.eventually("the new deployment is known", func() bool {
		_, err := f.put(bWest+"holders/asia", fields{"block": "//a.example.com/asia1/targets/t"})
		return status.Code(err) == codes.Unavailable
	})
	out, err = run(t, "remove", "asia1", "--context", f.Context)
	require.Error(t, err)
	require.Contains(t, out, "a.example.com/asia1 has a deployment there; remove it as well")
	out, err = run(t, "remove", "asia1", "a.example.com/asia1", "--context", f.Context)
	require.NoError(t, err, out)
	require.Equal(t, before, others(), "nothing else was subscribed to again")
	require.NotNil(t, f.get(bWest+"holders/owned"))
}

// count returns the number of resources of a kind in a deployment.
func (f *fixture) count(at, kind string) (n int) {
	f.t.Helper()
	require.NoError(f.t, direct.Each(f.t.Context(), f.Client, f.id(at+"x/y"), client.Query{Kind: kind},
		func(*resourcev1.Resource) error {
			n++
			return nil
		}))
	return n
}

// liar is a registry with an environment that a test sets.
type liar struct {
	registryv1.UnimplementedRegistryServiceServer

	mu  sync.Mutex
	env *registryv1.Environment // guarded by mu
	cut chan struct{}           // guarded by mu; closed when env changes
}

func (l *liar) say(env *registryv1.Environment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.env = env
	close(l.cut)
	l.cut = make(chan struct{})
}

func (l *liar) said() (*registryv1.Environment, chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.env, l.cut
}

// WatchEnvironment sends a snapshot of env, and ends when env changes.
func (l *liar) WatchEnvironment(req *registryv1.WatchEnvironmentRequest,
	stream grpc.ServerStreamingServer[registryv1.WatchEnvironmentResponse],
) error {
	if req.GetResumeToken() != "" {
		return status.Error(codes.OutOfRange, "from the beginning")
	}
	env, cut := l.said()
	send := func(c *registryv1.WatchEnvironmentResponse_Change) error {
		return stream.Send(&registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_Upsert{
			Upsert: c,
		}})
	}
	for _, r := range env.GetRegions() {
		if err := send(&registryv1.WatchEnvironmentResponse_Change{
			Item: &registryv1.WatchEnvironmentResponse_Change_Region{Region: r},
		}); err != nil {
			return err
		}
	}
	for _, s := range env.GetServices() {
		if err := send(&registryv1.WatchEnvironmentResponse_Change{
			Item: &registryv1.WatchEnvironmentResponse_Change_Service{Service: s},
		}); err != nil {
			return err
		}
	}
	for _, d := range env.GetDeployments() {
		if err := send(&registryv1.WatchEnvironmentResponse_Change{
			Item: &registryv1.WatchEnvironmentResponse_Change_Deployment{Deployment: d},
		}); err != nil {
			return err
		}
	}
	err := stream.Send(&registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_EndOfSnapshot_{
		EndOfSnapshot: &registryv1.WatchEnvironmentResponse_EndOfSnapshot{
			Revision:    env.GetRevision(),
			ResumeToken: "said",
		},
	}})
	if err != nil {
		return err
	}
	select {
	case <-cut:
		return status.Error(codes.Unavailable, "it says something else now")
	case <-stream.Context().Done():
		return nil
	}
}

// A registry sends wrong environments: empty, half, old, contradictory ones, and all in turns. Meanwhile less
// may be available; nothing is deleted that would not be otherwise, and nothing stays afterwards that would
// not.
func TestALyingRegistryDeletesNothing_I15_I27(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "--owner-grace", "1s")
	answer, err := f.Client.Registry().GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	truth := answer.GetEnvironment()
	for i := range 20 {
		f.mustPut(fmt.Sprintf("%stargets/t%d", aEast, i), nil)
		f.mustPut(fmt.Sprintf("%sholders/h%d", bWest, i), fields{
			"unset":   fields{"list": []any{fmt.Sprintf("%stargets/t%d", aEast, i)}},
			"cascade": fmt.Sprintf("%stargets/t%d", aEast, i),
		})
		f.mustPut(fmt.Sprintf("%stargets/owned%d", aWest, i), nil,
			ownedBy("Holder", fmt.Sprintf("%sholders/h%d", bWest, i)))
	}
	f.settled()
	require.NoError(t, f.Registry.Kill())
	credentials, err := identity.Load(identity.InDir(f.RegistryCerts()))
	require.NoError(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", f.RegistryAddress)
	require.NoError(t, err)
	server := grpc.NewServer(service.ServerOptions(service.Guard{
		Credentials: credentials,
		Policy:      registryserver.Policy,
	}, nil, nil)...)
	l := &liar{env: truth, cut: make(chan struct{})}
	registryv1.RegisterRegistryServiceServer(server, l)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	without := func(change func(*registryv1.Environment)) *registryv1.Environment {
		env := proto.Clone(truth).(*registryv1.Environment)
		change(env)
		return env
	}
	lies := map[string]*registryv1.Environment{
		"nothing":        {},
		"no deployments": without(func(e *registryv1.Environment) { e.Deployments = nil }),
		"no services":    without(func(e *registryv1.Environment) { e.Services = nil }),
		"half of the deployments": without(func(e *registryv1.Environment) {
			e.Deployments = e.GetDeployments()[:2]
		}),
		"another time": without(func(e *registryv1.Environment) {
			e.Revision = 1
			for _, d := range e.GetDeployments() {
				d.Address, d.Generation = "", 0
			}
		}),
		"all disabled": without(func(e *registryv1.Environment) {
			for _, d := range e.GetDeployments() {
				d.Disabled = true
			}
		}),
		"addresses of others": without(func(e *registryv1.Environment) {
			ds := e.GetDeployments()
			ds[0].Address, ds[1].Address, ds[2].Address, ds[3].Address = ds[1].GetAddress(), ds[2].GetAddress(),
				ds[3].GetAddress(), ds[0].GetAddress()
		}),
		"versions that nobody described": without(func(e *registryv1.Environment) {
			for _, d := range e.GetDeployments() {
				d.Version = "v9"
			}
		}),
	}
	for name, env := range lies {
		l.say(env)
		_ = f.delete(aEast + "targets/none-" + name[:2]) // any request, under any environment
		require.Never(t, func() bool {
			return f.count(bWest, "Holder") != 20 || f.count(aWest, "Target") != 20
		}, time.Second, 50*time.Millisecond, name)
	}
	turns := time.NewTicker(20 * time.Millisecond)
	defer turns.Stop()
	// In turns, while deletions are under way: these end when the environment is right again, and no others
	// happen.
	for i := range 10 {
		f.mustDelete(fmt.Sprintf("%stargets/t%d", aEast, i))
		for _, env := range lies {
			l.say(env)
			<-turns.C
		}
	}
	l.say(truth)
	for i := range 10 {
		f.gone(fmt.Sprintf("%stargets/t%d", aEast, i), fmt.Sprintf("%sholders/h%d", bWest, i),
			fmt.Sprintf("%stargets/owned%d", aWest, i))
	}
	for i := 10; i < 20; i++ {
		require.NotNil(t, f.get(fmt.Sprintf("%sholders/h%d", bWest, i)))
		require.NotNil(t, f.get(fmt.Sprintf("%stargets/owned%d", aWest, i)))
	}
	f.settled()
}

// A process that registered last is gone. The running process replaces its registration at once.
func TestTheRegistrationOfADeadProcessIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mustPut(aEast+"targets/t", nil)
	east := f.id(aEast + "targets/t")
	credentials, err := identity.Load(identity.InDir(f.Deployments[east].Certs))
	require.NoError(t, err)
	conn, err := grpc.NewClient(f.RegistryAddress,
		credentials.DialOptions(identity.Identity{Role: identity.RoleRegistry})...)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	registered := func() *registryv1.Deployment {
		answer, err := f.Client.Registry().GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
		require.NoError(t, err)
		for _, d := range answer.GetEnvironment().GetDeployments() {
			if d.GetService() == east.Service && d.GetRegion() == east.Region {
				return d
			}
		}
		return nil
	}
	_, err = registryv1.NewRegistryServiceClient(conn).RegisterDeployment(t.Context(),
		&registryv1.RegisterDeploymentRequest{
			Service: east.Service, Region: east.Region, Address: "127.0.0.1:1", Generation: registered().
					GetGeneration() + 1,
		})
	require.NoError(t, err)
	f.eventually("it is registered where it runs", func() bool {
		return registered().GetAddress() == f.Deployments[east].Address
	})
	f.eventually("others reach it", func() bool {
		_, err := f.put(bWest+"holders/h", fields{"block": aEast + "targets/t"})
		return err == nil
	})
	require.NoError(t, f.Deployments[east].WaitReady(t.Context()))
}

// A deployment without a registry and without a stored environment waits for a while, and then ends with the
// reason.
func TestAStartWithoutARegistryIsExplained(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.Deployments[f.id(bWest+"x/y")]
	require.NoError(t, f.Registry.Kill())
	addresses, err := playground.FreeAddresses(1)
	require.NoError(t, err)
	out, err := run(t, append([]string{
		"serve", "--deployment", "b.example.com/us-west2", "--postgres", harness.Postgres(t).NewDatabase(t, ""),
		"--migrate", "--registry", f.RegistryAddress,
		"--certs", p.Certs, "--listen", addresses[0], "--start-timeout", "1s",
	}, harness.DatabaseArgs(t)...)...)
	require.Error(t, err)
	require.Contains(t, out,
		"not ready after 1s (--start-timeout): version: no environment has come from the registry yet, and none was kept from earlier; registered:")
	require.Contains(t, out, "the registry cannot be followed: ")
	require.Contains(t, out, f.RegistryAddress)
}

// An empty registry takes the place of the right one. Everybody stays ready, users and deployments go on, and
// a deployment starts again; all this lasts until the right registry is back.
func TestAnEmptyRegistryStopsNobody_I27(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mustPut(aWest+"targets/t", nil)
	f.mustPut(bEast+"holders/h", fields{"cascade": aWest + "targets/t"})
	f.settled()
	replace := func(dsn string) {
		t.Helper()
		require.NoError(t, f.Registry.Kill())
		f.Registry.Add("--postgres")
		f.Registry.Add(dsn)
		require.NoError(t, f.Registry.Start())
		require.NoError(t, f.Registry.WaitReady(t.Context()))
	}
	reports := func(d *playground.Deployment, unlisted bool) {
		t.Helper()
		f.eventually("it is ready, and reports the registry", func() bool {
			answer, err := http.Get(d.HTTP + "/readyz?verbose") //nolint:noctx // in a test
			if err != nil {
				return false
			}
			defer func() { _ = answer.Body.Close() }()
			text, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			return answer.StatusCode == http.StatusOK &&
				strings.Contains(string(text), "does not list this deployment") == unlisted
		})
	}
	_, west := f.named(aWest + "x/y") // clients find deployments by the registry, and keep their connections
	_, east := f.named(bEast + "x/y")
	put := func(at resourcev1.ResourceServiceClient, name string, content fields) {
		t.Helper()
		require.NoError(t, patiently(t.Context(), func() error {
			_, err := at.PutResource(t.Context(),
				&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: name, Body: body(t, content)}})
			return err
		}))
	}
	replace(harness.Postgres(t).NewDatabase(t, ""))
	for _, d := range f.Deployments {
		reports(d, true)
	}
	restarted := f.Deployments[f.id(bEast+"x/y")]
	require.NoError(t, restarted.Kill())
	require.NoError(t, restarted.Start())
	reports(restarted, true)
	put(west, "targets/t2", nil)
	put(east, "holders/h2", fields{"block": aWest + "targets/t2"})
	_, err := west.DeleteResource(t.Context(), &resourcev1.DeleteResourceRequest{Name: "targets/t2"})
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "it is referred to")
	require.NoError(t, patiently(t.Context(), func() error {
		_, err := west.DeleteResource(t.Context(), &resourcev1.DeleteResourceRequest{Name: "targets/t"})
		return err
	}))
	f.eventually("the deletion cascades to the deployment that started again", func() bool {
		_, err := east.GetResource(t.Context(), &resourcev1.GetResourceRequest{Name: "holders/h"})
		return status.Code(err) == codes.NotFound
	})

	replace(f.RegistryDSN)
	for _, d := range f.Deployments {
		reports(d, false)
	}
	f.mustPut(bEast+"holders/h2", nil)
	f.mustDelete(aWest + "targets/t2")
	f.settled()
}
