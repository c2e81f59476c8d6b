package cli

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// Commands take the words that they print: full names, and the words of descriptors.
func TestMessagesArePrintedInTheWordsThatCommandsTake(t *testing.T) {
	t.Parallel()
	body, err := structpb.NewStruct(map[string]any{"state": "STATE_ACTIVE", "n": 1})
	require.NoError(t, err)
	r := &resourcev1.Resource{
		Name: "projects/acme", Deployment: "iam.example.com/eu", State: resourcev1.Resource_STATE_DELETING, Revision: 7,
		Body:   body,
		Labels: map[string]string{`a"b`: "STATE_ACTIVE"}, CreateTime: timestamppb.New(timestamppb.Now().AsTime()),
		OwnerReferences: []*resourcev1.OwnerReference{
			{Name: "projects/other"},
			{Name: "//iam.example.com/us/projects/far"},
		},
	}
	printed := func(m proto.Message) (out map[string]any) {
		raw, err := toJSON(m)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(raw, &out))
		return out
	}
	got := printed(r)
	require.Equal(t, "//iam.example.com/eu/projects/acme", got["name"])
	require.Equal(t, "DELETING", got["state"])
	require.Equal(t, map[string]any{"state": "STATE_ACTIVE", "n": 1.0}, got["body"], "a body has its own words")
	require.Equal(t, map[string]any{`a"b`: "STATE_ACTIVE"}, got["labels"])
	owners := got["ownerReferences"].([]any)
	require.Equal(t, "//iam.example.com/eu/projects/other", owners[0].(map[string]any)["name"])
	require.Equal(t, "//iam.example.com/us/projects/far", owners[1].(map[string]any)["name"])
	require.Equal(t, "projects/acme", r.GetName(), "the message stays as it is")

	event := printed(&resourcev1.WatchResourcesResponse{
		ResumeToken: "t",
		Event:       &resourcev1.WatchResourcesResponse_Delete{Delete: r},
	})
	require.Equal(t, "//iam.example.com/eu/projects/acme", event["delete"].(map[string]any)["name"])

	// A script reads the token of each event from one field.
	for _, m := range []*resourcev1.WatchResourcesResponse{
		{ResumeToken: "t", Event: &resourcev1.WatchResourcesResponse_Delete{Delete: r}},
		{Event: &resourcev1.WatchResourcesResponse_Bookmark_{Bookmark: &resourcev1.WatchResourcesResponse_Bookmark{
			ResumeToken: "t",
		}}},
		{Event: &resourcev1.WatchResourcesResponse_EndOfSnapshot_{
			EndOfSnapshot: &resourcev1.WatchResourcesResponse_EndOfSnapshot{ResumeToken: "t"},
		}},
	} {
		require.Equal(t, "t", printed(m)["resumeToken"])
	}

	d := &schemav1.ServiceDescriptor{Kinds: []*schemav1.KindDescriptor{
		{References: []*schemav1.ReferenceDescriptor{
			{Behaviour: schemav1.Behaviour_BEHAVIOUR_BLOCK},
			{Behaviour: 99},
		}},
	}}
	references := printed(d)["kinds"].([]any)[0].(map[string]any)["references"].([]any)
	require.Equal(t, "BLOCK", references[0].(map[string]any)["behaviour"])
	require.EqualValues(t, 99, references[1].(map[string]any)["behaviour"], "of a newer program")
	require.Empty(t, printed(&resourcev1.Resource{}))
}
