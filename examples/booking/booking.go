// Package booking is an application with tables of its own: it books rooms. A booking is a resource, with a
// reference to a project of another service, and a row of the application's calendar. Both are stored
// together, or neither is.
package booking

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/embed"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Services describes the kinds. An operator applies it: db-controller apply services.yaml.
//
//go:embed services.yaml
var Services string

// Schema is the application's own table: a room has one booking a day.
const Schema = `CREATE TABLE public.calendar (room text, day date, booking text UNIQUE NOT NULL, PRIMARY KEY (room, day))`

// Here is the deployment in whose database the calendar is.
var Here = schema.DeploymentID{Service: "rooms.example.com", Region: "eu"}

var (
	bookings = controller.Kind{Deployment: Here, Name: "Booking"}
	badges   = controller.Kind{Deployment: Here, Name: "Badge"}
	leases   = controller.Kind{Deployment: Here, Name: "Lease"}
)

// Booking is the body of a booking.
type Booking struct {
	Room    string `json:"room"`
	Day     string `json:"day"`
	Seats   int    `json:"seats,omitempty"`
	Project string `json:"project,omitempty"`
}

// App is the application.
type App struct {
	pool   *pgxpool.Pool
	client *client.Client
	embed  *embed.Application
	kind   client.Kind[Booking]
	log    *zap.Logger
}

// New returns the application. certs is the folder with its certificate
// (application/rooms.example.com/booking).
func New(ctx context.Context, pool *pgxpool.Pool, c *client.Client, certs string, log *zap.Logger) (*App, error) {
	kind, err := client.KindOf[Booking](ctx, c, Here.Service, "Booking")
	if err != nil {
		return nil, err
	}
	in, err := embed.New(ctx, embed.Config{Deployment: Here, Pool: pool, Certs: certs, Logger: log})
	return &App{pool: pool, client: c, embed: in, kind: kind, log: log}, err
}

// Close closes the connections that New has made.
func (a *App) Close() { a.embed.Close() }

// ErrTaken: the room has a booking on that day.
var ErrTaken = errors.New("the room is taken")

// Book books a room. Ids are used once: a late removal from the calendar concerns no later booking.
func (a *App) Book(ctx context.Context, b Booking) (id string, err error) {
	id = uuid.NewString()
	write := embed.Write{Mode: embed.Create, Name: "bookings/" + id, Body: map[string]any{
		"room": b.Room, "day": b.Day,
		"project": b.Project,
	}}
	_, err = a.embed.Save(ctx, []embed.Write{write}, func(tx pgx.Tx) error {
		done, err := tx.Exec(ctx, `INSERT INTO public.calendar VALUES ($1, $2::text::date, $3) ON CONFLICT DO NOTHING`,
			b.Room, b.Day, id)
		if err == nil && done.RowsAffected() == 0 {
			err = ErrTaken // the booking is not stored either
		}
		return err
	})
	return id, err
}

// Cancel removes a booking, and its day in the calendar.
func (a *App) Cancel(ctx context.Context, id string) error {
	_, err := a.embed.DeleteIn(ctx, embed.Delete{Name: "bookings/" + id}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM public.calendar WHERE booking = $1`, id)
		return err
	})
	return err
}

// Bookings returns the bookings of a room.
func (a *App) Bookings(ctx context.Context, room string) (found []client.Object[Booking], err error) {
	for b, err := range a.kind.List(ctx, Here.Region, fmt.Sprintf("body.room = %q", room)) {
		if err != nil {
			return nil, err
		}
		found = append(found, b)
	}
	return found, nil
}

// Run keeps badges and the calendar in line with the bookings, together with other processes that run it.
func (a *App) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { ended <- a.embed.Run(ctx) }()
	err := controller.New(a.client, bookings).Owns(badges).Initialise(a.tidy).Logger(a.log).
		Share(controller.Sharing{Writer: a.client, Kind: leases, Prefix: "leases/booking-", Shards: 4}).
		Run(ctx, controller.Func(a.reconcile))
	cancel()
	return errors.Join(err, <-ended)
}

func (a *App) reconcile(ctx context.Context, req controller.Request, v *controller.View) (controller.Result, error) {
	id := strings.TrimPrefix(req.Name.Name, "bookings/")
	r, ok := v.Get(req.Name)
	if !ok { // it was deleted without the application
		return controller.Result{}, a.forget(ctx, id)
	}
	b, err := client.Decode[Booking](r)
	if err != nil {
		return controller.Result{}, err
	}
	if b.Body.Project == "" {
		if err := a.Cancel(ctx, id); err != nil && !errors.Is(err, embed.ErrNotFound) {
			return controller.Result{}, err
		}
		return controller.Result{}, nil
	}
	for range v.Owned(req.Name) {
		return controller.Result{}, nil // it has its badge
	}
	_, err = a.client.Put(ctx, badge(id, b.Body.Room, r))
	return controller.Result{}, err
}

// badge goes with its booking.
func badge(id, room string, of *controller.Resource) *controller.Resource {
	return &controller.Resource{
		Name:            "//" + Here.String() + "/badges/" + id,
		Body:            &structpb.Struct{Fields: map[string]*structpb.Value{"opens": structpb.NewStringValue(room)}},
		OwnerReferences: []*resourcev1.OwnerReference{{Name: of.GetName(), Kind: of.GetKind(), Uid: of.GetUid()}},
	}
}

func (a *App) forget(ctx context.Context, id string) error {
	_, err := a.pool.Exec(ctx, `DELETE FROM public.calendar WHERE booking = $1`, id)
	return err
}

// tidy removes the entries of the calendar whose resources were deleted while no process ran.
func (a *App) tidy(ctx context.Context, v *controller.View) error {
	rows, err := a.pool.Query(ctx, `SELECT booking FROM public.calendar`)
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, id := range ids {
		name := schema.FullName{Deployment: Here, Name: "bookings/" + id}
		if _, there := v.Get(name); there {
			continue
		}
		// The cache may be older than a booking that is being made: the deployment knows.
		if _, err := a.client.Get(ctx, name.String()); errors.Is(err, client.ErrNotFound) {
			err = a.forget(ctx, id)
		} else if err != nil {
			return err
		}
	}
	return err
}
