package access

import (
	"strings"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// demand is a right that a request needs on some resources.
type demand struct {
	verb   schema.Verb
	names  []schema.FullName
	person string // for whom a deployment calls
}

// demands has for each method that users may call the right that it needs. A method that is missing here is
// denied to users.
var demands = map[string]func(req any) (schema.Verb, []string){
	resourcev1.ResourceService_GetResource_FullMethodName: named(schema.Read),
	resourcev1.ResourceService_DeleteResource_FullMethodName: func(req any) (verb schema.Verb, names []string) {
		d := req.(*resourcev1.DeleteResourceRequest)
		return deletes(d.GetNow()), []string{d.GetName()}
	},
	resourcev1.ResourceService_UndeleteResource_FullMethodName: named(schema.Delete),
	resourcev1.ResourceService_SetBlockDeletion_FullMethodName: named(schema.Operate),
	// unless the caller is the holder
	resourcev1.ResourceService_RemoveFinalizer_FullMethodName: named(schema.Operate),
	adminv1.AdminService_Explain_FullMethodName:               named(schema.Read),

	resourcev1.ResourceService_CreateResource_FullMethodName: written,
	resourcev1.ResourceService_UpdateResource_FullMethodName: written,
	resourcev1.ResourceService_PutResource_FullMethodName:    written,

	resourcev1.ResourceService_UpdateResourceStatus_FullMethodName: named(schema.Write),

	resourcev1.ResourceService_BatchWriteResources_FullMethodName: func(req any) (schema.Verb, []string) {
		return schema.Write, writes(req.(*resourcev1.BatchWriteResourcesRequest).GetWrites()...)
	},
	resourcev1.ResourceService_MutateAndValidateResource_FullMethodName: func(req any) (schema.Verb, []string) {
		in := req.(*resourcev1.MutateAndValidateResourceRequest)
		return schema.Write, writes(append([]*resourcev1.BatchWriteResourcesRequest_Write{in.GetWrite()},
			in.GetMore()...)...)
	},
	// It lists the referrers here that the caller may read: see Within.
	resourcev1.ResourceService_ListReferrers_FullMethodName: func(req any) (schema.Verb, []string) {
		return schema.Read, []string{req.(*resourcev1.ListReferrersRequest).GetTarget()}
	},
	// It reveals as much as a delete.
	resourcev1.ResourceService_PlanDeletion_FullMethodName: func(req any) (schema.Verb, []string) {
		in := req.(*resourcev1.PlanDeletionRequest)
		return schema.Delete, append([]string{in.GetName()}, in.GetMore()...)
	},
	resourcev1.ResourceService_BatchDeleteResources_FullMethodName: func(req any) (verb schema.Verb, names []string) {
		batch := req.(*resourcev1.BatchDeleteResourcesRequest)
		for _, one := range batch.GetRequests() {
			names = append(names, one.GetName())
		}
		return deletes(batch.GetNow()), names
	},
	resourcev1.ResourceService_BatchGetResources_FullMethodName: func(req any) (schema.Verb, []string) {
		return schema.Read, req.(*resourcev1.BatchGetResourcesRequest).GetNames()
	},

	// Its handler asks about each target, wherever it is: see peer.Person.
	resourcev1.ResourceService_AcquireDelegations_FullMethodName: nothing,
	// They deliver only resources that the caller may read: see Within.
	resourcev1.ResourceService_ListResources_FullMethodName:  nothing,
	resourcev1.ResourceService_WatchResources_FullMethodName: nothing,
	// They tell of the deployment; names in them are redacted.
	adminv1.AdminService_Status_FullMethodName:        nothing,
	adminv1.AdminService_ListStuck_FullMethodName:     nothing,
	adminv1.AdminService_ListDeletions_FullMethodName: nothing,
}

// readsOnly are the methods whose answers have resources, all of which the caller may read.
var readsOnly = map[string]bool{
	resourcev1.ResourceService_GetResource_FullMethodName:       true,
	resourcev1.ResourceService_BatchGetResources_FullMethodName: true,
	resourcev1.ResourceService_ListResources_FullMethodName:     true,
}

func named(verb schema.Verb) func(any) (schema.Verb, []string) {
	return func(req any) (schema.Verb, []string) {
		return verb, []string{req.(interface{ GetName() string }).GetName()}
	}
}

// deletes returns the right that a delete needs. One that does not wait for the retention also needs the
// right to delete, which the handler checks.
func deletes(now bool) schema.Verb {
	if now {
		return schema.Operate
	}
	return schema.Delete
}

func written(req any) (schema.Verb, []string) {
	return schema.Write, []string{req.(interface{ GetResource() *resourcev1.Resource }).GetResource().GetName()}
}

func nothing(any) (schema.Verb, []string) { return schema.Read, nil }

func writes(all ...*resourcev1.BatchWriteResourcesRequest_Write) (names []string) {
	for _, w := range all {
		switch w := w.GetWrite().(type) {
		case *resourcev1.BatchWriteResourcesRequest_Write_Create:
			names = append(names, w.Create.GetName())
		case *resourcev1.BatchWriteResourcesRequest_Write_Update:
			names = append(names, w.Update.GetResource().GetName())
		case *resourcev1.BatchWriteResourcesRequest_Write_Put:
			names = append(names, w.Put.GetName())
		}
	}
	return names
}

// Covers reports whether a method has an entry in the table.
func Covers(method string) bool { return demands[method] != nil }

// demandOf returns the right that a request needs on resources of this deployment. The handlers of batches
// ask other deployments about theirs; a name that is malformed is refused by the handler, too.
func (a *Access) demandOf(method string, req any) demand {
	verb, names := demands[method](req)
	out := demand{verb: verb}
	for _, name := range names {
		if !strings.HasPrefix(name, "//") {
			out.names = append(out.names, schema.FullName{Deployment: a.cfg.Deployment, Name: name})
		} else if full, err := schema.ParseFullName(name); err == nil && full.Deployment == a.cfg.Deployment {
			out.names = append(out.names, full)
		}
	}
	return out
}
