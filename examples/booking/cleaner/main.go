// Command cleaner is the program of docs/tutorial.md.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/schema"
)

func main() {
	c, err := client.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	devices := controller.Kind{
		Deployment: schema.DeploymentID{Service: "devices.example.com", Region: "eu"},
		Name:       "Device",
	}
	disconnect := func(_ context.Context, device *controller.Resource, _ *controller.View) error {
		fmt.Println("disconnected", device.GetName(), "at", device.GetBody().GetFields()["address"].GetStringValue())
		return nil
	}
	reconcile := func(_ context.Context, req controller.Request, v *controller.View) (controller.Result, error) {
		if _, ok := v.Get(req.Name); !ok {
			fmt.Println(req.Name.Name, "is gone")
			stop() // a real controller goes on
		}
		return controller.Result{}, nil
	}
	if err := controller.New(c, devices).Finalizer("connection", c, disconnect).
		Run(ctx, controller.Func(reconcile)); err != nil {
		log.Fatal(err)
	}
}
