package detach

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
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
}

func (s *stored) GetResource(_ context.Context, req *resourcev1.GetResourceRequest,
	_ ...grpc.CallOption,
) (*resourcev1.Resource, error) {
	s.asked = req
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
		require.Equal(t, []any{"u", int64(7)}, []any{s.update.GetResource().GetUid(), s.update.GetResource().
			GetRevision()})
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
