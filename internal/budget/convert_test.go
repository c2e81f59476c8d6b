package budget

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// A call that converts again gives back the memory of the conversion before, and all of it at its end.
func TestACallConvertsOneBodyAtATime_I20(t *testing.T) {
	t.Parallel()
	b := New(DefaultTotal)
	account := b.Open("a")
	ctx, call := NewContext(context.Background(), account)
	require.Same(t, account, FromContext(ctx))
	for _, bytes := range []int64{Share[Converting], freeBytes, 1 << 20, Share[Converting] * 9} {
		require.NoError(t, Convert(ctx, bytes))
		want := min(bytes, Share[Converting])
		if bytes <= freeBytes {
			want = 0
		}
		require.Equal(t, want, account.used[Converting], "%d", bytes)
	}
	call.End()
	require.Zero(t, account.used[Converting])
	require.NoError(t, Convert(ctx, 1<<20))
	require.Zero(t, account.used[Converting], "a conversion that begins after the end holds nothing")
	account.Close()
	require.Empty(t, b.accounts)
}

// Work of the process itself has no account, and does not wait.
func TestConversionsOutsideOfACallAreNotCounted(t *testing.T) {
	t.Parallel()
	require.Nil(t, FromContext(context.Background()))
	require.NoError(t, Convert(context.Background(), 1<<60))
}

func TestAConversionWaitsForThoseOfItsCaller_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(DefaultTotal)
		account := b.Open("a")
		first, one := NewContext(t.Context(), account)
		require.NoError(t, Convert(first, Share[Converting]))
		cancelled, cancel := context.WithCancel(t.Context())
		second, two := NewContext(cancelled, account)
		results := make(chan error)
		go func() { results <- Convert(second, 1<<20) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-results, ErrExhausted)
		third, three := NewContext(t.Context(), account)
		go func() { results <- Convert(third, 1<<20) }()
		synctest.Wait()
		one.End()
		require.NoError(t, <-results)
		two.End()
		three.End()
		require.Zero(t, account.used[Converting])
	})
}

// Take never waits, even beyond the share; TakeHalf leaves the other half for answers that are smaller than
// expected.
func TestTakenMemoryCounts(t *testing.T) {
	t.Parallel()
	b := New(0)
	a := b.Open("a")
	share := Share[Sending]
	half, ok := a.TakeHalf(Sending, share/2)
	require.True(t, ok)
	_, ok = a.TakeHalf(Sending, 1)
	require.False(t, ok, "half of the share is taken")
	over := a.Take(Sending, share)
	_, ok = b.Open("b").TakeHalf(Sending, 1)
	require.False(t, ok, "nothing is free")
	waiting := a.ask(Sending, 1)
	waits(t, waiting)
	over.Release()
	<-waiting.granted
	waiting.Release()
	half.Release()
	require.Equal(t, New(0).free, b.free)
	var none *Account
	hold, ok := none.TakeHalf(Sending, 1<<40)
	require.True(t, ok)
	hold.Release()
}

// jsonValue draws a value of encoding/json.
func jsonValue(depth int) *rapid.Generator[any] {
	leaves := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Map(rapid.Float64Range(-1e12, 1e12), func(f float64) any {
			return f
		}), rapid.Map(rapid.String(), func(s string) any { return s }),
	)
	if depth == 0 {
		return leaves
	}
	below := rapid.Deferred(func() *rapid.Generator[any] { return jsonValue(depth - 1) })
	return rapid.OneOf(
		leaves, rapid.Map(rapid.SliceOfN(below, 0, 6), func(l []any) any { return l }),
		rapid.Map(rapid.MapOfN(rapid.String(), below, 0, 6), func(m map[string]any) any { return m }),
	)
}

// The encoded size of a body is known before it is encoded: an upper bound for every body.
func TestTheEncodedSizeOfABodyIsBounded_I20(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.MapOfN(rapid.String(), jsonValue(3), 0, 6).Draw(t, "body")
		var text bytes.Buffer
		stored := json.NewEncoder(&text)
		stored.SetEscapeHTML(false) // as PostgreSQL writes it
		require.NoError(t, stored.Encode(body))
		message, err := structpb.NewStruct(body)
		require.NoError(t, err)
		require.LessOrEqual(t, int64(proto.Size(message)), EncodedBytes(bytes.TrimSpace(text.Bytes())), "%s",
			text.String())
	})
}

// The densest bodies: every byte of them is a value.
func TestTheBoundHoldsForDenseBodies_I20(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"a":[` + strings.Repeat("1,", 10_000) + `1]}`, `{"a":[` + strings.Repeat("[],", 10_000) + `[]]}`,
		`{"a":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`, `{"a":[` + strings.Repeat(`{"":1},`,
			10_000) + `0]}`,
	} {
		message := &structpb.Struct{}
		require.NoError(t, message.UnmarshalJSON([]byte(text)))
		size := int64(proto.Size(message))
		require.LessOrEqual(t, size, EncodedBytes([]byte(text)))
	}
}

// Brackets and commas inside strings are no structure.
func TestTheShapeOfAText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]shape{
		`1`:                      {values: 1},
		`"[{,:\"]}"`:             {values: 1},
		`"\\"`:                   {values: 1},
		`{}`:                     {values: 2},
		`[1,2,3]`:                {values: 4, lists: 1},
		`{"a":{"b":[],"c":"{"}}`: {values: 5, objects: 2, lists: 1, fields: 3},
		`{"a\\":1,"b\",:":[[]]}`: {values: 5, objects: 1, lists: 2, fields: 2},
	} {
		require.Equal(t, want, shapeOf([]byte(text)), text)
	}
	require.Greater(t, DecodedBytes([]byte(`[{"a":1}]`)), DecodedBytes([]byte(`["aaaaa"]`)))
}
