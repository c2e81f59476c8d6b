package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// Limits of a request.
const (
	MaxBatch        = 1000
	maxPageSize     = 1000
	defaultPageSize = 100
)

// resources is the ResourceService of one deployment. What belongs to another region does not get here: it is
// forwarded.
type resources struct {
	resourcev1.UnimplementedResourceServiceServer
	store *shadow.Store
	// forward answers what other regions own.
	forward *forwarder
	log     *zap.Logger
}

func (r *resources) GetResource(ctx context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	out, err := r.get(ctx, req)
	return out, toStatus(r.log, err)
}

func (r *resources) get(ctx context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	name, err := r.ownName(req.GetName())
	if err != nil {
		return nil, err
	}
	found, err := r.store.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	out, err := r.proto(found)
	if err != nil || found.State != shadow.Deleting {
		return out, errors.Join(err, prune(out, req.GetReadMask()))
	}
	conditions, err := r.store.Conditions(ctx, name)
	for _, c := range conditions {
		out.Conditions = append(out.Conditions, &resourcev1.Condition{Type: c.Type, Message: c.Message})
	}
	return out, errors.Join(err, prune(out, req.GetReadMask()))
}

func (r *resources) BatchGetResources(ctx context.Context, req *resourcev1.BatchGetResourcesRequest) (*resourcev1.BatchGetResourcesResponse, error) {
	if n := len(req.GetNames()); n > MaxBatch {
		return nil, toStatus(r.log, invalid("names", fmt.Errorf("%d in one batch, at most %d are allowed", n, MaxBatch)))
	}
	out, bytes := &resourcev1.BatchGetResourcesResponse{}, 0
	for _, name := range req.GetNames() {
		one := &resourcev1.GetResourceRequest{Name: name, ReadMask: req.GetReadMask()}
		var found *resourcev1.Resource
		to, err := r.forward.elsewhere(ctx, one)
		switch {
		case err != nil:
		case to.IsZero():
			found, err = r.get(ctx, one)
		default:
			found, err = r.forward.get(ctx, to, one)
		}
		if err != nil {
			return nil, toStatus(r.log, err)
		}
		if bytes += proto.Size(found); bytes > identity.MaxMessageBytes/2 {
			return nil, toStatus(r.log, invalid("names", fmt.Errorf("the first %d resources have more than %d bytes together: ask for fewer", len(out.Resources), identity.MaxMessageBytes/2)))
		}
		out.Resources = append(out.Resources, found)
	}
	return out, nil
}

func (r *resources) ListResources(ctx context.Context, req *resourcev1.ListResourcesRequest) (*resourcev1.ListResourcesResponse, error) {
	size := int(req.GetPageSize())
	if size <= 0 {
		size = defaultPageSize
	}
	found, next, err := r.store.List(ctx, shadow.ListRequest{
		Kind: req.GetKind(), Limit: min(size, maxPageSize), Token: req.GetPageToken(), Filter: req.GetFilter(), OrderBy: req.GetOrderBy(),
	})
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	out := &resourcev1.ListResourcesResponse{NextPageToken: next, Resources: make([]*resourcev1.Resource, len(found))}
	for i := range found {
		if out.Resources[i], err = r.proto(&found[i]); err == nil {
			err = prune(out.Resources[i], req.GetReadMask())
		}
		if err != nil {
			return nil, toStatus(r.log, err)
		}
	}
	return out, nil
}

func (r *resources) CreateResource(ctx context.Context, req *resourcev1.CreateResourceRequest) (*resourcev1.Resource, error) {
	return r.save(ctx, req.GetRequestId(), &resourcev1.BatchWriteResourcesRequest_Write{
		Write: &resourcev1.BatchWriteResourcesRequest_Write_Create{Create: req.GetResource()},
	})
}

func (r *resources) UpdateResource(ctx context.Context, req *resourcev1.UpdateResourceRequest) (*resourcev1.Resource, error) {
	return r.save(ctx, req.GetRequestId(), &resourcev1.BatchWriteResourcesRequest_Write{
		Write: &resourcev1.BatchWriteResourcesRequest_Write_Update{Update: req},
	})
}

func (r *resources) PutResource(ctx context.Context, req *resourcev1.PutResourceRequest) (*resourcev1.Resource, error) {
	return r.save(ctx, req.GetRequestId(), &resourcev1.BatchWriteResourcesRequest_Write{
		Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: req.GetResource()},
	})
}

func (r *resources) save(ctx context.Context, request string, w *resourcev1.BatchWriteResourcesRequest_Write) (*resourcev1.Resource, error) {
	saved, err := r.saveAll(ctx, request, []*resourcev1.BatchWriteResourcesRequest_Write{w})
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	return saved[0], nil
}

func (r *resources) BatchWriteResources(ctx context.Context, req *resourcev1.BatchWriteResourcesRequest) (*resourcev1.BatchWriteResourcesResponse, error) {
	if n := len(req.GetWrites()); n > MaxBatch {
		return nil, toStatus(r.log, invalid("writes", fmt.Errorf("%d in one batch, at most %d are allowed", n, MaxBatch)))
	}
	saved, err := r.saveAll(ctx, req.GetRequestId(), req.GetWrites())
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	return &resourcev1.BatchWriteResourcesResponse{Resources: saved}, nil
}

func (r *resources) MutateAndValidateResource(ctx context.Context, req *resourcev1.MutateAndValidateResourceRequest) (*resourcev1.Resource, error) {
	if n := len(req.GetMore()); n >= MaxBatch {
		return nil, toStatus(r.log, invalid("more", fmt.Errorf("%d in one batch with write, fewer than %d are allowed", n, MaxBatch)))
	}
	writes := make([]shadow.Write, 1+len(req.GetMore()))
	for i, w := range append([]*resourcev1.BatchWriteResourcesRequest_Write{req.GetWrite()}, req.GetMore()...) {
		var err error
		if writes[i], err = r.write(w); err != nil {
			return nil, toStatus(r.log, err)
		}
	}
	would, err := r.store.ValidateBatch(ctx, writes, req.GetPageToken())
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	out, err := r.proto(would)
	if would.UID == uuid.Nil {
		out.Uid, out.CreateTime, out.UpdateTime = "", nil, nil
	}
	return out, toStatus(r.log, err)
}

func (r *resources) SetBlockDeletion(ctx context.Context, req *resourcev1.SetBlockDeletionRequest) (*resourcev1.Resource, error) {
	name, err := r.ownName(req.GetName())
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	uid, err := optionalUUID("uid", req.GetUid())
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	found, err := r.store.SetBlockDeletion(ctx, name, uid, req.GetBlockDeletion())
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	out, err := r.proto(found)
	return out, toStatus(r.log, err)
}

// written gives the resource of a write.
func written(w *resourcev1.BatchWriteResourcesRequest_Write) *resourcev1.Resource {
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

func (r *resources) write(in *resourcev1.BatchWriteResourcesRequest_Write) (w shadow.Write, err error) {
	p := written(in)
	if p == nil {
		return w, invalid("resource", errors.New("there is none"))
	}
	switch in := in.GetWrite().(type) {
	case *resourcev1.BatchWriteResourcesRequest_Write_Create:
		w.Mode = shadow.Create
	case *resourcev1.BatchWriteResourcesRequest_Write_Update:
		w.Mode, w.Mask = shadow.Update, in.Update.GetUpdateMask().GetPaths()
	}
	if w.Name, err = r.ownName(p.GetName()); err != nil {
		return w, err
	}
	if err := checkBody(p.GetBody()); err != nil {
		return w, &shadow.InvalidError{Resource: w.Name, Err: err}
	}
	w.Revision, w.Labels, w.Body = shadow.Revision(p.GetRevision()), p.GetLabels(), p.GetBody().AsMap()
	if w.UID, err = optionalUUID("uid", p.GetUid()); err != nil {
		return w, err
	}
	if w.Owners, err = owners(r.store.Deployment(), p.GetOwnerReferences()); err != nil {
		return w, err
	}
	return w, r.checkKind(p, w.Name)
}

func (r *resources) saveAll(ctx context.Context, request string, in []*resourcev1.BatchWriteResourcesRequest_Write) ([]*resourcev1.Resource, error) {
	writes := make([]shadow.Write, len(in))
	var err error
	for i, w := range in {
		if writes[i], err = r.write(w); err != nil {
			return nil, err
		}
	}
	id, err := optionalUUID("request_id", request)
	if err != nil {
		return nil, err
	}
	var saved []shadow.Resource
	if id == uuid.Nil {
		saved, err = r.store.Save(ctx, writes)
	} else {
		saved, err = r.store.SaveRequested(ctx, id, writes)
	}
	if err != nil {
		return nil, err
	}
	out := make([]*resourcev1.Resource, len(saved))
	for i := range saved {
		if out[i], err = r.proto(&saved[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// checkKind refuses a kind that is not that of the name.
func (r *resources) checkKind(p *resourcev1.Resource, name string) error {
	model := r.store.Model()
	if p.GetKind() == "" || model == nil {
		return nil
	}
	given := model.Canonical(schema.KindID{Service: r.store.Deployment().Service, Kind: p.GetKind()})
	if _, err := model.Kind(given.Kind); err != nil {
		return &shadow.InvalidError{Resource: name, Err: err}
	}
	if kind, err := model.KindOf(name); err == nil && kind.ID != given {
		return &shadow.InvalidError{Resource: name, Err: fmt.Errorf("kind %q does not fit the name, which is of kind %s", p.GetKind(), kind.ID.Kind)}
	}
	return nil
}

func (r *resources) DeleteResource(ctx context.Context, req *resourcev1.DeleteResourceRequest) (*resourcev1.DeleteResourceResponse, error) {
	name, err := r.ownName(req.GetName())
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	uid, err := optionalUUID("uid", req.GetUid())
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	request, err := optionalUUID("request_id", req.GetRequestId())
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	who, err := actor(ctx)
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	ctx, cancel := beforeDeadline(ctx)
	defer cancel()
	result, err := r.store.Delete(ctx, shadow.DeleteRequest{
		Name: name, UID: uid, Revision: shadow.Revision(req.GetRevision()), Actor: who, RequestID: request,
	})
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	out := &resourcev1.DeleteResourceResponse{Removed: result.Removed}
	out.UnaskedDeployments, out.Unasked = unaskedProto(result.Unasked)
	if result.Resource != nil {
		out.Resource, err = r.proto(result.Resource)
	}
	return out, toStatus(r.log, err)
}

// beforeDeadline ends a little before the caller stops waiting, so that it is still told why.
func beforeDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/10, 500*time.Millisecond)))
}

func (r *resources) WatchResources(req *resourcev1.WatchResourcesRequest, stream grpc.ServerStreamingServer[resourcev1.WatchResourcesResponse]) error {
	err := shadow.WatchResourcesAs(stream.Context(), r.store, req.GetKind(), req.GetFilter(), req.GetResumeToken(), r.event, func(e schema.Event[*resourcev1.WatchResourcesResponse]) error {
		for i, event := range e.Items {
			if i == len(e.Items)-1 { // a message of its own: the others' is the same
				event = &resourcev1.WatchResourcesResponse{Event: event.GetEvent(), ResumeToken: e.Token}
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		}
		switch {
		case e.EndOfSnapshot:
			return stream.Send(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_EndOfSnapshot_{
				EndOfSnapshot: &resourcev1.WatchResourcesResponse_EndOfSnapshot{ResumeToken: e.Token},
			}})
		case e.Token != "" && len(e.Items) == 0:
			return stream.Send(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Bookmark_{
				Bookmark: &resourcev1.WatchResourcesResponse_Bookmark{ResumeToken: e.Token},
			}})
		}
		return nil
	})
	return toStatus(r.log, err)
}

func (r *resources) event(of shadow.Resource) (*resourcev1.WatchResourcesResponse, error) {
	p, err := r.proto(&of)
	if of.State == shadow.Gone {
		return &resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Delete{Delete: p}}, err
	}
	return &resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{Upsert: p}}, err
}

// ownName takes a relative name, or the full name of a resource of this deployment.
func (r *resources) ownName(s string) (string, error) {
	if !strings.HasPrefix(s, "//") {
		return s, nil
	}
	full, err := schema.ParseFullName(s)
	if err != nil {
		return "", &shadow.InvalidError{Err: err}
	}
	if full.Deployment != r.store.Deployment() {
		return "", &shadow.InvalidError{Err: fmt.Errorf("%s belongs to %s, this is %s", full, full.Deployment, r.store.Deployment())}
	}
	return full.Name, nil
}

func optionalUUID(field, s string) (uuid.UUID, error) {
	if s == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return uuid.Nil, invalid(field, err)
	}
	return id, nil
}
