package dbctest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/dbctest"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// exampleT stands for the *testing.T of a test, which an example lacks.
type exampleT struct {
	testing.TB
	dir      string
	cleanups []func()
}

func newExampleT() *exampleT {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	return &exampleT{dir: dir}
}

func (*exampleT) Helper()                   {}
func (*exampleT) Context() context.Context  { return context.Background() }
func (e *exampleT) Cleanup(f func())        { e.cleanups = append(e.cleanups, f) }
func (*exampleT) Fatalf(f string, a ...any) { log.Fatalf(f, a...) }
func (e *exampleT) TempDir() string         { return e.dir }
func (e *exampleT) end() {
	for i := len(e.cleanups) - 1; i >= 0; i-- {
		e.cleanups[i]()
	}
	_ = os.RemoveAll(e.dir)
}

// A test over real deployments, one of which cannot be reached for a while.
func ExampleNew() {
	t := newExampleT() // in a test: its t
	defer t.end()

	in := dbctest.New(t, dbctest.Config{Services: services})
	ctx := context.Background()
	acme, device := "//iam.example.com/eu/projects/acme", "//devices.example.com/eu/devices/d1"
	if err := put(ctx, in, acme, nil); err != nil {
		t.Fatalf("%v", err)
	}
	if err := put(ctx, in, device, map[string]any{"project": acme}); err != nil {
		t.Fatalf("%v", err)
	}
	in.Cut("iam.example.com/eu")
	if _, err := in.Client.Delete(ctx, device, client.Version{}); err != nil {
		t.Fatalf("%v", err)
	}
	fmt.Println("the device is deleted, and iam cannot be told yet")
	in.Heal("iam.example.com/eu")
	in.Settle(ctx)
	_, err := in.Client.Delete(ctx, acme, client.Version{})
	fmt.Println("the project:", err)
	// Output:
	// the device is deleted, and iam cannot be told yet
	// the project: <nil>
}

// A process that has crashed leaves its database as it was; another one goes on from there.
func ExampleInstallation_Crash() {
	t := newExampleT() // in a test: its t
	defer t.end()

	in := dbctest.New(t, dbctest.Config{Services: services})
	ctx := context.Background()
	acme, device := "//iam.example.com/eu/projects/acme", "//devices.example.com/eu/devices/d1"
	if err := put(ctx, in, acme, nil); err != nil {
		t.Fatalf("%v", err)
	}
	in.Crash("iam.example.com/eu")
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := put(short, in, device, map[string]any{"project": acme})
	fmt.Println("nobody knows whether the project exists:", errors.Is(err, client.ErrUnavailable))
	in.Expire("iam.example.com/eu") // the next process waits for no lease of the former one
	in.Start("iam.example.com/eu")
	fmt.Println("the device:", put(ctx, in, device, map[string]any{"project": acme}))
	// Output:
	// nobody knows whether the project exists: true
	// the device: <nil>
}

// A day passes: a deletion that waits for a finalizer is listed as stuck.
func ExampleInstallation_Advance() {
	t := newExampleT() // in a test: its t
	defer t.end()

	in := dbctest.New(t, dbctest.Config{Services: desks})
	ctx := context.Background()
	name := "//desks.example.com/eu/desks/d1"
	if err := put(ctx, in, name, map[string]any{"room": "a"}); err != nil {
		t.Fatalf("%v", err)
	}
	if _, err := in.Client.Delete(ctx, name, client.Version{}); err != nil {
		t.Fatalf("%v", err)
	}
	in.Advance("desks.example.com/eu", 24*time.Hour)
	admin, err := in.Client.Admin(ctx, schema.DeploymentID{Service: "desks.example.com", Region: "eu"})
	if err != nil {
		t.Fatalf("%v", err)
	}
	answer, err := admin.ListStuck(ctx, &adminv1.ListStuckRequest{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, r := range answer.GetResources() {
		fmt.Println(r.GetName(), "is stuck")
	}
	// Output: //desks.example.com/eu/desks/d1 is stuck
}

// A unit test without PostgreSQL: the second write is not answered, so that the client repeats it.
func ExampleNewFake() {
	t := newExampleT() // in a test: its t

	f := dbctest.NewFake(t, services)
	tries := 0
	f.Before = func(_ context.Context, method string, _ any) error {
		if tries++; tries == 2 {
			return status.Error(codes.Unavailable, "the line is cut")
		}
		return nil
	}
	ctx := context.Background()
	for _, title := range []string{"Acme", "Acme Ltd"} {
		body, err := structpb.NewStruct(map[string]any{"title": title})
		if err != nil {
			log.Fatal(err)
		}
		stored, err := f.Client.Put(ctx, &resourcev1.Resource{Name: "//iam.example.com/eu/projects/acme", Body: body})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(stored.GetBody().GetFields()["title"].GetStringValue(), stored.GetGeneration(),
			"after tries:", tries)
	}
	_, err := f.Client.Get(ctx, "//iam.example.com/eu/projects/none")
	fmt.Println(errors.Is(err, client.ErrNotFound))
	// Output:
	// Acme 1 after tries: 1
	// Acme Ltd 2 after tries: 3
	// true
}
