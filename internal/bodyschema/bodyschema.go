// Package bodyschema checks bodies by the JSON Schemas of kinds.
package bodyschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

// Check returns an error with the places at which a decoded body does not fit. It takes its steps from left, or fails with ErrTooCostly
// before the check when there are too few.
func (s *Schema) Check(decoded any, left *Steps) error {
	w := &walk{left: int64(*left)}
	w.value(s.compiled, decoded, 0, 0)
	if w.left < 0 {
		return ErrTooCostly
	}
	*left = Steps(w.left)
	if w.problem > maxProblemBytes {
		if s.fits.Validate(decoded) == nil {
			return errors.New("body: it does not fit the JSON Schema of its kind, and is too large for a list of the places")
		}
		return nil
	}
	var invalid *jsonschema.ValidationError
	err := s.compiled.Validate(decoded)
	if errors.As(err, &invalid) {
		return errors.New(problems(invalid))
	}
	return err
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
		return nil, short(err)
	}
	compiled, err := c.Compile(url)
	if err != nil {
		return nil, short(err)
	}
	if err := c.AddResource(fits, map[string]any{"not": map[string]any{"$ref": url}}); err != nil {
		return nil, err
	}
	out := &Schema{compiled: compiled}
	out.fits, err = c.Compile(fits)
	return out, err
}

// short replaces the error of a schema that is none, which repeats the meta-schema, by its problems.
func short(err error) error {
	var invalid *jsonschema.ValidationError
	if errors.As(err, &invalid) {
		return errors.New(problems(invalid))
	}
	return err
}

var english = message.NewPrinter(language.English)

// problems lists the places at which a body does not fit a schema.
func problems(e *jsonschema.ValidationError) string {
	var found []string
	var leaves func(e *jsonschema.ValidationError)
	leaves = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 && len(found) <= maxProblems {
			found = append(found, placeOf(e.InstanceLocation)+clip(e.ErrorKind.LocalizedString(english)))
		}
		for _, cause := range e.Causes {
			leaves(cause)
		}
	}
	leaves(e)
	if len(found) > maxProblems {
		found = append(found[:maxProblems], "and more")
	}
	return strings.Join(found, "; ")
}

func placeOf(location []string) string {
	if len(location) == 0 {
		return "body: "
	}
	path := make([]string, len(location))
	for i, segment := range location {
		path[i] = clip(segment)
	}
	return "field " + strings.Join(path, ".") + ": "
}

// clip shortens a text of others.
func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText-3] + "..."
	}
	return s
}
