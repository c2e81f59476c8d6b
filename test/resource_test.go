package test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

func TestTheResourceService(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := t.Context()
	a := resourcev1.NewResourceServiceClient(f.asUser("a.example.com/us-west2"))
	b := resourcev1.NewResourceServiceClient(f.asUser("b.example.com/eastus2"))

	// One transaction, mutual references, creates and updates and puts.
	first := &resourcev1.BatchWriteResourcesRequest{
		RequestId: uuid.NewString(),
		Writes: []*resourcev1.BatchWriteResourcesRequest_Write{
			{Write: &resourcev1.BatchWriteResourcesRequest_Write_Create{Create: &resourcev1.Resource{
				Name:   "targets/x",
				Labels: map[string]string{"team": "red"}, Body: body(t, fields{"next": "targets/y", "size": 1}),
			}}},
			{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: &resourcev1.Resource{
				Name: "targets/y",
				Body: body(t, fields{"next": "targets/x", "size": 2, "deep": fields{"er": "y"}}),
			}}},
		},
	}
	wrote, err := a.BatchWriteResources(ctx, first)
	require.NoError(t, err)
	again, err := a.BatchWriteResources(ctx, first)
	require.NoError(t, err)
	require.Equal(t, wrote.GetResources()[0].GetUid(), again.GetResources()[0].GetUid(),
		"the same id and content: the same answer")
	first.Writes = first.GetWrites()[:1]
	_, err = a.BatchWriteResources(ctx, first)
	require.Equal(t, codes.AlreadyExists, status.Code(err))
	require.Equal(t, "REQUEST_REUSED", reasonOf(err))

	// Without a body nothing is replaced by nothing.
	_, err = a.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: "targets/x"}})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "give the whole body, an empty one for none")
	_, err = a.UpdateResource(ctx, &resourcev1.UpdateResourceRequest{Resource: &resourcev1.Resource{Name: "targets/x"}})
	require.Equal(t, codes.InvalidArgument, status.Code(err))

	// Masks, revisions.
	x := wrote.GetResources()[0]
	updated, err := a.UpdateResource(ctx, &resourcev1.UpdateResourceRequest{
		Resource: &resourcev1.Resource{
			Name: "targets/x", Revision: x.GetRevision(),
			Body: body(t, fields{"size": 9, "next": "ignored"}),
		},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"body.size"}},
	})
	require.NoError(t, err)
	require.Equal(t, fields{"next": "targets/y", "size": 9.0}, updated.GetBody().AsMap())
	require.Equal(t, map[string]string{"team": "red"}, updated.GetLabels())
	_, err = a.UpdateResource(ctx, &resourcev1.UpdateResourceRequest{Resource: x})
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	require.Equal(t, "MOVED", reasonOf(err))
	read, err := a.GetResource(ctx, &resourcev1.GetResourceRequest{
		Name:     "targets/y",
		ReadMask: &fieldmaskpb.FieldMask{Paths: []string{"body.deep.er", "state"}},
	})
	require.NoError(t, err)
	require.Equal(t, fields{"deep": fields{"er": "y"}}, read.GetBody().AsMap())
	require.Zero(t, read.GetRevision())
	_, err = a.GetResource(ctx, &resourcev1.GetResourceRequest{
		Name:     "targets/y",
		ReadMask: &fieldmaskpb.FieldMask{Paths: []string{"colour"}},
	})
	require.ErrorContains(t, err, `read_mask: unknown field "colour"`)

	// Validated on both sides, and nothing stored.
	would, err := b.MutateAndValidateResource(ctx,
		&resourcev1.MutateAndValidateResourceRequest{Write: &resourcev1.BatchWriteResourcesRequest_Write{
			Write: &resourcev1.BatchWriteResourcesRequest_Write_Create{Create: &resourcev1.Resource{
				Name: "holders/v",
				Body: body(t, fields{"block": aWest + "targets/x"}),
			}},
		}})
	require.NoError(t, err)
	require.Equal(t, "Holder", would.GetKind())
	require.Empty(t, would.GetUid())
	_, err = b.MutateAndValidateResource(ctx,
		&resourcev1.MutateAndValidateResourceRequest{Write: &resourcev1.BatchWriteResourcesRequest_Write{
			Write: &resourcev1.BatchWriteResourcesRequest_Write_Create{Create: &resourcev1.Resource{
				Name: "holders/v",
				Body: body(t, fields{"block": aWest + "targets/none"}),
			}},
		}})
	require.Equal(t, "TARGET_MISSING", reasonOf(err))
	require.Nil(t, f.get(bEast+"holders/v"))

	// Lists in pages, and watches, with a filter.
	listed, err := a.ListResources(ctx, &resourcev1.ListResourcesRequest{
		Filter:  `body.size > 1`,
		OrderBy: "body.size desc", PageSize: 1,
	})
	require.NoError(t, err)
	require.Equal(t, "targets/x", listed.GetResources()[0].GetName())
	listed, err = a.ListResources(ctx, &resourcev1.ListResourcesRequest{
		Filter:  `body.size > 1`,
		OrderBy: "body.size desc", PageSize: 1, PageToken: listed.GetNextPageToken(),
	})
	require.NoError(t, err)
	require.Equal(t, "targets/y", listed.GetResources()[0].GetName())
	_, err = a.ListResources(ctx, &resourcev1.ListResourcesRequest{Filter: `body.size >`})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

// A request may arrive at any deployment of the service; it is forwarded once, to the region that owns the
// resource, with the caller's identity.
func TestRequestsAreForwardedToTheOwningRegionOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	user := f.asUser("a.example.com/us-west2")
	a := resourcev1.NewResourceServiceClient(user)
	const there = aEast + "targets/t"
	var created *resourcev1.Resource
	// a deployment that has just started does not know the address of the other one yet
	require.NoError(t, patiently(ctx, func() (err error) {
		created, err = a.CreateResource(ctx,
			&resourcev1.CreateResourceRequest{Resource: &resourcev1.Resource{
				Name: there,
				Body: body(t, fields{"n": 1}),
			}})
		return err
	}))
	require.Equal(t, "a.example.com/eastus2", created.GetDeployment())
	require.Equal(t, created.GetUid(), f.get(there).GetUid())
	f.mustPut(aWest+"targets/here", nil)
	batch, err := a.BatchGetResources(ctx, &resourcev1.BatchGetResourcesRequest{Names: []string{
		"targets/here", there,
		aWest + "targets/here",
	}})
	require.NoError(t, err)
	require.Len(t, batch.GetResources(), 3)
	require.Equal(t, "a.example.com/eastus2", batch.GetResources()[1].GetDeployment())
	listed, err := a.ListResources(ctx, &resourcev1.ListResourcesRequest{Region: "eastus2"})
	require.NoError(t, err)
	require.Len(t, listed.GetResources(), 1)
	watch, err := a.WatchResources(ctx, &resourcev1.WatchResourcesRequest{Region: "eastus2"})
	require.NoError(t, err)
	event, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, "targets/t", event.GetUpsert().GetName())
	event, err = watch.Recv()
	require.NoError(t, err)
	require.NotNil(t, event.GetEndOfSnapshot())
	_, err = a.UpdateResource(ctx, &resourcev1.UpdateResourceRequest{Resource: &resourcev1.Resource{
		Name: there,
		Body: body(t, fields{"n": 2}),
	}})
	require.NoError(t, err)
	event, err = watch.Recv()
	require.NoError(t, err)
	require.Equal(t, fields{"n": 2.0}, event.GetUpsert().GetBody().AsMap())
	plan, err := a.PlanDeletion(ctx, &resourcev1.PlanDeletionRequest{Name: there})
	require.NoError(t, err)
	require.True(t, plan.GetAccepted())
	explained, err := adminv1.NewAdminServiceClient(user).Explain(ctx, &adminv1.ExplainRequest{Name: there})
	require.NoError(t, err)
	require.Equal(t, there, explained.GetName())

	// With the caller's identity: a user has the same rights there as here.
	_, err = a.SetBlockDeletion(ctx, &resourcev1.SetBlockDeletionRequest{Name: there, BlockDeletion: true})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.ErrorContains(t, err, "user/ann")
	// Only a deployment of the same service may forward requests, and only requests of people.
	speak := func(conn *grpc.ClientConn, as string) error {
		_, err := resourcev1.NewResourceServiceClient(conn).SetBlockDeletion(metadata.AppendToOutgoingContext(ctx,
			"dbcontroller-on-behalf-of", as),
			&resourcev1.SetBlockDeletionRequest{Name: "targets/t", BlockDeletion: true})
		return err
	}
	sibling := f.as(f.Deployments[f.id(aWest+"targets/x")].Certs, "a.example.com/eastus2")
	stranger := f.as(f.Deployments[f.id(bWest+"holders/x")].Certs, "a.example.com/eastus2")
	for _, conn := range []*grpc.ClientConn{user, stranger, sibling} {
		for _, as := range []string{"/operator/eve", "/user/ann"} {
			require.Equal(t, codes.PermissionDenied, status.Code(speak(conn, as)))
		}
	}
	require.Equal(t, codes.PermissionDenied, status.Code(speak(sibling, "/deployment/b.example.com/eastus2")))
	_, err = resourcev1.NewResourceServiceClient(sibling).
		GetResource(metadata.AppendToOutgoingContext(ctx, "dbcontroller-on-behalf-of", "/user/ann"),
			&resourcev1.GetResourceRequest{Name: aWest + "targets/here"})
	require.Equal(t, codes.Internal, status.Code(err), "forwarded once already: %v", err)
	// Even in methods that every caller may use a deployment cannot claim to forward for an operator, nor in
	// methods that are not forwarded for a user.
	_, err = resourcev1.NewResourceServiceClient(sibling).
		GetResource(metadata.AppendToOutgoingContext(ctx, "dbcontroller-on-behalf-of", "/operator/eve"),
			&resourcev1.GetResourceRequest{Name: "targets/t"})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	for _, as := range []string{"/operator/eve", "/user/ann"} {
		as := metadata.AppendToOutgoingContext(ctx, "dbcontroller-on-behalf-of", as)
		_, err = adminv1.NewAdminServiceClient(sibling).Status(as, &adminv1.StatusRequest{})
		require.Equal(t, codes.PermissionDenied, status.Code(err))
		_, err = adminv1.NewAdminServiceClient(sibling).
			Decommission(as, &adminv1.DecommissionRequest{Deployment: "b.example.com/us-west2"})
		require.Equal(t, codes.PermissionDenied, status.Code(err))
	}
	// An operator's request is forwarded as a user's; requests that only operators may make are not
	// forwarded.
	operator := resourcev1.NewResourceServiceClient(f.as(f.ClientCerts(), "a.example.com/us-west2"))
	_, err = operator.GetResource(ctx, &resourcev1.GetResourceRequest{Name: there})
	require.NoError(t, err)
	_, err = operator.SetBlockDeletion(ctx, &resourcev1.SetBlockDeletionRequest{Name: there, BlockDeletion: true})
	require.ErrorContains(t, err, "ask that deployment")

	// The removal by a forwarded request records the caller, and the region that vouches for it.
	f.mustPut(aEast+"targets/short", nil)
	_, err = a.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: aEast + "targets/short"})
	require.NoError(t, err)
	out, err := run(t, "removals", aEast+"targets/short", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "user/ann by way of us-west2")

	// Resources of another service, or of two regions in one transaction, are refused.
	_, err = a.GetResource(ctx, &resourcev1.GetResourceRequest{Name: bEast + "holders/h"})
	require.ErrorContains(t, err, "belongs to another service: ask b.example.com/eastus2")
	_, err = a.BatchWriteResources(ctx,
		&resourcev1.BatchWriteResourcesRequest{Writes: []*resourcev1.BatchWriteResourcesRequest_Write{
			{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: &resourcev1.Resource{
				Name: there,
				Body: body(t, nil),
			}}},
			{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: &resourcev1.Resource{
				Name: "targets/here",
				Body: body(t, nil),
			}}},
		}})
	require.ErrorContains(t, err, "one request writes in one deployment")
	// The owning region cannot be reached: the error says so. When it is back, the next request succeeds,
	// after any time.
	require.NoError(t, f.Deployments[f.id(there)].Kill())
	for range 2 {
		_, err = a.GetResource(ctx, &resourcev1.GetResourceRequest{Name: there})
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	}
	require.NoError(t, f.Deployments[f.id(there)].Start())
	f.ready("a.example.com/eastus2")
	_, err = a.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: there})
	require.NoError(t, err)
	f.gone(there)
}

func TestPlanDryRunAndLint(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const target = aWest + "targets/t"
	f.mustPut(target, nil)
	for i := range 5 {
		f.mustPut(fmt.Sprintf("%stargets/n%d", aEast, i), fields{"next": target})
	}
	f.mustPut(bEast+"holders/u", fields{"unset": fields{"list": []any{target}}})
	f.mustPut(bWest+"holders/b", fields{"block": aEast + "targets/n3"})
	f.mustPut(aWest+"others/owned", nil, ownedBy("Target", aEast+"targets/n1"))
	f.mustPut(bWest+"holders/waits", fields{"block": aWest + "others/owned"})
	f.pinned(aWest+"others/owned", 1)
	for _, args := range [][]string{{"plan", target}, {"delete", target, "--dry-run"}} {
		out, err := run(t, append(args, "--context", f.Context)...)
		require.NoError(t, err, out)
		require.Equal(t, target+`  Target
├─ 5 Target deleted in a.example.com/eastus2 (next): targets/n0, targets/n1, targets/n2, and 2 more
│  └─ 1 Other deleted in a.example.com/us-west2 (owner): others/owned
└─ 1 Holder unset in b.example.com/eastus2 (unset.list.*): holders/u

refused    //b.example.com/us-west2/holders/b (block) blocks `+aEast+`targets/n3
waits      //b.example.com/us-west2/holders/waits (block) blocks `+aWest+`others/owned, which waits for it
A delete would be refused: `+target+` cannot be deleted: `+aEast+`targets/n3, which would be deleted with it, is referred to by //b.example.com/us-west2/holders/b (block)
`, out)
	}
	require.NotNil(t, f.get(target), "nothing changed")
	require.ErrorContains(t, f.delete(target), bWest+"holders/b (block)", "a delete says the same")
	f.mustPut(bWest+"holders/b", nil)
	require.NoError(t, f.Deployments[f.id(bEast+"holders/x")].Kill())
	out, err := run(t, "plan", target, "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "not asked  b.example.com/eastus2 does not answer; its resources are not in this plan")
	require.Contains(t, out, "b.example.com/eastus2 cannot be reached: ")
	require.Contains(t, out,
		"Nothing known refuses a delete: ≥ 7 deleted, ≥ 0 unset, where ≥ is \"at least\": 1 deployment did not answer.\n")
	require.NoError(t, f.Deployments[f.id(bEast+"holders/x")].Start())
	f.ready("b.example.com/eastus2")
	out, err = run(t, "delete", target, "--timeout", "-1s", "--context", f.Context)
	require.Error(t, err)
	require.Contains(t, out, "--timeout -1s: want more than 0s")
	out, err = run(t, "delete", target, "--timeout", "20s", "--context", f.Context)
	require.NoError(t, err, out)
	f.gone(target, aEast+"targets/n4")
	f.eventually("the owned one waits", func() bool {
		return f.get(aWest+"others/owned").GetState() == resourcev1.Resource_STATE_DELETING
	})
	out, err = run(t, "explain", aWest+"others/owned", "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "BLOCKED    by "+bWest+"holders/waits (block)")
	f.mustPut(bWest+"holders/waits", nil)
	f.gone(aWest + "others/owned")
	f.settled()
}
