package controller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/dbctest"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

const services = `
service: iam.example.com
version: v1
kinds:
  - kind: Project
    patterns: ["projects/{project}"]
  - kind: Badge
    patterns: ["badges/{badge}"]
    finalizers: [{ name: door, holder: user/doors }]
---
service: devices.example.com
version: v1
imports: [iam.example.com@v1]
kinds:
  - kind: Device
    patterns: ["devices/{device}"]
    references:
      - { path: project, targets: [iam.example.com/Project], behaviour: UNSET }
  - kind: Job
    patterns: ["jobs/{job}"]
  - kind: Lease
    patterns: ["leases/{lease}"]
---
service: devices.example.com
version: v2
imports: [iam.example.com@v1]
kinds:
  - kind: Gadget
    previous_name: Device
    patterns: ["devices/{device}"]
    references:
      - { path: project, targets: [iam.example.com/Project], behaviour: UNSET }
  - kind: Job
    patterns: ["jobs/{job}"]
  - kind: Lease
    patterns: ["leases/{lease}"]
---
regions: [eu]
deployments:
  - { deployment: iam.example.com/eu, version: v1 }
  - { deployment: devices.example.com/eu, version: v1 }
`

var (
	iam      = schema.DeploymentID{Service: "iam.example.com", Region: "eu"}
	projects = controller.Kind{Deployment: iam, Name: "Project"}
)

func full(k controller.Kind, name string) string { return "//" + k.Deployment.String() + "/" + name }

func text(r *controller.Resource, field string) string {
	return r.GetBody().GetFields()[field].GetStringValue()
}

// jobFor keeps a job for each device, with the title of the device's project.
func jobFor(c *client.Client) controller.Func {
	return func(ctx context.Context, req controller.Request, v *controller.View) (controller.Result, error) {
		d, ok := v.Get(req.Name)
		if !ok || d.GetState() == resourcev1.Resource_STATE_DELETING {
			return controller.Result{}, nil
		}
		title := "nobody's"
		if name, err := schema.ParseFullName(text(d, "project")); err == nil {
			if p, ok := v.Get(name); ok {
				title = text(p, "title")
			}
		}
		for j := range v.Owned(req.Name) {
			if text(j, "title") == title {
				return controller.Result{}, nil
			}
		}
		_, err := c.Put(ctx, &resourcev1.Resource{
			Name:            full(jobs, strings.Replace(req.Name.Name, "devices", "jobs", 1)),
			Body:            fields(map[string]any{"title": title}),
			OwnerReferences: []*resourcev1.OwnerReference{{Name: d.GetName(), Kind: d.GetKind(), Uid: d.GetUid()}},
		})
		return controller.Result{}, err
	}
}

func fields(of map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(of)
	if err != nil {
		panic(err)
	}
	return s
}

// background runs a controller until the test ends.
func background(t *testing.T, c *controller.Controller, r controller.Reconciler) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, r) }()
	stopped := false
	end = func() {
		if cancel(); !stopped {
			stopped = true
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(end)
	return end
}

func TestAControllerOverRealDeployments(t *testing.T) {
	t.Parallel()
	in := dbctest.New(t, dbctest.Config{Services: services})
	c, ctx := in.Client, t.Context()
	put := func(name string, body map[string]any) {
		t.Helper()
		_, err := c.Put(ctx, &resourcev1.Resource{Name: name, Body: fields(body)})
		require.NoError(t, err)
	}
	titled := func(job, title string) {
		t.Helper()
		require.Eventually(t, func() bool {
			j, err := c.Get(ctx, full(jobs, job))
			return err == nil && text(j, "title") == title
		}, wait.Limit, 10*time.Millisecond, "%s should have the title %s", job, title)
	}
	acme := full(projects, "projects/acme")
	put(acme, map[string]any{"title": "one"})
	put(full(devices, "devices/d1"), map[string]any{"project": acme})
	controlled := func() *controller.Controller {
		return controller.New(c, devices).Watches(projects, controller.ByIndex("project")).Owns(jobs).Workers(4).
			Index("project", func(r *controller.Resource) ([]string, error) {
				return []string{text(r, "project")}, nil
			})
	}
	end := background(t, controlled(), jobFor(c))
	titled("jobs/d1", "one")
	put(full(devices, "devices/d2"), map[string]any{"project": acme})
	titled("jobs/d2", "one")
	put(acme, map[string]any{"title": "two"})
	titled("jobs/d1", "two")
	titled("jobs/d2", "two")
	_, err := c.Delete(ctx, full(jobs, "jobs/d1"), client.Version{})
	require.NoError(t, err)
	titled("jobs/d1", "two")

	endBadges, isGone := badges(t, in)
	for _, id := range []string{"iam.example.com/eu", "devices.example.com/eu"} {
		in.Crash(id)
		in.Start(id)
	}
	isGone()
	endBadges()
	put(acme, map[string]any{"title": "three"})
	titled("jobs/d1", "three")

	_, err = c.Delete(ctx, acme, client.Version{}) // unsets the references
	require.NoError(t, err)
	titled("jobs/d1", "nobody's")
	_, err = c.Delete(ctx, full(devices, "devices/d2"), client.Version{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := c.Get(ctx, full(jobs, "jobs/d2"))
		return errors.Is(err, client.ErrNotFound)
	}, wait.Limit, 10*time.Millisecond, "the job follows its owner")

	// The kind is renamed while the controller runs, and before it starts again.
	_, err = direct.SetVersion(ctx, c, here, "v2")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		d, err := c.Get(ctx, full(devices, "devices/d1"))
		return err == nil && d.GetKind() == "Gadget"
	}, wait.Limit, 10*time.Millisecond)
	put(full(devices, "devices/d3"), nil)
	titled("jobs/d3", "nobody's")
	end()
	put(full(devices, "devices/d4"), nil)
	background(t, controlled(), jobFor(c))
	titled("jobs/d4", "nobody's")
}

// Two kinds that are always written together are never seen apart, whether a change or a timer wakes the
// reader.
func TestAViewHasWholeTransactions(t *testing.T) {
	t.Parallel()
	in := dbctest.New(t, dbctest.Config{Services: services})
	c, ctx := in.Client, t.Context()
	const pairs, rounds = 300, 12 // more than one message of a watch, and more than one page
	write := func(n int) {
		t.Helper()
		var writes []*client.Write
		for i := range pairs {
			for _, name := range []string{
				full(devices, fmt.Sprint("devices/", i)),
				full(jobs, fmt.Sprint("jobs/", i)),
			} {
				writes = append(writes,
					client.PutOf(&resourcev1.Resource{Name: name, Body: fields(map[string]any{"n": fmt.Sprint(n)})}))
			}
		}
		ctx, cancel := context.WithTimeout(ctx, wait.Limit)
		defer cancel()
		_, err := c.Batch(ctx, here, writes...)
		require.NoError(t, err)
	}
	write(0)
	var torn, seen atomic.Int64
	var newest atomic.Value
	background(t, controller.New(c, devices).Owns(jobs).Workers(2),
		controller.Func(func(_ context.Context, req controller.Request, v *controller.View) (controller.Result, error) {
			if !strings.HasSuffix(req.Name.Name, "0") {
				return controller.Result{}, nil // one run of ten looks at everything
			}
			values := map[string]bool{}
			for _, k := range []controller.Kind{devices, jobs} {
				all, err := v.List(k)
				if err != nil {
					return controller.Result{}, err
				}
				for _, r := range slices.Collect(all) {
					values[text(r, "n")] = true
					newest.Store(text(r, "n"))
				}
			}
			if seen.Add(1); len(values) != 1 {
				torn.Add(1)
			}
			return controller.Result{}, nil
		}))
	for n := range rounds {
		write(n + 1)
	}
	require.Eventually(t, func() bool { return newest.Load() == fmt.Sprint(rounds) }, wait.Limit, 10*time.Millisecond)
	require.Zero(t, torn.Load(), "of %d runs", seen.Load())
	t.Logf("%d runs", seen.Load())
}

// Processes share real deployments; a batch with the guard of a term fails when the term is over.
func TestProcessesShareARealDeployment(t *testing.T) {
	t.Parallel()
	in := dbctest.New(t, dbctest.Config{Services: services})
	c, ctx := in.Client, t.Context()
	for i := range 20 {
		_, err := c.Put(ctx, &resourcev1.Resource{Name: full(devices, fmt.Sprint("devices/", i)), Body: fields(nil)})
		require.NoError(t, err)
	}
	var terms sync.Map // the last term by resource
	var ran [3]atomic.Int64
	process := func(i int) (end func()) { // so many shards that each process gets some: they are spread by hash
		control := controller.New(c, devices).Workers(4).
			Share(controller.Sharing{
				Writer: c, Kind: leases, Prefix: "leases/devices-", Shards: 16,
				Duration: 30 * time.Second,
			})
		return background(t, control,
			controller.Func(
				func(ctx context.Context, req controller.Request, v *controller.View) (controller.Result, error) {
					ran[i].Add(1)
					term, _ := controller.TermOf(ctx)
					terms.Store(req.Name.Name, term)
					d, ok := v.Get(req.Name)
					if !ok || d.GetLabels()["by"] == fmt.Sprint(i) {
						return controller.Result{}, nil
					}
					mark := client.UpdateOf(&resourcev1.Resource{
						Name:   full(devices, d.GetName()),
						Labels: map[string]string{"by": fmt.Sprint(i)},
					}, "labels.by")
					_, err := c.Batch(ctx, here, term.Guard(), mark)
					return controller.Result{}, err
				}))
	}
	marked := func(by ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			for d, err := range c.List(ctx, here, client.Query{Kind: "Device"}) {
				if err != nil || !slices.Contains(by, d.GetLabels()["by"]) {
					return false
				}
			}
			return true
		}, wait.Limit, 20*time.Millisecond)
	}
	end0 := process(0)
	marked("0")
	old := map[string]controller.Term{}
	terms.Range(func(name, term any) bool { old[name.(string)] = term.(controller.Term); return true })
	_, err := c.Batch(ctx, here, old["devices/1"].Guard())
	require.NoError(t, err)
	lease, err := c.Get(ctx, old["devices/1"].Lease)
	require.NoError(t, err)
	require.Equal(t, old["devices/1"].UID, lease.GetUid())
	require.Empty(t, lease.GetLabels())

	process(1)
	require.Eventually(t, func() bool { return ran[1].Load() > 0 }, wait.Limit, 20*time.Millisecond)
	marked("0", "1")
	end0()
	marked("1")
	for name, term := range old {
		late := client.UpdateOf(&resourcev1.Resource{
			Name:   full(devices, name),
			Labels: map[string]string{"by": "late"},
		}, "labels.by")
		_, err := c.Batch(ctx, here, term.Guard(), late)
		require.Error(t, err)
		require.True(t, errors.Is(err, client.ErrNotFound) || errors.Is(err, client.ErrConflict), "%v", err)
	}
	marked("1")
}
