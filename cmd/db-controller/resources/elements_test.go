package resources

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// lists is a resource whose updates fail, some times, because another one came in between.
type lists struct {
	resourcev1.ResourceServiceClient
	stored  *resourcev1.Resource
	between int
	update  *resourcev1.UpdateResourceRequest
}

func (l *lists) GetResource(context.Context, *resourcev1.GetResourceRequest,
	...grpc.CallOption,
) (*resourcev1.Resource, error) {
	return proto.CloneOf(l.stored), nil
}

func (l *lists) UpdateResource(_ context.Context, req *resourcev1.UpdateResourceRequest,
	_ ...grpc.CallOption,
) (*resourcev1.Resource, error) {
	if l.between > 0 {
		l.between--
		l.stored.Revision++
		return nil, status.Error(codes.Aborted, "another revision")
	}
	l.update = req
	return l.stored, nil
}

func TestElementsOfListsAreRemoved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		unset []string
		want  map[string]any
		says  string
	}{
		{[]string{"policies[0]"}, map[string]any{"policies": []any{"b", "a"}}, ""},
		{[]string{"policies[=a]"}, map[string]any{"policies": []any{"b"}}, ""},
		{[]string{"policies[0]", "policies[2]", "spec.ports[=80]"}, map[string]any{
			"policies": []any{"b"},
			"spec":     map[string]any{"ports": []any{443.0}},
		}, ""},
		{[]string{"spec.ports[0]", "spec.ports[1]"}, map[string]any{"spec": map[string]any{"ports": []any{}}}, ""},
		{
			[]string{"policies[3]"},
			nil,
			"--unset policies[3]: the list policies has 3 elements, and none of them is that one",
		},
		{
			[]string{"policies[=c]"},
			nil,
			"--unset policies[=c]: the list policies has 3 elements, and none of them is that one",
		},
		{[]string{"title[0]"}, nil, "--unset title[0]: title is no list in the stored body"},
		{[]string{"none.at[0]"}, nil, "--unset none.at[0]: none.at is no list in the stored body"},
	} {
		body, err := structpb.NewStruct(map[string]any{
			"title": "t", "policies": []any{"a", "b", "a"},
			"spec": map[string]any{"ports": []any{80.0, 443.0}},
		})
		require.NoError(t, err)
		served := &lists{
			stored:  &resourcev1.Resource{Name: "projects/p", Uid: "u", Revision: 7, Body: body},
			between: 2,
		}
		update, elements, err := patchOf(nil, c.unset, nil)
		require.NoError(t, err)
		_, err = withoutElements(t.Context(), served, update, elements)
		if c.says != "" {
			require.ErrorContains(t, err, c.says)
			require.Nil(t, served.update)
			continue
		}
		require.NoError(t, err, c.unset)
		require.Equal(t, c.want, served.update.GetResource().GetBody().AsMap(), c.unset)
		require.Equal(t, "u", served.update.GetResource().GetUid())
		require.EqualValues(t, 9, served.update.GetResource().GetRevision(), "of the last read")
		for _, path := range served.update.GetUpdateMask().GetPaths() {
			require.NotContains(t, path, "[")
		}
	}
	for _, wrong := range []string{"[0]", "a[", "a[b]", "a[-1]", "a[0].b", "a[]"} {
		_, _, err := patchOf(nil, []string{wrong}, nil)
		require.ErrorContains(t, err, "want PATH[INDEX] or PATH[=VALUE]", wrong)
	}
}
