package wire

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// FuzzBodies: an encoded body stays the same when it is decoded and encoded again.
func FuzzBodies(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"a": null, "b": [1, -0.5e3, true, false, "x\"\u00e9\\"], "c": {"d": {}, "e": [[], [{}]]}}`,
		`{"": {"": ""}}`,
		`{"long": "` + strings.Repeat("x", 300) + `", "deep": ` + strings.Repeat(`{"k": [`, 40) + `"` +
			strings.Repeat("y", 20_000) + `"` + strings.Repeat(`]}`, 40) + `}`,
		`[]`, `{`, `{"a": 1e999}`,
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var fields map[string]any
		if json.Unmarshal([]byte(body), &fields) != nil || fields == nil {
			return
		}
		want, err := structpb.NewStruct(fields)
		require.NoError(t, err)
		raw, err := Body([]byte(body), PickedOf(nil))
		require.NoError(t, err)
		got := &resourcev1.Resource{}
		require.NoError(t, proto.Unmarshal(raw, got))
		require.True(t, proto.Equal(want, got.GetBody()), "%s: %s", body, got.GetBody())
	})
}

func TestABodyThatIsNoObjectIsNotEncoded(t *testing.T) {
	t.Parallel()
	for _, body := range []string{``, `[]`, `null`, `{`, `{"a"`, `{"a": [1,`, `{"a": 1e999}`, `{"a": }`} {
		_, err := Body([]byte(body), PickedOf(nil))
		require.Error(t, err, body)
	}
}
