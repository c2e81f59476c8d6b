package test

import (
	"context"
	"encoding/base64"
	"math"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// answers lists the codes that a server may return for a wrong request: never an internal error.
var answers = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.OutOfRange,
	codes.Aborted,
}

type badRequests struct {
	t *testing.T
}

func (b badRequests) refused(what string, err error) {
	b.t.Helper()
	require.Contains(b.t, answers, status.Code(err), "%s: %v", what, err)
	require.Greater(b.t, len(status.Convert(err).Message()), 10, "%s: %v", what, err)
}

func TestAWrongWriteIsTheCallersMistake(t *testing.T) {
	f := newFixture(t)
	bad := badRequests{t: t}
	user, ctx := resourcev1.NewResourceServiceClient(f.asUser("a.example.com/us-west2")), t.Context()
	f.mustPut(aWest+"targets/t", fields{"x": 1})
	deep := structpb.NewStringValue("x")
	for range 3000 {
		deep = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"a": deep}})
	}
	number := func(f float64) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{
			"a": {Kind: &structpb.Value_NumberValue{NumberValue: f}},
		}}
	}
	owned := func(name, kind string) *resourcev1.Resource {
		return &resourcev1.Resource{
			Name:            "targets/o",
			OwnerReferences: []*resourcev1.OwnerReference{{Name: name, Kind: kind}},
		}
	}
	for what, r := range map[string]*resourcev1.Resource{
		"nothing":                  nil,
		"no body":                  {Name: "targets/t"},
		"a NUL in a label":         {Name: "targets/l", Labels: map[string]string{"a": "\x00"}},
		"a NUL in a label's key":   {Name: "targets/l", Labels: map[string]string{"\x00": "a"}},
		"an empty label key":       {Name: "targets/l", Labels: map[string]string{"": ""}},
		"a NUL in an owner's kind": owned(bWest+"holders/h", "a\x00"),
		"a long owner's kind":      owned(bWest+"holders/h", strings.Repeat("K", 5000)),
		"an empty owner":           owned("", ""),
		"itself as the owner":      owned("targets/o", "Target"),
		"a kind that is none":      {Name: "targets/o", Kind: "\x00"},
		"a uid that is none":       {Name: "targets/o", Uid: "zz"},
		"a negative revision":      {Name: "targets/o", Revision: -1},
		"an unknown region":        {Name: "//a.example.com/mars/targets/o"},
		"another service":          {Name: bWest + "holders/o"},
		"an unfinished name":       {Name: "//"},
		"a NUL in a reference":     {Name: "targets/r", Body: body(t, fields{"next": "targets/\x00"})},
		"a body that is too deep":  {Name: "targets/d", Body: deep.GetStructValue()},
		"a body that is too large": {Name: "targets/d", Body: body(t, fields{"blob": strings.Repeat("x", 3_000_000)})},
		"infinity":                 {Name: "targets/n", Body: number(math.Inf(1))},
		"not a number":             {Name: "targets/n", Body: number(math.NaN())},
	} {
		if r != nil && r.Body == nil && what != "no body" {
			r.Body = body(t, nil)
		}
		_, err := user.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: r})
		bad.refused("put: "+what, err)
		_, err = user.MutateAndValidateResource(ctx, &resourcev1.MutateAndValidateResourceRequest{
			Write: &resourcev1.BatchWriteResourcesRequest_Write{
				Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: r},
			},
		})
		bad.refused("validate: "+what, err)
	}
	_, err := user.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{
		Name: "targets/d",
		Body: body(t, fields{"blob": strings.Repeat("x", 5_000_000)}),
	}})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "gRPC refuses what is above the limit of a request: %v",
		err)
	_, err = user.BatchWriteResources(ctx,
		&resourcev1.BatchWriteResourcesRequest{Writes: []*resourcev1.BatchWriteResourcesRequest_Write{{}}})
	bad.refused("a write of nothing", err)
	update := func(mask string, labels map[string]string) error {
		_, err := user.UpdateResource(ctx, &resourcev1.UpdateResourceRequest{
			Resource:   &resourcev1.Resource{Name: "targets/t", Labels: labels},
			UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{mask}},
		})
		return err
	}
	bad.refused("an empty path in the mask", update("", nil))
	bad.refused("an unknown path in the mask", update("nope", nil))
	bad.refused("a NUL through the mask", update("labels", map[string]string{"a": "\x00"}))
	_, err = user.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: "targets/t", Uid: "x"})
	bad.refused("delete: a uid that is none", err)
	_, err = user.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: "targets/t", Revision: -7})
	bad.refused("delete: a negative revision", err)
}

func TestAWrongQuestionIsTheCallersMistake(t *testing.T) {
	f := newFixture(t)
	bad := badRequests{t: t}
	conn, ctx := f.asUser("a.example.com/us-west2"), t.Context()
	user, admin := resourcev1.NewResourceServiceClient(conn), adminv1.NewAdminServiceClient(conn)
	f.mustPut(aWest+"targets/t", nil)
	for _, name := range []string{"", aEast + "targets/none", "//a.example.com/mars/targets/x", "//", "targets/\x00"} {
		_, err := user.GetResource(ctx, &resourcev1.GetResourceRequest{Name: name})
		bad.refused("get "+name, err)
		_, err = user.BatchGetResources(ctx, &resourcev1.BatchGetResourcesRequest{Names: []string{name}})
		bad.refused("batch get "+name, err)
		_, err = user.PlanDeletion(ctx, &resourcev1.PlanDeletionRequest{Name: name})
		bad.refused("plan "+name, err)
		_, err = admin.Explain(ctx, &adminv1.ExplainRequest{Name: name})
		bad.refused("explain "+name, err)
	}
	for _, mask := range []string{"nope", "", "state.x", "owner_references.name"} {
		_, err := user.GetResource(ctx, &resourcev1.GetResourceRequest{
			Name:     "targets/t",
			ReadMask: &fieldmaskpb.FieldMask{Paths: []string{mask}},
		})
		bad.refused("read mask "+mask, err)
	}
	for what, list := range map[string]*resourcev1.ListResourcesRequest{
		"an unknown region":          {Region: "mars"},
		"a region that is none":      {Region: "\x00"},
		"an unknown kind":            {Kind: "\x00"},
		"a filter that is none":      {Filter: "xx"},
		"a NUL in the filter":        {Filter: "name = \"\x00\""},
		"an order that is none":      {OrderBy: "a b c"},
		"a page token that is none":  {PageToken: "\x00"},
		"a page token of nothing":    {PageToken: base64.RawURLEncoding.EncodeToString([]byte("null"))},
		"a page token of other type": {PageToken: base64.RawURLEncoding.EncodeToString([]byte("[]"))},
	} {
		_, err := user.ListResources(ctx, list)
		bad.refused("list: "+what, err)
	}
	for what, watch := range map[string]*resourcev1.WatchResourcesRequest{
		"a resume token that is none":           {ResumeToken: "\x00"},
		"a filter that is none, somewhere else": {Region: "eastus2", Filter: "xx"},
	} {
		stream, err := user.WatchResources(ctx, watch)
		require.NoError(t, err)
		_, err = stream.Recv()
		bad.refused("watch: "+what, err)
	}
}

func TestAPeersWrongMessageIsItsMistake(t *testing.T) {
	f := newFixture(t)
	bad := badRequests{t: t}
	f.mustPut(aWest+"targets/t", nil)
	certs, err := f.Issue(identity.Deployment(f.id(bEast + "holders/h")))
	require.NoError(t, err)
	peer, ctx := schemav1.NewSchemaServiceClient(f.as(certs, "a.example.com/us-west2")), t.Context()
	attempt, id, epoch := uuid.Must(uuid.NewV7()), uuid.New(), f.epoch(f.id(bEast+"holders/h"))
	_, err = peer.ConfirmBlockades(ctx, &schemav1.ConfirmBlockadesRequest{})
	bad.refused("confirm: no epoch", err)
	reference := func(path, kind string, behaviour schemav1.Behaviour) *schemav1.EstablishReferencesRequest_Reference {
		return &schemav1.EstablishReferencesRequest_Reference{
			Holder: &schemav1.ResourceRef{Kind: "Holder", Name: "holders/h", Uid: id[:]}, Path: path,
			Target: &schemav1.ResourceRef{Kind: kind, Name: "targets/t"}, Behaviour: behaviour,
		}
	}
	for what, r := range map[string]*schemav1.EstablishReferencesRequest_Reference{
		"nothing":              {},
		"an unknown behaviour": reference("block", "Target", 99),
		"a long path":          reference(strings.Repeat("a", 9000), "Target", 1),
		"a NUL in the path":    reference("a\x00", "Target", 1),
	} {
		for _, validateOnly := range []bool{true, false} {
			err := establishOne(ctx, peer, &schemav1.EstablishReferencesRequest_Attempt{
				Attempt: attempt[:], ValidateOnly: validateOnly,
				References: []*schemav1.EstablishReferencesRequest_Reference{r},
			})
			bad.refused("establish: "+what, err)
		}
	}
	// A kind that this version lacks is not the peer's mistake: the answer is neither yes nor no.
	err = establishOne(ctx, peer, &schemav1.EstablishReferencesRequest_Attempt{
		Attempt: attempt[:], References: []*schemav1.EstablishReferencesRequest_Reference{reference("block",
			"Nope", 1)},
	})
	require.Equal(t, codes.Unavailable, status.Code(err))

	_, err = peer.ConfirmBlockades(ctx, &schemav1.ConfirmBlockadesRequest{Epoch: epoch, Attempts: [][]byte{{}, {1}}})
	bad.refused("confirm: no attempts", err)
	key := &schemav1.BlockadeKey{Attempt: id[:], HolderUid: id[:], TargetUid: id[:], Path: "a\x00"}
	for _, k := range []*schemav1.BlockadeKey{{}, key} {
		_, err = peer.ReleaseBlockades(ctx, &schemav1.ReleaseBlockadesRequest{
			Epoch: epoch,
			Keys:  []*schemav1.BlockadeKey{k},
		})
		bad.refused("release", err)
		_, err = peer.ResolveBlockades(ctx,
			&schemav1.ResolveBlockadesRequest{Questions: []*schemav1.ResolveBlockadesRequest_Question{{Key: k}}})
		bad.refused("resolve", err)
	}
	_, err = peer.PlanDeletion(ctx, &schemav1.PlanDeletionRequest{
		Limit:   -1,
		Targets: []*schemav1.PlanDeletionRequest_Target{{}},
	})
	bad.refused("plan of nothing", err)
	_, err = peer.CheckOwners(ctx, &schemav1.CheckOwnersRequest{Questions: []*schemav1.CheckOwnersRequest_Question{{}}})
	bad.refused("owners: no owner", err)
	_, err = peer.DropOwners(ctx, &schemav1.DropOwnersRequest{
		Epoch: epoch,
		LetGo: []*schemav1.DropOwnersRequest_LetGo{{}},
	})
	bad.refused("drop: no owner", err)
	_, err = peer.UpgradeOwnerReferences(ctx, &schemav1.UpgradeOwnerReferencesRequest{
		Version: "v1", Generation: -1,
		Renamed: []*schemav1.UpgradeOwnerReferencesRequest_Renamed{{}},
	})
	bad.refused("upgrade: no kind", err)
	_, err = peer.AcknowledgeDeletions(ctx, &schemav1.AcknowledgeDeletionsRequest{
		Epoch: epoch, Position: "\x00",
		ExceptUids: [][]byte{id[:]},
	})
	bad.refused("acknowledge: no position", err)
	_, err = peer.TraceCascades(ctx, &schemav1.TraceCascadesRequest{Uids: [][]byte{nil}})
	bad.refused("trace: no uid", err)
	for _, token := range []string{"\x00", "99999999999999999999"} {
		_, err = peer.ListBlockades(ctx, &schemav1.ListBlockadesRequest{PageToken: token, PageSize: -1})
		bad.refused("blockades: page token", err)
	}
	stream, err := peer.WatchImportedServiceDeletions(ctx,
		&schemav1.WatchImportedServiceDeletionsRequest{ResumeToken: "AAAA"})
	require.NoError(t, err)
	_, err = stream.Recv()
	bad.refused("deletions: resume token", err)
}

// Only deployments may set the header with the original caller of a forwarded request.
func TestOnlyDeploymentsForwardCallers(t *testing.T) {
	f := newFixture(t)
	f.mustPut(aWest+"targets/t", nil)
	certs, err := f.Issue(identity.Deployment(f.id(bEast + "holders/h")))
	require.NoError(t, err)
	for _, conn := range []grpc.ClientConnInterface{
		f.asUser("a.example.com/us-west2"),
		f.as(certs, "a.example.com/us-west2"),
	} {
		user := resourcev1.NewResourceServiceClient(conn)
		for _, who := range []string{"/operator/root", "/deployment/a.example.com/eastus2"} {
			for _, name := range []string{"targets/t", aEast + "targets/t"} {
				ctx := metadata.AppendToOutgoingContext(context.WithoutCancel(t.Context()), "dbcontroller-on-behalf-of",
					who)
				_, err := user.SetBlockDeletion(ctx, &resourcev1.SetBlockDeletionRequest{
					Name:          name,
					BlockDeletion: true,
				})
				require.Equal(t, codes.PermissionDenied, status.Code(err))
			}
		}
	}
}

// The largest accepted resource can be read by every caller, and a page of them fits into a message.
func TestTheLargestResourcesCanBeRead(t *testing.T) {
	f := newFixture(t)
	for _, n := range []string{"a", "b", "c", "d", "e", "f"} {
		f.mustPut(aWest+"targets/"+n, fields{"blob": strings.Repeat("x", 900_000)})
	}
	user := resourcev1.NewResourceServiceClient(f.asUser("a.example.com/us-west2"))
	var names []string
	for token := ""; ; {
		page, err := user.ListResources(t.Context(), &resourcev1.ListResourcesRequest{PageToken: token})
		require.NoError(t, err)
		for _, r := range page.GetResources() {
			names = append(names, r.GetName())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	require.Len(t, names, 6)
	stream, err := user.WatchResources(t.Context(), &resourcev1.WatchResourcesRequest{})
	require.NoError(t, err)
	for {
		msg, err := stream.Recv()
		require.NoError(t, err)
		if msg.GetEndOfSnapshot() != nil {
			break
		}
	}
}
