package prepare

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/db-controller/db-controller/schema/peer"
)

// object draws a body of few fields, so that paths of a mask often meet.
func object(depth int) *rapid.Generator[map[string]any] {
	value := rapid.OneOf(rapid.Just[any](nil), rapid.Map(rapid.IntRange(0, 3), func(n int) any {
		return float64(n)
	}), rapid.Just[any]([]any{"l"}))
	if depth > 0 {
		value = rapid.OneOf(value, rapid.Map(rapid.Deferred(func() *rapid.Generator[map[string]any] {
			return object(depth - 1)
		}), func(m map[string]any) any { return m }))
	}
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), value, 0, 3)
}

// at returns the value at a path, and reports whether there is one.
func at(in map[string]any, path []string) (any, bool) {
	value, ok := in[path[0]]
	if len(path) == 1 {
		return value, ok
	}
	below, _ := value.(map[string]any)
	return at(below, path[1:])
}

func updating(stored map[string]any, w peer.Write) *Writing {
	w.Mode = peer.Update
	return &Writing{Write: w, Before: &ShadowRow{
		Body: stored, Labels: map[string]string{"kept": "1", "gone": "2"},
		Owners: []peer.OwnerReference{{Kind: "Stored"}},
	}}
}

// A field of the mask becomes the request's, or goes with it; every other field, and the stored resource,
// stay as they are.
func TestAMaskChangesItsFieldsAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		stored, given := object(2).Draw(t, "stored"), object(2).Draw(t, "given")
		path := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 3).Draw(t, "path")
		before, _ := json.Marshal(stored)
		wr := updating(stored, peer.Write{Body: given, Mask: []string{"body." + strings.Join(path, ".")}})
		err := wr.merge()
		after, _ := json.Marshal(stored)
		require.JSONEq(t, string(before), string(after), "the stored resource is compared with the new one later")
		if err != nil {
			return
		}
		want, wanted := at(given, path)
		got, found := at(wr.Body, path)
		require.Equal(t, wanted, found)
		require.Equal(t, want, got)
		for _, other := range []string{"a", "b", "c"} {
			if other != path[0] {
				require.Equal(t, stored[other], wr.Body[other])
			}
		}
	})
}

func TestAMaskHasLabelsAndOwners(t *testing.T) {
	t.Parallel()
	given := peer.Write{
		Labels: map[string]string{"new": "3", "kept": "9"},
		Owners: []peer.OwnerReference{{Kind: "Given"}}, Body: map[string]any{"a": 1.0},
	}
	for _, c := range []struct {
		mask   []string
		labels map[string]string
		owner  string
		body   map[string]any
	}{
		{[]string{"labels"}, given.Labels, "Stored", map[string]any{"b": 2.0}},
		{
			[]string{"labels.new"},
			map[string]string{"kept": "1", "gone": "2", "new": "3"},
			"Stored",
			map[string]any{"b": 2.0},
		},
		{[]string{"labels.gone", "labels.kept"}, map[string]string{"kept": "9"}, "Stored", map[string]any{"b": 2.0}},
		{[]string{"owner_references"}, map[string]string{"kept": "1", "gone": "2"}, "Given", map[string]any{"b": 2.0}},
		{[]string{"body"}, map[string]string{"kept": "1", "gone": "2"}, "Stored", given.Body},
		{[]string{"*"}, given.Labels, "Given", given.Body},
	} {
		w := given
		w.Mask = c.mask
		wr := updating(map[string]any{"b": 2.0}, w)
		require.NoError(t, wr.merge())
		require.Equal(t, c.labels, wr.Labels, c.mask)
		require.Equal(t, c.owner, wr.Owners[0].Kind, c.mask)
		require.Equal(t, c.body, wr.Body, c.mask)
		require.Len(t, wr.Before.Labels, 2, "the stored labels stay")
	}
	without := updating(nil, peer.Write{Labels: map[string]string{"new": "3"}, Mask: []string{"labels.new"}})
	without.Before.Labels = nil
	require.NoError(t, without.merge())
	require.Equal(t, map[string]string{"new": "3"}, without.Labels)
}

func TestWrongMasksAreRefused(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]struct{ stored, given string }{
		`update_mask "body.a.b": field a is not a message in the stored resource`: {`{"a": 1}`, `{"a": {"b": 1}}`},
		`update_mask "body.a.b": field a is not a message in the request`:         {`{"a": {}}`, `{"a": 1}`},
	} {
		var stored, given map[string]any
		require.NoError(t, json.Unmarshal([]byte(c.stored), &stored))
		require.NoError(t, json.Unmarshal([]byte(c.given), &given))
		require.ErrorContains(t, updating(stored, peer.Write{Body: given, Mask: []string{"body.a.b"}}).merge(), says)
	}
	stored := map[string]any{"list": []any{"a", "b"}, "odd[0]": "a field"}
	require.ErrorContains(t, updating(stored, peer.Write{Mask: []string{"body.list[0]"}}).merge(),
		`update_mask "body.list[0]": there is no field list[0]`)
	require.NoError(t, updating(stored, peer.Write{Mask: []string{"body.odd[0]"}}).merge())
	for _, path := range []string{"", "name", "uid", "owner_references.0", "bodyguard"} {
		require.ErrorContains(t, updating(nil, peer.Write{Mask: []string{path}}).merge(),
			"want labels, labels.<key>, owner_references, body, or body.<field>", path)
	}
	require.ErrorContains(t, CheckMask(slices.Repeat([]string{"a"}, maxMaskPaths+1)),
		"1001 paths, at most 1000 are allowed")
	require.ErrorContains(t, CheckMask([]string{strings.Repeat("a", maxMaskBytes+1)}), "bytes, at most")
	require.NoError(t, CheckMask(slices.Repeat([]string{"a"}, maxMaskPaths)))
}

// PostgreSQL stores no NUL, at any place of the JSON text: a text is storable if no string of it has one.
func TestATextWithANULIsNotStorable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune{'\x00', '\\', 'u', '0', '"', 'x'}), 0, 12, -1).Draw(t, "text")
		raw, err := json.Marshal(map[string]string{"f": text})
		require.NoError(t, err)
		require.Equal(t, strings.Contains(text, "\x00"), Storable("body", string(raw), 1000) != nil, "%s", raw)
	})
	require.ErrorContains(t, Storable("labels", "123", 2), "labels: 3 bytes as JSON, at most 2 are allowed")
}

func TestTheDepthOfABodyIsBounded(t *testing.T) {
	t.Parallel()
	nested := func(levels int, list bool) any {
		var v any = "leaf"
		for range levels {
			if list {
				v = []any{v}
			} else {
				v = map[string]any{"f": v}
			}
		}
		return v
	}
	for _, list := range []bool{true, false} {
		require.True(t, within(nested(MaxBodyDepth, list), MaxBodyDepth))
		require.False(t, within(nested(MaxBodyDepth+1, list), MaxBodyDepth))
	}
	require.True(t, within(map[string]any{"a": map[string]any{}}, 1), "an empty object has no level below it")
}

// Pages whose rows were cut are asked for with fewer rows, others with more, never above the bound.
func TestPagesOfRowsFollowTheirSize(t *testing.T) {
	t.Parallel()
	require.Equal(t, 7, PageSize(100, 7, true, 1000))
	require.Equal(t, 200, PageSize(100, 100, false, 1000))
	require.Equal(t, 1000, PageSize(800, 800, false, 1000))
}

func TestAPathWithinAnotherOneOfTheMaskAddsNothing(t *testing.T) {
	t.Parallel()
	given := map[string]any{"a": map[string]any{"b": 1.0, "c": 2.0}}
	bodies := map[string]bool{}
	for _, mask := range [][]string{{"body.a", "body.a.b"}, {"body.a.b", "body.a"}} {
		wr := updating(map[string]any{"a": map[string]any{"d": 3.0}}, peer.Write{Body: maps.Clone(given), Mask: mask})
		require.NoError(t, wr.merge())
		bodies[fmt.Sprint(wr.Body)] = true
	}
	require.Len(t, bodies, 1, "a path within another one of the mask adds nothing")
}
