package bodyschema

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func compile(t *testing.T, text string) *Schema {
	t.Helper()
	var doc map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &doc))
	s, err := Compile(doc)
	require.NoError(t, err)
	return s
}

func check(t *testing.T, s *Schema, body string) error {
	t.Helper()
	decoded, err := Decode([]byte(body))
	require.NoError(t, err)
	left := MaxSteps
	return s.Check(decoded, &left)
}

// expressions are trees of alternatives that differ in one field: each level is compared with both of them.
const expressions = `{"properties": {"e": {"$ref": "#/$defs/e"}}, "$defs": {"e": {"oneOf": [{"type": "string"},
	{"properties": {"op": {"const": "and"}, "of": {"type": "array", "items": {"$ref": "#/$defs/e"}}}, "required": ["op", "of"], "type": "object"},
	{"properties": {"op": {"const": "or"}, "of": {"type": "array", "items": {"$ref": "#/$defs/e"}}}, "required": ["op", "of"], "type": "object"}]}}}`

func expression(levels int) string {
	return `{"e":` + strings.Repeat(`{"op":"or","of":[`, levels) + `"x"` + strings.Repeat(`]}`, levels) + `}`
}

func list(n int, element func(i int) string) string {
	elements := make([]string, n)
	for i := range elements {
		elements[i] = element(i)
	}
	return "[" + strings.Join(elements, ",") + "]"
}

// costly are bodies within the limits of size, depth and values, whose checks by schemas as people write them
// took seconds to days, or hundreds of megabytes.
func costly() map[string][2]string {
	const most = 85_000 // values of a request
	same := func(text string) func(int) string { return func(int) string { return text } }
	return map[string][2]string{
		"alternatives below alternatives": {expressions, expression(49)},
		"alternatives of a large list": {
			`{"properties": {"n": {"items": {"anyOf": [` + strings.TrimSuffix(strings.Repeat(`{"required":["a"]},`, 50),
				",") + `]}}}}`,
			`{"n":` + list(most/2, same(`{}`)) + `}`,
		},
		"an enumeration of numbers": {`{"properties": {"n": {"items": {"enum": ` + list(200, func(i int) string {
			return fmt.Sprint(i)
		}) + `}}}}`, `{"n":` + list(most, same("199")) + `}`},
		"an enumeration of objects": {
			`{"properties": {"n": {"enum": ` + list(500, func(i int) string {
				return fmt.Sprintf(`{"a": {"b": [1, 2, 3, %d]}}`, i)
			}) + `}}}`,
			`{"n":{"a":{"b":` + list(most, same("1")) + `}}}`,
		},
		"a pattern of many states": {
			`{"additionalProperties": {"pattern": "([a-z0-9]{1,63}\\.){1,10}com"}}`,
			`{"n":"` + strings.Repeat("a.", 500_000) + `"}`,
		},
		"patterns of properties": {
			`{"patternProperties": {"(x-[a-z]{1,60}){1,16}$": true}}`,
			`{"` + strings.Repeat("x-a", 300_000) + `":1}`,
		},
		"fractions": {
			`{"properties": {"n": {"items": {"type": "integer", "minimum": 0, "multipleOf": 0.5}}}}`,
			`{"n":` + list(most, same("1e-300")) + `}`,
		},
		"large numbers": {
			`{"properties": {"n": {"items": {"type": "integer", "minimum": 0, "multipleOf": 0.5}}}}`,
			`{"n":` + list(most, same("1e300")) + `}`,
		},
		"unique numbers": {`{"properties": {"n": {"uniqueItems": true}}}`, `{"n":` + list(most, func(i int) string {
			return fmt.Sprint(i)
		}) + `}`},
		"unique lists in lists": {
			`{"$ref": "#/$defs/n", "$defs": {"n": {"uniqueItems": true, "items": {"$ref": "#/$defs/n"}, "additionalProperties": {"$ref": "#/$defs/n"}}}}`, `{"n":` + strings.Repeat("[", 90) + list(most, same("1")) + strings.Repeat("]", 90) + `}`,
		},
		"problems with long places": {
			`{"additionalProperties": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}`,
			`{"n":` + strings.Repeat("[", 90) + list(most, same("true")) + strings.Repeat("]", 90) + `}`,
		},
		"a text that is a pattern": {
			`{"additionalProperties": {"format": "regex"}}`,
			`{"n":"` + strings.Repeat("(a{1,9}b?|c*)", 70_000) + `"}`,
		},
		"properties of no alternative": {`{"allOf": [{"patternProperties": {"^a": true}}, {"patternProperties": {"^b": true}}], "unevaluatedProperties": false}`, `{` + strings.Trim(list(40_000, func(i int) string {
			return fmt.Sprintf(`"a%d":1`, i)
		}), "[]") + `}`},
		"a schema that is its own part": {
			`{"properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]}}}`, `{"n":1}`,
		},
	}
}

// It runs alone: it measures the process.
func TestACheckByASchemaCostsLittle_I20_I21(t *testing.T) {
	const maxCPU, maxBytes = time.Second * raceFactor, 256 << 20 // of garbage; tests of whole requests bound the heap
	for what, c := range costly() {
		s := compile(t, c[0])
		decoded, err := Decode([]byte(c[1]))
		require.NoError(t, err)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began, left := cpu(t), MaxSteps
		err = s.Check(decoded, &left)
		took := cpu(t) - began
		runtime.ReadMemStats(&after)
		bytes := after.TotalAlloc - before.TotalAlloc
		t.Logf("%-30s %.3f s, %.1f MB, %7d steps: %.60v", what, took.Seconds(), float64(bytes)/1e6, MaxSteps-left, err)
		require.Less(t, took, maxCPU, what)
		require.Less(t, bytes, uint64(maxBytes), what)
	}
}

func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Bodies as people have them are checked as before: some levels of expressions, long lists, long texts.
func TestOrdinaryBodiesAreCheckedInFull(t *testing.T) {
	t.Parallel()
	require.NoError(t, check(t, compile(t, expressions), expression(12)))
	require.ErrorContains(t, check(t, compile(t, expressions), strings.Replace(expression(8), `"x"`, "1", 1)),
		"field e.of[0]: got object, want string")
	items := compile(t,
		`{"properties": {"n": {"items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer", "minimum": 1}, "name": {"pattern": "^[a-z0-9-]{1,63}$"}}}}}}`)
	body := func(id int) string {
		return `{"n":` + list(3000, func(i int) string {
			return fmt.Sprintf(`{"id": %d, "name": "device-%d"}`, id+i, i)
		}) + `}`
	}
	require.NoError(t, check(t, items, body(1)))
	require.ErrorContains(t, check(t, items, body(0)), "field n[0].id: minimum: got 0, want 1")
	text := compile(t, `{"properties": {"s": {"maxLength": 1000000, "pattern": "^([A-Za-z0-9+/]{4})*$"}}}`)
	require.NoError(t, check(t, text, `{"s":"`+strings.Repeat("abcd", 200_000)+`"}`))
}

// A large body that does not fit is refused without the places, of which there may be very many; a large body
// that fits is accepted.
func TestProblemsOfALargeBodyAreNotListed(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"properties": {"n": {"items": {"type": "number"}}}}`)
	body := `{"n":` + list(60_000, func(int) string { return "1" }) + `}`
	require.NoError(t, check(t, s, body))
	require.EqualError(t, check(t, s, strings.Replace(body, "1]", `"a"]`, 1)),
		"body: it does not fit the JSON Schema of its kind, and is too large for a list of the places")
}

// A check does no step that the walk does not count: each keyword with subschemas is counted.
func TestEachKeywordWithSubschemasIsCounted(t *testing.T) {
	t.Parallel()
	const below = `{"items": {"type": "string"}}`
	const values = 1000
	body := `{"n":` + list(values, func(int) string { return `"a"` }) + `}`
	for _, schema := range []string{
		`{"properties": {"n": ` + below + `}}`,
		`{"patternProperties": {"^n": ` + below + `}}`,
		`{"additionalProperties": ` + below + `}`,
		`{"unevaluatedProperties": ` + below + `}`,
		`{"allOf": [{"properties": {"n": ` + below + `}}]}`,
		`{"anyOf": [{"properties": {"n": ` + below + `}}]}`,
		`{"oneOf": [{"properties": {"n": ` + below + `}}]}`,
		`{"not": {"properties": {"n": {"items": {"type": "number"}}}}}`,
		`{"if": {"properties": {"n": ` + below + `}}}`,
		`{"if": true, "then": {"properties": {"n": ` + below + `}}}`,
		`{"if": false, "else": {"properties": {"n": ` + below + `}}}`,
		`{"dependentSchemas": {"n": {"properties": {"n": ` + below + `}}}}`,
		`{"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"n": {"properties": {"n": ` +
			below + `}}}}`,
		`{"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"n": ` + below + `}}}}`,
		`{"$dynamicRef": "#x", "$defs": {"x": {"$dynamicAnchor": "x", "properties": {"n": ` + below + `}}}}`,
		`{"$schema": "https://json-schema.org/draft/2019-09/schema", "properties": {"n": {"items": {"$recursiveRef": "#"}}}}`,
		`{"properties": {"n": {"contains": {"type": "string"}}}}`,
		`{"properties": {"n": {"unevaluatedItems": {"type": "string"}}}}`,
		`{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"n": {"items": [true], "additionalItems": {"type": "string"}}}}`,
	} {
		decoded, err := Decode([]byte(body))
		require.NoError(t, err)
		left := MaxSteps
		require.NoError(t, compile(t, schema).Check(decoded, &left), schema)
		require.GreaterOrEqual(t, int(MaxSteps-left), values-1, schema)
	}
	names := compile(t, `{"propertyNames": {"maxLength": 9}}`)
	decoded, err := Decode([]byte(`{` + strings.Trim(list(values, func(i int) string {
		return fmt.Sprintf(`"n%d":1`, i)
	}), "[]") + `}`))
	require.NoError(t, err)
	left := MaxSteps
	require.NoError(t, names.Check(decoded, &left))
	require.GreaterOrEqual(t, int(MaxSteps-left), values)
}
