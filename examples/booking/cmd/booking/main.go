// Command booking runs one process of the application. Its first arguments are a client.yaml, the connection
// string of the deployment's database as a user with the role NAME_application, and the folder of its
// certificate.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"example.com/booking"
	"github.com/db-controller/db-controller/client"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	if len(os.Args) != 4 {
		log.Fatal("usage: booking CLIENT.YAML POSTGRES CERTS")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := client.Open(os.Args[1])
	if err != nil {
		return err
	}
	defer c.Close()
	pool, err := pgxpool.New(ctx, os.Args[2])
	if err != nil {
		return err
	}
	defer pool.Close()
	app, err := booking.New(ctx, pool, c, os.Args[3], zap.NewExample())
	if err != nil {
		return err
	}
	defer app.Close()
	return app.Run(ctx)
}
