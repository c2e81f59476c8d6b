package booking_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/booking"
	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/dbctest"
	"github.com/db-controller/db-controller/embed"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

func TestBookings(t *testing.T) {
	in := dbctest.New(t, dbctest.Config{Services: booking.Services})
	ctx, here, c := t.Context(), booking.Here.String(), in.Client
	admin, err := pgxpool.New(ctx, in.DSN(here))
	require.NoError(t, err)
	t.Cleanup(admin.Close)
	_, err = admin.Exec(ctx, booking.Schema+`; GRANT ALL ON public.calendar TO `+dbctest.ApplicationRole)
	require.NoError(t, err)
	pool, err := pgxpool.New(ctx, in.ApplicationDSN(here))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	app, err := booking.New(ctx, pool, c, in.Certs("application/rooms.example.com/booking"), zaptest.NewLogger(t))
	require.NoError(t, err)
	t.Cleanup(app.Close)
	start := func() (stop func()) {
		running, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- app.Run(running) }()
		return func() {
			cancel()
			require.NoError(t, <-ended)
		}
	}
	eventually := func(that string, holds func() bool) {
		t.Helper()
		require.Eventually(t, holds, 5*time.Minute, 20*time.Millisecond, that)
	}
	exists := func(name string) bool {
		_, err := c.Get(ctx, "//"+here+"/"+name)
		return err == nil
	}
	days := func() (n int) {
		require.NoError(t, admin.QueryRow(ctx, `SELECT count(*) FROM public.calendar`).Scan(&n))
		return n
	}
	const acme = "//iam.example.com/eu/projects/acme"
	_, err = c.Put(ctx, &resourcev1.Resource{Name: acme, Body: &structpb.Struct{}})
	require.NoError(t, err)

	stop := start()
	monday := booking.Booking{Room: "blue", Day: "2027-01-04", Project: acme}
	b1, err := app.Book(ctx, monday)
	require.NoError(t, err)
	b2, err := app.Book(ctx, monday)
	require.ErrorIs(t, err, booking.ErrTaken)
	require.False(t, exists("bookings/"+b2), "a booking is stored with its day, or not at all")
	var refused *embed.RefusedError
	_, err = app.Book(ctx, booking.Booking{
		Room: "red", Day: "2027-01-05",
		Project: "//iam.example.com/eu/projects/none",
	})
	require.ErrorAs(t, err, &refused)
	require.Equal(t, 1, days())
	found, err := app.Bookings(ctx, "blue")
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, 2, found[0].Body.Seats, "the default")
	eventually("it gets a badge", func() bool { return exists("badges/" + b1) })
	_, err = c.Delete(ctx, "//"+here+"/badges/"+b1, client.Version{})
	require.NoError(t, err)
	eventually("the badge comes back", func() bool { return exists("badges/" + b1) })

	tuesday := booking.Booking{Room: "blue", Day: "2027-01-05", Project: acme}
	b4, err := app.Book(ctx, tuesday)
	require.NoError(t, err)
	_, err = c.Delete(ctx, "//"+here+"/bookings/"+b4, client.Version{})
	require.NoError(t, err)
	eventually("the calendar follows a deletion by others", func() bool { return days() == 1 })
	b5, err := app.Book(ctx, tuesday)
	require.NoError(t, err)
	stop()
	_, err = c.Delete(ctx, "//"+here+"/bookings/"+b5, client.Version{})
	require.NoError(t, err)
	stop = start()
	eventually("also one from before the start", func() bool { return days() == 1 })

	_, err = c.Delete(ctx, acme, client.Version{})
	require.NoError(t, err)
	eventually("without its project a booking is cancelled", func() bool {
		return !exists("bookings/"+b1) && days() == 0
	})
	eventually("and its badge goes with it", func() bool { return !exists("badges/" + b1) })
	stop()
}
