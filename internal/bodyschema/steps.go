package bodyschema

import (
	"encoding/json"
	"errors"
	"regexp"
	"regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Steps are the steps that checks may still take. One step is about one value that is compared with one
// subschema: alternatives that repeat themselves below one another take twice as many with each level of a
// body, and the library has no end of its own.
type Steps int64

// MaxSteps is for the checks of all bodies of a request: less than a second of a processor.
const MaxSteps Steps = 1_000_000

// ErrTooCostly is the error of a check that would take too many steps.
var ErrTooCostly = errors.New(
	"body: the checks by JSON Schemas take too many steps: nest it less deep, or write it in parts")

const (
	// numberSteps is for the bounds of a number, equalSteps for a comparison of two numbers: they are
	// fractions of any size.
	numberSteps, equalSteps = 8, 2
	// instructionsOfStep is the number of instructions of a pattern that one step executes.
	instructionsOfStep = 64
	// bytesOfStep is the number of bytes of a text that are compared in one step.
	bytesOfStep = 64
	// maxInPlace is the number of subschemas, each part of the one before, for one value; more: a schema that
	// is its own part.
	maxInPlace = 500

	// Bytes of a problem, and of each segment of its place.
	problemBytes, segmentBytes = 256, 16
	// maxProblemBytes bounds the memory of the problems of a body: beyond it the error has no list of places.
	maxProblemBytes = 8 << 20
)

// pattern is a regular expression that knows its size.
type pattern struct {
	*regexp.Regexp
	instructions int
}

// newPattern implements jsonschema.RegexpEngine.
func newPattern(text string) (jsonschema.Regexp, error) {
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	return &pattern{compiled, len(program.Inst)}, nil
}

// walk counts the steps of a check, without the checks. It counts each alternative, though a check may stop
// at the first one.
type walk struct {
	left    int64
	problem int64 // bytes, if each comparison fails
}

func (w *walk) spend(n int) { w.left -= int64(n) }

// value counts the comparison of a value with a subschema: levels is the length of its place, inPlace the
// number of subschemas above that are for the same value.
func (w *walk) value(s *jsonschema.Schema, v any, levels, inPlace int) {
	if s == nil || w.left < 0 {
		return
	}
	if inPlace > maxInPlace {
		w.left = -1
		return
	}
	w.spend(1 + len(s.Required)/numberSteps)
	w.problem += problemBytes + int64(levels)*segmentBytes
	if s.Bool != nil {
		return
	}
	for _, part := range []*jsonschema.Schema{s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else} {
		w.value(part, v, levels, inPlace+1)
	}
	if s.DynamicRef != nil {
		w.value(s.DynamicRef.Ref, v, levels, inPlace+1)
	}
	for _, parts := range [][]*jsonschema.Schema{s.AllOf, s.AnyOf, s.OneOf} {
		for _, part := range parts {
			w.value(part, v, levels, inPlace+1)
		}
	}
	if s.Enum != nil {
		w.equal(v, len(s.Enum.Values))
	}
	if s.Const != nil {
		w.equal(v, 1)
	}
	switch v := v.(type) {
	case map[string]any:
		w.object(s, v, levels, inPlace)
	case []any:
		w.list(s, v, levels)
	case string:
		w.text(s, v)
	case json.Number:
		if s.Types != nil || s.Minimum != nil || s.Maximum != nil || s.ExclusiveMinimum != nil ||
			s.ExclusiveMaximum != nil || s.MultipleOf != nil {
			w.spend(numberSteps)
		}
	}
}

// equal counts the comparisons of a value with so many others.
func (w *walk) equal(v any, others int) {
	switch v := v.(type) {
	case map[string]any:
		w.spend(others)
		for _, below := range v {
			if w.left < 0 {
				return
			}
			w.equal(below, others)
		}
	case []any:
		w.spend(others)
		for _, below := range v {
			if w.left < 0 {
				return
			}
			w.equal(below, others)
		}
	case json.Number:
		w.spend(equalSteps * others)
	default:
		w.spend(1 + others/bytesOfStep)
	}
}

func (w *walk) object(s *jsonschema.Schema, v map[string]any, levels, inPlace int) {
	for _, part := range s.Dependencies {
		if part, ok := part.(*jsonschema.Schema); ok {
			w.value(part, v, levels, inPlace+1)
		}
	}
	for _, part := range s.DependentSchemas {
		w.value(part, v, levels, inPlace+1)
	}
	additional, _ := s.AdditionalProperties.(*jsonschema.Schema)
	for name, below := range v {
		if w.left < 0 {
			return
		}
		w.value(s.Properties[name], below, levels+1, 0)
		for p, part := range s.PatternProperties {
			w.match(p, name)
			w.value(part, below, levels+1, 0)
		}
		w.value(additional, below, levels+1, 0)
		w.value(s.UnevaluatedProperties, below, levels+1, 0)
		w.value(s.PropertyNames, name, levels, 0)
	}
}

func (w *walk) list(s *jsonschema.Schema, v []any, levels int) {
	if s.UniqueItems {
		others := 1 // by hashes
		if len(v) <= 20 {
			others += len(v) / 2 // in pairs
		}
		w.equal(v, others)
	}
	items, _ := s.Items.(*jsonschema.Schema)
	parts, _ := s.Items.([]*jsonschema.Schema)
	additional, _ := s.AdditionalItems.(*jsonschema.Schema)
	parts = append(parts[:len(parts):len(parts)], s.PrefixItems...)
	for i, below := range v {
		if w.left < 0 {
			return
		}
		if i < len(parts) {
			w.value(parts[i], below, levels+1, 0)
		}
		for _, part := range []*jsonschema.Schema{items, additional, s.Items2020, s.Contains, s.UnevaluatedItems} {
			w.value(part, below, levels+1, 0)
		}
	}
}

func (w *walk) text(s *jsonschema.Schema, v string) {
	if s.Pattern != nil {
		w.match(s.Pattern, v)
	}
	if s.MinLength != nil || s.MaxLength != nil || s.ContentEncoding != nil || s.ContentMediaType != nil {
		w.spend(len(v) / bytesOfStep)
	}
	switch {
	case s.ContentSchema != nil: // for a value inside of the text
		w.spend(len(v) * numberSteps)
	case s.Format != nil && s.Format.Name == "regex": // it is compiled
		w.spend(len(v) * numberSteps)
	case s.Format != nil:
		w.spend(len(v) / bytesOfStep)
	}
}

func (w *walk) match(p jsonschema.Regexp, text string) {
	size := 1
	if p, ok := p.(*pattern); ok {
		size = p.instructions
	}
	w.spend(len(text) * size / instructionsOfStep)
}
