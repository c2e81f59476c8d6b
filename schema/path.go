package schema

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ParentPath stands for the parent where a reference's field path stands; no field can have this path.
const ParentPath = "@parent"

// MaxPathDepth is the number of segments that no field path exceeds.
const MaxPathDepth = 16

// MaxReferences is how many references one resource may have.
const MaxReferences = 1000

var errTooManyReferences = fmt.Errorf("body: more than %d references, at most %d are allowed in one resource", MaxReferences, MaxReferences)

// maxFieldLength is the length that fieldGrammar gives to a field.
const maxFieldLength = 63

var fieldGrammar = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]{0,62}$`)

// Path is a field path in a resource's body: spec.account, spec.members.* (each element of a list or each value of
// a map), spec.bindings.*.role (a field of each). The star is that of AIP-161.
type Path struct {
	text     string
	segments []string
}

// ParsePath reads a path; it starts with a field.
func ParsePath(s string) (Path, error) {
	segments := strings.Split(s, ".")
	if len(segments) > MaxPathDepth {
		return Path{}, fmt.Errorf("path %q: %d segments, at most %d are allowed", clip(s), len(segments), MaxPathDepth)
	}
	for i, segment := range segments {
		if segment == "*" && i > 0 {
			continue
		}
		if !fieldGrammar.MatchString(segment) {
			return Path{}, fmt.Errorf("path %q: segment %q: want fields joined by dots, * for list elements and map values, such as spec.members.*", clip(s), clip(segment))
		}
	}
	return Path{text: s, segments: segments}, nil
}

func (p Path) String() string { return p.text }

// Scalar gives the segments of a path without stars, and whether it is one.
func (p Path) Scalar() ([]string, bool) {
	return p.segments, !slices.Contains(p.segments, "*")
}

// Values returns the distinct non-empty strings at the path, in order; more than MaxReferences are an error. What is
// absent or null has no value; anything but a string at the end, or the wrong shape on the way, is an error that names
// the place. The work is linear in the size of the body.
func (p Path) Values(body map[string]any) ([]string, error) {
	var values []string
	seen := map[string]bool{}
	err := walk(body, p.segments, func(v any) error {
		s, ok := v.(string)
		if !ok {
			return FieldErrorf("want the name of a resource as a string, got %s", shapeOf(v))
		}
		if s == "" || seen[s] {
			return nil
		}
		if len(values) == MaxReferences {
			return errTooManyReferences
		}
		seen[s] = true
		values = append(values, s)
		return nil
	})
	return values, err
}

// FieldError is a problem with a value in a body. The path to the value is put together only when the error is printed,
// from the value outwards: keys can be long, and a path for each value would cost their product.
type FieldError struct {
	problem string
	inner   []string
}

// FieldErrorf returns the problem of a value; Under says where the value is.
func FieldErrorf(problem string, args ...any) error {
	return &FieldError{problem: fmt.Sprintf(problem, args...)}
}

func (e *FieldError) Error() string {
	var at strings.Builder
	for i, segment := range slices.Backward(e.inner) {
		if i < len(e.inner)-1 && !strings.HasPrefix(segment, "[") {
			at.WriteByte('.')
		}
		at.WriteString(segment)
	}
	return fmt.Sprintf("field %s: %s", at.String(), e.problem)
}

// Under adds a field name or a map key to the path of a FieldError; other errors stay as they are.
func Under(key string, err error) error {
	if e, ok := err.(*FieldError); ok { //nolint:errorlint // nothing wraps it on its way outwards
		e.inner = append(e.inner, clip(key))
	}
	return err
}

// UnderIndex adds a list index to the path of a FieldError.
func UnderIndex(i int, err error) error { return Under("["+strconv.Itoa(i)+"]", err) }

func walk(v any, segments []string, leaf func(any) error) error {
	if v == nil {
		return nil
	}
	if len(segments) == 0 {
		return leaf(v)
	}
	segment, rest := segments[0], segments[1:]
	switch node := v.(type) {
	case map[string]any:
		keys := []string{segment}
		if segment == "*" {
			keys = sortedKeys(node)
		}
		for _, key := range keys {
			if err := walk(node[key], rest, leaf); err != nil {
				return Under(key, err)
			}
		}
		return nil
	case []any:
		if segment != "*" {
			return FieldErrorf("is a list, where the descriptor's path has the field %q", segment)
		}
		for i, element := range node {
			if err := walk(element, rest, leaf); err != nil {
				return UnderIndex(i, err)
			}
		}
		return nil
	}
	return FieldErrorf("want a message, list or map, got %s", shapeOf(v))
}

// Unset takes every value for which drop answers true out of the body, in place: a scalar field and a map entry
// leave their parent, a list element leaves the list. It tells how many left. Shapes that do not fit are left alone.
func (p Path) Unset(body map[string]any, drop func(string) bool) int {
	_, n := unset(body, p.segments, drop)
	return n
}

// unset answers what stands in place of v: v itself, possibly changed, or nil when v is a value that goes.
func unset(v any, segments []string, drop func(string) bool) (any, int) {
	if len(segments) == 0 {
		if s, ok := v.(string); ok && s != "" && drop(s) {
			return nil, 1
		}
		return v, 0
	}
	n := 0
	switch node := v.(type) {
	case map[string]any:
		keys := []string{segments[0]}
		if segments[0] == "*" {
			keys = sortedKeys(node)
		}
		for _, key := range keys {
			child, ok := node[key]
			if !ok {
				continue
			}
			left, gone := unset(child, segments[1:], drop)
			n += gone
			if gone > 0 && left == nil {
				delete(node, key)
			} else {
				node[key] = left
			}
		}
		return node, n
	case []any:
		if segments[0] != "*" {
			return node, 0
		}
		kept := node[:0]
		for _, child := range node {
			left, gone := unset(child, segments[1:], drop)
			n += gone
			if gone == 0 || left != nil {
				kept = append(kept, left)
			}
		}
		return kept, n
	}
	return v, 0
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func join(at, field string) string {
	if at == "" {
		return field
	}
	return at + "." + field
}

func shapeOf(v any) string {
	switch v.(type) {
	case map[string]any:
		return "a message"
	case []any:
		return "a list"
	case bool:
		return "a bool"
	case float64, int, int64:
		return "a number"
	case string:
		return "a string"
	}
	return fmt.Sprintf("%T", v)
}
