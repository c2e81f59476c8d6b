package client

import (
	"context"
	"fmt"
	"iter"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Get reads a resource by its full name, such as //iam.example.com/us-west2/projects/acme. It fails with
// ErrNotFound.
func (c *Client) Get(ctx context.Context, name string) (*resourcev1.Resource, error) {
	return c.call(ctx, name, "",
		func(ctx context.Context, door resourcev1.ResourceServiceClient) (*resourcev1.Resource, error) {
			return door.GetResource(ctx, &resourcev1.GetResourceRequest{Name: name, Latest: isLatest(ctx)})
		})
}

type latestKey struct{}

// Latest returns a context for gets and lists of the latest state. Without it a deployment may answer them by
// a standby of its database: by a state that is old by a bound, a second by default, and never older than the
// last write of the same person over the same process.
func Latest(ctx context.Context) context.Context { return context.WithValue(ctx, latestKey{}, true) }

func isLatest(ctx context.Context) bool { return ctx.Value(latestKey{}) != nil }

// Create stores a new resource; its name is the full one. It fails with ErrExists if there is one of this
// name.
func (c *Client) Create(ctx context.Context, r *resourcev1.Resource) (*resourcev1.Resource, error) {
	id := requestID(ctx)
	return c.write(ctx, r.GetName(), id,
		func(ctx context.Context, door resourcev1.ResourceServiceClient) (*resourcev1.Resource, error) {
			return door.CreateResource(ctx, &resourcev1.CreateResourceRequest{Resource: r, RequestId: id})
		})
}

// Put creates a resource, or replaces its labels, owner references and body; its name is the full one. With a
// uid or a revision it fails with ErrConflict if the stored one differs, and with ErrNotFound if there is
// none. Put, Create and Update fail with ErrRefused when a reference is refused, with ErrInvalid, and with
// ErrDeleting.
func (c *Client) Put(ctx context.Context, r *resourcev1.Resource) (*resourcev1.Resource, error) {
	id := requestID(ctx)
	return c.write(ctx, r.GetName(), id,
		func(ctx context.Context, door resourcev1.ResourceServiceClient) (*resourcev1.Resource, error) {
			return door.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: r, RequestId: id})
		})
}

// Update replaces the fields of a resource that are in the mask (labels, labels.<key>, owner_references,
// body, body.<field>), without a mask all of them; its name is the full one. It fails with ErrNotFound, or
// with ErrConflict as Put does.
func (c *Client) Update(ctx context.Context, r *resourcev1.Resource, mask ...string) (*resourcev1.Resource, error) {
	id := requestID(ctx)
	return c.write(ctx, r.GetName(), id,
		func(ctx context.Context, door resourcev1.ResourceServiceClient) (*resourcev1.Resource, error) {
			return door.UpdateResource(ctx, &resourcev1.UpdateResourceRequest{
				Resource: r, RequestId: id, UpdateMask: &fieldmaskpb.FieldMask{Paths: mask},
			})
		})
}

// Write is one write of a batch: a *resourcev1.Resource in Create or Put, or an Update with a mask.
type Write = resourcev1.BatchWriteResourcesRequest_Write

// PutOf creates a resource or replaces it, as Put does. The name of the resource is the full one, as for
// CreateOf and UpdateOf.
func PutOf(r *resourcev1.Resource) *Write {
	return &Write{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: r}}
}

// CreateOf fails with ErrExists if there is a resource of this name.
func CreateOf(r *resourcev1.Resource) *Write {
	return &Write{Write: &resourcev1.BatchWriteResourcesRequest_Write_Create{Create: r}}
}

// UpdateOf replaces the fields in the mask, as Update does.
func UpdateOf(r *resourcev1.Resource, mask ...string) *Write {
	return &Write{Write: &resourcev1.BatchWriteResourcesRequest_Write_Update{
		Update: &resourcev1.UpdateResourceRequest{Resource: r, UpdateMask: &fieldmaskpb.FieldMask{Paths: mask}},
	}}
}

// Batch writes all resources of one deployment, or none; they may refer to one another. It returns them in
// the order of the writes. It fails as Create, Put and Update do.
func (c *Client) Batch(ctx context.Context, at schema.DeploymentID, writes ...*Write) ([]*resourcev1.Resource, error) {
	stored, err := c.batch(ctx, at, &resourcev1.BatchWriteResourcesRequest{Writes: writes, RequestId: requestID(ctx)})
	for _, r := range stored {
		Wrote(ctx, WrittenOf(r))
	}
	return stored, err
}

// Validate returns the resources that Batch would store, with defaults, or fails as it would; nothing is
// stored. New resources have no uid, and the others the revision that is stored.
func (c *Client) Validate(ctx context.Context, at schema.DeploymentID,
	writes ...*Write,
) ([]*resourcev1.Resource, error) {
	return c.batch(ctx, at, &resourcev1.BatchWriteResourcesRequest{Writes: writes, ValidateOnly: true})
}

func (c *Client) batch(ctx context.Context, at schema.DeploymentID,
	req *resourcev1.BatchWriteResourcesRequest,
) (out []*resourcev1.Resource, err error) {
	err = c.untilDefinite(ctx, at, req.GetRequestId(),
		func(ctx context.Context, door resourcev1.ResourceServiceClient) error {
			answer, err := door.BatchWriteResources(ctx, req)
			out = answer.GetResources()
			return err
		})
	return out, err
}

// Version selects one incarnation of a resource, or one state of it. Its zero value selects any.
type Version struct {
	// UID of the incarnation: a resource that is deleted and created again has another one. Empty: any.
	UID string
	// Revision of the state: it grows with every change. 0: any.
	Revision int64
}

// Delete deletes a resource by its full name. It returns when the resource is removed, or is in DELETING
// because other deployments have to act first (WaitGone waits for them). It fails with ErrBlocked, naming the
// holders, with ErrNotFound, and with ErrConflict if the stored revision differs. A resource of a kind with a
// retention is hidden until the purge_time of the answer.
func (c *Client) Delete(ctx context.Context, name string, only Version) (*resourcev1.DeleteResourceResponse, error) {
	return c.delete(ctx, name, only, nil)
}

// DeleteFor is Delete with a retention: what the delete reaches is hidden for this time, and is then removed,
// unless Undelete ends the deletion before.
func (c *Client) DeleteFor(ctx context.Context, name string, retention time.Duration,
	only Version,
) (*resourcev1.DeleteResourceResponse, error) {
	return c.delete(ctx, name, only, durationpb.New(retention))
}

// Undelete ends a deletion with a retention by the full name of a resource that it names: all that it has
// hidden, in all deployments, is as it was. A non-empty uid has to be the resource's. It fails with
// ErrNotFound, and with ErrExists when the resource is not deleted, also when the request is repeated. The
// answer has a purge_time if another deletion hides the resource as well.
func (c *Client) Undelete(ctx context.Context, name, uid string) (*resourcev1.Resource, error) {
	full, err := schema.ParseFullName(name)
	if err != nil {
		return nil, err
	}
	var found *resourcev1.Resource
	err = c.throughDoors(ctx, c.ownDoor, full.Deployment, "",
		func(ctx context.Context, door resourcev1.ResourceServiceClient) (err error) {
			found, err = door.UndeleteResource(ctx, &resourcev1.UndeleteResourceRequest{Name: name, Uid: uid})
			return err
		})
	if err == nil {
		Wrote(ctx, WrittenOf(found))
	}
	return found, err
}

func (c *Client) delete(ctx context.Context, name string, only Version,
	retention *durationpb.Duration,
) (*resourcev1.DeleteResourceResponse, error) {
	req := &resourcev1.DeleteResourceRequest{
		Name: name, Uid: only.UID, Revision: only.Revision,
		RequestId: requestID(ctx), Retention: retention,
	}
	full, err := schema.ParseFullName(name)
	if err != nil {
		return nil, err
	}
	var answer *resourcev1.DeleteResourceResponse
	err = c.untilDefinite(ctx, full.Deployment, req.GetRequestId(),
		func(ctx context.Context, door resourcev1.ResourceServiceClient) (err error) {
			answer, err = door.DeleteResource(ctx, req)
			return err
		})
	if err == nil {
		Wrote(ctx, deleted(name, only.UID, answer))
	}
	return answer, err
}

// DeleteAll deletes several resources of one deployment by their full names: all of them, or none. A resource
// that refers to one of them and is deleted with another one does not block. It fails as Delete does; the
// answers have the order of the names.
func (c *Client) DeleteAll(ctx context.Context, names ...string) (answers []*resourcev1.DeleteResourceResponse,
	err error,
) {
	if len(names) == 0 {
		return nil, nil
	}
	full, err := schema.ParseFullName(names[0])
	if err != nil {
		return nil, err
	}
	req := &resourcev1.BatchDeleteResourcesRequest{RequestId: requestID(ctx)}
	for _, name := range names {
		req.Requests = append(req.Requests, &resourcev1.DeleteResourceRequest{Name: name})
	}
	err = c.untilDefinite(ctx, full.Deployment, req.GetRequestId(),
		func(ctx context.Context, door resourcev1.ResourceServiceClient) error {
			answer, err := door.BatchDeleteResources(ctx, req)
			answers = answer.GetResponses()
			return err
		})
	if err == nil {
		for i := range min(len(names), len(answers)) {
			Wrote(ctx, deleted(names[i], "", answers[i]))
		}
	}
	return answers, err
}

// write is call for a write, which it reports.
func (c *Client) write(ctx context.Context, name, id string,
	request func(context.Context, resourcev1.ResourceServiceClient) (*resourcev1.Resource, error),
) (*resourcev1.Resource, error) {
	r, err := c.call(ctx, name, id, request)
	if err == nil {
		Wrote(ctx, WrittenOf(r))
	}
	return r, err
}

func (c *Client) call(ctx context.Context, name, id string,
	request func(context.Context, resourcev1.ResourceServiceClient) (*resourcev1.Resource, error),
) (r *resourcev1.Resource, err error) {
	full, err := schema.ParseFullName(name)
	if err != nil {
		return nil, err
	}
	err = c.untilDefinite(ctx, full.Deployment, id,
		func(ctx context.Context, door resourcev1.ResourceServiceClient) (err error) {
			r, err = request(ctx, door)
			return err
		})
	return r, err
}

// FullName returns the full name of a resource that a deployment sent.
func FullName(r *resourcev1.Resource) string { return "//" + r.GetDeployment() + "/" + r.GetName() }

// Query selects and orders resources; its zero value selects all of them.
type Query struct {
	// Kind such as Device; empty: all kinds.
	Kind string
	// Filter in the language of AIP-160, such as labels.team = "a" AND body.size > 3; empty: no condition.
	Filter string
	// OrderBy is a list of fields, such as create_time desc, body.size; empty: by name.
	OrderBy string
	// ShowDeleted: also resources that a deletion with a retention hides. They have a purge_time.
	ShowDeleted bool
}

// List returns the resources of a deployment that match a query, and reads them page by page. It ends after
// an error.
func (c *Client) List(ctx context.Context, id schema.DeploymentID, q Query) iter.Seq2[*resourcev1.Resource, error] {
	return func(yield func(*resourcev1.Resource, error) bool) {
		for token := ""; ; {
			page, err := c.page(ctx, id, q, token)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, r := range page.GetResources() {
				if !yield(r, nil) {
					return
				}
			}
			if token = page.GetNextPageToken(); token == "" {
				return
			}
		}
	}
}

func (c *Client) page(ctx context.Context, id schema.DeploymentID, q Query,
	token string,
) (page *resourcev1.ListResourcesResponse, err error) {
	err = c.untilDefinite(ctx, id, "", func(ctx context.Context, door resourcev1.ResourceServiceClient) (err error) {
		page, err = door.ListResources(ctx, &resourcev1.ListResourcesRequest{
			Kind: q.Kind, Filter: q.Filter, OrderBy: q.OrderBy, Region: id.Region, PageSize: maxPageSize,
			PageToken: token, ShowDeleted: q.ShowDeleted, Latest: isLatest(ctx),
		})
		return err
	})
	return page, err
}

// WaitGone waits until no resource with the full name and the uid exists. While it waits, progress receives
// the resource whenever its state or its conditions, the reasons for the wait, have changed; nil for none. It
// ends with the error of ctx, without a bound of its own.
func (c *Client) WaitGone(ctx context.Context, full, uid string, progress func(*resourcev1.Resource)) error {
	name, err := schema.ParseFullName(full)
	if err != nil {
		return err
	}
	resources, err := c.Resources(ctx, name.Deployment)
	if err != nil {
		return err
	}
	var told string
	for pauses := (retry.Backoff{First: time.Millisecond, Max: 50 * time.Millisecond}); ; {
		r, err := resources.GetResource(ctx, &resourcev1.GetResourceRequest{Name: name.Name})
		switch {
		case status.Code(err) == codes.NotFound, err == nil && r.GetUid() != uid:
			return nil
		case err != nil && status.Code(err) != codes.Unavailable:
			return errorOf(err, name.Deployment)
		}
		if now := fmt.Sprint(r.GetState(), r.GetConditions()); err == nil && progress != nil && now != told {
			told = now
			progress(r)
		}
		if err := pauses.Wait(ctx); err != nil {
			return err
		}
	}
}
