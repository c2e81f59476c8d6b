package dbctest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// failed is a refusal with its reason.
func failed(reason, format string, args ...any) error {
	s := status.Newf(codes.FailedPrecondition, format, args...)
	detailed, err := s.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "dbcontroller"})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}

var errNoRetention = status.Error(codes.Unimplemented,
	"a Fake hides nothing, and has no retention: test deletions that are undone with an Installation (New)")

// gone is the removal of a resource; mu is held.
func (f *Fake) gone(r *resourcev1.Resource) change {
	return change{gone: true, of: &resourcev1.Resource{
		Name: r.GetName(), Kind: r.GetKind(), Uid: r.GetUid(),
		Deployment: r.GetDeployment(), Revision: f.next(),
	}}
}

func (d *door) DeleteResource(_ context.Context,
	req *resourcev1.DeleteResourceRequest,
) (*resourcev1.DeleteResourceResponse, error) {
	if req.GetRetention() != nil {
		return nil, errNoRetention
	}
	answers, err := d.deleteAll([]*resourcev1.DeleteResourceRequest{req}, req.GetRequestId(), req.GetMaxRemovals(),
		req.GetNow())
	if err != nil {
		return nil, err
	}
	return answers[0], nil
}

func (d *door) BatchDeleteResources(_ context.Context,
	req *resourcev1.BatchDeleteResourcesRequest,
) (*resourcev1.BatchDeleteResourcesResponse, error) {
	if req.GetRetention() != nil {
		return nil, errNoRetention
	}
	answers, err := d.deleteAll(req.GetRequests(), req.GetRequestId(), req.GetMaxRemovals(), req.GetNow())
	return &resourcev1.BatchDeleteResourcesResponse{Responses: answers}, err
}

// deleteAll deletes all of some resources, or none. The same request id has the same answer.
func (d *door) deleteAll(reqs []*resourcev1.DeleteResourceRequest, id string, most int64,
	now bool,
) (answers []*resourcev1.DeleteResourceResponse, err error) {
	f := d.fake
	f.mu.Lock()
	defer f.mu.Unlock()
	if before, done := f.answers[id]; done && len(before.deleted) == len(reqs) {
		return before.deleted, before.err
	} else if done {
		return nil, status.Errorf(codes.AlreadyExists, "the request id %s was used for another request", id)
	}
	if len(reqs) == 0 {
		return nil, outcome.Status(zap.NewNop(), outcome.Invalid("requests", errors.New("0 in one batch")))
	}
	var at schema.DeploymentID
	var changes []change
	for i, req := range reqs {
		full, r, err := d.find(req.GetName(), req.GetUid(), req.GetRevision())
		if req.GetAllowMissing() && status.Code(err) == codes.NotFound {
			answers = append(answers, &resourcev1.DeleteResourceResponse{Removed: true})
			continue
		}
		if err != nil {
			return nil, err
		}
		if i > 0 && at != full.Deployment {
			return nil, outcome.Status(zap.NewNop(),
				outcome.Invalid("name", fmt.Errorf("%s is of another deployment than %s", full, at)))
		}
		at = full.Deployment
		if kind, err := f.models[full.Deployment].KindOf(full.Name); err == nil && kind.Retention > 0 && !now {
			return nil, errNoRetention
		}
		c, left := f.removal(full, r)
		if c != nil {
			changes = append(changes, *c)
		}
		answers = append(answers, &resourcev1.DeleteResourceResponse{Removed: !left})
	}
	if most > 0 && int64(len(changes)) > most {
		return nil, outcome.Status(zap.NewNop(), fmt.Errorf("the delete removes %d resources, %d are allowed: %w",
			len(changes), most, peer.ErrTooManyRemovals))
	}
	f.commit(at, changes...)
	if id != "" {
		f.answers[id] = answer{deleted: answers}
	}
	return answers, nil
}

// removal returns the change of a delete, if there is one, and whether the resource is left in DELETING; mu
// is held.
func (f *Fake) removal(full schema.FullName, r *resourcev1.Resource) (c *change, left bool) {
	if r.GetState() == resourcev1.Resource_STATE_DELETING {
		return nil, true
	}
	var finalizers []string
	if kind, err := f.models[full.Deployment].KindOf(full.Name); err == nil {
		finalizers = kind.FinalizerNames()
	}
	if len(finalizers) == 0 {
		gone := f.gone(r)
		return &gone, false
	}
	r = proto.CloneOf(r)
	r.State, r.Finalizers, r.Revision, r.UpdateTime = resourcev1.Resource_STATE_DELETING, finalizers, f.next(),
		timestamppb.Now()
	return &change{of: r}, true
}

func (d *door) RemoveFinalizer(_ context.Context,
	req *resourcev1.RemoveFinalizerRequest,
) (*resourcev1.Resource, error) {
	f := d.fake
	f.mu.Lock()
	defer f.mu.Unlock()
	full, r, err := d.find(req.GetName(), req.GetUid(), 0)
	switch {
	case req.GetUid() == "":
		return nil, outcome.Status(zap.NewNop(), outcome.Invalid("uid", errors.New("is missing")))
	case err != nil:
		return nil, err
	case r.GetState() != resourcev1.Resource_STATE_DELETING:
		return nil, failed("NOT_DELETING", "%s is not being deleted", full)
	case !slices.Contains(r.GetFinalizers(), req.GetFinalizer()):
		return r, nil
	}
	r = proto.CloneOf(r)
	r.Revision = f.next()
	if r.Finalizers = slices.DeleteFunc(r.GetFinalizers(), func(name string) bool {
		return name == req.GetFinalizer()
	}); len(r.GetFinalizers()) == 0 {
		f.commit(full.Deployment, f.gone(r))
	} else {
		f.commit(full.Deployment, change{of: r})
	}
	return r, nil
}

func (d *door) UpdateResourceStatus(_ context.Context,
	req *resourcev1.UpdateResourceStatusRequest,
) (*resourcev1.Resource, error) {
	f := d.fake
	f.mu.Lock()
	defer f.mu.Unlock()
	full, r, err := d.find(req.GetName(), req.GetUid(), 0)
	switch {
	case err != nil:
		return nil, err
	case proto.Equal(r.GetStatus(), req.GetStatus()):
		return r, nil
	case req.StatusGeneration != nil && req.GetStatusGeneration() != r.GetStatusGeneration():
		return nil, failed("MOVED", "%s: its status has generation %d, not %d", full, r.GetStatusGeneration(),
			req.GetStatusGeneration())
	}
	r = proto.CloneOf(r)
	r.Status, r.StatusGeneration, r.Revision, r.UpdateTime = req.GetStatus(), r.GetStatusGeneration()+1, f.next(),
		timestamppb.Now()
	f.commit(full.Deployment, change{of: r})
	return r, nil
}

// WatchResources sends the resources, EndOfSnapshot, and then each transaction. The token of an event is the
// number of transactions that it ends.
func (d *door) WatchResources(req *resourcev1.WatchResourcesRequest,
	stream resourcev1.ResourceService_WatchResourcesServer,
) error {
	kinds, err := kindsOf(req.GetKind(), req.GetFilter())
	if err != nil {
		return err
	}
	f, at := d.fake, d.in(req.GetRegion())
	n, err := f.snapshot(at, kinds, req.GetResumeToken(), stream)
	if err != nil {
		return err
	}
	for {
		f.mu.Lock()
		news, newer := slices.Clone(f.log[n:]), f.newer
		f.mu.Unlock()
		for _, t := range news {
			n++
			for _, e := range eventsOf(t, at, kinds, token(n)) {
				if err := stream.Send(e); err != nil {
					return err
				}
			}
		}
		select {
		case <-newer:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// snapshot sends the resources, unless a token resumes the watch, and returns the number of transactions that
// were sent.
func (f *Fake) snapshot(at schema.DeploymentID, kinds []string, resume string,
	stream resourcev1.ResourceService_WatchResourcesServer,
) (int, error) {
	f.mu.Lock()
	n, all := len(f.log), f.all(at, kinds)
	f.mu.Unlock()
	if resume != "" {
		for from := range n + 1 {
			if token(from) == resume {
				return from, nil
			}
		}
		return 0, status.Error(codes.OutOfRange, "the token is of another watch")
	}
	for _, r := range all {
		if err := stream.Send(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{
			Upsert: r,
		}}); err != nil {
			return n, err
		}
	}
	return n, stream.Send(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_EndOfSnapshot_{
		EndOfSnapshot: &resourcev1.WatchResourcesResponse_EndOfSnapshot{ResumeToken: token(n)},
	}})
}

// eventsOf returns the events of a transaction for a watch; the last one has the token.
func eventsOf(t transaction, at schema.DeploymentID, kinds []string,
	token string,
) (events []*resourcev1.WatchResourcesResponse) {
	for _, c := range t.changes {
		switch {
		case t.at != at || !selects(kinds, c.of):
		case c.gone:
			events = append(events,
				&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Delete{Delete: c.of}})
		default:
			events = append(events,
				&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{Upsert: c.of}})
		}
	}
	if len(events) == 0 {
		events = append(events, &resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Bookmark_{
			Bookmark: &resourcev1.WatchResourcesResponse_Bookmark{ResumeToken: token},
		}})
	}
	events[len(events)-1].ResumeToken = token
	return events
}
