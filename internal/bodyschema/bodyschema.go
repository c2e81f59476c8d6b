// Package bodyschema checks bodies by the JSON Schemas of kinds.
package bodyschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

const (
	maxBytes = 256 << 10
	// maxProblems is the number of places in a body that one error names.
	maxProblems = 10
	// maxText is the length of a text of others in a message.
	maxText = 80
)

// Schema is a compiled JSON Schema.
type Schema struct {
	compiled *jsonschema.Schema
	fits     *jsonschema.Schema // of bodies that do not fit: its check keeps no problems
}

// Decode decodes a body as Check expects it.
func Decode(body []byte) (any, error) { return jsonschema.UnmarshalJSON(bytes.NewReader(body)) }

// Check returns an error with the places at which a decoded body does not fit. It takes its steps from left,
// or fails with ErrTooCostly before the check when there are too few.
func (s *Schema) Check(decoded any, left *Steps) error {
	w := &walk{left: int64(*left)}
	w.value(s.compiled, decoded, 0, 0)
	if w.left < 0 {
		return ErrTooCostly
	}
	*left = Steps(w.left)
	if w.problem > maxProblemBytes {
		if s.fits.Validate(decoded) == nil {
			return errors.New(
				"body: it does not fit the JSON Schema of its kind, and is too large for a list of the places")
		}
		return nil
	}
	var invalid *jsonschema.ValidationError
	err := s.compiled.Validate(decoded)
	if errors.As(err, &invalid) {
		return misfit(invalid, decoded)
	}
	return err
}

// MisfitError has the first places of a body at which it does not fit.
type MisfitError struct {
	Problems []Problem
	more     bool
}

// Problem of a value at a place, such as spec.members[2]; it is empty for the whole body.
type Problem struct{ Place, Text string }

func (e *MisfitError) Error() string {
	var all []string
	for _, p := range e.Problems {
		if p.Place == "" {
			all = append(all, "body: "+p.Text)
		} else {
			all = append(all, "field "+p.Place+": "+p.Text)
		}
	}
	if e.more {
		all = append(all, "and more")
	}
	return strings.Join(all, "; ")
}

// noLoader keeps a schema from reading files or other servers.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s: a schema can refer only to parts of itself", url)
}

// Compile compiles a JSON Schema: draft 2020-12 unless it says another one; formats are checked.
func Compile(doc map[string]any) (*Schema, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%d bytes as JSON, at most %d are allowed", len(text), maxBytes)
	}
	plain, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	const url, fits = "kind:body", "kind:fits"
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	c.UseRegexpEngine(newPattern)
	c.AssertFormat()
	if err := c.AddResource(url, plain); err != nil {
		return nil, short(err, plain)
	}
	compiled, err := c.Compile(url)
	if err != nil {
		return nil, short(err, plain)
	}
	if err := c.AddResource(fits, map[string]any{"not": map[string]any{"$ref": url}}); err != nil {
		return nil, err
	}
	out := &Schema{compiled: compiled}
	out.fits, err = c.Compile(fits)
	return out, err
}

// short replaces the error of a schema that is none, which repeats the meta-schema, by its problems.
func short(err error, schema any) error {
	var invalid *jsonschema.ValidationError
	if errors.As(err, &invalid) {
		return misfit(invalid, schema)
	}
	return err
}

var english = message.NewPrinter(language.English)

// misfit lists the places at which a body does not fit a schema.
func misfit(e *jsonschema.ValidationError, body any) *MisfitError {
	out := &MisfitError{}
	var leaves func(e *jsonschema.ValidationError)
	leaves = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 && len(out.Problems) <= maxProblems {
			out.Problems = append(out.Problems, Problem{
				placeOf(e.InstanceLocation, body),
				clip(e.ErrorKind.LocalizedString(english)),
			})
		}
		for _, cause := range e.Causes {
			leaves(cause)
		}
	}
	leaves(e)
	if out.more = len(out.Problems) > maxProblems; out.more {
		out.Problems = out.Problems[:maxProblems]
	}
	return out
}

// placeOf returns the path of a value in a body; elements of lists have their index in brackets.
func placeOf(location []string, body any) (place string) {
	for _, segment := range location {
		switch in := body.(type) {
		case []any:
			place += "[" + segment + "]"
			body = nil
			if i, err := strconv.Atoi(segment); err == nil && 0 <= i && i < len(in) {
				body = in[i]
			}
		case map[string]any:
			if place != "" {
				place += "."
			}
			place += clip(segment)
			body = in[segment]
		}
	}
	return place
}

// clip shortens a text of others.
func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText-3] + "..."
	}
	return s
}
