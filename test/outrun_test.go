package test

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
)

// readyz returns the readiness of a process.
func (s sibling) readyz(t *testing.T) (code int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.http+"/readyz?verbose", nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	said, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(said)
}

// putAt writes by way of one process.
func (f *fixture) putAt(s sibling, name string, content fields) error {
	f.t.Helper()
	certs, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "ann"})
	require.NoError(f.t, err)
	credentials, err := identity.Load(identity.InDir(certs))
	require.NoError(f.t, err)
	conn, err := grpc.NewClient(s.address, credentials.DialOptions(identity.Deployment(f.id(name)))...)
	require.NoError(f.t, err)
	defer func() { _ = conn.Close() }()
	relative, _ := f.named(name)
	ctx, cancel := context.WithTimeout(f.t.Context(), 5*time.Second)
	defer cancel()
	_, err = resourcev1.NewResourceServiceClient(conn).PutResource(ctx, &resourcev1.PutResourceRequest{
		Resource: &resourcev1.Resource{Name: relative, Body: body(f.t, content)},
	})
	return err
}

// established is how often a deployment was asked to establish references.
func (f *fixture) established(at string) float64 {
	f.t.Helper()
	return f.metric(at,
		`grpc_server_handled_total{grpc_code="OK",grpc_method="EstablishReferences",grpc_service="dbcontroller.schema.v1.SchemaService",grpc_type="unary"}`)
}

// environment returns the environment in a deployment's database, after it has put the given one there, if
// any.
func (f *fixture) environment(deployment string, put []byte) (kept []byte) {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.Deployments[f.id(deployment+"x/y")].DSN)
	require.NoError(f.t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	if put != nil {
		_, err = conn.Exec(f.t.Context(), `UPDATE dbcontroller.meta SET environment = $1`, put)
		require.NoError(f.t, err)
	}
	require.NoError(f.t, conn.QueryRow(f.t.Context(), `SELECT environment FROM dbcontroller.meta`).Scan(&kept))
	return kept
}

// A process that cannot reach the registry while another one of its deployment switches the version goes on
// by the environment that the other one keeps in their database.
func TestAProcessThatIsCutOffFromTheRegistryFollowsASwitch_I26(t *testing.T) {
	t.Parallel()
	// On a busy machine the first process must not lose its lease: else the process that is cut off would
	// lead, and could not register.
	f := newFixture(t, "--lease", "20s")
	const deployment = "b.example.com/us-west2"
	registry := harness.NewProxy(t, f.RegistryAddress)
	second := f.beside(deployment, "second", "--registry", registry.Address(), "--lease", "20s")
	f.shared(deployment, 2)
	f.mustPut(aWest+"targets/t", nil)
	registry.Move("")
	f.switchVersion(deployment, "v2")
	require.NoError(t, patiently(t.Context(), func() error {
		return f.putAt(second, bWest+"holders/h", fields{"note": aWest + "targets/t"}) // which v1 does not have
	}))
	require.Equal(t, "Keeper", f.get(bWest+"holders/h").GetKind())
	f.shared(deployment, 2)
	f.eventually("it is ready", func() bool { code, _ := second.readyz(t); return code == http.StatusOK })
	f.settled()
	require.Equal(t, codes.FailedPrecondition, status.Code(f.delete(aWest+"targets/t")), "it blocks")
}

// A process follows the registry, which takes no registration of it. When it leads, it leaves the lead to the
// next process that comes, and others reach the deployment there.
func TestAProcessThatCannotRegisterLeavesTheLead_I13(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "--lease", "2s")
	const deployment = "b.example.com/us-west2"
	first := f.Deployments[f.id(bWest+"x/y")]
	registry := harness.NewRPCProxy(t, filepath.Dir(f.ClientCerts()), f.RegistryCerts(), f.RegistryAddress)
	registry.Suffer(func(_ identity.Identity, method string) harness.Mishap {
		return harness.Mishap{Cut: strings.HasSuffix(method, "/RegisterDeployment")}
	})
	second := f.beside(deployment, "second", "--registry", registry.Address())
	f.shared(deployment, 2)
	f.mustPut(aWest+"targets/t", nil)
	require.NoError(t, first.Kill())
	f.eventually("it leads, is not registered, and is not ready", func() bool {
		code, text := second.readyz(t)
		return code != http.StatusOK && strings.Contains(text, "[-]registered")
	})
	third := f.beside(deployment, "third")
	f.eventually("others reach the deployment at the third process", func() bool {
		answer, err := f.Client.Registry().GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
		require.NoError(t, err)
		return slices.ContainsFunc(answer.GetEnvironment().GetDeployments(), func(d *registryv1.Deployment) bool {
			return d.GetService()+"/"+d.GetRegion() == deployment && d.GetAddress() == third.address
		})
	})
	require.NoError(t, patiently(t.Context(), func() error {
		return f.putAt(third, bWest+"holders/h", fields{"block": aWest + "targets/t"})
	}))
	f.eventually("the second is ready: another process speaks for the deployment", func() bool {
		code, _ := second.readyz(t)
		return code == http.StatusOK
	})
	// The target's deployment may hear of the third process's address later than the registry: until then it
	// cannot ask about the holder.
	require.Equal(t, codes.FailedPrecondition, status.Code(patiently(t.Context(), func() error {
		return f.delete(aWest + "targets/t")
	})))
}

// A process that cannot learn of a switch gives its shards up, is not ready and gives the reason, and
// establishes no reference that it could not commit. When it reaches the registry again, it goes on.
func TestAProcessThatCannotLearnOfASwitchGivesItsShardsUp_I15_I26(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "--lease", "2s")
	const deployment = "b.example.com/us-west2"
	registry := harness.NewProxy(t, f.RegistryAddress)
	second := f.beside(deployment, "second", "--registry", registry.Address())
	f.shared(deployment, 2)
	f.mustPut(aWest+"targets/t", nil)
	f.mustPut(bWest+"holders/before", fields{"block": aWest + "targets/t"})
	f.settled()
	require.Positive(t, f.established(aWest+"x/y"))
	before := f.environment(bWest, nil)
	registry.Move("")
	// It misses the moment in which the environment of the switch is kept; then the environment before the
	// switch is there again.
	require.NoError(t, second.Signal(syscall.SIGSTOP))
	f.switchVersion(deployment, "v2")
	f.shared(deployment, 1)
	f.environment(bWest, before)
	require.NoError(t, second.Signal(syscall.SIGCONT))
	asked := f.established(aWest + "x/y")
	for range 5 {
		err := f.putAt(second, bWest+"holders/h", fields{"block": aWest + "targets/t"})
		require.False(t, err == nil || definite(err), "%v", err)
	}
	f.eventually("it says why it is not ready", func() bool {
		code, said := second.readyz(t)
		if code == http.StatusOK {
			return false
		}
		require.Contains(t, said, "[-]version: another process has switched the version of this deployment")
		require.Contains(t, said, "is the registry reachable, and does it know of the switch?")
		return true
	})
	require.Never(t, func() bool {
		return len(f.status(deployment).GetProcesses()) != 1
	}, 3*time.Second, 100*time.Millisecond, "it has no shards")
	require.Equal(t, asked, f.established(aWest+"x/y"), "it established references that it could not commit")
	f.tearDown("meanwhile", 100, func() {}) // the others go on

	registry.Move(f.RegistryAddress)
	f.eventually("it is ready", func() bool { code, _ := second.readyz(t); return code == http.StatusOK })
	f.shared(deployment, 2)
	require.NoError(t, f.putAt(second, bWest+"holders/h", fields{"note": aWest + "targets/t"}))
	f.settled()
}

// definite reports whether an error is a refusal for good.
func definite(err error) bool {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.NotFound, codes.AlreadyExists, codes.InvalidArgument, codes.PermissionDenied,
		codes.OutOfRange:
		return true
	default:
		return false
	}
}
