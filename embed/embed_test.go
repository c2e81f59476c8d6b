package embed_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/dbctest"
	"github.com/db-controller/db-controller/embed"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
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
      - { path: site, targets: [iam.example.com/Project], behaviour: CASCADE_DELETE }
  - kind: Room
    patterns: ["rooms/{room}"]
    finalizers: [{ name: door, holder: application/devices.example.com/booking }, { name: badge, holder: user/badges }]
---
service: devices.example.com
version: v2
imports: [iam.example.com@v1]
kinds:
  - kind: Thing
    previous_name: Device
    patterns: ["devices/{device}"]
    references:
      - { path: project, targets: [iam.example.com/Project], behaviour: BLOCK }
      - { path: site, targets: [iam.example.com/Project], behaviour: CASCADE_DELETE }
  - kind: Room
    patterns: ["rooms/{room}"]
    finalizers: [{ name: door, holder: application/devices.example.com/other }, { name: badge, holder: user/badges }]
---
regions: [eu]
deployments:
  - { deployment: iam.example.com/eu, version: v1 }
  - { deployment: devices.example.com/eu, version: v1 }
`

var (
	iam     = schema.DeploymentID{Service: "iam.example.com", Region: "eu"}
	devices = schema.DeploymentID{Service: "devices.example.com", Region: "eu"}
)

const (
	projects = "//iam.example.com/eu/projects/"
	things   = "//devices.example.com/eu/"
	booking  = "application/devices.example.com/booking"
)

var errMine = errors.New("mine")

type fields = map[string]any

// world is an installation with an application in the database of devices.example.com/eu, which has a table
// of its own.
type world struct {
	*dbctest.Installation
	*embed.Application
	pool  *pgxpool.Pool // the application's
	admin *pgxpool.Pool // with all rights
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Installation: dbctest.New(t, dbctest.Config{
		Services: services,
		Args:     []string{"--tentative-ttl", "1s"},
	})}
	w.admin = connect(t, w.DSN(devices.String()))
	_, err := w.admin.Exec(t.Context(),
		`CREATE TABLE public.booking (device text PRIMARY KEY); GRANT ALL ON public.booking TO `+
			dbctest.ApplicationRole)
	require.NoError(t, err)
	w.pool = connect(t, w.ApplicationDSN(devices.String()))
	w.Application, err = embed.New(t.Context(), embed.Config{
		Deployment: devices, Pool: w.pool,
		Certs: w.Certs(booking),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		w.Close()
	})
	return w
}

func connect(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func (w *world) put(t *testing.T, name string) {
	t.Helper()
	_, err := w.Client.Put(t.Context(), &resourcev1.Resource{Name: name, Body: &structpb.Struct{}})
	require.NoError(t, err)
}

func (w *world) stored(t *testing.T, name string) bool {
	t.Helper()
	_, err := w.Client.Get(t.Context(), name)
	if !errors.Is(err, client.ErrNotFound) {
		require.NoError(t, err)
	}
	return err == nil
}

func (w *world) booked(t *testing.T, device string) (is bool) {
	t.Helper()
	require.NoError(t, w.admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM public.booking WHERE device = $1)`,
		device).Scan(&is))
	return is
}

func book(device string) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), `INSERT INTO public.booking VALUES ($1)`, device)
		return err
	}
}

func unbook(device string) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), `DELETE FROM public.booking WHERE device = $1`, device)
		return err
	}
}

// eventually repeats a call for a minute while it fails.
func eventually(t *testing.T, call func() error) {
	t.Helper()
	var err error
	require.Eventually(t, func() bool { err = call(); return err == nil }, wait.Limit, 50*time.Millisecond, "%v", err)
}

func TestAnApplicationsTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Run("rows and resources are stored together or not at all", w.savesTogether)
	t.Run("a delete is in the application's transaction, after its look-ahead", w.deletesTogether)
	t.Run("sessions keep their settings", w.keepsSettings)
	t.Run("the function cannot end the transaction unnoticed", w.noticesTheEnd)
	t.Run("a clean-up is in one transaction with its finalizer", w.cleansUpTogether)
	t.Run("a status is in the application's transaction", w.reportsTogether)
	t.Run("bodies are Go values, names relative or full", w.takesValues)
	t.Run("the role cannot decide for the deployment", w.decidesNothing)
	t.Run("the certificate is no key of the deployment", w.isNoKey)
	t.Run("switches and epochs are followed", w.follows) // the last one: the version is another one then
}

func (w *world) savesTogether(t *testing.T) {
	ctx := t.Context()
	w.put(t, projects+"p")
	w.put(t, projects+"s")
	refers := []embed.Write{{Name: "devices/d", Body: fields{"project": projects + "p", "site": projects + "s"}}}

	_, err := w.Save(ctx, refers, func(tx pgx.Tx) error { return errors.Join(book("d")(tx), errMine) })
	require.ErrorIs(t, err, errMine)
	require.False(t, w.booked(t, "d"))
	require.False(t, w.stored(t, things+"devices/d"))
	w.Settle(ctx) // the established references are released

	saved, err := w.Save(ctx, refers, func(tx pgx.Tx) error {
		var stored bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM dbcontroller.shadow WHERE name = 'devices/d')`).
			Scan(&stored)
		require.True(t, stored, "the function sees the resource")
		return errors.Join(err, book("d")(tx))
	})
	require.NoError(t, err)
	require.Equal(t, "Device", saved[0].Kind)
	require.True(t, w.booked(t, "d"))
	_, err = w.Client.Delete(ctx, projects+"p", client.Version{})
	require.ErrorIs(t, err, client.ErrBlocked)

	var refused *embed.RefusedError
	_, err = w.Save(ctx, []embed.Write{{Name: "devices/e", Body: fields{"project": projects + "none"}}}, book("e"))
	require.ErrorAs(t, err, &refused)
	none, _ := schema.ParseFullName(projects + "none")
	require.Equal(t, []embed.Refusal{{Holder: "devices/e", Path: "project", Target: none, Reason: "TARGET_MISSING"}},
		refused.Refusals)
	require.False(t, w.booked(t, "e"))

	_, err = w.Client.Delete(ctx, projects+"s", client.Version{})
	require.NoError(t, err)
	w.Settle(ctx)
	require.False(t, w.stored(t, things+"devices/d"), "it goes with its site")
	_, err = w.Client.Delete(ctx, projects+"p", client.Version{})
	require.NoError(t, err)
}

func (w *world) deletesTogether(t *testing.T) {
	ctx := t.Context()
	saved, err := w.Save(ctx, []embed.Write{{Name: "devices/h"}}, book("h"))
	require.NoError(t, err)
	_, err = w.DeleteIn(ctx, embed.Delete{Name: "devices/h"}, func(tx pgx.Tx) error {
		return errors.Join(unbook("h")(tx), errMine)
	})
	require.ErrorIs(t, err, errMine)
	require.True(t, w.stored(t, things+"devices/h"))
	require.True(t, w.booked(t, "h"))
	for _, refused := range []embed.Delete{{Name: "devices/none"}, {Name: "devices/h", UID: uuid.New()}} {
		_, err = w.DeleteIn(ctx, refused, unbook("h"))
		require.ErrorIs(t, err, embed.ErrNotFound)
		require.True(t, strings.HasPrefix(err.Error(), refused.Name+": not found"), err)
	}
	require.True(t, w.booked(t, "h"), "the function runs only when the delete is accepted")
	deleted, err := w.DeleteIn(ctx, embed.Delete{Name: "devices/h", UID: saved[0].UID}, unbook("h"))
	require.NoError(t, err)
	require.True(t, deleted.Removed)
	require.False(t, w.booked(t, "h"))
}

func (w *world) cleansUpTogether(t *testing.T) {
	ctx := t.Context()
	saved, err := w.Save(ctx, []embed.Write{{Name: "rooms/r"}}, book("r"))
	require.NoError(t, err)
	door := embed.Finalizer{Name: "rooms/r", UID: saved[0].UID, Finalizer: "door"}
	_, err = w.RemoveFinalizerIn(ctx, door, unbook("r"))
	require.ErrorIs(t, err, embed.ErrNotDeleting)
	deleted, err := w.DeleteIn(ctx, embed.Delete{Name: "rooms/r"}, nil)
	require.NoError(t, err)
	require.False(t, deleted.Removed)
	_, err = w.RemoveFinalizerIn(ctx, embed.Finalizer{Name: "rooms/r", UID: saved[0].UID, Finalizer: "badge"},
		unbook("r"))
	require.ErrorIs(t, err, embed.ErrDenied, "another one is its holder")
	_, err = w.RemoveFinalizerIn(ctx, embed.Finalizer{Name: "rooms/r", UID: uuid.New(), Finalizer: "door"}, unbook("r"))
	require.ErrorIs(t, err, embed.ErrNotFound)
	_, err = w.RemoveFinalizerIn(ctx, door, func(tx pgx.Tx) error { return errors.Join(unbook("r")(tx), errMine) })
	require.ErrorIs(t, err, errMine)
	require.True(t, w.booked(t, "r"))
	for range 2 { // a repeated call finds it done
		left, err := w.RemoveFinalizerIn(ctx, door, unbook("r"))
		require.NoError(t, err)
		require.Equal(t, []string{"badge"}, left.Finalizers)
	}
	require.False(t, w.booked(t, "r"))
	require.NoError(t, w.Client.RemoveFinalizer(ctx, things+"rooms/r", saved[0].UID.String(), "badge"))
	w.Settle(ctx)
	require.False(t, w.stored(t, things+"rooms/r"))
	_, err = w.RemoveFinalizerIn(ctx, door, nil)
	require.ErrorIs(t, err, embed.ErrNotFound)
}

func (w *world) reportsTogether(t *testing.T) {
	ctx := t.Context()
	_, err := w.Save(ctx, []embed.Write{{Name: "devices/st", Body: fields{"x": 1}}}, nil)
	require.NoError(t, err)
	report := func(status any, generation int64, fn func(pgx.Tx) error) (embed.Resource, error) {
		return w.UpdateStatusIn(ctx, embed.Status{Name: "devices/st", Status: status, Generation: &generation}, fn)
	}
	_, err = report(fields{"phase": "new"}, 0, func(tx pgx.Tx) error { return errors.Join(book("st")(tx), errMine) })
	require.ErrorIs(t, err, errMine)
	r, err := report(fields{"phase": "new"}, 0, book("st"))
	require.NoError(t, err)
	require.Equal(t, []any{int64(1), int64(1), `{"phase": "new"}`}, []any{
		r.Generation, r.StatusGeneration,
		string(r.Status),
	})
	require.True(t, w.booked(t, "st"))
	_, err = report(fields{"phase": "late"}, 0, nil)
	require.ErrorIs(t, err, embed.ErrConflict)
	var invalid *embed.InvalidError
	for _, no := range []any{[]int{1}, "text", make(chan int), (*struct{})(nil)} {
		_, err = report(no, 1, nil)
		require.ErrorAs(t, err, &invalid, "%v", no)
	}
	r, err = report(nil, 1, nil)
	require.NoError(t, err)
	require.Nil(t, r.Status)
}

func (w *world) takesValues(t *testing.T) {
	ctx := t.Context()
	type body struct {
		N int64 `json:"n"`
	}
	saved, err := w.Save(ctx, []embed.Write{{Name: things + "devices/v", Body: body{7}}}, book("v"))
	require.NoError(t, err)
	require.Equal(t, []string{"devices/v", `{"n":7}`}, []string{saved[0].Name, string(saved[0].Body)})
	var invalid *embed.InvalidError
	_, err = w.Save(ctx, []embed.Write{{Name: "devices/v", Body: fields{"project": 7}}}, nil)
	require.ErrorAs(t, err, &invalid)
	require.Equal(t,
		[]embed.Field{{Path: "body.project", Problem: "want the name of a resource as a string, got a number"}},
		invalid.Fields)
	for _, no := range []embed.Write{
		{Name: projects + "v"},
		{Name: "//devices.example.com/us/devices/v"},
		{Name: "//devices"},
		{Name: "devices/v", Body: 7},
		{Name: "devices/v", Body: body{1<<53 + 1}},
		{Name: "devices/v", Body: make(chan int)},
	} {
		_, err = w.Save(ctx, []embed.Write{no}, nil)
		require.ErrorAs(t, err, &invalid, "%+v", no)
		require.Equal(t, no.Name, invalid.Name)
	}
	_, err = w.UpdateStatusIn(ctx, embed.Status{Name: things + "devices/v", Status: body{1}}, nil)
	require.NoError(t, err)
	resources, err := w.Client.Resources(ctx, devices)
	require.NoError(t, err)
	_, err = resources.SetBlockDeletion(ctx, &resourcev1.SetBlockDeletionRequest{
		Name:          things + "devices/v",
		BlockDeletion: true,
	})
	require.NoError(t, err)
	var blocked *embed.BlockedError
	_, err = w.DeleteIn(ctx, embed.Delete{Name: things + "devices/v"}, nil)
	require.ErrorAs(t, err, &blocked)
	require.Equal(t, []string{things + "devices/v"}, []string{blocked.Protected[0].String()})
}

func (w *world) keepsSettings(t *testing.T) {
	ctx := t.Context()
	const settingsSQL = `
SELECT string_agg(name || '=' || setting, ',' ORDER BY name) FROM pg_catalog.pg_settings
WHERE name IN ('enable_seqscan', 'jit', 'max_parallel_workers_per_gather', 'search_path', 'lock_timeout', 'statement_timeout')`
	conn, err := w.pool.Acquire(ctx)
	require.NoError(t, err)
	_, err = conn.Exec(ctx, `SET search_path = public; SET enable_seqscan = on; SET lock_timeout = '7s'`)
	require.NoError(t, err)
	conn.Release()
	var before, within, after string
	require.NoError(t, w.pool.QueryRow(ctx, settingsSQL).Scan(&before))
	_, err = w.Save(ctx, []embed.Write{{Name: "devices/k"}}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, settingsSQL).Scan(&within)
	})
	require.NoError(t, err)
	require.NoError(t, w.pool.QueryRow(ctx, settingsSQL).Scan(&after))
	require.Equal(t, before, within)
	require.Equal(t, before, after)
}

func (w *world) noticesTheEnd(t *testing.T) {
	ctx := t.Context()
	for name, fn := range map[string]func(pgx.Tx) error{
		"commit":   func(tx pgx.Tx) error { return tx.Commit(ctx) },
		"rollback": func(tx pgx.Tx) error { return tx.Rollback(ctx) },
		"swallowed": func(tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return nil
		},
	} {
		_, err := w.Save(ctx, []embed.Write{{Name: "devices/" + name}}, fn)
		require.ErrorIs(t, err, embed.ErrTransaction, name)
		require.False(t, w.stored(t, things+"devices/"+name))
	}
	_, err := w.Save(ctx, []embed.Write{{Name: "devices/raw"}}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `COMMIT; BEGIN`)
		return err
	})
	require.ErrorIs(t, err, embed.ErrTransaction)
	require.ErrorIs(t, err, embed.ErrUnknown)
}

func (w *world) decidesNothing(t *testing.T) {
	var pg *pgconn.PgError
	for _, sql := range []string{
		`UPDATE dbcontroller.meta SET version = 'v2'`, `UPDATE dbcontroller.meta SET epoch = NULL`,
		`DELETE FROM dbcontroller.epoch`,
		`INSERT INTO dbcontroller.decommissioned (deployment_id) VALUES (1)`,
		`INSERT INTO dbcontroller.blockade (target_id) VALUES (1)`,
		`UPDATE dbcontroller.member SET expires_at = now()`, `UPDATE dbcontroller.deployment SET epoch = NULL`,
	} {
		_, err := w.pool.Exec(t.Context(), sql)
		require.ErrorAs(t, err, &pg, sql)
		require.Equal(t, "42501", pg.Code, "%s: %v", sql, err)
	}
}

func (w *world) isNoKey(t *testing.T) {
	ctx := t.Context()
	other := w.Certs("application/iam.example.com/billing")
	for _, certs := range []string{other, w.Certs("user/ann")} {
		_, err := embed.New(ctx, embed.Config{Deployment: devices, Pool: w.pool, Certs: certs})
		require.ErrorContains(t, err, "want application/devices.example.com/NAME")
	}
	elsewhere := schema.DeploymentID{Service: "devices.example.com", Region: "us"}
	_, err := embed.New(ctx, embed.Config{Deployment: elsewhere, Pool: w.pool, Certs: w.Certs(booking)})
	require.ErrorContains(t, err, "this database belongs to devices.example.com/eu")

	call := func(certs string, at schema.DeploymentID, to ...string) error {
		ctx := metadata.NewOutgoingContext(ctx, metadata.MD{"dbcontroller-relay": to})
		_, err := w.as(t, certs, at).ResolveBlockades(ctx, &schemav1.ResolveBlockadesRequest{})
		return err
	}
	own := w.Certs(booking)
	require.NoError(t, call(own, devices, iam.String()))
	require.Equal(t, codes.PermissionDenied, status.Code(call(other, devices, iam.String())), "of another service")
	require.Equal(t, codes.PermissionDenied, status.Code(call(own, iam, iam.String())), "at another deployment")
	require.Equal(t, codes.InvalidArgument, status.Code(call(own, devices)), "no deployment is named")
	_, err = w.as(t, own, devices).ReleaseBlockades(ctx, &schemav1.ReleaseBlockadesRequest{})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
}

// as connects to a deployment with a certificate.
func (w *world) as(t *testing.T, certs string, at schema.DeploymentID) schemav1.SchemaServiceClient {
	t.Helper()
	credentials, err := identity.Load(identity.InDir(certs))
	require.NoError(t, err)
	env, err := w.Client.Environment(t.Context())
	require.NoError(t, err)
	d, _ := env.Deployment(at)
	conn, err := grpc.NewClient(d.Address, credentials.DialOptions(identity.Deployment(at))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return schemav1.NewSchemaServiceClient(conn)
}

func (w *world) follows(t *testing.T) {
	ctx := t.Context()
	w.put(t, projects+"f")
	n := 0
	save := func() (embed.Resource, error) {
		n++
		name := "f" + string(rune('a'+n%26))
		saved, err := w.Save(ctx, []embed.Write{{Name: "devices/" + name, Body: fields{"project": projects + "f"}}},
			func(pgx.Tx) error {
				return nil
			})
		if err != nil {
			return embed.Resource{}, err
		}
		return saved[0], nil
	}
	_, err := w.Client.Registry().SetDeploymentVersion(ctx,
		&registryv1.SetDeploymentVersionRequest{Service: devices.Service, Region: devices.Region, Version: "v2"})
	require.NoError(t, err)
	eventually(t, func() error {
		r, err := save()
		if err == nil && r.Kind != "Thing" {
			err = errors.New("written under v1")
		}
		return err
	})
	room, err := w.Save(ctx, []embed.Write{{Name: "rooms/f"}}, nil)
	require.NoError(t, err)
	_, err = w.DeleteIn(ctx, embed.Delete{Name: "rooms/f"}, nil)
	require.NoError(t, err)
	_, err = w.RemoveFinalizerIn(ctx, embed.Finalizer{Name: "rooms/f", UID: room[0].UID, Finalizer: "door"}, nil)
	require.ErrorIs(t, err, embed.ErrDenied, "v2 names another holder")
	_, err = w.admin.Exec(ctx, `UPDATE dbcontroller.meta SET server = 'another'`) // as after a failover
	require.NoError(t, err)
	eventually(t, func() error { _, err := save(); return err })
	w.Settle(ctx)
}
