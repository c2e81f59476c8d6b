package client

import (
	"context"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Written is the effect of a write on one resource.
type Written struct {
	Name schema.FullName
	// UID and Revision after the write. Of a removed resource both may be unknown.
	Version
	// Gone: the resource is removed.
	Gone bool
}

type writtenKey struct{}

// OnWrite returns a context in which f is called after each successful Create, Put, Update, UpdateStatus,
// Batch, Delete and DeleteAll, once for each resource, in the goroutine of the call; then the function of an
// outer context is. A write whose outcome is unknown is not reported. Package controller gives such a context
// to each run.
func OnWrite(ctx context.Context, f func(Written)) context.Context {
	return context.WithValue(ctx, writtenKey{}, func(w Written) {
		f(w)
		Wrote(ctx, w)
	})
}

// Wrote calls the function of OnWrite, if the context has one, for writes that no Client has made, such as
// those of package embed.
func Wrote(ctx context.Context, all ...Written) {
	f, ok := ctx.Value(writtenKey{}).(func(Written))
	if !ok {
		return
	}
	for _, w := range all {
		f(w)
	}
}

// WrittenOf is the effect of a write that a deployment answered with a resource.
func WrittenOf(r *resourcev1.Resource) Written {
	name := schema.FullName{Name: r.GetName()}
	if id, err := schema.ParseDeploymentID(r.GetDeployment()); err == nil {
		name.Deployment = id
	}
	return Written{Name: name, Version: Version{UID: r.GetUid(), Revision: r.GetRevision()}}
}

// deleted is the effect of a delete.
func deleted(name, uid string, answer *resourcev1.DeleteResourceResponse) Written {
	if !answer.GetRemoved() && answer.GetResource().GetPurgeTime() == nil { // watches see a hidden resource go
		return WrittenOf(answer.GetResource())
	}
	full, _ := schema.ParseFullName(name) // a deployment has taken it
	return Written{Name: full, Version: Version{UID: uid}, Gone: true}
}
