package budget

import (
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func values(v any) (n int64) {
	n = 1
	switch v := v.(type) {
	case map[string]any:
		for _, below := range v {
			n += values(below)
		}
	case []any:
		for _, below := range v {
			n += values(below)
		}
	}
	return n
}

// No JSON text has more values, or a longer encoding, than the bounds that are taken before it is decoded.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `{"a":[1,{"b":null}],"":"\\\""}`, `[[],[[]],{}]`, `{ }`, `"\u0041"`,
		`{"a":1e300,"b":"é"}`, `[`, `"`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		raw := []byte(text)
		bound, bytes, encoded := Values(raw), DecodedBytes(raw), EncodedBytes(raw)
		if bound < 0 || bytes < 0 || encoded < 0 {
			t.Fatalf("%q: %d, %d, %d", text, bound, bytes, encoded)
		}
		var v any
		if json.Unmarshal(raw, &v) != nil {
			return
		}
		if n := values(v); n > bound {
			t.Fatalf("%q has %d values, more than %d", text, n, bound)
		}
		fields, ok := v.(map[string]any)
		if !ok {
			return
		}
		s, err := structpb.NewStruct(fields)
		if err != nil {
			t.Fatal(err)
		}
		if n := int64(proto.Size(s)); n > encoded {
			t.Fatalf("%q has %d bytes as a Struct, more than %d", text, n, encoded)
		}
	})
}
