package embed_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/embed"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

var (
	_ controller.Source     = (*embed.Source)(nil)
	_ controller.Finalizers = (*embed.Source)(nil)
)

// statuses are the newest reports of a reconciler, by resource.
type statuses struct {
	mu  sync.Mutex
	all map[string]int64 // the generation that was seen; -1: it was gone
}

func (s *statuses) set(name string, generation int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[name] = generation
}

func (s *statuses) becomes(t *testing.T, name string, generation int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.all[name] == generation
	}, wait.Limit, time.Millisecond, "%s at generation %d: %v", name, generation, s.all)
}

// control runs a controller until the test ends, or stop is called.
func control(t *testing.T, c *controller.Controller, r controller.Func) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, r) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(stop)
	return stop
}

// A controller in the process of the application reads the deployment's own feed out of the database, also
// while no process of the deployment can be reached, and writes in the application's transactions. Resources
// of other deployments come over the network, by the same interface.
func TestAControllerInTheProcessOfAnApplication(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, seen := t.Context(), &statuses{all: map[string]int64{}}
	w.put(t, projects+"p")
	inProject := func(r *controller.Resource) ([]string, error) {
		return []string{r.GetBody().GetFields()["project"].GetStringValue()}, nil
	}
	source := w.Source(w.Client)
	control(t, controller.New(source, controller.Kind{Deployment: devices, Name: "Device"},
		controller.GenerationChanged).
		Watches(controller.Kind{Deployment: iam, Name: "Project"}, controller.ByIndex("project")).
		Index("project", inProject),
		func(ctx context.Context, req controller.Request, v *controller.View) (controller.Result, error) {
			d, ok := v.Get(req.Name)
			if !ok {
				seen.set(req.Name.Name, -1)
				return controller.Result{}, nil
			}
			uid := uuid.MustParse(d.GetUid())
			_, err := w.UpdateStatusIn(ctx, embed.Status{
				Name: d.GetName(), UID: uid,
				Status: fields{"seen": d.GetGeneration()},
			}, func(pgx.Tx) error {
				seen.set(d.GetName(), d.GetGeneration())
				return nil
			})
			d.Body = nil // a copy
			return controller.Result{}, err
		})
	_, err := w.Save(ctx, []embed.Write{{Name: "devices/a", Body: fields{"project": projects + "p"}}}, nil)
	require.NoError(t, err)
	seen.becomes(t, "devices/a", 1)
	seen.set("devices/a", 0)
	_, err = w.Client.Update(ctx, &resourcev1.Resource{Name: projects + "p", Labels: map[string]string{"k": "v"}},
		"labels")
	require.NoError(t, err)
	seen.becomes(t, "devices/a", 1)

	w.Cut(devices.String())
	_, err = w.Save(ctx, []embed.Write{{Name: "devices/a", Body: fields{"n": 1}}, {Name: "devices/b"}}, nil)
	require.NoError(t, err)
	seen.becomes(t, "devices/a", 2)
	seen.becomes(t, "devices/b", 1)
	_, err = w.DeleteIn(ctx, embed.Delete{Name: "devices/b"}, nil)
	require.NoError(t, err)
	seen.becomes(t, "devices/b", -1)
	w.Heal(devices.String())

	// The kind is renamed under the running controller.
	_, err = w.Client.Registry().SetDeploymentVersion(ctx,
		&registryv1.SetDeploymentVersionRequest{Service: devices.Service, Region: devices.Region, Version: "v2"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := w.Save(ctx, []embed.Write{{Name: "devices/a", Body: fields{"n": 2}}}, nil)
		env, rerr := source.Refresh(ctx)
		d, _ := env.Deployment(devices)
		return err == nil && rerr == nil && d.Version == "v2"
	}, wait.Limit, 10*time.Millisecond)
	_, err = w.Save(ctx, []embed.Write{{Name: "devices/c"}}, nil)
	require.NoError(t, err)
	seen.becomes(t, "devices/c", 1)
}

// The application cleans up after its resources in its own process.
func TestAControllerOfAnApplicationRemovesItsFinalizers_I33(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	source := w.Source(nil)
	rooms := controller.Kind{Deployment: devices, Name: "Room"}
	closed := make(chan string, 10)
	control(t, controller.New(source, rooms).Finalizer("door", source,
		func(_ context.Context, r *controller.Resource, _ *controller.View) error {
			closed <- r.GetName()
			return nil
		}), func(context.Context, controller.Request, *controller.View) (controller.Result, error) {
		return controller.Result{}, nil
	})
	saved, err := w.Save(ctx, []embed.Write{{Name: "rooms/r"}}, nil)
	require.NoError(t, err)
	_, err = w.DeleteIn(ctx, embed.Delete{Name: "rooms/r"}, nil)
	require.NoError(t, err)
	select {
	case name := <-closed:
		require.Equal(t, "rooms/r", name)
	case <-time.After(wait.Limit):
		t.Fatal("nobody cleans up")
	}
	badges := w.As("user/badges")
	require.NoError(t, badges.RemoveFinalizer(ctx, things+"rooms/r", saved[0].UID.String(), "badge"))
	require.Eventually(t, func() bool { return !w.stored(t, things+"rooms/r") }, wait.Limit, 10*time.Millisecond)
	require.NoError(t, source.RemoveFinalizer(ctx, "rooms/r", saved[0].UID.String(), "door"), "a repeated call")
	require.Error(t, source.RemoveFinalizer(ctx, "rooms/r", "none", "door"))

	// Another deployment is an error without a source for it, and reported.
	bounded, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	err = controller.New(source, controller.Kind{Deployment: iam, Name: "Project"}).Run(bounded, nil)
	require.ErrorContains(t, err, iam.String())
}

// During a switch the stored environment may name another version than the database runs: a source has the
// database's version, by which its feed is read.
func TestASourceHasTheVersionOfTheDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var raw []byte
	var running string
	require.NoError(t, w.admin.QueryRow(t.Context(), `SELECT environment, version FROM dbcontroller.meta`).Scan(&raw,
		&running))
	env := &registryv1.Environment{}
	require.NoError(t, proto.Unmarshal(raw, env))
	for _, d := range env.GetDeployments() {
		d.Version = "v9"
	}
	raw, err := proto.Marshal(env)
	require.NoError(t, err)
	_, err = w.admin.Exec(t.Context(), `UPDATE dbcontroller.meta SET environment = $1`, raw)
	require.NoError(t, err)
	got, err := w.Source(nil).Refresh(t.Context())
	require.NoError(t, err)
	for _, d := range got.Deployments {
		if d.DeploymentID == devices {
			require.Equal(t, running, d.Version)
		} else {
			require.Equal(t, "v9", d.Version)
		}
	}
}

// The watches of a process share the messages of the feed, once each of them has come to its end.
func TestTheWatchesOfAnApplicationShareTheirResources(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	source := w.Source(nil)
	var watches [2]chan client.Event
	for i := range watches {
		watches[i] = make(chan client.Event)
		go func() {
			for e, err := range source.Watch(ctx, devices, client.WatchQuery{Kind: "Device"}) {
				if err != nil {
					t.Error(err)
					return
				}
				select {
				case watches[i] <- e:
				case <-ctx.Done():
				}
			}
		}()
	}
	next := func(i int) client.Event {
		select {
		case e := <-watches[i]:
			return e
		case <-ctx.Done():
			t.Fatal("no event")
			return client.Event{}
		}
	}
	for i := range watches {
		require.Equal(t, client.Synced, next(i).Type)
	}
	for n := 0; ; n++ {
		_, err := w.Save(ctx, []embed.Write{{Name: "devices/a", Body: fields{"n": n}}}, nil)
		require.NoError(t, err)
		first, second := next(0), next(1)
		require.Equal(t, []int64{int64(n) + 1, int64(n) + 1}, []int64{
			first.Resource.GetGeneration(),
			second.Resource.GetGeneration(),
		})
		if first.Resource == second.Resource {
			return
		}
		require.Less(t, n, 100, "they never share")
	}
}

// The writes of an application's transactions are reported to the controller whose run has made them, so that
// its next run sees them.
func TestTheWritesOfAnApplicationAreReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wrote []client.Written
	ctx := client.OnWrite(t.Context(), func(one client.Written) { wrote = append(wrote, one) })
	saved, err := w.Save(ctx, []embed.Write{{Name: "devices/a"}, {Name: "devices/b"}}, nil)
	require.NoError(t, err)
	set, err := w.UpdateStatusIn(ctx, embed.Status{Name: "devices/a", Status: fields{"n": 1}}, nil)
	require.NoError(t, err)
	_, err = w.DeleteIn(ctx, embed.Delete{Name: "devices/a"}, nil)
	require.NoError(t, err)
	_, err = w.DeleteIn(ctx, embed.Delete{Name: "devices/b", UID: saved[1].UID}, nil)
	require.NoError(t, err)
	_, err = w.DeleteIn(ctx, embed.Delete{Name: "devices/b"}, nil)
	require.ErrorIs(t, err, embed.ErrNotFound)
	a, b := schema.FullName{Deployment: devices, Name: "devices/a"}, schema.FullName{
		Deployment: devices,
		Name:       "devices/b",
	}
	require.Equal(t, []client.Written{
		{Name: a, Version: client.Version{UID: saved[0].UID.String(), Revision: saved[0].Revision}},
		{Name: b, Version: client.Version{UID: saved[1].UID.String(), Revision: saved[1].Revision}},
		{Name: a, Version: client.Version{UID: saved[0].UID.String(), Revision: set.Revision}},
		{Name: a, Gone: true},
		{Name: b, Version: client.Version{UID: saved[1].UID.String()}, Gone: true},
	}, wrote)
}
