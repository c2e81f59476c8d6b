package client

import (
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// RemoveFinalizer reports that the caller has cleaned up after an incarnation of a resource in DELETING. That
// the resource, or its finalizer, is gone is no error. It asks the resource's own deployment: a call that
// another region forwards has the rights of a user. It fails with ErrDenied unless the kind names the caller
// as the finalizer's holder, or the caller may operate on the resource.
func (c *Client) RemoveFinalizer(ctx context.Context, name, uid, finalizer string) error {
	full, err := schema.ParseFullName(name)
	if err != nil {
		return err
	}
	err = c.throughDoors(ctx, c.ownDoor, full.Deployment, "",
		func(ctx context.Context, door resourcev1.ResourceServiceClient) error {
			_, err := door.RemoveFinalizer(ctx, &resourcev1.RemoveFinalizerRequest{
				Name: name, Uid: uid,
				Finalizer: finalizer,
			})
			return err
		})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// StatusVersion selects the status that UpdateStatus replaces. Its zero value selects any.
type StatusVersion struct {
	// UID of the resource.
	UID string
	// Generation of the stored status, 0 before the first one; nil for any. Without it a try that arrives
	// late may replace a newer status.
	Generation *int64
}

// StatusOf selects the status that a resource was read with.
func StatusOf(r *resourcev1.Resource) StatusVersion {
	generation := r.GetStatusGeneration()
	return StatusVersion{UID: r.GetUid(), Generation: &generation}
}

// UpdateStatus replaces the status of a resource by a value, which encoding/json converts to an object, and
// leaves its body alone; nil removes the status. A status that is equal to the stored one changes nothing. It
// fails with ErrNotFound, and with ErrConflict if the stored status is another one.
func (c *Client) UpdateStatus(ctx context.Context, name string, status any,
	only StatusVersion,
) (*resourcev1.Resource, error) {
	var fields *structpb.Struct
	if status != nil {
		var err error
		if fields, err = bodyOf(status); err != nil {
			return nil, err
		}
	}
	return c.write(ctx, name, "",
		func(ctx context.Context, door resourcev1.ResourceServiceClient) (*resourcev1.Resource, error) {
			return door.UpdateResourceStatus(ctx, &resourcev1.UpdateResourceStatusRequest{
				Name: name, Uid: only.UID, Status: fields, StatusGeneration: only.Generation,
			})
		})
}

// DecodeStatus converts the status of a resource that a deployment sent by encoding/json, whose errors it
// returns; it leaves into alone when there is none.
func DecodeStatus(r *resourcev1.Resource, into any) error {
	if r.GetStatus() == nil {
		return nil
	}
	return decode(r.GetStatus(), into)
}
