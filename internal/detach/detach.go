// Package detach removes one reference of a resource to another one, or the resource that has it, as the rights
// of the caller allow: for people who delete a resource although others refer to it.
package detach

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
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
	same, err := names(holder, target)
	if err != nil {
		return err
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
			return status.Errorf(codes.Aborted, changedText+", or it is a row of a table, which SQL changes", path)
		}
		if update.Resource.Body, err = structpb.NewStruct(body); err != nil {
			return err
		}
		update.UpdateMask = &fieldmaskpb.FieldMask{Paths: []string{"body"}}
	}
	_, err = resources.UpdateResource(ctx, update)
	return err
}

const changedText = "%s of its body does not name the resource: it has changed meanwhile"

// names returns the function that reports whether a value in a holder names a target, a full name.
func names(holder schema.FullName, target string) (func(value string) bool, error) {
	full, err := schema.ParseFullName(target)
	if err != nil {
		return nil, err
	}
	return func(value string) bool { return schema.MayName(holder.Deployment, value, full) }, nil
}

// Holder deletes a holder that refers to a target, a full name, at a path, as the revision that does; it is no
// error that it is gone. It fails as the calls do, with ABORTED when it does not refer to the target any more, or
// another writer was first.
func Holder(ctx context.Context, resources resourcev1.ResourceServiceClient, holder schema.FullName, path,
	target string,
) error {
	stored, err := resources.GetResource(ctx, &resourcev1.GetResourceRequest{Name: holder.Name, Latest: true})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	refers, err := refersAt(stored, holder, path, target)
	switch {
	case err != nil:
		return err
	case !refers:
		return status.Errorf(codes.Aborted, changedText, path)
	}
	req := &resourcev1.DeleteResourceRequest{Name: holder.Name, AllowMissing: true}
	if stored.GetRevision() != 0 { // a row of a table may have neither
		req.Uid, req.Revision = stored.GetUid(), stored.GetRevision()
	}
	_, err = resources.DeleteResource(ctx, req)
	if moved(err) {
		return status.Error(codes.Aborted, status.Convert(err).Message())
	}
	return err
}

// refersAt reports whether a stored resource refers to a target at a path. The names of resources below others
// refer to their parents, and do not change.
func refersAt(stored *resourcev1.Resource, holder schema.FullName, path, target string) (bool, error) {
	same, err := names(holder, target)
	if err != nil || path == schema.ParentPath {
		return err == nil, err
	}
	if path == OwnerPath {
		return slices.ContainsFunc(stored.GetOwnerReferences(),
			func(o *resourcev1.OwnerReference) bool { return same(o.GetName()) }), nil
	}
	at, err := schema.ParsePath(path)
	return err == nil && at.Unset(stored.GetBody().AsMap(), same) > 0, err
}

// moved reports whether a resource has another uid or revision than a request wants.
func moved(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if info, is := d.(*errdetails.ErrorInfo); is && info.GetReason() == "MOVED" {
			return true
		}
	}
	return false
}
