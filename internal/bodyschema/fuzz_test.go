package bodyschema

import (
	"encoding/json"
	"testing"
)

// Any schema of a descriptor compiles or is refused; its verdict on a body is the same each time, and takes
// the same steps.
func FuzzSchemas(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"type":"object","required":["a"],"properties":{"a":{"type":"string","pattern":"^x+$","format":"date-time"}}}`, `{"a":"xx"}`},
		{`{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},true]}}}`, `{}`},
		{`{"$ref":"file:///etc/passwd"}`, `{}`},
		{`{"$schema":"http://json-schema.org/draft-04/schema#","maximum":1,"exclusiveMaximum":true}`, `1`},
		{`{"enum":[[1],{"a":2}],"uniqueItems":true}`, `[1,1.0]`},
		{`{"patternProperties":{"(":{}}}`, `{"(":1}`},
		{`{"$dynamicRef":"#x","$id":"a"}`, `null`},
		{`{"items":{"multipleOf":0}}`, `[1e400]`},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, body string) {
		var doc map[string]any
		if json.Unmarshal([]byte(text), &doc) != nil {
			return
		}
		s, err := Compile(doc)
		if err != nil {
			if len(err.Error()) > 2000 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		decoded, err := Decode([]byte(body))
		if err != nil {
			return
		}
		first, second := Steps(100_000), Steps(100_000)
		err, again := s.Check(decoded, &first), s.Check(decoded, &second)
		if (err == nil) != (again == nil) || first != second {
			t.Fatalf("%s of %s: %v after %d, %v after %d", text, body, err, first, again, second)
		}
	})
}
