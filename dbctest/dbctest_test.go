package dbctest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/dbctest"
	"github.com/db-controller/db-controller/embed"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

const services = `
service: iam.example.com
version: v1
kinds:
  - kind: Project
    patterns: ["projects/{project}"]
---
service: devices.example.com
version: v1
imports: [iam.example.com@v1]
kinds:
  - kind: Device
    patterns: ["devices/{device}"]
    references:
      - { path: project, targets: [iam.example.com/Project], behaviour: BLOCK }
      - { path: backup, targets: [iam.example.com/Project], behaviour: CASCADE_DELETE }
---
regions: [eu]
deployments:
  - { deployment: iam.example.com/eu, version: v1 }
  - { deployment: devices.example.com/eu, version: v1 }
`

const (
	iam     = "iam.example.com/eu"
	devices = "devices.example.com/eu"
)

func put(ctx context.Context, in *dbctest.Installation, name string, fields map[string]any) error {
	body, err := structpb.NewStruct(fields)
	if err != nil {
		return err
	}
	_, err = in.Client.Put(ctx, &resourcev1.Resource{Name: name, Body: body})
	return err
}

func mustPut(t *testing.T, in *dbctest.Installation, name string, fields map[string]any) {
	t.Helper()
	require.NoError(t, put(t.Context(), in, name, fields))
}

// soon bounds a call that is to fail.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAnInstallationEnforcesReferencesAndHasFaults(t *testing.T) {
	t.Parallel()
	began := time.Now()
	in := dbctest.New(t, dbctest.Config{Services: services, Args: []string{"--tentative-ttl", "1s"}})
	t.Logf("two deployments and a registry after %s", time.Since(began))
	acme, d1 := "//"+iam+"/projects/acme", "//"+devices+"/devices/d1"
	mustPut(t, in, acme, nil)
	mustPut(t, in, d1, map[string]any{"project": acme})
	_, err := in.Client.Delete(t.Context(), acme, client.Version{})
	require.ErrorIs(t, err, client.ErrBlocked)

	in.Cut(iam)
	d2 := "//" + devices + "/devices/d2"
	require.Error(t, put(soon(t), in, d2, map[string]any{"project": acme}), "unknown is not absent")
	in.Heal(iam)
	mustPut(t, in, d2, map[string]any{"project": acme})

	in.Crash(iam)
	require.Error(t, put(soon(t), in, "//"+devices+"/devices/d3", map[string]any{"project": acme}))
	in.Start(iam)
	mustPut(t, in, "//"+devices+"/devices/d3", map[string]any{"project": acme})
	in.Expire(iam)
	in.Settle(t.Context())
	_, err = in.Client.Delete(t.Context(), acme, client.Version{})
	require.ErrorIs(t, err, client.ErrBlocked)
}

var errMine = errors.New("mine")

// The application's rows and its resources are stored and deleted together.
func TestAnApplicationInAnInstallation(t *testing.T) {
	t.Parallel()
	in := dbctest.New(t, dbctest.Config{Services: services})
	ctx := t.Context()
	admin, err := pgxpool.New(ctx, in.DSN(devices))
	require.NoError(t, err)
	t.Cleanup(admin.Close)
	_, err = admin.Exec(ctx, `CREATE TABLE public.booking (device text PRIMARY KEY); GRANT ALL ON public.booking TO `+
		dbctest.ApplicationRole)
	require.NoError(t, err)
	pool, err := pgxpool.New(ctx, in.ApplicationDSN(devices))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	app, err := embed.New(ctx, embed.Config{
		Deployment: schema.DeploymentID{Service: "devices.example.com", Region: "eu"}, Pool: pool,
		Certs: in.Certs("application/devices.example.com/booking"),
	})
	require.NoError(t, err)
	t.Cleanup(app.Close)
	acme := "//" + iam + "/projects/acme"
	mustPut(t, in, acme, nil)
	write := []embed.Write{{Name: "devices/d1", Body: map[string]any{"project": acme}}}
	book := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO public.booking VALUES ('devices/d1')`)
		return err
	}
	_, err = app.Save(ctx, write, func(tx pgx.Tx) error { return errors.Join(book(tx), errMine) })
	require.ErrorIs(t, err, errMine)
	_, err = app.Save(ctx, write, book)
	require.NoError(t, err)
	_, err = in.Client.Delete(ctx, acme, client.Version{})
	require.ErrorIs(t, err, client.ErrBlocked)
	deleted, err := app.DeleteIn(ctx, embed.Delete{Name: "devices/d1"}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM public.booking`)
		return err
	})
	require.NoError(t, err)
	require.True(t, deleted.Removed)
	in.Settle(ctx)
	_, err = in.Client.Delete(ctx, acme, client.Version{})
	require.NoError(t, err)
	var booked int
	require.NoError(t, admin.QueryRow(ctx, `SELECT count(*) FROM public.booking`).Scan(&booked))
	require.Zero(t, booked)
}

// The first installation of a process migrates a template, the others copy it.
func BenchmarkInstallation(b *testing.B) {
	dbctest.New(b, dbctest.Config{Services: services})
	for b.Loop() {
		dbctest.New(b, dbctest.Config{Services: services})
	}
}

// Time passes at one deployment: long waits are shown, and limits pass.
func TestTheClockOfADeploymentMoves(t *testing.T) {
	t.Parallel()
	in, ctx := dbctest.New(t, dbctest.Config{Services: desks}), t.Context()
	name := "//" + desksEU.String() + "/desks/d1"
	mustPut(t, in, name, map[string]any{"room": "a"})
	before, err := in.Client.Get(ctx, name)
	require.NoError(t, err)
	_, err = in.Client.Delete(ctx, name, client.Version{}) // it waits for its finalizers
	require.NoError(t, err)
	admin, err := in.Client.Admin(ctx, desksEU)
	require.NoError(t, err)
	stuck := func() int {
		answer, err := admin.ListStuck(ctx, &adminv1.ListStuckRequest{})
		require.NoError(t, err)
		return len(answer.GetResources())
	}
	require.Zero(t, stuck())
	in.Advance(desksEU.String(), 24*time.Hour)
	require.Equal(t, 1, stuck())
	after, err := in.Client.Get(ctx, name)
	require.NoError(t, err)
	require.Equal(t, 24*time.Hour, before.GetCreateTime().AsTime().Sub(after.GetCreateTime().AsTime()))
	eventually := func() error { return put(ctx, in, "//"+desksEU.String()+"/desks/d2", map[string]any{"room": "b"}) }
	require.Eventually(t, func() bool {
		return eventually() == nil
	}, wait.Limit, 10*time.Millisecond, "the process whose lease has passed takes part again")
}

// The purge time of a hidden resource comes; one that was undeleted stays.
func TestThePurgeTimeOfADeploymentComes(t *testing.T) {
	t.Parallel()
	in, ctx := dbctest.New(t, dbctest.Config{Services: desks}), t.Context()
	name := "//" + desksEU.String() + "/lamps/l1"
	mustPut(t, in, name, map[string]any{"watts": 5})
	lamps, err := client.KindOf[struct{ Watts int }](ctx, in.Client, desksEU.Service, "Lamp")
	require.NoError(t, err)
	l1, err := lamps.Get(ctx, name)
	require.NoError(t, err)
	require.NoError(t, lamps.DeleteFor(ctx, l1, time.Hour))
	back, err := lamps.Undelete(ctx, l1)
	require.NoError(t, err)
	require.Equal(t, l1.UID, back.UID)
	in.Advance(desksEU.String(), 2*time.Hour)
	in.Settle(ctx)
	_, err = in.Client.DeleteFor(ctx, name, time.Hour, client.Version{})
	require.NoError(t, err)
	in.Advance(desksEU.String(), 30*time.Minute)
	hidden, err := in.Client.Get(ctx, name)
	require.NoError(t, err)
	for _, deleted := range []bool{false, true} {
		n := 0
		for _, err := range in.Client.List(ctx, desksEU, client.Query{Kind: "Lamp", ShowDeleted: deleted}) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, deleted, n == 1)
	}
	require.Equal(t, time.Hour, hidden.GetPurgeTime().AsTime().Sub(hidden.GetDeleteTime().AsTime()))
	in.Advance(desksEU.String(), 31*time.Minute)
	gone := func() bool {
		_, err := in.Client.Get(ctx, name)
		return errors.Is(err, client.ErrNotFound)
	}
	require.Eventually(t, gone, wait.Limit, 10*time.Millisecond)
}

// failing is a test that remembers why it has failed.
type failing struct {
	testing.TB
	why string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// A deployment that ends at its start fails the test at once, with its reason: no wait makes it better.
func TestADeploymentThatCannotStartFailsAtOnce(t *testing.T) {
	t.Parallel()
	of := &failing{TB: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		dbctest.New(of, dbctest.Config{Services: services, Args: []string{"--tentative-ttl", "-1s"}})
	}()
	<-ended
	require.Contains(t, of.why, "--tentative-ttl")
	require.NotContains(t, of.why, context.DeadlineExceeded.Error())
}
