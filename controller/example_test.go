package controller_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/dbctest"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

const buckets = `
service: iam.example.com
version: v1
kinds:
  - { kind: Project, patterns: ["projects/{project}"] }
  - { kind: Bucket, patterns: ["buckets/{bucket}"] }
---
regions: [eu]
deployments: [{ deployment: iam.example.com/eu, version: v1 }]
`

// A program that keeps a bucket for each project: a bucket that a user deletes comes back, and a bucket whose
// project is deleted goes with it.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c := dbctest.NewFake(exampleT{}, buckets).Client // in a program: client.Open("client.yaml")

	iam := schema.DeploymentID{Service: "iam.example.com", Region: "eu"}
	if _, err := c.Put(ctx, &controller.Resource{
		Name: "//iam.example.com/eu/projects/acme",
		Body: &structpb.Struct{},
	}); err != nil {
		log.Fatal(err)
	}
	projects, buckets := controller.Kind{Deployment: iam, Name: "Project"}, controller.Kind{
		Deployment: iam,
		Name:       "Bucket",
	}
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
			Name: fmt.Sprintf("//%s/buckets/%s", iam, strings.TrimPrefix(project.GetName(), "projects/")),
			Body: &structpb.Struct{},
			OwnerReferences: []*resourcev1.OwnerReference{{
				Name: project.GetName(), Kind: "Project",
				Uid: project.GetUid(),
			}},
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

// exampleT stands for the *testing.T of a test, which an example lacks.
type exampleT struct{ testing.TB }

func (exampleT) Helper()                   {}
func (exampleT) Fatalf(f string, a ...any) { log.Fatalf(f, a...) }
