// Package detach removes one reference of a resource to another one, as the rights of the caller allow: for
// people who delete a resource although others refer to it.
package detach

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// OwnerPath is in the place of the field of an owner reference.
const OwnerPath = "@owner"

// Reference removes the reference at a path of a holder to a target, a full name; of a path with several
// elements, those that name it. It fails as the calls do, with ABORTED when another writer was first or the
// body does not have the reference, and for a path that no body has.
func Reference(ctx context.Context, resources resourcev1.ResourceServiceClient, holder schema.FullName, path,
	target string,
) error {
	stored, err := resources.GetResource(ctx, &resourcev1.GetResourceRequest{Name: holder.Name, Latest: true})
	if err != nil {
		return err
	}
	same := func(value string) bool {
		if !strings.HasPrefix(value, "//") {
			value = "//" + holder.Deployment.String() + "/" + value
		}
		return value == target
	}
	update := &resourcev1.UpdateResourceRequest{Resource: &resourcev1.Resource{
		Name: holder.Name, Uid: stored.GetUid(),
		Revision: stored.GetRevision(),
	}}
	if path == OwnerPath {
		update.Resource.OwnerReferences = slices.DeleteFunc(stored.GetOwnerReferences(),
			func(o *resourcev1.OwnerReference) bool {
				return same(o.GetName())
			})
		update.UpdateMask = &fieldmaskpb.FieldMask{Paths: []string{"owner_references"}}
	} else {
		at, err := schema.ParsePath(path)
		if err != nil {
			return fmt.Errorf("%s cannot be unset in its body: delete the resource, or change it with its owner", path)
		}
		body := stored.GetBody().AsMap()
		if at.Unset(body, same) == 0 {
			return status.Errorf(codes.Aborted,
				"%s of its body does not name the resource: it has changed meanwhile, or it is a row of a table, which SQL changes", path)
		}
		if update.Resource.Body, err = structpb.NewStruct(body); err != nil {
			return err
		}
		update.UpdateMask = &fieldmaskpb.FieldMask{Paths: []string{"body"}}
	}
	_, err = resources.UpdateResource(ctx, update)
	return err
}
