// Package violation has errors that name the fields of a resource, or of a request, that they are about.
package violation

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Field is an invalid field.
type Field struct {
	// Path from the resource on, such as name, labels, body.spec.account or body.members[2]; empty: the whole
	// of it.
	Path    string `json:"path"`
	Problem string `json:"problem"`
}

// located is an error with the fields that it is about.
type located struct {
	error
	fields []Field
}

func (e *located) Unwrap() error { return e.error }

// InFields returns an error with the fields that it is about, in place of the fields that it names; without
// fields the error itself. Its text stays.
func InFields(err error, fields ...Field) error {
	if len(fields) == 0 {
		return err
	}
	return &located{err, fields}
}

// In is InFields for one field; nil stays nil.
func In(path string, err error) error {
	if err == nil {
		return nil
	}
	return InFields(err, Field{Path: path, Problem: strings.TrimPrefix(err.Error(), path+": ")})
}

// Body is the field of a resource with its body.
const Body = "body"

// Of returns the fields that an error names; nil for none.
func Of(err error) []Field {
	var outer *located
	var value *ValueError
	switch {
	case errors.As(err, &outer):
		return slices.Clone(outer.fields)
	case errors.As(err, &value):
		return []Field{{Join(cmp.Or(value.root, Body), value.path()), value.problem}}
	}
	return nil
}

// Join returns the path of a field below another one.
func Join(field, below string) string {
	if field == "" || below == "" || strings.HasPrefix(below, "[") {
		return field + below
	}
	return field + "." + below
}

// ValueError is a problem of a value in a body. It collects the path to the value on the way outwards, and
// joins it only when it is printed: keys can be long, and a path for each value would cost too much.
type ValueError struct {
	problem string
	inner   []string
	root    string // the field of the resource; empty: its body, which the text does not name
}

// Errorf returns a ValueError without a path; Under and UnderIndex add the path.
func Errorf(problem string, args ...any) error {
	return &ValueError{problem: fmt.Sprintf(problem, args...)}
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("field %s: %s", Join(e.root, e.path()), e.problem)
}

// path is the path of the value, without the root.
func (e *ValueError) path() string {
	var at strings.Builder
	for i, segment := range slices.Backward(e.inner) {
		if i < len(e.inner)-1 && !strings.HasPrefix(segment, "[") {
			at.WriteByte('.')
		}
		at.WriteString(segment)
	}
	return at.String()
}

// maxKey is the length of a key in a path.
const maxKey = 80

// Under adds a field name or a map key, which is shortened, to the path of a ValueError. It returns other
// errors unchanged.
func Under(key string, err error) error {
	if e, ok := err.(*ValueError); ok { //nolint:errorlint // no caller wraps it on the way outwards
		if len(key) > maxKey {
			key = strings.ToValidUTF8(key[:maxKey-3], "") + "..." // no half character
		}
		e.inner = append(e.inner, key)
	}
	return err
}

// UnderIndex adds a list index to the path of a ValueError.
func UnderIndex(i int, err error) error { return Under("["+strconv.Itoa(i)+"]", err) }

// UnderRoot ends the path of a ValueError with a field of the resource. It returns other errors with the
// field as their place.
func UnderRoot(field string, err error) error {
	if e, ok := err.(*ValueError); ok { //nolint:errorlint // no caller wraps it on the way outwards
		e.root = field
		return err
	}
	return In(field, err)
}
