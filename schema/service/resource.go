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
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/db-controller/db-controller/internal/budget"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/service/readmask"
	"github.com/db-controller/db-controller/schema/service/writes"
	"github.com/db-controller/db-controller/schema/shadow"
)

// Limits of a request.
const (
	MaxBatch    = 1000
	maxPageSize = 1000
	// maxBatchBytes bounds the resources of a BatchGetResources.
	maxBatchBytes   = 4 << 20
	defaultPageSize = 100
)

// resourceReader reads stored resources. Get fails with peer.ErrNotFound.
type resourceReader interface {
	Get(ctx context.Context, name string) (*peer.Resource, error)
	Conditions(ctx context.Context, name string) ([]shadow.Condition, error)
	List(ctx context.Context, req shadow.ListRequest) ([]peer.Resource, string, error)
}

// resourceWriter writes a batch of resources, all or nothing. ValidateBatch returns the results of Save, and
// stores nothing.
type resourceWriter interface {
	Save(ctx context.Context, writes []peer.Write) ([]peer.Resource, error)
	SaveRequested(ctx context.Context, id uuid.UUID, writes []peer.Write) ([]peer.Resource, error)
	ValidateBatch(ctx context.Context, writes []peer.Write, token string) ([]peer.Resource, error)
}

// resourceDeleter deletes resources, and plans a deletion.
type resourceDeleter interface {
	DeleteAll(ctx context.Context, reqs []shadow.DeleteRequest) ([]peer.DeleteResult, error)
	PlanDelete(ctx context.Context, names ...string) (*shadow.DeletePlan, error)
	Undelete(ctx context.Context, name string, uid uuid.UUID) (*peer.Resource, error)
}

// deletionBlocker protects resources from being deleted.
type deletionBlocker interface {
	SetBlockDeletion(ctx context.Context, name string, uid uuid.UUID, block bool) (*peer.Resource, error)
}

// resourceControls store the reports of controllers about resources.
type resourceControls interface {
	RemoveFinalizer(ctx context.Context, name string, uid uuid.UUID, finalizer string) (*peer.Resource, error)
	UpdateStatus(ctx context.Context, name string, uid uuid.UUID, status []byte,
		generation *int64) (*peer.Resource, error)
}

// watchedResources delivers the resources that a request asks for, as messages that all watches of them
// share.
type watchedResources func(ctx context.Context, req *resourcev1.WatchResourcesRequest,
	as func(peer.Resource) (sharedEvent, error), deliver func(schema.Event[sharedEvent]) error) error

// sharedEvent is encoded once for all watches.
type sharedEvent = *identity.Shared[*resourcev1.WatchResourcesResponse]

// resources is the ResourceService of one deployment. It handles resources of this deployment only: the
// forwarder has already sent requests for other regions there.
type resources struct {
	resourcev1.UnimplementedResourceServiceServer
	self      schema.DeploymentID
	model     func() *schema.Model // nil until the deployment runs a version
	reader    resourceReader
	writer    resourceWriter
	deleter   resourceDeleter
	blocker   deletionBlocker
	controls  resourceControls
	acquirer  rightAcquirer
	watched   watchedResources
	referrers referrerReader
	// forward gets resources of other regions for BatchGetResources, whose names can be of several regions.
	forward *forwarder
	log     *zap.Logger
	// deleted is called with the result of each delete; may be nil.
	deleted func(outcome.DeleteResult, time.Duration)
}

func newResources(cfg Config) *resources {
	store := cfg.Store
	return &resources{
		self: store.Deployment(), model: store.Model, reader: store.Read, writer: store.Write, deleter: store.Deletions,
		blocker: store.Write, controls: store.Write, acquirer: store.RightRequests, referrers: store.Operate,
		watched: func(ctx context.Context, req *resourcev1.WatchResourcesRequest,
			as func(peer.Resource) (sharedEvent, error), deliver func(schema.Event[sharedEvent]) error,
		) error {
			return shadow.WatchResourcesAs(ctx, store, shadow.WatchRequest{
				Kind: req.GetKind(), Filter: req.GetFilter(), Token: req.GetResumeToken(), Within: access.Names(ctx),
				Form: identity.Received(ctx),
			}, as, deliver)
		},
		forward: newForwarder(cfg), log: cfg.Logger, deleted: cfg.Deleted,
	}
}

func (r *resources) GetResource(ctx context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	out, err := r.get(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) get(ctx context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	name, err := ownName(r.self, req.GetName())
	if err != nil {
		return nil, err
	}
	if err := readmask.Check(req.GetReadMask()); err != nil {
		return nil, err
	}
	found, err := r.reader.Get(ctx, name)
	if err == nil && int64(found.Revision) < req.GetMinRevision() {
		ctx = postgres.OfPrimary(ctx)
		found, err = r.reader.Get(ctx, name)
	}
	if err != nil {
		return nil, err
	}
	out, err := r.answer(ctx, found, req.GetReadMask())
	if err != nil || found.State != peer.Deleting {
		return out, errors.Join(err, readmask.Prune(out, req.GetReadMask()))
	}
	conditions, err := r.reader.Conditions(ctx, name)
	for _, c := range conditions {
		out.Conditions = append(out.Conditions, &resourcev1.Condition{Type: c.Type, Message: c.Message})
	}
	return out, errors.Join(err, readmask.Prune(out, req.GetReadMask()))
}

// answer returns a stored resource as a message.
func (r *resources) answer(ctx context.Context, stored *peer.Resource,
	mask *fieldmaskpb.FieldMask,
) (*resourcev1.Resource, error) {
	out, err := withBodies(ctx, r.self, []peer.Resource{*stored}, mask)
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

func (r *resources) BatchGetResources(ctx context.Context,
	req *resourcev1.BatchGetResourcesRequest,
) (*resourcev1.BatchGetResourcesResponse, error) {
	out, err := r.batchGet(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) batchGet(ctx context.Context,
	req *resourcev1.BatchGetResourcesRequest,
) (*resourcev1.BatchGetResourcesResponse, error) {
	if n := len(req.GetNames()); n > MaxBatch {
		return nil, outcome.Invalid("names", fmt.Errorf("%d in one batch, at most %d are allowed", n, MaxBatch))
	}
	out, bytes := &resourcev1.BatchGetResourcesResponse{}, 0
	for _, name := range req.GetNames() {
		found, err := r.getAnywhere(ctx, &resourcev1.GetResourceRequest{
			Name: name, ReadMask: req.GetReadMask(),
			Latest: req.GetLatest(),
		})
		if err != nil {
			return nil, err
		}
		if bytes += proto.Size(found); bytes > maxBatchBytes {
			return nil, outcome.Invalid("names",
				fmt.Errorf("the first %d resources have more than %d bytes together: ask for fewer", len(out.Resources),
					maxBatchBytes))
		}
		out.Resources = append(out.Resources, found)
	}
	return out, budget.Convert(ctx, int64(bytes)) // which is once more in the answer
}

// getAnywhere gets a resource of any region of the service.
func (r *resources) getAnywhere(ctx context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	to, err := r.forward.forwardTarget(ctx, req)
	switch {
	case err != nil:
		return nil, err
	case to.IsZero():
		return r.get(ctx, req)
	}
	return r.forward.get(ctx, to, req)
}

func (r *resources) ListResources(ctx context.Context,
	req *resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	out, err := r.list(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) list(ctx context.Context,
	req *resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	if err := readmask.Check(req.GetReadMask()); err != nil {
		return nil, err
	}
	found, next, err := r.reader.List(ctx, shadow.ListRequest{
		Kind: req.GetKind(), Limit: pageSize(req.GetPageSize()), Token: req.GetPageToken(), Filter: req.GetFilter(),
		OrderBy:     req.GetOrderBy(),
		ShowDeleted: req.GetShowDeleted(), Within: access.Names(ctx),
	})
	if err != nil {
		return nil, err
	}
	out := &resourcev1.ListResourcesResponse{NextPageToken: next}
	if out.Resources, err = withBodies(ctx, r.self, found, req.GetReadMask()); err != nil {
		return nil, err
	}
	for _, p := range out.Resources {
		if err := readmask.Prune(p, req.GetReadMask()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r *resources) CreateResource(ctx context.Context,
	req *resourcev1.CreateResourceRequest,
) (*resourcev1.Resource, error) {
	return r.save(ctx, req.GetRequestId(), req)
}

func (r *resources) UpdateResource(ctx context.Context,
	req *resourcev1.UpdateResourceRequest,
) (*resourcev1.Resource, error) {
	return r.save(ctx, req.GetRequestId(), req)
}

func (r *resources) PutResource(ctx context.Context, req *resourcev1.PutResourceRequest) (*resourcev1.Resource, error) {
	return r.save(ctx, req.GetRequestId(), req)
}

func (r *resources) save(ctx context.Context, id string, req any) (*resourcev1.Resource, error) {
	in, _ := writes.Of(req)
	saved, err := r.saveAll(ctx, id, in)
	if err != nil {
		return nil, outcome.Status(r.log, err)
	}
	return saved[0], nil
}

func (r *resources) BatchWriteResources(ctx context.Context,
	req *resourcev1.BatchWriteResourcesRequest,
) (*resourcev1.BatchWriteResourcesResponse, error) {
	if n := len(req.GetWrites()); n > MaxBatch {
		return nil, outcome.Status(r.log,
			outcome.Invalid("writes", fmt.Errorf("%d in one batch, at most %d are allowed", n, MaxBatch)))
	}
	in, _ := writes.Of(req)
	all := func() ([]*resourcev1.Resource, error) { return r.saveAll(ctx, req.GetRequestId(), in) }
	if req.GetValidateOnly() {
		all = func() ([]*resourcev1.Resource, error) { return r.validateAll(ctx, in) }
	}
	saved, err := all()
	if err != nil {
		return nil, outcome.Status(r.log, err)
	}
	return &resourcev1.BatchWriteResourcesResponse{Resources: saved}, nil
}

func (r *resources) validateAll(ctx context.Context, in writes.Request) ([]*resourcev1.Resource, error) {
	would, err := r.would(ctx, in, "")
	if err != nil {
		return nil, err
	}
	return r.wouldProto(ctx, would)
}

// would returns the resources that a batch would store.
func (r *resources) would(ctx context.Context, in writes.Request, token string) ([]peer.Resource, error) {
	writes, err := r.writes(in)
	if err != nil {
		return nil, err
	}
	would, err := r.writer.ValidateBatch(r.ofWriter(ctx), writes, token)
	return would, r.invalidIn(in, err)
}

func (r *resources) MutateAndValidateResource(ctx context.Context,
	req *resourcev1.MutateAndValidateResourceRequest,
) (*resourcev1.Resource, error) {
	out, err := r.validate(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) validate(ctx context.Context,
	req *resourcev1.MutateAndValidateResourceRequest,
) (*resourcev1.Resource, error) {
	if n := len(req.GetMore()); n >= MaxBatch {
		return nil, outcome.Invalid("more", fmt.Errorf("%d in one batch with write, fewer than %d are allowed",
			n, MaxBatch))
	}
	in, _ := writes.Of(req)
	would, err := r.would(ctx, in, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	out, err := r.wouldProto(ctx, would[:1])
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// wouldProto converts resources that writes would store.
func (r *resources) wouldProto(ctx context.Context, would []peer.Resource) ([]*resourcev1.Resource, error) {
	out, err := withBodies(ctx, r.self, would, nil)
	for i := range out {
		if would[i].UID == uuid.Nil { // it would be created
			out[i].Uid, out[i].CreateTime, out[i].UpdateTime = "", nil, nil
		}
	}
	return out, err
}

func (r *resources) SetBlockDeletion(ctx context.Context,
	req *resourcev1.SetBlockDeletionRequest,
) (*resourcev1.Resource, error) {
	out, err := r.setBlockDeletion(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) setBlockDeletion(ctx context.Context,
	req *resourcev1.SetBlockDeletionRequest,
) (*resourcev1.Resource, error) {
	name, err := ownName(r.self, req.GetName())
	if err != nil {
		return nil, err
	}
	uid, err := optionalUUID("uid", req.GetUid())
	if err != nil {
		return nil, err
	}
	found, err := r.blocker.SetBlockDeletion(ctx, name, uid, req.GetBlockDeletion())
	if err != nil {
		return nil, err
	}
	return r.answer(ctx, found, nil)
}

func (r *resources) saveAll(ctx context.Context, request string, in writes.Request) ([]*resourcev1.Resource, error) {
	writes, err := r.writes(in)
	if err != nil {
		return nil, err
	}
	id, err := optionalUUID("request_id", request)
	if err != nil {
		return nil, err
	}
	var saved []peer.Resource
	if id == uuid.Nil {
		saved, err = r.writer.Save(r.ofWriter(ctx), writes)
	} else {
		saved, err = r.writer.SaveRequested(r.ofWriter(ctx), id, writes)
	}
	if err != nil {
		return nil, r.invalidIn(in, err)
	}
	return withBodies(ctx, r.self, saved, nil)
}

func (r *resources) DeleteResource(ctx context.Context,
	req *resourcev1.DeleteResourceRequest,
) (*resourcev1.DeleteResourceResponse, error) {
	out, err := r.delete(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) delete(ctx context.Context,
	req *resourcev1.DeleteResourceRequest,
) (*resourcev1.DeleteResourceResponse, error) {
	all, unasked, err := r.deleteAll(ctx, []*resourcev1.DeleteResourceRequest{req}, req)
	if err != nil {
		return nil, err
	}
	all[0].UnaskedDeployments, all[0].Unasked = unaskedProto(unasked)
	return all[0], nil
}

func (r *resources) BatchDeleteResources(ctx context.Context,
	req *resourcev1.BatchDeleteResourcesRequest,
) (*resourcev1.BatchDeleteResourcesResponse, error) {
	out, err := r.batchDelete(ctx, req)
	return out, outcome.Status(r.log, err)
}

func (r *resources) batchDelete(ctx context.Context,
	req *resourcev1.BatchDeleteResourcesRequest,
) (*resourcev1.BatchDeleteResourcesResponse, error) {
	if n := len(req.GetRequests()); n == 0 || n > MaxBatch {
		return nil, outcome.Invalid("requests", fmt.Errorf("%d in one batch, want 1 to %d", n, MaxBatch))
	}
	for i, one := range req.GetRequests() {
		if one.GetRequestId() != "" {
			return nil, outcome.Invalid(fmt.Sprintf("requests[%d].request_id", i),
				errors.New("the batch has one, its requests have none"))
		}
		if one.GetMaxRemovals() != 0 {
			return nil, outcome.Invalid(fmt.Sprintf("requests[%d].max_removals", i),
				errors.New("the batch has one, its requests have none"))
		}
		if one.GetAtomic() || one.GetRetention() != nil || one.GetNow() {
			return nil, outcome.Invalid(fmt.Sprintf("requests[%d]", i),
				errors.New("atomic, retention and now: set them in the batch, its requests have none"))
		}
	}
	all, unasked, err := r.deleteAll(ctx, req.GetRequests(), req)
	if err != nil {
		return nil, err
	}
	out := &resourcev1.BatchDeleteResourcesResponse{Responses: all}
	_, out.Unasked = unaskedProto(unasked)
	return out, nil
}

// deleteOptions are the parts of a request that are of all its resources together.
type deleteOptions interface {
	GetRequestId() string
	GetMaxRemovals() int64
	GetAtomic() bool
	GetRetention() *durationpb.Duration
	GetNow() bool
}

func (r *resources) deleteAll(ctx context.Context, reqs []*resourcev1.DeleteResourceRequest,
	of deleteOptions,
) (out []*resourcev1.DeleteResourceResponse, unasked []peer.Unasked, err error) {
	most := of.GetMaxRemovals()
	if err := checkMaxRemovals(most); err != nil {
		return nil, nil, err
	}
	all := make([]shadow.DeleteRequest, len(reqs))
	for i, req := range reqs {
		if all[i], err = r.deleteRequest(ctx, req, of.GetRequestId()); err != nil {
			return nil, nil, err
		}
	}
	all[0].MaxRemovals, all[0].Atomic, all[0].Now = most, of.GetAtomic(), of.GetNow()
	if all[0].Retention, err = retentionOf(of); err != nil {
		return nil, nil, err
	}
	if of.GetNow() {
		if err := r.mayDelete(ctx, all); err != nil {
			return nil, nil, err
		}
	}
	ctx, cancel := beforeDeadline(ctx)
	defer cancel()
	if err := r.mayTakeAlong(ctx, all); err != nil {
		return nil, nil, err
	}
	began := time.Now()
	results, err := r.deleter.DeleteAll(ctx, all)
	if err != nil {
		r.observe(began, peer.DeleteResult{}, err)
		return nil, nil, err
	}
	out = make([]*resourcev1.DeleteResourceResponse, len(results))
	for i, result := range results {
		r.observe(began, result, nil)
		out[i] = &resourcev1.DeleteResourceResponse{Removed: result.Removed, Deletion: optionalText(result.Deletion)}
		switch marked := result.Resource; {
		case marked == nil:
		case len(results) > 1:
			out[i].Resource = &resourcev1.Resource{
				Name: marked.Name, Kind: marked.Kind, Uid: marked.UID.String(), State: stateProto[marked.State],
				DeleteTime: optionalTime(marked.DeletedAt), PurgeTime: optionalTime(marked.PurgeAt),
			}
		default:
			if out[i].Resource, err = r.answer(ctx, marked, nil); err != nil {
				return nil, nil, err
			}
		}
	}
	return out, results[0].Unasked, nil
}

func checkMaxRemovals(most int64) error {
	if most < -1 || most > schema.MaxRemovals {
		return outcome.Invalid("max_removals",
			fmt.Errorf(
				"%d: want a number of resources, at most %d, 0 for the number in the rights, or -1 for any number",
				most, schema.MaxRemovals))
	}
	return nil
}

func (r *resources) deleteRequest(ctx context.Context, req *resourcev1.DeleteResourceRequest,
	requestID string,
) (out shadow.DeleteRequest, err error) {
	out.Revision, out.AllowMissing = peer.Revision(req.GetRevision()), req.GetAllowMissing()
	if out.Name, err = ownName(r.self, req.GetName()); err != nil {
		return out, err
	}
	if out.UID, err = optionalUUID("uid", req.GetUid()); err != nil {
		return out, err
	}
	if out.RequestID, err = optionalUUID("request_id", requestID); err != nil {
		return out, err
	}
	out.Call = requestid.ID(ctx)
	out.Actor, err = actor(ctx)
	return out, err
}

// beforeDeadline ends a little earlier than the caller's deadline, so that the reason of a timeout still
// reaches the caller.
func beforeDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/10, 500*time.Millisecond)))
}

func (r *resources) WatchResources(req *resourcev1.WatchResourcesRequest,
	stream grpc.ServerStreamingServer[resourcev1.WatchResourcesResponse],
) error {
	encoded := identity.Received(stream.Context())
	event := func(of peer.Resource) (sharedEvent, error) { return r.event(of, encoded) }
	return outcome.Status(r.log, r.watched(stream.Context(), req, event, func(e schema.Event[sharedEvent]) error {
		if encoded && req.GetAllowBatches() && len(e.Items) > 1 {
			return sendBatches(e, stream.SendMsg)
		}
		return sendResources(e, stream.SendMsg)
	}))
}

// batchBytes is the size of several changes in a message: a forwarded watch has room for them and a token,
// and most are one frame of HTTP/2.
const batchBytes = 16<<10 - 512

// sendBatches sends the messages of one event with several changes in each. A change that goes alone is an
// upsert or a delete.
func sendBatches(e schema.Event[sharedEvent], send func(any) error) error {
	for len(e.Items) > 1 {
		batch, n, err := identity.NewBatch(e.Items, changesField, batchBytes)
		switch {
		case err == nil && n == 1:
			err = sendResources(schema.Event[sharedEvent]{Items: e.Items[:1]}, send)
		case err == nil && n == len(e.Items) && !e.EndOfSnapshot:
			return send(batch.With(&resourcev1.WatchResourcesResponse{ResumeToken: e.Token}))
		case err == nil:
			err = send(batch.With(nil))
		}
		if e.Items = e.Items[n:]; err != nil {
			return err
		}
	}
	return sendResources(e, send)
}

// changesField is the number of WatchResourcesResponse.changes. Its messages are encoded as a response with
// their upsert or delete.
const changesField = 6

// sendResources sends the messages of one event. The token goes with the last item, or in a message of its
// own.
func sendResources(e schema.Event[sharedEvent], send func(any) error) error {
	for i, event := range e.Items {
		var own proto.Message
		whole := event.Message
		if i == len(e.Items)-1 && e.Token != "" { // other watches share the message, and their tokens differ
			own = &resourcev1.WatchResourcesResponse{ResumeToken: e.Token}
			whole = &resourcev1.WatchResourcesResponse{Event: whole.GetEvent(), ResumeToken: e.Token}
		}
		if err := send(event.With(own, whole)); err != nil {
			return err
		}
	}
	switch {
	case e.EndOfSnapshot:
		return send(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_EndOfSnapshot_{
			EndOfSnapshot: &resourcev1.WatchResourcesResponse_EndOfSnapshot{ResumeToken: e.Token},
		}})
	case e.Token != "" && len(e.Items) == 0:
		return send(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Bookmark_{
			Bookmark: &resourcev1.WatchResourcesResponse_Bookmark{ResumeToken: e.Token},
		}})
	}
	return nil
}

// event returns a change as a message, with its body encoded already where it will be: watches share the
// message.
func (r *resources) event(of peer.Resource, encoded bool) (sharedEvent, error) {
	p, err := withBody(r.self, &of, nil, encoded)
	event := &resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{Upsert: p}}
	if of.State == peer.Gone {
		event.Event = &resourcev1.WatchResourcesResponse_Delete{Delete: p}
	}
	return identity.NewShared(event), err
}

// ownName returns the relative name of a resource of this deployment, from a relative or a full name.
func ownName(self schema.DeploymentID, s string) (string, error) {
	if !strings.HasPrefix(s, "//") {
		return s, nil
	}
	full, err := schema.ParseFullName(s)
	if err != nil {
		return "", &peer.InvalidError{Err: err}
	}
	if full.Deployment != self {
		return "", &peer.InvalidError{Err: fmt.Errorf("%s belongs to %s, this is %s", full, full.Deployment, self)}
	}
	return full.Name, nil
}

func optionalUUID(field, s string) (uuid.UUID, error) {
	if s == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return uuid.Nil, outcome.Invalid(field, err)
	}
	return id, nil
}

// pageSize returns the number of items of a page: at most maxPageSize, and defaultPageSize when the request
// has none.
func pageSize(asked int32) int {
	if asked <= 0 {
		return defaultPageSize
	}
	return min(int(asked), maxPageSize)
}

// observe reports a delete that began at a time.
func (r *resources) observe(began time.Time, result peer.DeleteResult, err error) {
	if r.deleted != nil {
		r.deleted(outcome.OfDelete(result, outcome.Status(r.log, err)), time.Since(began))
	}
}
