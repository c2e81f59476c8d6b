package test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// The previous release migrates its databases; this one migrates them further while the processes of the
// previous one work, and then replaces them. They work side by side, as peers and after one another over one
// database, while resources are written and deleted through both. `make upgrade` builds the previous release.
func TestARollingUpgradeUnderLoad(t *testing.T) {
	previous := os.Getenv("DBCONTROLLER_TEST_PREVIOUS")
	if previous == "" {
		t.Skip("needs the previous release: make upgrade")
	}
	f := &fixture{t: t, Processes: harness.NewProcessesWith(t, everything, playground.Config{
		Binary: previous, Databases: playground.Databases{New: harness.MigratedBy(t, previous)},
		Args: []string{"--tentative-ttl", "2s"},
	})}
	stop := f.load()
	steps := []*playground.Process{f.Registry}
	for _, name := range []string{
		aEast + "x/y", bWest + "x/y", "//a.example.com/us-west2/x/y",
		"//b.example.com/eastus2/x/y",
	} {
		steps = append(steps, f.Deployments[f.id(name)].Process)
	}
	// each step by itself: a busy machine takes longer for all of them
	within := func(do func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		require.NoError(t, do(ctx))
	}
	before := stop.done.Load()
	within(func(ctx context.Context) error {
		return harness.Migrate(ctx, t, harness.Binary(t), migrations.Registry, f.RegistryDSN)
	})
	for _, d := range f.Deployments {
		within(func(ctx context.Context) error {
			return harness.Migrate(ctx, t, harness.Binary(t), migrations.Deployment, d.DSN)
		})
	}
	f.eventually("the load goes on over newer databases", func() bool { return stop.done.Load() > before+10 })
	for _, p := range steps {
		before := stop.done.Load()
		require.NoError(t, p.Stop())
		p.Run(harness.Binary(t))
		require.NoError(t, p.Start())
		within(p.WaitReady)
		f.eventually("the load goes on with "+p.Name, func() bool { return stop.done.Load() > before+10 })
	}
	stop.end()
	f.settled()
	out, err := run(t, "verify", "--context", f.Context)
	require.NoError(t, err, out)
	audit(t, f.Processes)
}

// running is a load that ends with end.
type running struct {
	done atomic.Int64 // deletes that were accepted
	end  func()
}

// load writes targets and their holders elsewhere, and deletes the targets, until it is ended.
func (f *fixture) load() *running {
	ctx, cancel := context.WithCancel(f.t.Context())
	var all sync.WaitGroup
	r := &running{end: func() { cancel(); all.Wait() }}
	f.t.Cleanup(r.end)
	for _, name := range []string{aEast + "x/y", bWest + "x/y"} {
		f.named(name) // while the registry answers
	}
	for worker := range 8 { // more than establish by themselves: attempts share calls
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				target := fmt.Sprintf("%stargets/t%d-%d", aEast, worker, i)
				f.patiently(ctx, func() error { _, err := f.put(target, nil); return err })
				f.patiently(ctx, func() error {
					_, err := f.put(fmt.Sprintf("%sholders/h%d-%d", bWest, worker, i), fields{"cascade": target})
					return err
				})
				f.patiently(ctx, func() error { return f.delete(target) })
				r.done.Add(1)
			}
		})
	}
	return r
}

// patiently repeats a call that a process could not answer while it restarted.
func (f *fixture) patiently(ctx context.Context, call func() error) {
	for ctx.Err() == nil {
		err := call()
		switch status.Code(err) {
		case codes.OK, codes.NotFound:
			return
		case codes.Unavailable, codes.Aborted, codes.Unknown, codes.DeadlineExceeded, codes.Canceled,
			codes.FailedPrecondition:
			<-time.After(wait.Poll)
		default:
			f.t.Errorf("%v", err)
			return
		}
	}
}
