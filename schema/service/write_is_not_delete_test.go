package service_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

const writers = services + `
---
rights:
  default: deny
  grants:
    - { identity: user/root, verbs: [read, write, delete, refer] }
    - { identity: user/eve, verbs: [read, write], name: targets/note* }
    - { identity: user/eve, verbs: [read, write, delete, refer], name: targets/eve-* }
`

// A caller who may write a resource and not delete it gives it no owner, and no cascading target, which the
// caller can delete: by none of the methods that write.
func TestWriteIsNotDelete(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	issuer := harness.NewIssuer(t)
	g := newGuarded(t, issuer)
	g.declare(writers)
	root, eve := g.as(issuer.File("root", "db", time.Hour)), g.as(issuer.File("eve", "db", time.Hour))
	kept := owned("note", "keeper").GetResource()
	kept.OwnerReferences[0].UnsetOnDelete = true
	for _, r := range []*resourcev1.Resource{target("keeper").GetResource(), kept, target("eve-1").GetResource()} {
		_, err := root.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: r})
		require.NoError(t, err)
	}
	stored, err := root.GetResource(ctx, &resourcev1.GetResourceRequest{Name: "targets/note"})
	require.NoError(t, err)

	bound := owned("note", "keeper").GetResource() // to its present owner, also when that is deleted
	requires := owned("note", "keeper").GetResource()
	requires.OwnerReferences[0].UnsetOnDelete, requires.OwnerReferences[0].RequiresOwnerReference = true, true
	second := owned("note", "eve-1").GetResource()
	second.OwnerReferences = append(second.OwnerReferences, kept.GetOwnerReferences()...)
	// While the keeper lives, it keeps what eve-1 owns too: without it, eve-1 takes the note along.
	twice := owned("note-2", "eve-1").GetResource()
	twice.OwnerReferences = append(twice.OwnerReferences,
		owned("note-2", "keeper").GetResource().GetOwnerReferences()...)
	_, err = root.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: twice})
	require.NoError(t, err)
	for what, in := range map[string]*resourcev1.Resource{
		"no other owner":     owned("note-2", "eve-1").GetResource(),
		"a cascading target": target("note", "targets/eve-1").GetResource(), "an owner": owned("note", "eve-1").
					GetResource(), "a second owner": second,
		"an owner that does not let it stay": bound, "an owner that has to refer to it": requires,
	} {
		type write = resourcev1.BatchWriteResourcesRequest_Write
		put := &write{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: in}}
		mask := &fieldmaskpb.FieldMask{Paths: []string{"body", "owner_references"}}
		for method, call := range map[string]func() error{
			"put": func() error {
				_, err := eve.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: in})
				return err
			},
			"update": func() error {
				_, err := eve.UpdateResource(ctx, &resourcev1.UpdateResourceRequest{Resource: in, UpdateMask: mask})
				return err
			},
			"batch": func() error {
				_, err := eve.BatchWriteResources(ctx, &resourcev1.BatchWriteResourcesRequest{Writes: []*write{
					{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: target("eve-2").GetResource()}}, put,
				}})
				return err
			},
			"dry run": func() error {
				_, err := eve.MutateAndValidateResource(ctx, &resourcev1.MutateAndValidateResourceRequest{Write: put})
				return err
			},
		} {
			err := call()
			require.Equal(t, codes.PermissionDenied, status.Code(err), "%s, %s: %v", what, method, err)
			require.ErrorContains(t, err, "the writer has no right to delete the holder", "%s, %s", what, method)
		}
	}
	now, err := root.GetResource(ctx, &resourcev1.GetResourceRequest{Name: "targets/note"})
	require.NoError(t, err)
	require.Equal(t, stored.GetRevision(), now.GetRevision())

	// Other changes, references that it has already, and resources that the writer creates are allowed.
	labelled := owned("note", "keeper").GetResource()
	labelled.OwnerReferences[0].UnsetOnDelete, labelled.Labels = true, map[string]string{"by": "eve"}
	for _, in := range []*resourcev1.Resource{
		labelled, target("eve-3", "targets/eve-1").GetResource(),
		owned("eve-4", "eve-1").GetResource(), target("note").GetResource(), twice, target("note-2").GetResource(),
	} {
		_, err := eve.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: in})
		require.NoError(t, err, in.GetName())
	}
	_, err = eve.PutResource(ctx, target("eve-4", "targets/eve-3"))
	require.NoError(t, err, "who may delete it")
}
