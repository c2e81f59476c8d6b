// Package writes has the writes of requests, and the places in requests of the errors about them.
package writes

import (
	"fmt"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/violation"
)

// Write is one write.
type Write = resourcev1.BatchWriteResourcesRequest_Write

// Request is a request that writes.
type Request struct {
	All []*Write
	// place is the path of the i-th write; nil: the request is the write itself. Field has all of them, or
	// the writes after the first.
	place func(i int) string
	Field string
}

// Of returns the writes of a request; false for other requests.
func Of(req any) (Request, bool) {
	switch req := req.(type) {
	case *resourcev1.CreateResourceRequest:
		return Request{
			All: []*Write{
				{Write: &resourcev1.BatchWriteResourcesRequest_Write_Create{Create: req.GetResource()}},
			},
		}, true
	case *resourcev1.UpdateResourceRequest:
		return Request{All: []*Write{{Write: &resourcev1.BatchWriteResourcesRequest_Write_Update{Update: req}}}}, true
	case *resourcev1.PutResourceRequest:
		return Request{
			All: []*Write{{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: req.GetResource()}}},
		}, true
	case *resourcev1.BatchWriteResourcesRequest:
		return Request{req.GetWrites(), func(i int) string { return fmt.Sprintf("writes[%d]", i) }, "writes"}, true
	case *resourcev1.MutateAndValidateResourceRequest:
		return Request{append([]*Write{req.GetWrite()}, req.GetMore()...), placeOfMore, "more"}, true
	}
	return Request{}, false
}

func placeOfMore(i int) string {
	if i == 0 {
		return "write"
	}
	return fmt.Sprintf("more[%d]", i-1)
}

// Resource returns the resource of a write, or nil.
func Resource(w *Write) *resourcev1.Resource {
	switch w := w.GetWrite().(type) {
	case *resourcev1.BatchWriteResourcesRequest_Write_Create:
		return w.Create
	case *resourcev1.BatchWriteResourcesRequest_Write_Update:
		return w.Update.GetResource()
	case *resourcev1.BatchWriteResourcesRequest_Write_Put:
		return w.Put
	}
	return nil
}

// Names returns the names of the resources, as they are given.
func (r Request) Names() (names []string) {
	for _, w := range r.All {
		names = append(names, Resource(w).GetName())
	}
	return names
}

// Invalid returns an error with the fields of the request that it is about: fields of the i-th write, or the
// field with all writes if i is -1.
func (r Request) Invalid(i int, err error) error {
	switch {
	case i < 0 && r.place != nil:
		return violation.In(r.Field, err)
	case i < 0:
		i = 0
	}
	request, resource := "", "resource"
	if r.place != nil {
		request = violation.Join(r.place(i), formOf(r.All[i]))
		if resource = request; r.All[i].GetUpdate() != nil {
			resource = violation.Join(request, "resource")
		}
	}
	fields := violation.Of(err)
	if fields == nil {
		fields = []violation.Field{{Problem: err.Error()}}
	}
	for j, f := range fields {
		if f.Path == "update_mask" {
			fields[j].Path = violation.Join(request, f.Path)
		} else {
			fields[j].Path = violation.Join(resource, f.Path)
		}
	}
	return violation.InFields(err, fields...)
}

// OfRequest is Invalid for a request that writes. Errors of other requests stay as they are.
func OfRequest(req any, i int, err error) error {
	if in, is := Of(req); is {
		return in.Invalid(i, err)
	}
	return err
}

// formOf returns the field of a write that is set.
func formOf(w *Write) string {
	switch w.GetWrite().(type) {
	case *resourcev1.BatchWriteResourcesRequest_Write_Create:
		return "create"
	case *resourcev1.BatchWriteResourcesRequest_Write_Update:
		return "update"
	case *resourcev1.BatchWriteResourcesRequest_Write_Put:
		return "put"
	}
	return ""
}
