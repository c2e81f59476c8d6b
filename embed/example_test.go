package embed_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/dbctest"
	"github.com/db-controller/db-controller/embed"
)

// exampleT stands for the *testing.T of a test, which an example lacks.
type exampleT struct {
	testing.TB
	dir      string
	cleanups []func()
}

func (*exampleT) Helper()                   {}
func (*exampleT) Context() context.Context  { return context.Background() }
func (e *exampleT) Cleanup(f func())        { e.cleanups = append(e.cleanups, f) }
func (*exampleT) Fatalf(f string, a ...any) { log.Fatalf(f, a...) }
func (e *exampleT) TempDir() string         { return e.dir }

// deployed returns the application's connection string and certificate, in a deployment with a table
// bookings; end stops it.
func deployed() (dsn, certs string, end func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	t := &exampleT{dir: dir}
	in := dbctest.New(t, dbctest.Config{Services: services})
	conn, err := pgx.Connect(t.Context(), in.DSN(devices.String()))
	if err == nil {
		_, err = conn.Exec(t.Context(), `CREATE TABLE public.bookings (device text); GRANT ALL ON public.bookings TO `+
			dbctest.ApplicationRole)
		err = errors.Join(err, conn.Close(t.Context()))
	}
	if err != nil {
		log.Fatal(err)
	}
	return in.ApplicationDSN(devices.String()), in.Certs(booking), func() {
		for i := len(t.cleanups) - 1; i >= 0; i-- {
			t.cleanups[i]()
		}
		_ = os.RemoveAll(dir)
	}
}

// A controller in the process of the application keeps a row for each device, in one transaction with the
// report in its status.
func ExampleApplication_Source() {
	dsn, certs, end := deployed()
	defer end()

	ctx, stop := context.WithCancel(context.Background())
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		log.Panic(err)
	}
	defer pool.Close()
	app, err := embed.New(ctx, embed.Config{Deployment: devices, Pool: pool, Certs: certs})
	if err != nil {
		log.Panic(err)
	}
	defer app.Close()
	booked := make(chan string, 1)
	reconcile := func(ctx context.Context, req controller.Request, v *controller.View) (controller.Result, error) {
		device, ok := v.Get(req.Name)
		if !ok {
			return controller.Result{}, nil
		}
		status := embed.Status{
			Name: device.GetName(), UID: uuid.MustParse(device.GetUid()),
			Status: map[string]any{"booked": true},
		}
		_, err := app.UpdateStatusIn(ctx, status, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx,
				`INSERT INTO public.bookings SELECT $1 WHERE NOT EXISTS (SELECT FROM public.bookings WHERE device = $1)`, device.GetName())
			return err
		})
		if err == nil {
			booked <- device.GetName()
		}
		return controller.Result{}, err
	}
	var running errgroup.Group
	running.Go(func() error { return app.Run(ctx) })
	running.Go(func() error {
		kind := controller.Kind{Deployment: devices, Name: "Device"}
		return controller.New(app.Source(nil), kind, controller.GenerationChanged).Run(ctx, controller.Func(reconcile))
	})
	if _, err := app.Save(ctx, []embed.Write{{Name: "devices/d1"}}, nil); err != nil {
		log.Panic(err)
	}
	fmt.Println("booked:", <-booked)
	stop()
	if err := running.Wait(); err != nil {
		log.Panic(err)
	}
	// Output: booked: devices/d1
}

// A device and the application's own row are stored together, or neither is.
func ExampleApplication_Save() {
	dsn, certs, end := deployed()
	defer end()

	ctx, stop := context.WithCancel(context.Background())
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		log.Panic(err)
	}
	defer pool.Close()
	app, err := embed.New(ctx, embed.Config{Deployment: devices, Pool: pool, Certs: certs})
	if err != nil {
		log.Panic(err)
	}
	ended := make(chan error)
	go func() { ended <- app.Run(ctx) }()

	book := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO public.bookings VALUES ('devices/d1')`)
		return err
	}
	missing := map[string]any{"project": "//iam.example.com/eu/projects/typo"}
	_, err = app.Save(ctx, []embed.Write{{Name: "devices/d1", Body: missing}}, book)
	var refused *embed.RefusedError
	fmt.Println("refused:", errors.As(err, &refused))
	saved, err := app.Save(ctx, []embed.Write{{Name: "devices/d1"}}, book)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println("stored:", saved[0].Name)
	var rows int
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM public.bookings`).Scan(&rows); err != nil {
		log.Panic(err)
	}
	fmt.Println("rows:", rows)
	stop()
	if err := <-ended; err != nil {
		log.Panic(err)
	}
	app.Close()
	// Output:
	// refused: true
	// stored: devices/d1
	// rows: 1
}
