package wire_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema/wire"
)

func structOf(t testing.TB, v map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(v)
	require.NoError(t, err)
	return s
}

func TestBodiesAreBoundedBeforeTheyAreConverted(t *testing.T) {
	t.Parallel()
	most := wire.Bounds{Bytes: 1 << 20, Levels: 100}
	check := func(s *structpb.Struct) error { return wire.CheckObject("body", s, most) }
	nested := func(levels int) *structpb.Struct {
		v := structpb.NewStringValue("x")
		for range levels - 1 {
			v = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"a": v}})
		}
		return &structpb.Struct{Fields: map[string]*structpb.Value{"a": v}}
	}
	require.NoError(t, check(nil))
	require.NoError(t, check(structOf(t, map[string]any{"a": []any{1, "x", nil, true, map[string]any{"b": 1e308}}})))
	require.NoError(t, check(nested(most.Levels)))
	require.EqualError(t, check(nested(most.Levels+1)), "body: more than 100 levels")
	require.NoError(t, check(structOf(t, map[string]any{"a": strings.Repeat("x", most.Bytes-100)})))
	for name, body := range map[string]map[string]any{
		"a text":         {"a": strings.Repeat("x", most.Bytes+1)},
		"a key":          {strings.Repeat("k", most.Bytes+1): 1},
		"many elements":  {"a": make([]any, most.Bytes+1)},
		"many keys":      {"a": manyKeys(most.Bytes / 5)},
		"texts together": {"a": strings.Repeat("x", most.Bytes/2), "b": strings.Repeat("y", most.Bytes/2)},
	} {
		require.EqualError(t, check(structOf(t, body)), "body: more than 1048576 bytes as JSON", name)
	}
	for _, n := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
		err := check(
			&structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewListValue(
				&structpb.ListValue{Values: []*structpb.Value{
					structpb.NewStructValue(
						&structpb.Struct{Fields: map[string]*structpb.Value{"b": structpb.NewNumberValue(n)}}),
				}})}})
		require.ErrorContains(t, err, "field body.a[0].b: ")
		require.ErrorContains(t, err, "cannot be stored: JSON has no such number")
	}
}

func manyKeys(n int) map[string]any {
	out := map[string]any{}
	for i := range n {
		out[fmt.Sprintf("%x", i)] = nil
	}
	return out
}
