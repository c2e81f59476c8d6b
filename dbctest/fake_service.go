package dbctest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/service/writes"
	"github.com/db-controller/db-controller/schema/violation"
)

// door is the ResourceService of one deployment of a Fake. Its channel copies requests and answers.
type door struct {
	resourcev1.UnimplementedResourceServiceServer
	fake *Fake
	id   schema.DeploymentID
}

// full returns the full name for one that may be relative to this deployment.
func (d *door) full(name string) (schema.FullName, error) {
	if !strings.HasPrefix(name, "//") {
		return schema.FullName{Deployment: d.id, Name: name}, nil
	}
	full, err := schema.ParseFullName(name)
	switch {
	case err != nil:
		return full, err
	case full.Deployment.Service != d.id.Service || d.fake.models[full.Deployment] == nil:
		return full, fmt.Errorf("%s belongs to another service than %s", full, d.id)
	}
	return full, nil
}

// in is a region of this deployment's service.
func (d *door) in(region string) schema.DeploymentID {
	return schema.DeploymentID{Service: d.id.Service, Region: cmp.Or(region, d.id.Region)}
}

// find returns a stored resource, unless it has another uid or revision; mu is held.
func (d *door) find(name, uid string, revision int64) (schema.FullName, *resourcev1.Resource, error) {
	full, err := d.full(name)
	if err != nil {
		return full, nil, outcome.Status(zap.NewNop(), outcome.Invalid("name", err))
	}
	r := d.fake.stored[full]
	switch {
	case r == nil || uid != "" && r.GetUid() != uid:
		return full, nil, status.Errorf(codes.NotFound, "%s: not found", full)
	case revision != 0 && r.GetRevision() != revision && r.GetState() != resourcev1.Resource_STATE_DELETING:
		// a delete has been accepted before
		return full, nil, failed("MOVED", "%s has revision %d, not %d", full, r.GetRevision(), revision)
	}
	return full, r, nil
}

func (d *door) GetResource(_ context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	d.fake.mu.Lock()
	defer d.fake.mu.Unlock()
	_, r, err := d.find(req.GetName(), "", 0)
	return r, err
}

func (d *door) BatchGetResources(_ context.Context,
	req *resourcev1.BatchGetResourcesRequest,
) (*resourcev1.BatchGetResourcesResponse, error) {
	d.fake.mu.Lock()
	defer d.fake.mu.Unlock()
	out := &resourcev1.BatchGetResourcesResponse{}
	for _, name := range req.GetNames() {
		_, r, err := d.find(name, "", 0)
		if err != nil {
			return nil, err
		}
		out.Resources = append(out.Resources, r)
	}
	return out, nil
}

func (d *door) ListResources(_ context.Context,
	req *resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	kinds, err := kindsOf(req.GetKind(), req.GetFilter())
	if err == nil && req.GetOrderBy() != "" {
		err = status.Error(codes.Unimplemented, "dbctest.Fake orders by names")
	}
	if err != nil {
		return nil, err
	}
	d.fake.mu.Lock()
	defer d.fake.mu.Unlock()
	all, size := d.fake.all(d.in(req.GetRegion()), kinds), cmp.Or(int(req.GetPageSize()), 100)
	from, found := slices.BinarySearchFunc(all, req.GetPageToken(), func(r *resourcev1.Resource, last string) int {
		return cmp.Compare(r.GetName(), last)
	})
	if found {
		from++
	}
	if all = all[from:]; len(all) <= size {
		return &resourcev1.ListResourcesResponse{Resources: all}, nil
	}
	return &resourcev1.ListResourcesResponse{Resources: all[:size], NextPageToken: all[size-1].GetName()}, nil
}

// all returns the resources of some kinds (nil: all) by their names; mu is held.
func (f *Fake) all(at schema.DeploymentID, kinds []string) (all []*resourcev1.Resource) {
	for name, r := range f.stored {
		if name.Deployment == at && selects(kinds, r) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *resourcev1.Resource) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}

func selects(kinds []string, r *resourcev1.Resource) bool {
	return kinds == nil || slices.Contains(kinds, r.GetKind())
}

// kindsOf returns the kinds that a request selects; nil for all.
func kindsOf(kind, filter string) ([]string, error) {
	if kind != "" && filter == "" {
		return []string{kind}, nil
	}
	if filter == "" {
		return nil, nil
	}
	var kinds []string
	for term := range strings.SplitSeq(filter, " OR ") {
		quoted, ok := strings.CutPrefix(term, "kind = ")
		name, err := strconv.Unquote(quoted)
		if !ok || err != nil || kind != "" && kind != name {
			return nil, status.Errorf(codes.Unimplemented,
				`dbctest.Fake has no filter but kind = "A" OR kind = "B": %s`, filter)
		}
		kinds = append(kinds, name)
	}
	return kinds, nil
}

func (d *door) CreateResource(_ context.Context, req *resourcev1.CreateResourceRequest) (*resourcev1.Resource, error) {
	return d.one(req.GetRequestId(), req)
}

func (d *door) PutResource(_ context.Context, req *resourcev1.PutResourceRequest) (*resourcev1.Resource, error) {
	return d.one(req.GetRequestId(), req)
}

func (d *door) UpdateResource(_ context.Context, req *resourcev1.UpdateResourceRequest) (*resourcev1.Resource, error) {
	return d.one(req.GetRequestId(), req)
}

func (d *door) BatchWriteResources(_ context.Context,
	req *resourcev1.BatchWriteResourcesRequest,
) (*resourcev1.BatchWriteResourcesResponse, error) {
	all, err := d.write(req.GetRequestId(), !req.GetValidateOnly(), req)
	return &resourcev1.BatchWriteResourcesResponse{Resources: all}, err
}

func (d *door) MutateAndValidateResource(_ context.Context,
	req *resourcev1.MutateAndValidateResourceRequest,
) (*resourcev1.Resource, error) {
	all, err := d.write("", false, req)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

func (d *door) one(id string, req any) (*resourcev1.Resource, error) {
	all, err := d.write(id, true, req)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// write stores all resources of a request, or none. The same request id has the same answer.
func (d *door) write(id string, store bool, req any) (all []*resourcev1.Resource, err error) {
	f := d.fake
	f.mu.Lock()
	defer f.mu.Unlock()
	if before, done := f.answers[id]; done {
		return before.all, before.err
	}
	var changes []change
	in, _ := writes.Of(req)
	if err := d.check(in); err != nil {
		return nil, err
	}
	at := d.id
	for i, w := range in.All {
		p, err := d.prepare(w)
		if err != nil {
			return nil, invalid(in, i, err)
		}
		at = p.at
		r := p.result(store)
		if p.changes() && store {
			changes = append(changes, change{of: r})
		}
		all = append(all, r)
	}
	if store {
		for _, c := range changes {
			c.of.Revision = f.next()
		}
		f.commit(at, changes...)
		if id != "" {
			f.answers[id] = answer{all: all}
		}
	}
	return all, nil
}

// prepared is one write that is allowed.
type prepared struct {
	at     schema.DeploymentID
	kind   *schema.KindModel
	stored *resourcev1.Resource // nil: none
	wanted *resourcev1.Resource
}

// check finds the mistakes of writes that do not depend on stored resources.
func (d *door) check(in writes.Request) error {
	names := map[schema.FullName]int{}
	for i, w := range in.All {
		r := writes.Resource(w)
		full, err := d.full(r.GetName())
		if first, twice := names[full]; err == nil && twice {
			return invalid(in, first, violation.In("name", fmt.Errorf("%s is written twice", full)))
		}
		if names[full] = i; err == nil {
			_, err = d.fake.models[full.Deployment].KindOf(full.Name)
		}
		if err != nil {
			return invalid(in, i, violation.In("name", err))
		}
		if len(w.GetUpdate().GetUpdateMask().GetPaths()) == 0 && r.GetBody() == nil && w.GetCreate() == nil {
			return invalid(in, i, violation.In("body", fmt.Errorf("%s: the body is missing", full)))
		}
	}
	return nil
}

// invalid returns the status of a write that is invalid. Other refusals have one already.
func invalid(in writes.Request, i int, err error) error {
	if _, refused := status.FromError(err); refused {
		return err
	}
	return outcome.Status(zap.NewNop(), in.Invalid(i, &peer.InvalidError{Err: err}))
}

// prepare checks a write; mu is held.
func (d *door) prepare(w *resourcev1.BatchWriteResourcesRequest_Write) (*prepared, error) {
	in := writes.Resource(w)
	full, err := d.full(in.GetName())
	if err != nil {
		return nil, err
	}
	kind, err := d.fake.models[full.Deployment].KindOf(full.Name)
	if err != nil {
		return nil, err
	}
	p := &prepared{at: full.Deployment, kind: kind, stored: d.fake.stored[full], wanted: proto.CloneOf(in)}
	p.wanted.Name = full.Name
	switch {
	case p.stored.GetState() == resourcev1.Resource_STATE_DELETING:
		return nil, failed("DELETING", "%s is being deleted", full)
	case w.GetCreate() != nil && p.stored != nil:
		return nil, status.Errorf(codes.AlreadyExists, "%s: already exists", full)
	case w.GetUpdate() != nil && p.stored == nil:
		return nil, status.Errorf(codes.NotFound, "%s: not found", full)
	case p.stored == nil && (in.GetUid() != "" || in.GetRevision() != 0), p.stored != nil && in.GetUid() != "" &&
		in.GetUid() != p.stored.GetUid(),
		in.GetRevision() != 0 && in.GetRevision() != p.stored.GetRevision():
		return nil, failed("MOVED", "%s has another uid or revision", full)
	}
	if w.GetUpdate() != nil {
		if p.wanted, err = masked(p.stored, p.wanted, w.GetUpdate().GetUpdateMask().GetPaths()); err != nil {
			return nil, err
		}
	}
	return p, p.complete()
}

// complete adds the defaults of the kind to the body, and checks its rules.
func (p *prepared) complete() error {
	body, err := p.kind.Complete(p.wanted.GetBody().AsMap())
	var text []byte
	if err == nil {
		text, err = json.Marshal(body)
	}
	if err == nil {
		var before map[string]any
		if p.stored != nil {
			before = p.stored.GetBody().AsMap()
		}
		steps := schema.MaxCheckSteps
		err = p.kind.CheckBody(text, before, &steps)
	}
	if err == nil {
		p.wanted.Body, err = structpb.NewStruct(body)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.wanted.GetName(), err)
	}
	return nil
}

// changes reports whether the write changes the stored resource.
func (p *prepared) changes() bool {
	return p.stored == nil || !proto.Equal(p.stored.GetBody(), p.wanted.GetBody()) ||
		!proto.Equal(&resourcev1.Resource{Labels: p.stored.GetLabels(), OwnerReferences: p.stored.GetOwnerReferences()},
			&resourcev1.Resource{Labels: p.wanted.GetLabels(), OwnerReferences: p.wanted.GetOwnerReferences()})
}

// result is the resource as it will be stored; its revision comes with the transaction. A new resource that
// is not stored has no uid.
func (p *prepared) result(stored bool) *resourcev1.Resource {
	if !p.changes() {
		return p.stored
	}
	now := timestamppb.Now()
	r := &resourcev1.Resource{CreateTime: now, State: resourcev1.Resource_STATE_ACTIVE, Generation: 1}
	if p.stored != nil {
		r = proto.CloneOf(p.stored)
		if !proto.Equal(r.GetBody(), p.wanted.GetBody()) {
			r.Generation++
		}
	} else if stored {
		r.Uid = uuid.NewString()
	}
	r.Name, r.Kind, r.Deployment, r.UpdateTime = p.wanted.GetName(), p.kind.ID.Kind, p.at.String(), now
	r.Labels, r.Body, r.OwnerReferences = p.wanted.GetLabels(), p.wanted.GetBody(), p.wanted.GetOwnerReferences()
	return r
}

// masked returns the stored resource with the fields of the mask replaced; without a mask all of them are.
func masked(stored, wanted *resourcev1.Resource, mask []string) (*resourcev1.Resource, error) {
	if len(mask) == 0 || slices.Contains(mask, "*") {
		return wanted, nil
	}
	out := proto.CloneOf(stored)
	for _, path := range mask {
		field, below, isBelow := strings.Cut(path, ".")
		switch {
		case field == "labels" && isBelow:
			value, set := wanted.GetLabels()[below]
			if out.Labels == nil {
				out.Labels = map[string]string{}
			}
			if out.Labels[below] = value; !set {
				delete(out.Labels, below)
			}
		case field == "labels":
			out.Labels = wanted.GetLabels()
		case field == "owner_references" && !isBelow:
			out.OwnerReferences = wanted.GetOwnerReferences()
		case field == "body" && isBelow:
			replace(out.GetBody(), wanted.GetBody(), strings.Split(below, "."))
		case field == "body":
			out.Body = wanted.GetBody()
		default:
			return nil, violation.In("update_mask", fmt.Errorf("update_mask: %s is unknown", path))
		}
	}
	return out, nil
}

// replace sets the value at a path to the value in another object, and removes it if that object lacks it.
func replace(in, by *structpb.Struct, path []string) {
	value := by.GetFields()[path[0]]
	if len(path) > 1 {
		if in.GetFields()[path[0]].GetStructValue() == nil {
			if value == nil {
				return
			}
			in.Fields[path[0]] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{}})
		}
		replace(in.GetFields()[path[0]].GetStructValue(), value.GetStructValue(), path[1:])
		return
	}
	if in.Fields == nil {
		in.Fields = map[string]*structpb.Value{}
	}
	if in.Fields[path[0]] = value; value == nil {
		delete(in.Fields, path[0])
	}
}
