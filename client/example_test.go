package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

var refusal = status.Error(codes.PermissionDenied, "no right any more")

// exampleTB lets an example start an installation, which tests do with their testing.TB.
type exampleTB struct {
	testing.TB
	dir      string
	cleanups []func()
}

func (e *exampleTB) Helper()          {}
func (e *exampleTB) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }
func (e *exampleTB) TempDir() string {
	dir, err := os.MkdirTemp(e.dir, "")
	if err != nil {
		log.Fatal(err)
	}
	return dir
}

func (e *exampleTB) Errorf(format string, args ...any) { log.Printf(format, args...) }
func (e *exampleTB) FailNow()                          { log.Fatal("the example failed") }

// installed returns the path of a client.yaml, whose deployment serves the resources of s; end stops it.
func installed(s stub.Services) (path string, end func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	t := &exampleTB{dir: dir}
	file, err := schema.ParseFile("robots.yaml", strings.NewReader(robots))
	if err != nil {
		log.Fatal(err)
	}
	s.Descriptors = file.Services
	i := stub.New(t, s)
	return i.Context, func() {
		for _, f := range t.cleanups {
			f()
		}
		_ = os.RemoveAll(dir)
	}
}

func ExampleClient_Watch() {
	path, end := installed(stub.Services{Resources: &watches{streams: []played{
		{sends: []*resourcev1.WatchResourcesResponse{upsert("projects/acme", "1", 1), endOfSnapshot("t")}, ends: away},
		{sends: []*resourcev1.WatchResourcesResponse{removal("projects/acme", "1")}},
	}}})
	defer end()

	c, err := client.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	iam := schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}
	for e, err := range c.Watch(context.Background(), iam, client.WatchQuery{Kind: "Project"}) {
		if err != nil {
			log.Fatal(err)
		}
		switch e.Type {
		case client.Upserted:
			fmt.Println("changed:", e.Resource.GetName())
		case client.Deleted:
			fmt.Println("removed:", e.Resource.GetName())
			return
		case client.Synced:
			fmt.Println("these are all")
		case client.Bookmark: // a place to resume from
		}
	}
	// Output:
	// changed: projects/acme
	// these are all
	// removed: projects/acme
}

// A program of ten lines that watches: Synced once, and then for ever.
func ExampleClient_Watch_names() {
	path, end := installed(stub.Services{Resources: &watches{streams: []played{
		{sends: []*resourcev1.WatchResourcesResponse{
			upsert("projects/acme", "1", 1), endOfSnapshot("t"),
			upsert("projects/lab", "2", 1),
		}, ends: refusal},
	}}})
	defer end()

	c, err := client.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	for e, err := range c.Watch(context.Background(), schema.DeploymentID{
		Service: "iam.example.com",
		Region:  "us-west2",
	}, client.WatchQuery{Kind: "Project"}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s %q\n", e.Type, e.Resource.GetName())
	}
	// Output:
	// upserted "projects/acme"
	// synced ""
	// upserted "projects/lab"
	// no right any more
}

func ExampleKind() {
	path, end := installed(stub.Services{Resources: &shelf{}})
	defer end()

	type Robot struct {
		Spec struct {
			Owner string `json:"owner"`
		} `json:"spec"`
		Friends []string `json:"friends,omitempty"`
	}
	ctx := context.Background()
	c, err := client.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	robots, err := client.KindOf[Robot](ctx, c, "iam.example.com", "Robot")
	if err != nil {
		log.Fatal(err)
	}
	r := client.Object[Robot]{Name: "//iam.example.com/us-west2/projects/acme/robots/r2"}
	r.Body.Spec.Owner = "//iam.example.com/eastus2/projects/lab"
	stored, err := robots.Put(ctx, r)
	var refused *client.Error
	switch {
	case errors.As(err, &refused) && errors.Is(err, client.ErrRefused):
		fmt.Println("refused:", refused.Refusals)
	case err != nil:
		log.Fatal(err)
	}
	fmt.Println(stored.Body.Spec.Owner)
	// Output: //iam.example.com/eastus2/projects/lab
}
