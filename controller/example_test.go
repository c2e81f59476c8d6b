package controller_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

const buckets = `
service: iam.example.com
version: v1
kinds:
  - { kind: Project, patterns: ["projects/{project}"] }
  - { kind: Bucket, patterns: ["buckets/{bucket}"] }
`

// A program that keeps a bucket for each project: one that somebody deletes comes back, and one whose project is deleted goes with it.
func Example() {
	path, end := installed()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	c, err := client.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	iam := schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}
	projects, buckets := controller.Kind{Deployment: iam, Name: "Project"}, controller.Kind{Deployment: iam, Name: "Bucket"}
	reconcile := func(ctx context.Context, req controller.Request, v *controller.View) (controller.Result, error) {
		project, ok := v.Get(req.Name)
		if !ok {
			return controller.Result{}, nil // its bucket goes with it
		}
		for bucket := range v.Owned(req.Name) {
			fmt.Println(project.GetName(), "has", bucket.GetName())
			stop()
			return controller.Result{}, nil
		}
		fmt.Println(project.GetName(), "gets a bucket")
		_, err := c.Put(ctx, &controller.Resource{
			Name:            fmt.Sprintf("//%s/buckets/%s", iam, strings.TrimPrefix(project.GetName(), "projects/")),
			OwnerReferences: []*resourcev1.OwnerReference{{Name: project.GetName(), Kind: "Project", Uid: project.GetUid()}},
		})
		return controller.Result{}, err
	}
	if err := controller.New(c, projects).Owns(buckets).Run(ctx, controller.Func(reconcile)); err != nil {
		log.Fatal(err)
	}
	// Output:
	// projects/acme gets a bucket
	// projects/acme has buckets/acme
}

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

// installed returns the path of a client.yaml of a deployment with one project; end stops it.
func installed() (path string, end func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	t := &exampleTB{dir: dir}
	file, err := schema.ParseFile("buckets.yaml", strings.NewReader(buckets))
	if err != nil {
		log.Fatal(err)
	}
	m := newMemory(stub.Deployment)
	m.regions = []*memory{m}
	m.write(of("Project", "projects/acme", nil))
	i := stub.New(t, stub.Services{Resources: m, Descriptors: file.Services})
	return i.Context, func() {
		for _, f := range t.cleanups {
			f()
		}
		_ = os.RemoveAll(dir)
	}
}
