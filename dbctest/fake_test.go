package dbctest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/dbctest"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

const desks = `
service: desks.example.com
version: v1
kinds:
  - kind: Desk
    patterns: ["desks/{desk}"]
    fields: [{ path: height, default: 70 }, { path: room, required: true }, { path: serial, immutable: true }]
    finalizers: [{ name: cable, holder: user/janitor }, { name: lamp, holder: user/janitor }]
  - { kind: Lamp, patterns: ["lamps/{lamp}"], schema: { properties: { watts: { type: integer } } } }
---
regions: [eu, us]
deployments:
  - { deployment: desks.example.com/eu, version: v1 }
  - { deployment: desks.example.com/us, version: v1 }
`

var desksEU = schema.DeploymentID{Service: "desks.example.com", Region: "eu"}

func desk(n int, body map[string]any) *resourcev1.Resource {
	s, err := structpb.NewStruct(body)
	if err != nil {
		panic(err)
	}
	return &resourcev1.Resource{Name: fmt.Sprintf("//%s/desks/d%d", desksEU, n), Body: s}
}

func lamp(n int, watts any) *resourcev1.Resource {
	r := desk(n, map[string]any{"watts": watts})
	r.Name = fmt.Sprintf("//%s/lamps/l%d", desksEU, n)
	return r
}

// A Fake copies requests and results: code that changes them does not change the stored resources.
func TestAFakeSharesNoMemory(t *testing.T) {
	t.Parallel()
	c, ctx := dbctest.NewFake(t, desks).Client, t.Context()
	sent := desk(1, map[string]any{"room": "a"})
	put, err := c.Put(ctx, sent)
	require.NoError(t, err)
	events := make(chan client.Event, 1)
	for e, err := range c.Watch(ctx, desksEU, client.WatchQuery{Kind: "Desk"}) {
		require.NoError(t, err)
		events <- e
		break
	}
	got, err := c.Get(ctx, client.FullName(put))
	require.NoError(t, err)
	spoil := func(r *resourcev1.Resource) {
		r.Name, r.Body.Fields["room"], r.Labels = "desks/other", structpb.NewStringValue("spoilt"),
			map[string]string{"a": "b"}
	}
	for listed, err := range c.List(ctx, desksEU, client.Query{}) {
		require.NoError(t, err)
		spoil(listed)
	}
	for _, r := range []*resourcev1.Resource{sent, put, got, (<-events).Resource} {
		spoil(r)
	}
	again, err := c.Get(ctx, fmt.Sprintf("//%s/desks/d1", desksEU))
	require.NoError(t, err)
	require.Equal(t, map[string]any{"room": "a", "height": 70.0}, again.GetBody().AsMap())
	require.Empty(t, again.GetLabels())
}

// A controller runs over a Fake; a call fails when the test says so, and is repeated.
func TestAControllerRunsOverAFake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := dbctest.NewFake(t, desks)
		ctx, stop := context.WithCancel(t.Context())
		away := 3
		f.Before = func(_ context.Context, method string, _ any) error {
			if method == resourcev1.ResourceService_UpdateResourceStatus_FullMethodName && away > 0 {
				away--
				return status.Error(codes.Unavailable, "away")
			}
			return nil
		}
		reconcile := func(ctx context.Context, req controller.Request, v *controller.View) (controller.Result, error) {
			r, ok := v.Get(req.Name)
			if !ok {
				return controller.Result{}, nil
			}
			_, err := f.Client.UpdateStatus(ctx, req.Name.String(), map[string]any{"seen": r.GetGeneration()},
				client.StatusOf(r))
			return controller.Result{}, err
		}
		ended := make(chan error)
		d := controller.Kind{Deployment: desksEU, Name: "Desk"}
		go func() {
			ended <- controller.New(f.Client, d, controller.GenerationChanged).
				Watches(controller.Kind{Deployment: desksEU, Name: "Lamp"}, controller.ByIndex("none")).
				Index("none", func(*controller.Resource) ([]string, error) { return nil, nil }).
				Finalizer("cable", f.Client, func(context.Context, *controller.Resource, *controller.View) error {
					return nil
				}).
				Finalizer("lamp", f.Client, func(context.Context, *controller.Resource, *controller.View) error {
					return nil
				}).
				Run(ctx, controller.Func(reconcile))
		}()
		put, err := f.Client.Put(ctx, desk(1, map[string]any{"room": "a"}))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		synctest.Wait()
		got, err := f.Client.Get(ctx, client.FullName(put))
		require.NoError(t, err)
		require.Equal(t, map[string]any{"seen": 1.0}, got.GetStatus().AsMap())
		require.Zero(t, away)
		deleted, err := f.Client.Delete(ctx, client.FullName(put), client.Version{})
		require.NoError(t, err)
		require.False(t, deleted.GetRemoved())
		time.Sleep(time.Minute)
		synctest.Wait()
		_, err = f.Client.Get(ctx, client.FullName(put))
		require.ErrorIs(t, err, client.ErrNotFound)
		stop()
		require.NoError(t, <-ended)
	})
}

// deed is one random call, the same for the Fake and for the installation.
type deed func(ctx context.Context, c *client.Client) (*resourcev1.Resource, error)

// only returns the preconditions of a random call: mostly preconditions that the stored resource meets.
func only(ctx context.Context, c *client.Client, name string, kind int) client.Version {
	r, err := c.Get(ctx, name)
	switch {
	case err != nil || kind > 2:
		return client.Version{}
	case kind == 0:
		return client.Version{UID: r.GetUid(), Revision: r.GetRevision() - 1}
	}
	return client.Version{UID: r.GetUid(), Revision: r.GetRevision()}
}

func randomDeed(rnd *rand.Rand) deed {
	n, k, x, text := rnd.IntN(3), rnd.IntN(5), rnd.IntN(3), []any{"a", "b", nil, 3}[rnd.IntN(4)]
	r := desk(n, map[string]any{"room": text, "height": 70 + x})
	if x == 2 {
		r = desk(n, map[string]any{"room": "c", "serial": rnd.IntN(2)})
	}
	if rnd.IntN(3) == 0 {
		r = lamp(n, []any{1, "bright"}[rnd.IntN(2)])
	}
	if rnd.IntN(2) == 0 {
		r.Labels = map[string]string{"l": fmt.Sprint(x)}
	}
	with := func(ctx context.Context, c *client.Client) *resourcev1.Resource {
		v := only(ctx, c, r.GetName(), k)
		out := desk(0, r.GetBody().AsMap())
		out.Name, out.Labels, out.Uid, out.Revision = r.GetName(), r.GetLabels(), v.UID, v.Revision
		return out
	}
	masks := [][]string{
		nil,
		{"body"},
		{"labels"},
		{"labels.l"},
		{"body.room"},
		{"body.deep.er"},
		{"body.height", "labels"},
		{"nothing"},
	}
	mask := masks[rnd.IntN(len(masks))]
	return []deed{
		func(ctx context.Context, c *client.Client) (*resourcev1.Resource, error) {
			return c.Put(ctx, with(ctx, c))
		},
		func(ctx context.Context, c *client.Client) (*resourcev1.Resource, error) { return c.Create(ctx, r) },
		func(ctx context.Context, c *client.Client) (*resourcev1.Resource, error) {
			return c.Update(ctx, with(ctx, c), mask...)
		},
		func(ctx context.Context, c *client.Client) (*resourcev1.Resource, error) {
			all, err := c.Batch(ctx, desksEU, client.PutOf(r), client.CreateOf(lamp(7+n, x)),
				client.UpdateOf(desk(x, nil), "labels"))
			if err != nil {
				return nil, err
			}
			return all[0], nil
		},
		func(ctx context.Context, c *client.Client) (*resourcev1.Resource, error) {
			all, err := c.Validate(ctx, desksEU, client.PutOf(with(ctx, c)))
			if err != nil {
				return nil, err
			}
			return all[0], nil
		},
		func(ctx context.Context, c *client.Client) (*resourcev1.Resource, error) {
			_, err := c.Delete(ctx, r.GetName(), only(ctx, c, r.GetName(), k))
			return nil, err
		},
		func(ctx context.Context, c *client.Client) (*resourcev1.Resource, error) {
			v := only(ctx, c, r.GetName(), 1)
			return nil, c.RemoveFinalizer(ctx, r.GetName(), v.UID, []string{"lamp", "cable", "other"}[x])
		},
		func(ctx context.Context, c *client.Client) (*resourcev1.Resource, error) {
			generation := int64(x)
			return c.UpdateStatus(ctx, r.GetName(), []any{nil, map[string]any{"x": k % 2}}[n%2],
				client.StatusVersion{Generation: []*int64{nil, &generation}[k%2]})
		},
	}[rnd.IntN(8)]
}

// picture has the fields in which both have to agree.
func picture(r *resourcev1.Resource) string {
	if r == nil {
		return "none"
	}
	finalizers := slices.Sorted(slices.Values(r.GetFinalizers()))
	return fmt.Sprint(r.GetDeployment(), r.GetName(), r.GetKind(), r.GetState(), r.GetGeneration(), r.GetLabels(),
		r.GetBody().AsMap(), finalizers, r.GetStatus().AsMap(), r.GetStatusGeneration())
}

func classOf(err error) string {
	var e *client.Error
	if errors.As(err, &e) {
		return e.Class.Error()
	}
	return fmt.Sprint(err)
}

// pathsOf returns the paths of the fields that are invalid.
func pathsOf(err error) (paths []string) {
	if e := (*client.Error)(nil); errors.As(err, &e) {
		for _, f := range e.Fields {
			paths = append(paths, f.Path)
		}
	}
	return paths
}

// The path of an invalid field is its path in the request, for each form of a write, in an installation and
// in a Fake.
func TestAnInvalidFieldIsNamedByItsPath(t *testing.T) {
	t.Parallel()
	installation, fake := dbctest.New(t, dbctest.Config{Services: desks}), dbctest.NewFake(t, desks)
	ctx := t.Context()
	for _, c := range []*client.Client{installation.Client, fake.Client} {
		fine, bright, roomless := lamp(1, 5), lamp(2, "bright"), desk(2, map[string]any{"height": 1})
		_, err := c.Put(ctx, desk(1, map[string]any{"room": "a", "serial": 1}))
		require.NoError(t, err)
		_, err = c.Put(ctx, fine)
		require.NoError(t, err)
		elsewhere := desk(1, nil)
		elsewhere.Name = "//" + desksEU.String() + "/chairs/c1"
		unnamed := desk(1, nil)
		unnamed.Name = "//" + desksEU.String() + "/desks"
		validate := func(writes ...*client.Write) error { _, err := c.Validate(ctx, desksEU, writes...); return err }
		batch := func(writes ...*client.Write) error { _, err := c.Batch(ctx, desksEU, writes...); return err }
		put := func(r *resourcev1.Resource) error { _, err := c.Put(ctx, r); return err }
		update := func(r *resourcev1.Resource, mask ...string) error { _, err := c.Update(ctx, r, mask...); return err }
		for name, of := range map[string]struct {
			err  error
			path string
		}{
			"a JSON Schema":    {put(bright), "resource.body.watts"},
			"a required field": {put(roomless), "resource.body.room"},
			"an immutable field": {
				update(desk(1, map[string]any{"serial": 2}), "body.serial"),
				"resource.body.serial",
			},
			"a mask":                {update(fine, "nothing"), "update_mask"},
			"a name without a kind": {put(elsewhere), "resource.name"},
			"a name that is none":   {batch(client.PutOf(fine), client.PutOf(unnamed)), "writes[1].put.name"},
			"a put of a batch": {
				batch(client.PutOf(fine), client.PutOf(bright)),
				"writes[1].put.body.watts",
			},
			"a create that is validated": {validate(client.CreateOf(bright)), "writes[0].create.body.watts"},
			"an update of a batch": {
				batch(client.UpdateOf(desk(1, map[string]any{"serial": 2}), "body.serial")),
				"writes[0].update.resource.body.serial",
			},
			"a mask of a batch": {batch(client.UpdateOf(fine, "nothing")), "writes[0].update.update_mask"},
			"a batch with a name without": {
				batch(client.PutOf(fine), client.CreateOf(elsewhere)),
				"writes[1].create.name",
			},
		} {
			require.ErrorIs(t, of.err, client.ErrInvalid, name)
			require.Equal(t, []string{of.path}, pathsOf(of.err), "%s: %v", name, of.err)
		}
		again := client.WithRequestID(ctx, uuid.New())
		for range 2 { // the second answer is the recorded one
			_, err := c.Put(again, bright)
			require.Equal(t, []string{"resource.body.watts"}, pathsOf(err))
			var e *client.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, "got string, want integer", e.Fields[0].Problem)
		}
	}
}

// A Fake has no retentions, and refuses them.
func TestAFakeHidesNothing(t *testing.T) {
	t.Parallel()
	c, ctx := dbctest.NewFake(t, strings.Replace(desks, "kind: Lamp,", "kind: Lamp, retention: 7d,", 1)).Client,
		t.Context()
	for _, r := range []*resourcev1.Resource{desk(1, map[string]any{"room": "a"}), lamp(1, 5)} {
		_, err := c.Put(ctx, r)
		require.NoError(t, err)
	}
	_, err := c.DeleteFor(ctx, desk(1, nil).GetName(), time.Hour, client.Version{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	_, err = c.Delete(ctx, lamp(1, 5).GetName(), client.Version{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	_, err = c.Undelete(ctx, lamp(1, 5).GetName(), "")
	require.Equal(t, codes.Unimplemented, status.Code(err))
}

// The same calls have the same outcomes in an installation and in a Fake, and leave the same resources.
func TestAFakeAnswersAsAnInstallationDoes(t *testing.T) {
	t.Parallel()
	real, fake, ctx := dbctest.New(t, dbctest.Config{Services: desks}), dbctest.NewFake(t, desks), t.Context()
	rnd := rand.New(rand.NewPCG(19, 19))
	outcomes := map[string]int{}
	for i := range 150 {
		do := randomDeed(rnd)
		want, wanted := do(ctx, real.Client)
		got, err := do(ctx, fake.Client)
		require.Equal(t, classOf(wanted), classOf(err), "call %d: %v, %v", i, wanted, err)
		require.Equal(t, pathsOf(wanted), pathsOf(err), "call %d: %v, %v", i, wanted, err)
		require.Equal(t, picture(want), picture(got), "call %d", i)
		outcomes[classOf(err)]++
		if want == nil {
			real.Settle(ctx) // a resource whose last finalizer is removed goes a moment later
		}
		if i%10 == 0 {
			require.Equal(t, all(t, real.Client), all(t, fake.Client), "after call %d", i)
		}
	}
	for _, class := range []error{
		client.ErrNotFound, client.ErrExists, client.ErrConflict, client.ErrDeleting,
		client.ErrInvalid,
	} {
		require.Positive(t, outcomes[class.Error()], "%s does not occur: %v", class, outcomes)
	}
}

func all(t *testing.T, c *client.Client) (pictures []string) {
	t.Helper()
	for _, kind := range []string{"Desk", "Lamp"} {
		for r, err := range c.List(t.Context(), desksEU, client.Query{Kind: kind}) {
			require.NoError(t, err)
			pictures = append(pictures, picture(r))
		}
	}
	return pictures
}
