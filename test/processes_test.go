package test

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// another starts a further process of a deployment.
func (f *fixture) another(deployment, name string, args ...string) *playground.Process {
	f.t.Helper()
	return f.beside(deployment, name, args...).Process
}

// sibling is one more process of a deployment, where it listens, and its HTTP.
type sibling struct {
	*playground.Process
	address, http string
}

// beside is another, with its addresses.
func (f *fixture) beside(deployment, name string, args ...string) sibling {
	f.t.Helper()
	d := f.Deployments[f.id("//"+deployment+"/x/y")]
	addresses, err := playground.FreeAddresses(2)
	require.NoError(f.t, err)
	p := playground.NewProcess(name, harness.Binary(f.t), append([]string{
		"serve", "--deployment", deployment, "--postgres", d.DSN, "--registry", f.RegistryAddress, "--certs", d.Certs,
		"--listen", addresses[0], "--http", addresses[1], "--name", name, "--lease", "2s", "--tentative-ttl", "1s",
	}, append(harness.DatabaseArgs(f.t), args...)...), filepath.Join(f.t.TempDir(), name+".log"), "http://"+
		addresses[1]+"/readyz")
	require.NoError(f.t, p.Start())
	f.t.Cleanup(func() { _ = p.Kill() })
	ctx, cancel := context.WithTimeout(f.t.Context(), wait.Limit)
	defer cancel()
	require.NoError(f.t, p.WaitReady(ctx))
	return sibling{Process: p, address: addresses[0], http: "http://" + addresses[1]}
}

// shared waits until a number of processes share a deployment's shards about equally.
func (f *fixture) shared(deployment string, processes int) {
	f.t.Helper()
	f.eventually("the processes share the ring", func() bool {
		all, shards := f.status(deployment).GetProcesses(), 0
		for _, p := range all {
			if len(p.GetShards()) < 64/processes-2 {
				return false
			}
			shards += len(p.GetShards())
		}
		return len(all) == processes && shards == 64
	})
}

// tearDown deletes a target with holders in the deployment, and returns the time until all are gone.
func (f *fixture) tearDown(target string, holders int, meanwhile func()) {
	f.t.Helper()
	f.mustPut(aWest+"targets/"+target, nil)
	require.NoError(f.t, dev.PutMany(f.t.Context(), f.Client, f.id(bWest+"x/y"), "holders/"+target+"-", holders,
		fields{"cascade": aWest + "targets/" + target}))
	f.mustDelete(aWest + "targets/" + target)
	meanwhile()
	f.gone(aWest + "targets/" + target)
}

// Three processes share the work of one deployment. One pauses for longer than its lease in the middle of a
// cascade, one is killed, and then the registered one: the others take over their work within seconds, no
// transaction runs with an old term, and the registry gets another address.
func TestProcessesOfOneDeployment_I18(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "--lease", "2s")
	const deployment = "b.example.com/us-west2"
	f.shared(deployment, 1)
	second, third := f.another(deployment, "second"), f.another(deployment, "third")
	f.shared(deployment, 3)
	out, err := run(t, "status", deployment, "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "process second has 2")

	f.tearDown("pauses", 2000, func() { require.NoError(t, second.Signal(syscall.SIGSTOP)) })
	f.shared(deployment, 2)
	require.NoError(t, second.Signal(syscall.SIGCONT))
	f.shared(deployment, 3)
	f.tearDown("dies", 2000, func() { require.NoError(t, third.Kill()) })
	f.shared(deployment, 2)
	f.settled()

	address := func() string {
		env, err := f.Client.Registry().GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
		require.NoError(t, err)
		for _, d := range env.GetEnvironment().GetDeployments() {
			if d.GetService()+"/"+d.GetRegion() == deployment {
				return d.GetAddress()
			}
		}
		return ""
	}
	first := f.Deployments[f.id(bWest+"x/y")]
	f.mustPut(aWest+"targets/last", nil)
	f.mustPut(bWest+"holders/last", fields{"cascade": aWest + "targets/last"})
	f.settled()
	before := address()
	require.NoError(t, first.Kill())
	f.mustDelete(aWest + "targets/last")
	f.gone(aWest + "targets/last")
	if before == first.Address {
		f.eventually("the registry has the address of a process that lives", func() bool { return address() != before })
	}
	require.NoError(t, first.Start())
	f.ready(deployment)
	f.shared(deployment, 2)
	f.settled()
}
