package detach

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

const target = "//iam.example.com/eu/projects/acme"

// stored is a deployment with one resource.
type stored struct {
	resourcev1.ResourceServiceClient
	resource *resourcev1.Resource
	asked    *resourcev1.GetResourceRequest
	update   *resourcev1.UpdateResourceRequest
	deleted  *resourcev1.DeleteResourceRequest
	refuses  error
}

func (s *stored) DeleteResource(_ context.Context, req *resourcev1.DeleteResourceRequest,
	_ ...grpc.CallOption,
) (*resourcev1.DeleteResourceResponse, error) {
	s.deleted = req
	return &resourcev1.DeleteResourceResponse{}, s.refuses
}

func (s *stored) GetResource(_ context.Context, req *resourcev1.GetResourceRequest,
	_ ...grpc.CallOption,
) (*resourcev1.Resource, error) {
	s.asked = req
	if s.resource == nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	return s.resource, nil
}

func (s *stored) UpdateResource(_ context.Context, req *resourcev1.UpdateResourceRequest,
	_ ...grpc.CallOption,
) (*resourcev1.Resource, error) {
	s.update = req
	return s.resource, nil
}

// The reference goes, relative or full, and nothing else; the update is for the revision that was read, which
// is the latest.
func TestOneReferenceIsRemoved(t *testing.T) {
	t.Parallel()
	holder := schema.FullName{
		Deployment: schema.DeploymentID{Service: "iam.example.com", Region: "eu"},
		Name:       "accounts/a",
	}
	body, err := structpb.NewStruct(map[string]any{
		"project": "projects/acme",
		"others":  []any{target, "projects/other"}, "title": "A",
	})
	require.NoError(t, err)
	fresh := func() *stored {
		return &stored{resource: &resourcev1.Resource{
			Uid: "u", Revision: 7, Body: body,
			OwnerReferences: []*resourcev1.OwnerReference{{Name: "projects/acme"}, {Name: "projects/other"}},
		}}
	}
	for path, want := range map[string]map[string]any{
		"project":  {"others": []any{target, "projects/other"}, "title": "A"},
		"others.*": {"project": "projects/acme", "others": []any{"projects/other"}, "title": "A"},
	} {
		s := fresh()
		require.NoError(t, Reference(t.Context(), s, holder, path, target), path)
		require.True(t, s.asked.GetLatest())
		require.Equal(t, want, s.update.GetResource().GetBody().AsMap(), path)
		require.Equal(t, []string{"body"}, s.update.GetUpdateMask().GetPaths())
		require.Equal(t, []any{"u", int64(7)}, []any{
			s.update.GetResource().GetUid(),
			s.update.GetResource().GetRevision(),
		})
	}
	s := fresh()
	require.NoError(t, Reference(t.Context(), s, holder, OwnerPath, target))
	require.Len(t, s.update.GetResource().GetOwnerReferences(), 1)
	require.Equal(t, []string{"owner_references"}, s.update.GetUpdateMask().GetPaths())
	s = fresh()
	require.Equal(t, codes.Aborted, status.Code(Reference(t.Context(), s, holder, "title", target)))
	require.Nil(t, s.update)
	require.ErrorContains(t, Reference(t.Context(), s, holder, "@parent", target), "cannot be unset")
}

// The store takes a relative name as one of the service of the reference's kind, in the region that it
// contains.
func TestARelativeNameOfAnotherServiceIsRemoved(t *testing.T) {
	t.Parallel()
	holder := schema.FullName{
		Deployment: schema.DeploymentID{Service: "devices.example.com", Region: "eu"},
		Name:       "devices/d1",
	}
	body, err := structpb.NewStruct(map[string]any{
		"account": "serviceAccounts/robot", "zone": "regions/us/zones/z", "other": "serviceAccounts/other",
	})
	require.NoError(t, err)
	for path, target := range map[string]string{
		"account": "//iam.example.com/eu/serviceAccounts/robot",
		"zone":    "//iam.example.com/us/regions/us/zones/z",
	} {
		s := &stored{resource: &resourcev1.Resource{Uid: "u", Revision: 7, Body: body}}
		require.NoError(t, Reference(t.Context(), s, holder, path, target), path)
		require.NotContains(t, s.update.GetResource().GetBody().AsMap(), path)
		require.Len(t, s.update.GetResource().GetBody().AsMap(), 2, path)
	}
}

// A holder is deleted as the revision that refers to the target: one that refers to it no more, or has been
// made anew, stays.
func TestAHolderIsDeletedAsTheRevisionThatRefers(t *testing.T) {
	t.Parallel()
	holder := schema.FullName{
		Deployment: schema.DeploymentID{Service: "iam.example.com", Region: "eu"},
		Name:       "accounts/a",
	}
	body, err := structpb.NewStruct(map[string]any{"project": "projects/acme"})
	require.NoError(t, err)
	s := &stored{resource: &resourcev1.Resource{Uid: "u", Revision: 7, Body: body}}
	require.NoError(t, Holder(t.Context(), s, holder, "project", target))
	require.Equal(t, []any{"u", int64(7), true},
		[]any{s.deleted.GetUid(), s.deleted.GetRevision(), s.deleted.GetAllowMissing()})
	for _, path := range []string{"other", OwnerPath} {
		s = &stored{resource: &resourcev1.Resource{Uid: "u", Revision: 8, Body: body}}
		require.Equal(t, codes.Aborted, status.Code(Holder(t.Context(), s, holder, path, target)), path)
		require.Nil(t, s.deleted)
	}
	s = &stored{resource: &resourcev1.Resource{Uid: "u", Revision: 8}}
	require.NoError(t, Holder(t.Context(), s, holder, schema.ParentPath, target), "a name does not change")
	withReason, err := status.New(codes.FailedPrecondition, "it has moved").
		WithDetails(&errdetails.ErrorInfo{Reason: "MOVED"})
	require.NoError(t, err)
	s = &stored{resource: &resourcev1.Resource{Uid: "u", Revision: 7, Body: body}, refuses: withReason.Err()}
	require.Equal(t, codes.Aborted, status.Code(Holder(t.Context(), s, holder, "project", target)))
	require.NoError(t, Holder(t.Context(), &stored{}, holder, "project", target), "it is gone")
}
