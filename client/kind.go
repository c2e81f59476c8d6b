package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/internal/jsonbody"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Object is a resource whose body is a T.
type Object[T any] struct {
	// Name is the full name, such as //iam.example.com/us-west2/projects/acme.
	Name string
	// UID and Revision are set by the deployment. A Put with them fails with ErrConflict if the stored ones
	// differ; the zero values match any.
	UID      string
	Revision int64
	// Generation increases with every change of the body.
	Generation int64
	// Deleting: the resource is being deleted. Finalizers are the finalizers that are left then.
	Deleting   bool
	Finalizers []string
	Labels     map[string]string
	Owners     []*resourcev1.OwnerReference
	Created    time.Time
	Updated    time.Time
	Body       T
	// Status is the report of a controller, a JSON object, nil for none, and StatusGeneration increases with
	// its changes. Only UpdateStatus writes it.
	Status           json.RawMessage
	StatusGeneration int64
}

// Kind reads and writes the resources of one kind in all regions of a service. encoding/json converts bodies.
// Its methods fail as Client's methods do.
type Kind[T any] struct {
	client        *Client
	service, kind string
}

// KindOf returns a Kind after it has compared T with the descriptors of the versions that the service's
// deployments run: T must have a string at the path of every reference, since a Put would otherwise remove
// the reference. T is a struct.
func KindOf[T any](ctx context.Context, c *Client, service, kind string) (Kind[T], error) {
	k := Kind[T]{client: c, service: service, kind: kind}
	env, err := c.Environment(ctx)
	if err != nil {
		return k, err
	}
	compared := false
	for _, d := range env.Deployments {
		if d.Service != service {
			continue
		}
		if err := checkVersion(env, d, kind, reflect.TypeFor[T]()); err != nil {
			return k, err
		}
		compared = true
	}
	if !compared {
		return k, fmt.Errorf("the environment has no deployment of %s", service)
	}
	return k, nil
}

// checkVersion compares a type with a kind of the version that a deployment runs.
func checkVersion(env *schema.Environment, d schema.Deployment, kind string, t reflect.Type) error {
	model, err := env.Model(d.DeploymentID)
	if err != nil {
		return err
	}
	described, err := model.Kind(kind)
	if err != nil {
		return fmt.Errorf("%s@%s: %w", d.Service, d.Version, err)
	}
	for _, path := range described.Paths() {
		if path == schema.ParentPath {
			continue
		}
		if problem := stringAt(t, strings.Split(path, ".")); problem != "" {
			return fmt.Errorf("%s: %s of %s@%s refers to resources in %s: %s", t, kind, d.Service, d.Version,
				path, problem)
		}
	}
	return nil
}

// stringAt returns why JSON of type t has no string at a path; empty if it has.
func stringAt(t reflect.Type, path []string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Interface, len(path) == 0 && t.Kind() == reflect.String:
		return ""
	case len(path) == 0:
		return fmt.Sprintf("want a string, the type has %s", t)
	case path[0] == "*" && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array || t.Kind() == reflect.Map):
		return stringAt(t.Elem(), path[1:])
	case t.Kind() == reflect.Map:
		return stringAt(t.Elem(), path[1:])
	case t.Kind() != reflect.Struct:
		return fmt.Sprintf("want a field %s, the type has %s", path[0], t)
	}
	field, ok := jsonField(t, path[0])
	if !ok {
		return fmt.Sprintf("%s has no field with the tag `json:%q`", t, path[0])
	}
	return stringAt(field, path[1:])
}

// jsonField returns the type of the field that encoding/json calls by a name.
func jsonField(t reflect.Type, name string) (reflect.Type, bool) {
	for _, f := range reflect.VisibleFields(t) {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && (tag == name || tag == "" && f.Name == name && !f.Anonymous) {
			return f.Type, true
		}
	}
	return nil, false
}

// Get reads a resource by its full name. It fails with ErrNotFound, and when its body is no T.
func (k Kind[T]) Get(ctx context.Context, name string) (Object[T], error) {
	return k.object(k.client.Get(ctx, name))
}

// Create stores a new resource. It fails with ErrExists if there is one of this name.
func (k Kind[T]) Create(ctx context.Context, o Object[T]) (Object[T], error) {
	return k.write(ctx, o, k.client.Create)
}

// Put creates a resource, or replaces all its fields, including fields that T lacks.
func (k Kind[T]) Put(ctx context.Context, o Object[T]) (Object[T], error) {
	return k.write(ctx, o, k.client.Put)
}

// Update replaces the fields of a resource in the mask, such as body.owner or labels, and leaves the others.
func (k Kind[T]) Update(ctx context.Context, o Object[T], mask ...string) (Object[T], error) {
	return k.write(ctx, o, func(ctx context.Context, r *resourcev1.Resource) (*resourcev1.Resource, error) {
		return k.client.Update(ctx, r, mask...)
	})
}

// UpdateStatus replaces the status of a resource by a value, which encoding/json converts to an object; nil
// removes it. It fails with ErrConflict if o has a uid, and the stored status is not the one that o has.
func (k Kind[T]) UpdateStatus(ctx context.Context, o Object[T], status any) (Object[T], error) {
	var only StatusVersion
	if o.UID != "" {
		only = StatusVersion{UID: o.UID, Generation: &o.StatusGeneration}
	}
	return k.object(k.client.UpdateStatus(ctx, o.Name, status, only))
}

// Delete deletes the incarnation of a resource that o has, and any if o has no uid. It returns as
// Client.Delete does.
func (k Kind[T]) Delete(ctx context.Context, o Object[T]) (removed bool, err error) {
	answer, err := k.client.Delete(ctx, o.Name, Version{UID: o.UID})
	return answer.GetRemoved(), err
}

// DeleteFor is Delete with a retention: the resource is hidden for this time, and is then removed, unless
// Undelete brings it back before.
func (k Kind[T]) DeleteFor(ctx context.Context, o Object[T], retention time.Duration) error {
	_, err := k.client.DeleteFor(ctx, o.Name, retention, Version{UID: o.UID})
	return err
}

// Undelete brings the incarnation of a resource back that o has, and any if o has no uid, with all that its
// deletion has hidden. It fails as Client.Undelete does.
func (k Kind[T]) Undelete(ctx context.Context, o Object[T]) (Object[T], error) {
	return k.object(k.client.Undelete(ctx, o.Name, o.UID))
}

// List returns the resources of the kind in one region that match a filter; empty: all.
func (k Kind[T]) List(ctx context.Context, region, filter string) iter.Seq2[Object[T], error] {
	return func(yield func(Object[T], error) bool) {
		for r, err := range k.client.List(ctx, k.deployment(region), Query{Kind: k.kind, Filter: filter}) {
			o, err := k.object(r, err)
			if !yield(o, err) || err != nil {
				return
			}
		}
	}
}

// Change is an Event with a typed resource.
type Change[T any] struct {
	Type EventType
	// Object has only its name, uid and revision when Type is Deleted, and is empty when it is Synced.
	Object Object[T]
	Token  string
}

// Watch delivers the resources of the kind in one region, and their changes, as Client.Watch does. The kind
// of the query is ignored.
func (k Kind[T]) Watch(ctx context.Context, region string, q WatchQuery) iter.Seq2[Change[T], error] {
	q.Kind = k.kind
	return func(yield func(Change[T], error) bool) {
		for e, err := range k.client.Watch(ctx, k.deployment(region), q) {
			change := Change[T]{Type: e.Type, Token: e.Token}
			if err == nil && e.Resource != nil {
				change.Object, err = k.object(e.Resource, nil)
			}
			if !yield(change, err) || err != nil {
				return
			}
		}
	}
}

func (k Kind[T]) deployment(region string) schema.DeploymentID {
	return schema.DeploymentID{Service: k.service, Region: region}
}

func (k Kind[T]) write(ctx context.Context, o Object[T],
	write func(context.Context, *resourcev1.Resource) (*resourcev1.Resource, error),
) (Object[T], error) {
	body, err := bodyOf(o.Body)
	if err != nil {
		return Object[T]{}, fmt.Errorf("%s: %w", o.Name, err)
	}
	return k.object(write(ctx, &resourcev1.Resource{
		Name: o.Name, Uid: o.UID, Revision: o.Revision, Labels: o.Labels, OwnerReferences: o.Owners, Body: body,
	}))
}

// object converts the answer of a call.
func (Kind[T]) object(r *resourcev1.Resource, err error) (Object[T], error) {
	if err != nil {
		return Object[T]{}, err
	}
	return Decode[T](r)
}

// timeOf is zero without a timestamp: of a row of an attached table, of which nothing is stored.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// Decode converts a resource that a deployment sent. It fails when the body is no T for encoding/json.
func Decode[T any](r *resourcev1.Resource) (Object[T], error) {
	o := Object[T]{
		Name: FullName(r), UID: r.GetUid(), Revision: r.GetRevision(), Generation: r.GetGeneration(),
		Deleting: r.GetState() == resourcev1.Resource_STATE_DELETING, Labels: r.GetLabels(),
		Owners:  r.GetOwnerReferences(),
		Created: timeOf(r.GetCreateTime()), Updated: timeOf(r.GetUpdateTime()),
		Finalizers: r.GetFinalizers(), StatusGeneration: r.GetStatusGeneration(),
	}
	if r.GetStatus() != nil {
		var err error
		if o.Status, err = r.GetStatus().MarshalJSON(); err != nil {
			return o, fmt.Errorf("%s: the status: %w", o.Name, err)
		}
	}
	if r.GetBody() == nil {
		return o, nil
	}
	if err := decode(r.GetBody(), &o.Body); err != nil {
		return o, fmt.Errorf("%s: the body is no %T: %w", o.Name, o.Body, err)
	}
	return o, nil
}

// decode converts an object by encoding/json.
func decode(in *structpb.Struct, into any) error {
	raw, err := in.MarshalJSON()
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// bodyOf converts a T by encoding/json.
func bodyOf(v any) (*structpb.Struct, error) {
	fields, err := jsonbody.Of(v)
	if err != nil {
		return nil, err
	}
	return structpb.NewStruct(fields)
}
