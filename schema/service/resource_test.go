package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/readmask"
	"github.com/db-controller/db-controller/schema/shadow"
)

func stored(name string) *peer.Resource {
	return &peer.Resource{
		UID: uid(1), Kind: "Device", Name: name, State: peer.Active, Revision: 5, Generation: 2,
		Labels:    map[string]string{"team": "a", "tier": "gold"},
		Body:      []byte(`{"size":3,"spec":{"a":"x","b":[1,2],"c":{"d":null}}}`),
		CreatedAt: time.Unix(1_700_000_000, 0), UpdatedAt: time.Unix(1_700_000_100, 0),
		Owners: []peer.OwnerReference{
			{
				Owner: schema.FullName{Deployment: other, Name: "os/o"}, Kind: "Owner", UID: uid(2), Version: "v3",
				Controller: true, UnsetOnDelete: true,
			},
			{Owner: schema.FullName{Deployment: self, Name: "os/p"}, Kind: "Owner", Requires: true},
		},
		BlockDeletion: true,
	}
}

func TestAStoredResourceIsReturnedWithAllItsFields(t *testing.T) {
	t.Parallel()
	r := newResourceService(&resourceStore{get: func(name string) (*peer.Resource, error) { return stored(name), nil }})
	for _, name := range []string{"devices/d", "//a.example.com/us-west2/devices/d"} {
		got, err := r.GetResource(as(t, ann), &resourcev1.GetResourceRequest{Name: name})
		require.NoError(t, err)
		require.Equal(t, "devices/d", got.GetName())
		require.Equal(t, "Device", got.GetKind())
		require.Equal(t, uid(1).String(), got.GetUid())
		require.Equal(t, int64(5), got.GetRevision())
		require.Equal(t, int64(2), got.GetGeneration())
		require.Equal(t, resourcev1.Resource_STATE_ACTIVE, got.GetState())
		require.Equal(t, map[string]string{"team": "a", "tier": "gold"}, got.GetLabels())
		require.InDelta(t, 3, got.GetBody().AsMap()["size"], 0)
		require.Equal(t, int64(1_700_000_000), got.GetCreateTime().GetSeconds())
		require.Equal(t, int64(1_700_000_100), got.GetUpdateTime().GetSeconds())
		require.Equal(t, self.String(), got.GetDeployment())
		require.True(t, got.GetBlockDeletion())
		require.Empty(t, got.GetConditions())
		first, second := got.GetOwnerReferences()[0], got.GetOwnerReferences()[1]
		require.Equal(t, "//b.example.com/us-west2/os/o", first.GetName())
		require.Equal(t, uid(2).String(), first.GetUid())
		require.Equal(t, "v3", first.GetVersion())
		require.True(t, first.GetController() && first.GetUnsetOnDelete() && !first.GetRequiresOwnerReference())
		require.Empty(t, second.GetUid(), "the uid is not known yet")
		require.True(t, second.GetRequiresOwnerReference() && !second.GetController() && !second.GetUnsetOnDelete())
	}
}

func TestAResourceInDeletingIsReturnedWithItsConditions(t *testing.T) {
	t.Parallel()
	failing := error(nil)
	r := newResourceService(&resourceStore{
		get: func(name string) (*peer.Resource, error) {
			found := stored(name)
			found.State = peer.Deleting
			return found, nil
		},
		conditions: func(name string) ([]shadow.Condition, error) {
			require.Equal(t, "devices/d", name)
			return []shadow.Condition{{Type: "BLOCKED", Message: "by as/a"}, {Type: "WAITING", Message: "for b"}},
				failing
		},
	})
	got, err := r.GetResource(as(t, ann), &resourcev1.GetResourceRequest{Name: "devices/d"})
	require.NoError(t, err)
	require.Equal(t, resourcev1.Resource_STATE_DELETING, got.GetState())
	require.Len(t, got.GetConditions(), 2)
	require.Equal(t, "BLOCKED", got.GetConditions()[0].GetType())
	require.Equal(t, "for b", got.GetConditions()[1].GetMessage())
	got, err = r.GetResource(as(t, ann), &resourcev1.GetResourceRequest{
		Name:     "devices/d",
		ReadMask: &fieldmaskpb.FieldMask{Paths: []string{"conditions"}},
	})
	require.NoError(t, err)
	require.Len(t, got.GetConditions(), 2)
	require.Nil(t, got.GetBody())
	failing = peer.ErrNotFound // it was removed in between
	_, err = r.GetResource(as(t, ann), &resourcev1.GetResourceRequest{Name: "devices/d"})
	require.Equal(t, codes.NotFound, status.Code(err))
}

func TestABrokenStoredBodyIsAFaultOfTheServer(t *testing.T) {
	t.Parallel()
	r := newResourceService(&resourceStore{get: func(name string) (*peer.Resource, error) {
		found := stored(name)
		found.Body = []byte("{")
		return found, nil
	}})
	_, err := r.GetResource(as(t, ann), &resourcev1.GetResourceRequest{Name: "devices/d"})
	require.Equal(t, codes.Internal, status.Code(err))
	gone := resourceProto(self, &peer.Resource{Name: "devices/d", UID: uid(1), State: peer.Gone})
	require.Nil(t, gone.GetBody())
	require.Equal(t, resourcev1.Resource_STATE_UNSPECIFIED, gone.GetState())
}

func TestNamesOfOtherDeploymentsAreRefused(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{
		"//a.example.com/eastus2/devices/d":  "belongs to a.example.com/eastus2, this is a.example.com/us-west2",
		"//b.example.com/us-west2/devices/d": "belongs to b.example.com/us-west2",
		"//a.example.com/us-west2":           "want //service/region/name",
		"//A/us-west2/devices/d":             "want a domain name in lower case",
	} {
		_, err := ownName(self, name)
		require.ErrorContains(t, err, says)
		r := newResourceService(&resourceStore{})
		for method, call := range map[string]func() error{
			"get": func() error {
				_, err := r.GetResource(as(t, ann), &resourcev1.GetResourceRequest{Name: name})
				return err
			},
			"delete": func() error {
				_, err := r.DeleteResource(as(t, ann), &resourcev1.DeleteResourceRequest{Name: name})
				return err
			},
			"plan": func() error {
				_, err := r.PlanDeletion(as(t, ann), &resourcev1.PlanDeletionRequest{Name: name})
				return err
			},
			"block": func() error {
				_, err := r.SetBlockDeletion(as(t, operator), &resourcev1.SetBlockDeletionRequest{Name: name})
				return err
			},
			"put": func() error {
				_, err := r.PutResource(as(t, ann),
					&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: name}})
				return err
			},
		} {
			require.Equal(t, codes.InvalidArgument, status.Code(call()), "%s %s", method, name)
		}
	}
	for _, name := range []string{"", "devices/d", "anything at all"} { // the store checks relative names
		got, err := ownName(self, name)
		require.NoError(t, err)
		require.Equal(t, name, got)
	}
}

func TestAReadMaskKeepsTheFieldsThatItNames(t *testing.T) {
	t.Parallel()
	read := func(paths ...string) *resourcev1.Resource {
		mask := &fieldmaskpb.FieldMask{Paths: paths}
		p, err := withBody(self, stored("devices/d"), mask, false)
		require.NoError(t, err)
		require.NoError(t, readmask.Prune(p, mask))
		sent, err := withBody(self, stored("devices/d"), mask, true)
		require.NoError(t, err)
		require.NoError(t, readmask.Prune(sent, mask))
		raw, err := proto.Marshal(sent)
		require.NoError(t, err)
		received := &resourcev1.Resource{}
		require.NoError(t, proto.Unmarshal(raw, received))
		require.Equal(t, p.String(), received.String(), "what is encoded already is the same")
		require.Equal(t, "devices/d", p.GetName())
		require.Equal(t, "Device", p.GetKind())
		require.NotEmpty(t, p.GetUid())
		return p
	}
	whole, err := withBody(self, stored("devices/d"), nil, false)
	require.NoError(t, err)
	require.Equal(t, whole.String(), read().String())
	require.Equal(t, whole.String(), read("labels", "*").String())

	p := read("name")
	require.Zero(t, p.GetRevision())
	require.Nil(t, p.GetCreateTime())
	require.Empty(t, p.GetLabels())
	require.Nil(t, p.GetBody())
	require.Empty(t, p.GetOwnerReferences())
	require.False(t, p.GetBlockDeletion())

	require.Equal(t, int64(5), read("revision").GetRevision())
	require.Len(t, read("owner_references").GetOwnerReferences(), 2)
	require.Equal(t, map[string]string{"team": "a"}, read("labels.team", "labels.unknown").GetLabels())
	require.Equal(t, whole.GetLabels(), read("labels", "labels.team").GetLabels())
	require.Equal(t, map[string]any{"size": 3.0}, read("body.size").GetBody().AsMap())
	require.Equal(t, map[string]any{"spec": map[string]any{"a": "x", "c": map[string]any{"d": nil}}},
		read("body.spec.a", "body.spec.c.d").GetBody().AsMap())
	require.Equal(t, whole.GetBody().AsMap(), read("body", "body.size").GetBody().AsMap())
	for _, nothing := range []string{"body.unknown", "body.size.deeper", "body.unknown.x"} {
		require.Nil(t, read(nothing).GetBody(), nothing)
	}
	for _, path := range []string{"body.spec.b.0", "body.spec.unknown.x"} { // elements of lists have no paths
		require.Equal(t, map[string]any{"spec": map[string]any{}}, read(path).GetBody().AsMap(), path)
	}
	for _, bad := range []string{"colour", "spec.a", "name.first", "", "conditions.type", "owner_references.name"} {
		p, err := withBody(self, stored("devices/d"), nil, false)
		require.NoError(t, err)
		err = readmask.Prune(p, &fieldmaskpb.FieldMask{Paths: []string{"name", bad}})
		require.ErrorContains(t, err, fmt.Sprintf("read_mask: unknown field %q", bad))
		require.Equal(t, whole.String(), p.String(), "nothing is removed when the mask is invalid")
	}
	require.ErrorContains(t, readmask.Prune(whole, &fieldmaskpb.FieldMask{Paths: make([]string, 1001)}),
		"1001 paths, at most 1000 are allowed")
	require.NoError(t, readmask.Prune(nil, &fieldmaskpb.FieldMask{Paths: []string{"colour"}}))
}

func TestABatchIsReadInTheOrderOfItsNames(t *testing.T) {
	t.Parallel()
	r := newResourceService(&resourceStore{get: func(name string) (*peer.Resource, error) {
		if name == "devices/none" {
			return nil, peer.ErrNotFound
		}
		return stored(name), nil
	}})
	got, err := r.BatchGetResources(as(t, ann), &resourcev1.BatchGetResourcesRequest{Names: []string{
		"devices/b",
		"devices/a", "devices/b",
	}, ReadMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}}})
	require.NoError(t, err)
	var names []string
	for _, p := range got.GetResources() {
		names = append(names, p.GetName())
		require.Nil(t, p.GetBody())
	}
	require.Equal(t, []string{"devices/b", "devices/a", "devices/b"}, names)
	got, err = r.BatchGetResources(as(t, ann), &resourcev1.BatchGetResourcesRequest{})
	require.NoError(t, err)
	require.Empty(t, got.GetResources())

	_, err = r.BatchGetResources(as(t, ann), &resourcev1.BatchGetResourcesRequest{Names: []string{
		"devices/a",
		"devices/none",
	}})
	require.Equal(t, codes.NotFound, status.Code(err))
	_, err = r.BatchGetResources(as(t, ann), &resourcev1.BatchGetResourcesRequest{Names: make([]string, MaxBatch+1)})
	require.ErrorContains(t, err, "names: 1001 in one batch, at most 1000 are allowed")
	_, err = r.BatchGetResources(as(t, ann),
		&resourcev1.BatchGetResourcesRequest{Names: []string{"//b.example.com/us-west2/as/a"}})
	require.ErrorContains(t, err, "belongs to another service: ask b.example.com/us-west2")
}

// An answer has to fit into a message.
func TestABatchOfLargeResourcesIsRefused(t *testing.T) {
	t.Parallel()
	r := newResourceService(&resourceStore{get: func(name string) (*peer.Resource, error) {
		found := stored(name)
		found.Body = []byte(`{"text":"` + strings.Repeat("x", 1<<20) + `"}`)
		return found, nil
	}})
	names := make([]string, 20)
	for i := range names {
		names[i] = "devices/d"
	}
	_, err := r.BatchGetResources(as(t, ann), &resourcev1.BatchGetResourcesRequest{Names: names[:2]})
	require.NoError(t, err)
	_, err = r.BatchGetResources(as(t, ann), &resourcev1.BatchGetResourcesRequest{Names: names})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "names: the first 3 resources have more than 4194304 bytes together: ask for fewer")
}

func TestAListPassesItsRequestToTheStore(t *testing.T) {
	t.Parallel()
	r := newResourceService(&resourceStore{list: func(req shadow.ListRequest) ([]peer.Resource, string, error) {
		require.Equal(t, shadow.ListRequest{Kind: "Device", Limit: 1000, Token: "page", Filter: "f", OrderBy: "name"},
			req)
		return []peer.Resource{*stored("devices/a"), *stored("devices/b")}, "next", nil
	}})
	req := &resourcev1.ListResourcesRequest{
		Kind: "Device", PageSize: 5000, PageToken: "page", Filter: "f",
		OrderBy: "name", ReadMask: &fieldmaskpb.FieldMask{Paths: []string{"body.size"}},
	}
	got, err := r.ListResources(as(t, ann), req)
	require.NoError(t, err)
	require.Equal(t, "next", got.GetNextPageToken())
	require.Len(t, got.GetResources(), 2)
	require.Equal(t, map[string]any{"size": 3.0}, got.GetResources()[1].GetBody().AsMap())
	req.ReadMask.Paths = []string{"colour"}
	_, err = r.ListResources(as(t, ann), req)
	require.ErrorContains(t, err, `read_mask: unknown field "colour"`)
	r = newResourceService(&resourceStore{list: func(shadow.ListRequest) ([]peer.Resource, string, error) {
		return nil, "", shadow.ErrCostly
	}})
	_, err = r.ListResources(as(t, ann), &resourcev1.ListResourcesRequest{})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func device() *resourcev1.Resource {
	body, _ := structpb.NewStruct(map[string]any{"size": 3})
	return &resourcev1.Resource{
		Name: "devices/d", Uid: uid(1).String(), Revision: 4, Labels: map[string]string{"team": "a"}, Body: body,
		OwnerReferences: []*resourcev1.OwnerReference{{
			Name: "os/o", Kind: "Owner", Uid: uid(2).String(),
			Controller: true, RequiresOwnerReference: true, UnsetOnDelete: true,
		}},
	}
}

func TestEachKindOfWriteHasItsMode(t *testing.T) {
	t.Parallel()
	var got []peer.Write
	r := newResourceService(&resourceStore{save: func(writes []peer.Write) ([]peer.Resource, error) {
		got = writes
		out := make([]peer.Resource, len(writes))
		for i, w := range writes {
			out[i] = *stored(w.Name)
		}
		return out, nil
	}})
	want := peer.Write{
		Name: "devices/d", UID: uid(1), Revision: 4, Labels: map[string]string{"team": "a"},
		Body: map[string]any{"size": 3.0},
		Owners: []peer.OwnerReference{{
			Owner: schema.FullName{Deployment: self, Name: "os/o"}, Kind: "Owner",
			UID: uid(2), Controller: true, Requires: true, UnsetOnDelete: true,
		}},
	}
	update := &resourcev1.UpdateResourceRequest{
		Resource:   device(),
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"body.size", "labels"}},
	}
	_, err := r.PutResource(as(t, ann), &resourcev1.PutResourceRequest{Resource: device()})
	require.NoError(t, err)
	require.Equal(t, []peer.Write{want}, got)

	create := want
	create.Mode = peer.Create
	saved, err := r.CreateResource(as(t, ann), &resourcev1.CreateResourceRequest{Resource: device()})
	require.NoError(t, err)
	require.Equal(t, []peer.Write{create}, got)
	require.Equal(t, int64(5), saved.GetRevision(), "the stored resource is returned")

	updated := want
	updated.Mode, updated.Mask = peer.Update, []string{"body.size", "labels"}
	_, err = r.UpdateResource(as(t, ann), update)
	require.NoError(t, err)
	require.Equal(t, []peer.Write{updated}, got)

	second := device()
	second.Name = "devices/e"
	out, err := r.BatchWriteResources(as(t, ann),
		&resourcev1.BatchWriteResourcesRequest{Writes: []*resourcev1.BatchWriteResourcesRequest_Write{
			{Write: &resourcev1.BatchWriteResourcesRequest_Write_Create{Create: device()}},
			{Write: &resourcev1.BatchWriteResourcesRequest_Write_Update{Update: update}},
			{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: second}},
		}})
	require.NoError(t, err)
	require.Equal(t, "devices/e", out.GetResources()[2].GetName())
	want.Name = "devices/e"
	require.Equal(t, []peer.Write{create, updated, want}, got)
}

// A request id is a UUID, under which the store keeps the outcome.
func TestAWriteWithARequestIDIsKept_I29(t *testing.T) {
	t.Parallel()
	var got uuid.UUID
	r := newResourceService(
		&resourceStore{saveRequested: func(id uuid.UUID, writes []peer.Write) ([]peer.Resource, error) {
			got = id
			return []peer.Resource{*stored(writes[0].Name)}, nil
		}})
	request := uid(8).String()
	_, err := r.PutResource(as(t, ann), &resourcev1.PutResourceRequest{Resource: device(), RequestId: request})
	require.NoError(t, err)
	require.Equal(t, uid(8), got)
	_, err = r.CreateResource(as(t, ann), &resourcev1.CreateResourceRequest{Resource: device(), RequestId: request})
	require.NoError(t, err)
	_, err = r.UpdateResource(as(t, ann), &resourcev1.UpdateResourceRequest{Resource: device(), RequestId: request})
	require.NoError(t, err)
	_, err = r.PutResource(as(t, ann), &resourcev1.PutResourceRequest{Resource: device(), RequestId: "1"})
	require.ErrorContains(t, err, "request_id: ")
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

func TestInvalidWritesDoNotReachTheStore(t *testing.T) {
	t.Parallel()
	deep := &structpb.Value{Kind: &structpb.Value_NullValue{}}
	for range shadow.MaxBodyDepth + 1 {
		deep = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"a": deep}})
	}
	r := newResourceService(&resourceStore{})
	for says, change := range map[string]func(p *resourcev1.Resource){
		"uid: invalid UUID":                     func(p *resourcev1.Resource) { p.Uid = "1" },
		"owner_references[0].name: name":        func(p *resourcev1.Resource) { p.OwnerReferences[0].Name = "o" },
		"owner_references[0].kind: is missing":  func(p *resourcev1.Resource) { p.OwnerReferences[0].Kind = "" },
		"owner_references[0].uid: invalid UUID": func(p *resourcev1.Resource) { p.OwnerReferences[0].Uid = "x" },
		"owner_references[1].name: name is empty": func(p *resourcev1.Resource) {
			p.OwnerReferences = append(p.OwnerReferences, &resourcev1.OwnerReference{})
		},
		"body: more than": func(p *resourcev1.Resource) { p.Body.Fields["deep"] = deep },
	} {
		p := device()
		change(p)
		_, err := r.PutResource(as(t, ann), &resourcev1.PutResourceRequest{Resource: p})
		require.Equal(t, codes.InvalidArgument, status.Code(err), says)
		require.ErrorContains(t, err, says)
	}
	for name, call := range map[string]func() error{
		"create": func() error {
			_, err := r.CreateResource(as(t, ann), &resourcev1.CreateResourceRequest{})
			return err
		},
		"update": func() error {
			_, err := r.UpdateResource(as(t, ann), &resourcev1.UpdateResourceRequest{})
			return err
		},
		"put": func() error { _, err := r.PutResource(as(t, ann), &resourcev1.PutResourceRequest{}); return err },
		"batch": func() error {
			_, err := r.BatchWriteResources(as(t, ann),
				&resourcev1.BatchWriteResourcesRequest{Writes: make([]*resourcev1.BatchWriteResourcesRequest_Write, 1)})
			return err
		},
		"validate": func() error {
			_, err := r.MutateAndValidateResource(as(t, ann), &resourcev1.MutateAndValidateResourceRequest{})
			return err
		},
	} {
		require.ErrorContains(t, call(), "resource: is missing: give the resource to write", name)
	}
	_, err := r.BatchWriteResources(as(t, ann),
		&resourcev1.BatchWriteResourcesRequest{Writes: make([]*resourcev1.BatchWriteResourcesRequest_Write,
			MaxBatch+1)})
	require.ErrorContains(t, err, "writes: 1001 in one batch, at most 1000 are allowed")
	_, err = r.MutateAndValidateResource(as(t, ann),
		&resourcev1.MutateAndValidateResourceRequest{More: make([]*resourcev1.BatchWriteResourcesRequest_Write,
			MaxBatch)})
	require.ErrorContains(t, err, "more: 1000 in one batch with write, fewer than 1000 are allowed")
}

func TestAGivenKindHasToFitTheName(t *testing.T) {
	t.Parallel()
	file, err := schema.ParseFile("f", strings.NewReader(`
service: a.example.com
version: v2
kinds:
  - { kind: Device, previous_name: Thing, patterns: ["devices/{d}"] }
  - { kind: Set, patterns: ["sets/{s}"] }
`))
	require.NoError(t, err)
	model, err := schema.NewModel(file.Services[0].ServiceVersion, file.Services)
	require.NoError(t, err)
	r := newResourceService(&resourceStore{save: func([]peer.Write) ([]peer.Resource, error) {
		return []peer.Resource{*stored("devices/d")}, nil
	}})
	r.model = func() *schema.Model { return model }
	for kind, says := range map[string]string{
		"": "", "Device": "", "Thing": "", // the name of an earlier version
		"Set":   `devices/d: kind "Set" does not fit the name, which is of kind Device`,
		"Robot": `devices/d: unknown kind "Robot": kinds of a.example.com@v2 are Device, Set`,
	} {
		p := device()
		p.Kind = kind
		_, err := r.PutResource(as(t, ann), &resourcev1.PutResourceRequest{Resource: p})
		if says == "" {
			require.NoError(t, err, kind)
			continue
		}
		require.Equal(t, codes.InvalidArgument, status.Code(err), kind)
		require.ErrorContains(t, err, says)
	}
	r.model = func() *schema.Model { return nil } // no version yet: the store refuses the write
	p := device()
	p.Kind = "Robot"
	_, err = r.PutResource(as(t, ann), &resourcev1.PutResourceRequest{Resource: p})
	require.NoError(t, err)
}

func TestValidationReturnsWhatTheFirstWriteWouldStore(t *testing.T) {
	t.Parallel()
	would := stored("devices/d")
	r := newResourceService(&resourceStore{validate: func(writes []peer.Write, token string) ([]peer.Resource, error) {
		require.Equal(t, "page", token)
		require.Len(t, writes, 2)
		require.Equal(t, peer.Create, writes[0].Mode)
		require.Equal(t, peer.Mode(0), writes[1].Mode)
		return []peer.Resource{*would}, nil
	}})
	req := &resourcev1.MutateAndValidateResourceRequest{
		Write: &resourcev1.BatchWriteResourcesRequest_Write{
			Write: &resourcev1.BatchWriteResourcesRequest_Write_Create{Create: device()},
		},
		More: []*resourcev1.BatchWriteResourcesRequest_Write{
			{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: device()}},
		},
		PageToken: "page",
	}
	got, err := r.MutateAndValidateResource(as(t, ann), req)
	require.NoError(t, err)
	require.Equal(t, uid(1).String(), got.GetUid())
	require.NotNil(t, got.GetUpdateTime())
	would.UID = uuid.Nil
	got, err = r.MutateAndValidateResource(as(t, ann), req)
	require.NoError(t, err)
	require.Empty(t, got.GetUid(), "a new resource has neither a uid nor times")
	require.Nil(t, got.GetCreateTime())
	require.Nil(t, got.GetUpdateTime())
}

func TestABatchThatIsOnlyValidatedReturnsEachResource(t *testing.T) {
	t.Parallel()
	r := newResourceService(&resourceStore{validate: func(writes []peer.Write, token string) ([]peer.Resource, error) {
		require.Len(t, writes, 2)
		return []peer.Resource{{Name: "devices/d", Generation: 3, UID: uid(1)}, {Name: "devices/e", Generation: 1}}, nil
	}})
	write := &resourcev1.BatchWriteResourcesRequest_Write{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{
		Put: device(),
	}}
	out, err := r.BatchWriteResources(as(t, ann), &resourcev1.BatchWriteResourcesRequest{
		Writes: []*resourcev1.BatchWriteResourcesRequest_Write{write, write}, ValidateOnly: true,
	})
	require.NoError(t, err)
	require.Len(t, out.GetResources(), 2)
	require.EqualValues(t, 3, out.GetResources()[0].GetGeneration())
	require.Equal(t, uid(1).String(), out.GetResources()[0].GetUid())
	require.Empty(t, out.GetResources()[1].GetUid())
}

func TestADeleteNamesTheActorAndTheRequest(t *testing.T) {
	t.Parallel()
	want := shadow.DeleteRequest{Name: "devices/d", UID: uid(1), Revision: 7, RequestID: uid(2)}
	var result peer.DeleteResult
	r := newResourceService(
		&resourceStore{delete: func(_ context.Context, req shadow.DeleteRequest) (peer.DeleteResult, error) {
			require.Equal(t, want, req)
			return result, nil
		}})
	req := &resourcev1.DeleteResourceRequest{
		Name: "devices/d", Uid: uid(1).String(), Revision: 7,
		RequestId: uid(2).String(),
	}
	want.Actor, result.Removed = "user/ann", true
	got, err := r.DeleteResource(as(t, ann), req)
	require.NoError(t, err)
	require.True(t, got.GetRemoved())
	require.Nil(t, got.GetResource())

	want.Actor = "user/ann by way of eastus2"
	forwarded := context.WithValue(as(t, ann), forwardedKey{}, identity.Deployment(sibling))
	result = peer.DeleteResult{
		Resource: stored("devices/d"),
		Unasked:  []peer.Unasked{{Deployment: other, Why: peer.TimedOut, After: time.Second}},
	}
	got, err = r.DeleteResource(forwarded, req)
	require.NoError(t, err)
	require.False(t, got.GetRemoved())
	require.Equal(t, "devices/d", got.GetResource().GetName())
	require.Equal(t, []string{other.String()}, got.GetUnaskedDeployments())
	require.Equal(t, resourcev1.UnaskedDeployment_REASON_TIMED_OUT, got.GetUnasked()[0].GetReason())
	require.NotEmpty(t, got.GetUnasked()[0].GetMessage())

	for says, bad := range map[string]*resourcev1.DeleteResourceRequest{
		"uid: ":        {Name: "devices/d", Uid: "1"},
		"request_id: ": {Name: "devices/d", RequestId: "1"},
	} {
		_, err := r.DeleteResource(as(t, ann), bad)
		require.ErrorContains(t, err, says)
	}
}

func TestABatchOfDeletesHasOneRequest(t *testing.T) {
	t.Parallel()
	var asked []shadow.DeleteRequest
	r := newResourceService(
		&resourceStore{delete: func(_ context.Context, req shadow.DeleteRequest) (peer.DeleteResult, error) {
			asked = append(asked, req)
			if req.Name == "devices/b" {
				return peer.DeleteResult{Deletion: uid(5), Resource: stored("devices/b")}, nil
			}
			return peer.DeleteResult{Removed: true, Unasked: []peer.Unasked{{Deployment: other, Why: peer.TimedOut}}},
				nil
		}})
	got, err := r.BatchDeleteResources(as(t, ann), &resourcev1.BatchDeleteResourcesRequest{
		Requests: []*resourcev1.DeleteResourceRequest{
			{Name: "devices/a", Revision: 3},
			{Name: "//a.example.com/us-west2/devices/b", Uid: uid(1).String()},
		}, RequestId: uid(2).String(),
	})
	require.NoError(t, err)
	require.Equal(t, []shadow.DeleteRequest{
		{Name: "devices/a", Revision: 3, RequestID: uid(2), Actor: "user/ann"}, {
			Name: "devices/b", UID: uid(1),
			RequestID: uid(2), Actor: "user/ann",
		},
	}, asked)
	require.True(t, got.GetResponses()[0].GetRemoved())
	require.Equal(t, "devices/b", got.GetResponses()[1].GetResource().GetName())
	require.Nil(t, got.GetResponses()[1].GetResource().GetBody(), "bodies have no bound together")
	require.Equal(t, uid(5).String(), got.GetResponses()[1].GetDeletion())
	require.Equal(t, other.String(), got.GetUnasked()[0].GetDeployment(), "once for all")
	for says, bad := range map[string]*resourcev1.BatchDeleteResourcesRequest{
		"requests: 0 in one batch": {},
		"requests: 1001 in":        {Requests: make([]*resourcev1.DeleteResourceRequest, MaxBatch+1)},
		"requests[0].request_id: ": {Requests: []*resourcev1.DeleteResourceRequest{{
			Name:      "devices/a",
			RequestId: uid(1).String(),
		}}},
	} {
		_, err := r.BatchDeleteResources(as(t, ann), bad)
		require.ErrorContains(t, err, says)
	}
}

// The store stops a little before the caller does, so that the caller learns the reason.
func TestADeleteEndsBeforeItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for given, earlier := range map[time.Duration]time.Duration{
			time.Second: 100 * time.Millisecond, 3 * time.Second: 300 * time.Millisecond,
			5 * time.Second: 500 * time.Millisecond, time.Hour: 500 * time.Millisecond,
		} {
			ctx, cancel := context.WithTimeout(as(t, ann), given)
			r := newResourceService(
				&resourceStore{delete: func(ctx context.Context, _ shadow.DeleteRequest) (peer.DeleteResult, error) {
					deadline, ok := ctx.Deadline()
					require.True(t, ok)
					require.Equal(t, given-earlier, time.Until(deadline))
					return peer.DeleteResult{Removed: true}, nil
				}})
			_, err := r.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: "devices/d"})
			require.NoError(t, err)
			cancel()
		}
		ctx, cancel := beforeDeadline(t.Context())
		defer cancel()
		_, ok := ctx.Deadline()
		require.False(t, ok)
	})
}

func TestBlockDeletionIsSetAndCleared(t *testing.T) {
	t.Parallel()
	for _, block := range []bool{true, false} {
		r := newResourceService(
			&resourceStore{setBlockDeletion: func(name string, id uuid.UUID, got bool) (*peer.Resource, error) {
				require.Equal(t, "devices/d", name)
				require.Equal(t, uid(1), id)
				require.Equal(t, block, got)
				found := stored(name)
				found.BlockDeletion = got
				return found, nil
			}})
		got, err := r.SetBlockDeletion(as(t, operator), &resourcev1.SetBlockDeletionRequest{
			Name: "devices/d",
			Uid:  uid(1).String(), BlockDeletion: block,
		})
		require.NoError(t, err)
		require.Equal(t, block, got.GetBlockDeletion())
		_, err = r.SetBlockDeletion(as(t, operator), &resourcev1.SetBlockDeletionRequest{Name: "devices/d", Uid: "x"})
		require.ErrorContains(t, err, "uid: ")
	}
}

func TestEventsOfResourcesBecomeMessages(t *testing.T) {
	t.Parallel()
	upsert := identity.NewShared(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{
		Upsert: &resourcev1.Resource{Name: "devices/a"},
	}})
	gone := identity.NewShared(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Delete{
		Delete: &resourcev1.Resource{Name: "devices/b"},
	}})
	type event = schema.Event[sharedEvent]
	for name, c := range map[string]struct {
		event event
		want  []string
	}{
		"items of an unfinished event": {
			event{Items: []sharedEvent{upsert, gone}},
			[]string{"upsert devices/a ", "delete devices/b "},
		},
		"the last item has the token": {
			event{Items: []sharedEvent{upsert, gone}, Token: "t"},
			[]string{"upsert devices/a ", "delete devices/b t"},
		},
		"the end of the snapshot": {event{EndOfSnapshot: true, Token: "t"}, []string{"end t"}},
		"a bookmark":              {event{Token: "t"}, []string{"bookmark t"}},
		"nothing":                 {event{}, nil},
	} {
		var got []string
		stream := newServerStream[resourcev1.WatchResourcesResponse](as(t, ann))
		r := newResourceService(&resourceStore{})
		r.watched = func(_ context.Context, req *resourcev1.WatchResourcesRequest,
			_ func(peer.Resource) (sharedEvent, error), deliver func(event) error,
		) error {
			require.Equal(t, "Device", req.GetKind())
			return deliver(c.event)
		}
		require.NoError(t, r.WatchResources(&resourcev1.WatchResourcesRequest{Kind: "Device"}, stream))
		for _, m := range stream.messages(t) {
			switch {
			case m.GetUpsert() != nil:
				got = append(got, "upsert "+m.GetUpsert().GetName()+" "+m.GetResumeToken())
			case m.GetDelete() != nil:
				got = append(got, "delete "+m.GetDelete().GetName()+" "+m.GetResumeToken())
			case m.GetEndOfSnapshot() != nil:
				got = append(got, "end "+m.GetEndOfSnapshot().GetResumeToken())
			case m.GetBookmark() != nil:
				got = append(got, "bookmark "+m.GetBookmark().GetResumeToken())
			}
		}
		require.Equal(t, c.want, got, name)
	}
	require.Empty(t, gone.Message.GetResumeToken(), "watches share the messages of items: a token is set in a copy")

	r := newResourceService(&resourceStore{})
	for state, deleted := range map[peer.State]bool{peer.Active: false, peer.Deleting: false, peer.Gone: true} {
		m, err := r.event(peer.Resource{Name: "devices/a", State: state}, false)
		require.NoError(t, err)
		require.Equal(t, deleted, m.Message.GetDelete() != nil)
		require.Equal(t, deleted, m.Message.GetUpsert() == nil)
	}
	r.watched = func(context.Context, *resourcev1.WatchResourcesRequest, func(peer.Resource) (sharedEvent, error),
		func(event) error,
	) error {
		return shadow.ErrSlow
	}
	err := r.WatchResources(&resourcev1.WatchResourcesRequest{},
		newServerStream[resourcev1.WatchResourcesResponse](as(t, ann)))
	require.Equal(t, codes.Aborted, status.Code(err))
}

// Small changes share messages of a bounded size; a change that is larger goes alone. The token comes behind
// the last one.
func TestSeveralChangesGoInAMessage_I23(t *testing.T) {
	t.Parallel()
	change := func(name string, bytes int, gone bool) sharedEvent {
		p := &resourcev1.Resource{Name: name, Uid: strings.Repeat("x", bytes)}
		if gone {
			return identity.NewShared(&resourcev1.WatchResourcesResponse{
				Event: &resourcev1.WatchResourcesResponse_Delete{Delete: p},
			})
		}
		return identity.NewShared(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{
			Upsert: p,
		}})
	}
	a, b, c := change("a", 0, false), change("b", 0, true), change("c", 10<<10, false)
	large := change("large", 100<<10, false)
	type event = schema.Event[sharedEvent]
	for name, c := range map[string]struct {
		event event
		want  []string
	}{
		"without a token": {event{Items: []sharedEvent{a, b}}, []string{"[+a -b] "}},
		"a token behind the last one": {
			event{Items: []sharedEvent{a, b, a}, Token: "t"},
			[]string{"[+a -b +a] t"},
		},
		"several messages": {
			event{Items: []sharedEvent{a, c, c, b, c}, Token: "t"},
			[]string{"[+a +c] ", "[+c -b] ", "+c t"},
		},
		"a large change": {
			event{Items: []sharedEvent{large, a, b, large}, Token: "t"},
			[]string{"+large ", "[+a -b] ", "+large t"},
		},
		"a large change is the first of two": {
			event{Items: []sharedEvent{large, large}, Token: "t"},
			[]string{"+large ", "+large t"},
		},
		"the end of the snapshot": {
			event{Items: []sharedEvent{a, b}, EndOfSnapshot: true, Token: "t"},
			[]string{"[+a -b] ", "end t"},
		},
		"one": {event{Items: []sharedEvent{a}, Token: "t"}, []string{"+a t"}},
	} {
		var got []string
		require.NoError(t, sendBatches(c.event, func(m any) error {
			raw, err := identity.Codec().Marshal(m)
			require.NoError(t, err)
			msg := &resourcev1.WatchResourcesResponse{}
			require.NoError(t, proto.Unmarshal(raw.Materialize(), msg)) //nolint:misspell // its name
			if len(msg.GetChanges()) > 0 {
				require.LessOrEqual(t, raw.Len(), batchBytes+len("\x2a\x01t"), "the changes, and a token")
			}
			got = append(got, eventText(t, msg))
			return nil
		}), name)
		require.Equal(t, c.want, got, name)
	}
	failed := errors.New("the stream ended")
	sent := 0
	require.ErrorIs(t, sendBatches(event{Items: []sharedEvent{c, c, c}}, func(any) error {
		sent++
		return failed
	}), failed)
	require.Equal(t, 1, sent)
}

func eventText(t *testing.T, m *resourcev1.WatchResourcesResponse) string {
	t.Helper()
	switch {
	case m.GetUpsert() != nil:
		return "+" + m.GetUpsert().GetName() + " " + m.GetResumeToken()
	case m.GetDelete() != nil:
		return "-" + m.GetDelete().GetName() + " " + m.GetResumeToken()
	case m.GetEndOfSnapshot() != nil:
		return "end " + m.GetEndOfSnapshot().GetResumeToken()
	}
	require.NotEmpty(t, m.GetChanges())
	var names []string
	for _, c := range m.GetChanges() {
		if c.GetUpsert() != nil {
			names = append(names, "+"+c.GetUpsert().GetName())
		} else {
			names = append(names, "-"+c.GetDelete().GetName())
		}
	}
	return "[" + strings.Join(names, " ") + "] " + m.GetResumeToken()
}

func TestAPlanForPeopleHasGroupsBlockersAndItsRefusal(t *testing.T) {
	t.Parallel()
	holder := peer.Holder{
		Name: schema.FullName{Deployment: other, Name: "hs/h"}, Path: "p",
		Target: schema.FullName{Deployment: self, Name: "devices/d"},
	}
	r := newResourceService(&resourceStore{planDelete: func(name string) (*shadow.DeletePlan, error) {
		require.Equal(t, "devices/d", name)
		return &shadow.DeletePlan{
			Refusal: errors.New("devices/d is blocked"),
			Groups: []shadow.PlanGroup{
				{Parent: -1, Deployment: self, Kind: "Device", Count: 1, Names: []string{"devices/d"}},
				{
					Parent: 0, Deployment: other, Kind: "Part", Path: "device", Behaviour: schema.Unset,
					Unset: true, Count: 9,
				},
			},
			Blockers: []shadow.PlannedBlocker{{
				Holder: holder, Undecided: true, Unknown: true, Unanswered: true,
				Refuses: true,
			}},
			Unasked: []peer.Unasked{
				{Deployment: other, Why: peer.Unreachable},
				{Deployment: sibling, Why: peer.LimitReached},
			},
			Truncated: true,
		}, nil
	}})
	got, err := r.PlanDeletion(as(t, ann), &resourcev1.PlanDeletionRequest{Name: "devices/d"})
	require.NoError(t, err)
	require.False(t, got.GetAccepted())
	require.Equal(t, "devices/d is blocked", got.GetRefusal())
	require.True(t, got.GetTruncated())
	require.Equal(t, int32(-1), got.GetGroups()[0].GetParent())
	require.Equal(t, int64(9), got.GetGroups()[1].GetCount())
	require.Equal(t, schemav1.Behaviour_BEHAVIOUR_UNSET, got.GetGroups()[1].GetBehaviour())
	require.True(t, got.GetGroups()[1].GetUnset())
	require.Equal(t, []string{other.String(), sibling.String()}, got.GetUnaskedDeployments())
	require.Equal(t, resourcev1.UnaskedDeployment_REASON_LIMIT_REACHED, got.GetUnasked()[1].GetReason())
	b := got.GetBlockers()[0]
	require.Equal(t, "//b.example.com/us-west2/hs/h", b.GetHolder())
	require.True(t, b.GetUndecided() && b.GetUnknown() && b.GetUnanswered() && b.GetRefuses())
	require.Equal(t, int64(1), got.GetTotalBlockers())

	r = newResourceService(&resourceStore{planDelete: func(string) (*shadow.DeletePlan, error) {
		return &shadow.DeletePlan{}, nil
	}})
	got, err = r.PlanDeletion(as(t, ann), &resourcev1.PlanDeletionRequest{Name: "devices/d"})
	require.NoError(t, err)
	require.True(t, got.GetAccepted())
	require.Empty(t, got.GetRefusal())

	for _, plan := range []*shadow.DeletePlan{
		{Uncounted: true},
		{Unasked: []peer.Unasked{{Deployment: other, Why: peer.Unreachable}}},
		{Unasked: []peer.Unasked{{Deployment: other, Why: peer.LimitReached}}},
	} {
		r = newResourceService(&resourceStore{planDelete: func(string) (*shadow.DeletePlan, error) {
			return plan, nil
		}})
		got, err = r.PlanDeletion(as(t, ann), &resourcev1.PlanDeletionRequest{Name: "devices/d"})
		require.NoError(t, err)
		require.False(t, got.GetAccepted(), "an incomplete plan vouches for nothing")
		require.Empty(t, got.GetRefusal())
		require.Equal(t, plan.Uncounted, got.GetUncounted())
	}
}

// Where the right to delete has to cover all resources that go along, a write makes one plan for each written
// resource, and none for those that go along.
func TestAWriteThatTakesMuchAlongIsPlannedOnce_I20(t *testing.T) {
	t.Parallel()
	plans := 0
	r := newResourceService(&resourceStore{planDelete: func(string) (*shadow.DeletePlan, error) {
		plans++
		groups := []shadow.PlanGroup{{
			Parent: -1, Deployment: self, Kind: "Device", Count: 1,
			Names: []string{"devices/d"},
		}}
		return &shadow.DeletePlan{Groups: append(groups, shadow.PlanGroup{
			Parent: 0, Deployment: self, Kind: "Part",
			Count: 3, Names: []string{"parts/1", "parts/2", "parts/3"},
		})}, nil
	}})
	asked := 0
	ctx := r.ofWriter(peer.WithPerson(t.Context(), peer.Person{
		CascadeNeedsDelete: true, DeleteKind: func(context.Context, schema.DeploymentID, string) (bool, error) {
			return false, nil
		},
		Delete: func(_ context.Context, names []schema.FullName) ([]bool, error) {
			asked += len(names)
			return slices.Repeat([]bool{true}, len(names)), nil
		},
	}))
	allowed, err := peer.PersonFrom(ctx).Delete(ctx, []schema.FullName{{Deployment: self, Name: "devices/d"}})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, allowed)
	require.Equal(t, 1, plans)
	require.Equal(t, 4, asked)
}

// The pages of the blockers have each blocker once, in order, and each page names their number.
func TestTheBlockersOfAPlanArePaged(t *testing.T) {
	t.Parallel()
	var all []shadow.PlannedBlocker
	for i := range 25 {
		all = append(all,
			shadow.PlannedBlocker{Holder: peer.Holder{Name: schema.FullName{
				Deployment: other,
				Name:       fmt.Sprintf("hs/h%02d", i),
			}, Path: "p", Target: schema.FullName{Deployment: self, Name: "ts/t"}}})
	}
	for size, pages := range map[int]int{10: 3, 25: 1, 24: 2, 0: 1, -5: 1, 5000: 1} {
		var got []string
		token, n := "", 0
		for {
			out := &resourcev1.PlanDeletionResponse{}
			require.NoError(t, pageBlockers(out, all, size, token))
			require.Equal(t, int64(25), out.GetTotalBlockers())
			for _, b := range out.GetBlockers() {
				got = append(got, b.GetHolder())
			}
			n++
			if token = out.GetNextPageToken(); token == "" {
				break
			}
		}
		require.Equal(t, pages, n, size)
		require.Len(t, got, 25)
		for i, b := range all {
			require.Equal(t, b.Holder.Name.String(), got[i])
		}
	}
	require.ErrorContains(t, pageBlockers(&resourcev1.PlanDeletionResponse{}, all, 1, "nonsense"), "page_token")
}
