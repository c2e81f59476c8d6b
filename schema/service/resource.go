package service

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

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

// resources is the ResourceService of one deployment.
type resources struct {
	resourcev1.UnimplementedResourceServiceServer
	store *shadow.Store
	log   *zap.Logger
}

func (r *resources) GetResource(ctx context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	name, err := r.ownName(req.GetName())
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	found, err := r.store.Get(ctx, name)
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	out, err := r.proto(found)
	if err != nil || found.State != shadow.Deleting {
		return out, toStatus(r.log, err)
	}
	conditions, err := r.store.Conditions(ctx, name)
	for _, c := range conditions {
		out.Conditions = append(out.Conditions, &resourcev1.Condition{Type: c.Type, Message: c.Message})
	}
	return out, toStatus(r.log, err)
}

func (r *resources) ListResources(ctx context.Context, req *resourcev1.ListResourcesRequest) (*resourcev1.ListResourcesResponse, error) {
	size := int(req.GetPageSize())
	if size <= 0 {
		size = defaultPageSize
	}
	size = min(size, maxPageSize)
	kinds, after, err := r.page(req)
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	out := &resourcev1.ListResourcesResponse{}
	for _, kind := range kinds {
		found, err := r.store.List(ctx, kind, after, size-len(out.Resources))
		if err != nil {
			return nil, toStatus(r.log, err)
		}
		for i := range found {
			p, err := r.proto(&found[i])
			if err != nil {
				return nil, toStatus(r.log, err)
			}
			out.Resources = append(out.Resources, p)
		}
		if len(out.Resources) == size {
			last := out.Resources[size-1]
			out.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(last.GetKind() + "/" + last.GetName()))
			break
		}
		after = ""
	}
	return out, nil
}

// page gives the kinds that are left to list, and the name to go on after in the first of them.
func (r *resources) page(req *resourcev1.ListResourcesRequest) (kinds []string, after string, err error) {
	model := r.store.Model()
	if model == nil {
		return nil, "", &shadow.UnavailableError{Deployments: []schema.DeploymentID{r.store.Deployment()}, Err: errors.New("its version is not known yet")}
	}
	kinds = model.KindNames()
	if req.GetKind() != "" {
		kinds = []string{req.GetKind()}
	}
	if req.GetPageToken() == "" {
		return kinds, "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	kind, after, ok := strings.Cut(string(raw), "/")
	if err != nil || !ok {
		return nil, "", &shadow.InvalidError{Resource: "page_token", Err: errors.New("want the next_page_token of an earlier answer")}
	}
	for i, k := range kinds {
		if k == kind {
			return kinds[i:], after, nil
		}
	}
	return nil, "", &shadow.InvalidError{Resource: "page_token", Err: errors.New("it is of a list of another kind")}
}

func (r *resources) CreateResource(ctx context.Context, req *resourcev1.CreateResourceRequest) (*resourcev1.Resource, error) {
	return r.save(ctx, shadow.Create, req.GetRequestId(), req.GetResource())
}

func (r *resources) UpdateResource(ctx context.Context, req *resourcev1.UpdateResourceRequest) (*resourcev1.Resource, error) {
	return r.save(ctx, shadow.Update, req.GetRequestId(), req.GetResource())
}

func (r *resources) PutResource(ctx context.Context, req *resourcev1.PutResourceRequest) (*resourcev1.Resource, error) {
	return r.save(ctx, shadow.Put, req.GetRequestId(), req.GetResource())
}

func (r *resources) save(ctx context.Context, mode shadow.Mode, request string, in *resourcev1.Resource) (*resourcev1.Resource, error) {
	saved, err := r.saveAll(ctx, mode, request, []*resourcev1.Resource{in})
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	return saved[0], nil
}

func (r *resources) BatchPutResources(ctx context.Context, req *resourcev1.BatchPutResourcesRequest) (*resourcev1.BatchPutResourcesResponse, error) {
	if n := len(req.GetResources()); n > MaxBatch {
		return nil, toStatus(r.log, &shadow.InvalidError{Resource: "resources", Err: fmt.Errorf("%d in one batch, at most %d are allowed", n, MaxBatch)})
	}
	saved, err := r.saveAll(ctx, shadow.Put, req.GetRequestId(), req.GetResources())
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	return &resourcev1.BatchPutResourcesResponse{Resources: saved}, nil
}

func (r *resources) saveAll(ctx context.Context, mode shadow.Mode, request string, in []*resourcev1.Resource) ([]*resourcev1.Resource, error) {
	writes := make([]shadow.Write, len(in))
	for i, p := range in {
		name, err := r.ownName(p.GetName())
		if err != nil {
			return nil, err
		}
		writes[i] = shadow.Write{Mode: mode, Name: name, Revision: shadow.Revision(p.GetRevision()), Labels: p.GetLabels(), Body: p.GetBody().AsMap()}
		if writes[i].UID, err = optionalUUID("uid", p.GetUid()); err != nil {
			return nil, err
		}
		if err := r.checkKind(p, name); err != nil {
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
		out[i].Body = in[i].GetBody()
	}
	return out, nil
}

// checkKind refuses a kind that is not that of the name.
func (r *resources) checkKind(p *resourcev1.Resource, name string) error {
	model := r.store.Model()
	if p.GetKind() == "" || model == nil {
		return nil
	}
	if _, err := model.Kind(p.GetKind()); err != nil {
		return &shadow.InvalidError{Resource: name, Err: err}
	}
	if kind, err := model.KindOf(name); err == nil && kind.ID.Kind != p.GetKind() {
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
	result, err := r.store.Delete(ctx, shadow.DeleteRequest{Name: name, UID: uid, Revision: shadow.Revision(req.GetRevision())})
	if err != nil {
		return nil, toStatus(r.log, err)
	}
	out := &resourcev1.DeleteResourceResponse{Removed: result.Removed}
	for _, d := range result.Unasked {
		out.UnaskedDeployments = append(out.UnaskedDeployments, d.String())
	}
	if result.Resource != nil {
		out.Resource, err = r.proto(result.Resource)
	}
	return out, toStatus(r.log, err)
}

func (r *resources) WatchResources(req *resourcev1.WatchResourcesRequest, stream grpc.ServerStreamingServer[resourcev1.WatchResourcesResponse]) error {
	err := r.store.WatchResources(stream.Context(), req.GetKind(), req.GetResumeToken(), func(e schema.Event[shadow.Resource]) error {
		for i := range e.Items {
			p, err := r.proto(&e.Items[i])
			if err != nil {
				return err
			}
			out := &resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{Upsert: p}}
			if e.Items[i].State == shadow.Gone {
				out.Event = &resourcev1.WatchResourcesResponse_Delete{Delete: p}
			}
			if err := stream.Send(out); err != nil {
				return err
			}
		}
		switch {
		case e.EndOfSnapshot:
			return stream.Send(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_EndOfSnapshot_{
				EndOfSnapshot: &resourcev1.WatchResourcesResponse_EndOfSnapshot{ResumeToken: e.Token},
			}})
		case e.Token != "":
			return stream.Send(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Bookmark_{
				Bookmark: &resourcev1.WatchResourcesResponse_Bookmark{ResumeToken: e.Token},
			}})
		}
		return nil
	})
	return toStatus(r.log, err)
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
		return "", &shadow.InvalidError{Err: fmt.Errorf("%s belongs to %s: ask it there, this is %s", full, full.Deployment, r.store.Deployment())}
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

func (r *resources) proto(in *shadow.Resource) (*resourcev1.Resource, error) {
	out := &resourcev1.Resource{
		Name: in.Name, Kind: in.Kind, Uid: in.UID.String(), Revision: int64(in.Revision), Generation: in.Generation, Labels: in.Labels,
		CreateTime: timestamppb.New(in.CreatedAt), UpdateTime: timestamppb.New(in.UpdatedAt), Deployment: r.store.Deployment().String(),
	}
	switch in.State {
	case shadow.Active:
		out.State = resourcev1.Resource_STATE_ACTIVE
	case shadow.Deleting:
		out.State = resourcev1.Resource_STATE_DELETING
	case shadow.Gone:
	}
	if in.Body == nil {
		return out, nil
	}
	var body map[string]any
	if err := json.Unmarshal(in.Body, &body); err != nil {
		return nil, fmt.Errorf("the stored body of %s: %w", in.Name, err)
	}
	var err error
	out.Body, err = structpb.NewStruct(body)
	return out, err
}
