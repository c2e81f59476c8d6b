package identity_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Identities are written into logs, headers and rows: the text of an identity is parsed to the same identity
// everywhere.
func FuzzIdentities(f *testing.F) {
	for _, seed := range []string{
		"/deployment/iam.example.com/us-west2", "/user/ann", "/operator/eve@example.org",
		"/registry", "", "/", "/user/", "/user/../operator", "/user/a\nb", "/deployment//", "//registry",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		id, err := identity.ParsePath(path)
		if err != nil {
			return
		}
		if again, err := identity.ParsePath(id.Path()); err != nil || again != id {
			t.Fatalf("%q is %v, which is read as %v: %v", path, id, again, err)
		}
		if strings.ContainsAny(id.Path(), " \t\r\n\x00'\"\\%$") || len(id.Path()) > 500 {
			t.Fatalf("%q is an identity", path)
		}
	})
}

// What package proto decodes has an estimate of its memory, and what has none is not decoded.
func FuzzMessages(f *testing.F) {
	body, err := structpb.NewStruct(map[string]any{"a": []any{1, "x", nil, map[string]any{"b": true}}})
	require.NoError(f, err)
	for _, m := range []proto.Message{
		&resourcev1.Resource{}, &resourcev1.Resource{
			Name: "as/a", Labels: map[string]string{"a": "b", "c": "d"},
			Body: body, Finalizers: []string{"x"},
		},
		&resourcev1.Resource{OwnerReferences: []*resourcev1.OwnerReference{{Name: "bs/b"}}},
	} {
		raw, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Add([]byte{0x0b, 0x0c}) // a group
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := &resourcev1.Resource{}
		bytes, err := identity.DecodedBytes(m.ProtoReflect().Descriptor(), raw)
		if failed := proto.Unmarshal(raw, m); err != nil && failed == nil {
			t.Fatalf("%x is decoded, and has no estimate: %v", raw, err)
		}
		if err == nil && bytes < int64(len(m.GetFinalizers())*16+len(m.GetName())) {
			t.Fatalf("%x takes %d bytes: %v", raw, bytes, m)
		}
	})
}
