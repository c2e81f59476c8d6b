package service

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema/shadow"
)

func structOf(t testing.TB, v map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(v)
	require.NoError(t, err)
	return s
}

func TestBodiesAreBoundedBeforeTheyAreConverted(t *testing.T) {
	t.Parallel()
	nested := func(levels int) *structpb.Struct {
		v := structpb.NewStringValue("x")
		for range levels - 1 {
			v = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"a": v}})
		}
		return &structpb.Struct{Fields: map[string]*structpb.Value{"a": v}}
	}
	require.NoError(t, checkBody(nil))
	require.NoError(t, checkBody(structOf(t, map[string]any{"a": []any{1, "x", nil, true, map[string]any{"b": 1e308}}})))
	require.NoError(t, checkBody(nested(shadow.MaxBodyDepth)))
	require.ErrorIs(t, checkBody(nested(shadow.MaxBodyDepth+1)), errBodyTooDeep)
	require.NoError(t, checkBody(structOf(t, map[string]any{"a": strings.Repeat("x", shadow.MaxBodyBytes-100)})))
	for name, body := range map[string]map[string]any{
		"a text":         {"a": strings.Repeat("x", shadow.MaxBodyBytes+1)},
		"a key":          {strings.Repeat("k", shadow.MaxBodyBytes+1): 1},
		"many elements":  {"a": make([]any, shadow.MaxBodyBytes+1)},
		"many keys":      {"a": manyKeys(shadow.MaxBodyBytes / 5)},
		"texts together": {"a": strings.Repeat("x", shadow.MaxBodyBytes/2), "b": strings.Repeat("y", shadow.MaxBodyBytes/2)},
	} {
		require.ErrorIs(t, checkBody(structOf(t, body)), errBodyTooLarge, name)
	}
	for _, n := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
		err := checkBody(&structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
			structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"b": structpb.NewNumberValue(n)}}),
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
