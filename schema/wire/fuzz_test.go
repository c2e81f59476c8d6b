package wire_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// Any descriptor: a descriptor that passes Check has a model, and passes again after a round trip.
func FuzzDescriptors(f *testing.F) {
	for _, d := range []*schemav1.ServiceDescriptor{
		{},
		{
			Service: "a.example.com", Version: "v1",
			Kinds: []*schemav1.KindDescriptor{{Kind: "A", Patterns: []string{"as/{a}"}}},
		},
		{
			Service: "a.example.com", Version: "v1",
			Imports: []*schemav1.ServiceVersion{{Service: "a.example.com", Version: "v1"}},
			Kinds: []*schemav1.KindDescriptor{
				{
					Kind: "A", Patterns: []string{"as/{a}"},
					References:  []*schemav1.ReferenceDescriptor{{Path: "x.*", Targets: []string{"A"}, Behaviour: 3}},
					ReferableBy: []string{"b.example.com"},
				},
				{Kind: "B", PreviousName: "A", Parents: []*schemav1.ParentDescriptor{{Kind: "A", Behaviour: 99}}},
			},
		},
	} {
		raw, err := proto.Marshal(d)
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		d := &schemav1.ServiceDescriptor{}
		if proto.Unmarshal(raw, d) != nil {
			return
		}
		read := wire.Descriptor(d)
		if schema.Check([]*schema.Descriptor{read}) != nil {
			return
		}
		require.NoError(t, schema.Check([]*schema.Descriptor{wire.Descriptor(wire.DescriptorProto(read))}))
		if _, err := schema.NewModel(read.ServiceVersion, []*schema.Descriptor{read}); err != nil {
			t.Fatalf("checked, and no model: %v", err)
		}
	})
}

// Causes of other deployments are stored: a cause that cannot be stored counts as unknown.
func FuzzCauses(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), "//a/b/c/d", []byte("0123456789abcdef"), "user/u", []byte{},
		int64(1_700_000_000), int32(1))
	f.Add([]byte("x"), "a\x00b", []byte{}, "a\nb", []byte("y"), int64(-1)<<62, int32(-7))
	f.Fuzz(func(t *testing.T, id []byte, root string, uid []byte, actor string, request []byte, at int64, of int32) {
		c := &schemav1.Cause{Id: id, Root: root, RootUid: uid, Actor: actor, RequestId: request}
		raw, err := proto.Marshal(c)
		if err != nil {
			return // not UTF-8, which no peer can send
		}
		require.NoError(t, proto.Unmarshal(raw, c))
		c.Time = &timestamppb.Timestamp{Seconds: at}
		deletions := make([]schema.Deletion, 1)
		wire.SetCauses(deletions, []*schemav1.Cause{c}, []int32{of})
		got := deletions[0].Cause
		if got == nil {
			return
		}
		require.Equal(t, int32(1), of)
		require.NotEqual(t, uuid.Nil, got.ID)
		require.LessOrEqual(t, len(got.Root)+len(got.Actor), 1000)
		for _, r := range got.Root + strings.ReplaceAll(got.Actor, " ", "") {
			require.True(t, r > ' ' && r <= '~')
		}
		require.Greater(t, got.At.Year(), 1969)
	})
}
