package schema

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"

	"github.com/db-controller/db-controller/internal/bodyschema"
	"github.com/db-controller/db-controller/schema/violation"
)

// Field is a rule for one field of a kind's bodies.
type Field struct {
	Path string
	// Default is the value that a write stores when the field is absent or null, as JSON decodes it; nil:
	// none.
	Default any
	// Required: a write without a value fails.
	Required bool
	// Immutable: a write that changes or removes a stored value fails.
	Immutable bool
	Pos       Pos
}

// maxDefaultBytes bounds a default as JSON.
const maxDefaultBytes = 64 << 10

// checkFields checks the rules for fields and the JSON Schema of a kind.
func checkFields(ps *Problems, k *Kind) {
	if k.Table != (TableName{}) && (len(k.Fields) > 0 || k.Schema != nil) {
		ps.add(k.Pos, "remove fields and schema, and constrain the columns of the table",
			"kind %s is a table: its resources have no bodies", k.Name)
	}
	if k.Table != (TableName{}) && k.DeletesAtomically {
		ps.add(k.Pos, "remove deletion: atomic", "kind %s is a table: its rows take no part in atomic deletions",
			k.Name)
	}
	if k.Table != (TableName{}) && k.Retention > 0 {
		ps.add(k.Pos, "remove retention", "kind %s is a table: its rows cannot be hidden", k.Name)
	}
	if err := CheckRetention(k.Retention); k.Retention != 0 && err != nil {
		ps.add(k.Pos, "write such a time", "retention: %s", err)
	}
	paths := map[string]bool{}
	for i := range k.Fields {
		f := &k.Fields[i]
		if paths[f.Path] {
			ps.add(f.Pos, "write one rule for a field", "field %s is listed twice", f.Path)
		}
		paths[f.Path] = true
		checkField(ps, k, f)
	}
	if k.Schema == nil {
		return
	}
	if _, err := bodyschema.Compile(k.Schema); err != nil {
		ps.add(k.Pos, "correct the JSON Schema", "schema of %s: %v", k.Name, err)
	}
}

func checkField(ps *Problems, k *Kind, f *Field) {
	path, err := ParsePath(f.Path)
	if err != nil {
		ps.add(f.Pos, "", "%v", err)
		return
	}
	if slices.Contains(path.segments, "*") {
		ps.add(f.Pos, "describe elements in the kind's schema", "field %s can have many values", f.Path)
	}
	if f.Required && f.Default != nil {
		ps.add(f.Pos, "remove one of them", "field %s has a default, so that it is never absent, and is required",
			f.Path)
	}
	if f.Default == nil && !f.Required && !f.Immutable {
		ps.add(f.Pos, "add default, required or immutable", "field %s has no rule", f.Path)
	}
	if text, err := json.Marshal(f.Default); err != nil || len(text) > maxDefaultBytes {
		ps.add(f.Pos, "shorten it", "the default of %s has more than %d bytes as JSON", f.Path, maxDefaultBytes)
	}
	checkUnsetField(ps, k, f, path)
}

// checkUnsetField refuses a rule that a deletion would break: it removes the values of references that unset.
func checkUnsetField(ps *Problems, k *Kind, f *Field, path Path) {
	for _, r := range k.References {
		unset, err := ParsePath(r.Path)
		if err != nil || !r.Behaviour.Unsets() || !isPrefix(path.segments, unset.segments) {
			continue
		}
		same := len(path.segments) == len(unset.segments)
		if f.Immutable || f.Required && same {
			ps.add(f.Pos, "use BLOCK or CASCADE_DELETE, or remove the rule",
				"a deletion removes the value of %s (%s), and field %s is required or immutable", r.Path,
				r.Behaviour, f.Path)
		}
	}
}

func isPrefix(prefix, of []string) bool {
	return len(prefix) <= len(of) && slices.Equal(prefix, of[:len(prefix)])
}

type fieldModel struct {
	Field
	path   Path
	refers bool // its value is the name of a resource: an empty string is no value
}

// compileFields expects a kind that passed checkFields.
func compileFields(k *Kind) (fields []fieldModel) {
	for _, f := range k.Fields {
		path, _ := ParsePath(f.Path)
		refers := slices.ContainsFunc(k.References, func(r Reference) bool { return r.Path == f.Path })
		fields = append(fields, fieldModel{Field: f, path: path, refers: refers})
	}
	return fields
}

// Complete returns a body with the defaults of absent fields. The given body stays unchanged.
func (k *KindModel) Complete(body map[string]any) (map[string]any, error) {
	for _, f := range k.fields {
		if f.Default == nil || f.value(body) != nil {
			continue
		}
		var err error
		if body, err = withField(body, f.path.segments, asJSON(f.Default)); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// value returns the value of the field; nil for none.
func (f *fieldModel) value(body map[string]any) any {
	var v any = body
	for _, segment := range f.path.segments {
		in, _ := v.(map[string]any)
		v = in[segment]
	}
	if text, ok := v.(string); ok && f.refers && text == "" {
		return nil
	}
	return v
}

// problem returns an error of the field.
func (f *fieldModel) problem(text string, args ...any) error {
	err := violation.Errorf(text, args...)
	for _, segment := range slices.Backward(f.path.segments) {
		err = violation.Under(segment, err)
	}
	return err
}

// withField returns a copy of a message with a value at a path. It shares the other fields.
func withField(in map[string]any, path []string, value any) (map[string]any, error) {
	out := maps.Clone(in)
	if out == nil {
		out = map[string]any{}
	}
	if len(path) == 1 {
		out[path[0]] = value
		return out, nil
	}
	below, ok := out[path[0]].(map[string]any)
	if !ok && out[path[0]] != nil {
		return nil, violation.Under(path[0], violation.Errorf("want a message, got %s", shapeOf(out[path[0]])))
	}
	child, err := withField(below, path[1:], value)
	if err != nil {
		return nil, violation.Under(path[0], err)
	}
	out[path[0]] = child
	return out, nil
}

// CheckSteps are the steps that checks by JSON Schemas may still take.
type CheckSteps = bodyschema.Steps

// MaxCheckSteps is for all bodies of a request.
const MaxCheckSteps = bodyschema.MaxSteps

// CheckBody checks a body, as JSON, by the kind's rules: fields that are required, fields that may not change
// from the stored body (nil: none), and the kind's JSON Schema, which takes its steps from left.
func (k *KindModel) CheckBody(body []byte, stored map[string]any, left *CheckSteps) error {
	if len(k.fields) == 0 && k.schema == nil {
		return nil
	}
	decoded, err := bodyschema.Decode(body)
	if err != nil {
		return err
	}
	in, _ := decoded.(map[string]any)
	for _, f := range k.fields {
		is, was := f.value(in), f.value(stored)
		switch {
		case f.Required && is == nil:
			return f.problem("is required")
		case f.Immutable && was != nil && !reflect.DeepEqual(asJSON(is), asJSON(was)):
			return f.problem("is immutable: it is %s", clip(jsonText(was)))
		}
	}
	if k.schema == nil {
		return nil
	}
	return inBody(k.schema.Check(decoded, left))
}

// inBody returns an error of a JSON Schema with the places in the body.
func inBody(err error) error {
	var misfit *bodyschema.MisfitError
	if !errors.As(err, &misfit) {
		return violation.In(violation.Body, err)
	}
	var all []violation.Field
	for _, p := range misfit.Problems {
		all = append(all, violation.Field{Path: violation.Join(violation.Body, p.Place), Problem: p.Text})
	}
	return violation.InFields(err, all...)
}

// asJSON returns a value as JSON decodes it into any, so that equal values are deeply equal.
func asJSON(v any) (out any) {
	if text, err := json.Marshal(v); err == nil {
		_ = json.Unmarshal(text, &out)
	}
	return out
}

func jsonText(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}
