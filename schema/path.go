package schema

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema/violation"
)

// ParentPath takes the place of the field path in references to parents. No field can have this path.
const ParentPath = "@parent"

// MaxPathDepth bounds the segments of a field path.
const MaxPathDepth = 16

// MaxReferences bounds the references of one resource.
const MaxReferences = 1000

var errTooManyReferences = violation.In(violation.Body,
	fmt.Errorf("body: more than %d references, at most %d are allowed in one resource", MaxReferences, MaxReferences))

// maxFieldLength is the longest field that fieldGrammar accepts.
const maxFieldLength = 63

var fieldGrammar = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]{0,62}$`)

// Path is a field path in a resource's body: spec.account, spec.members.* (each element of a list, or each
// value of a map), spec.bindings.*.role (a field of each). The star has the meaning of AIP-161.
type Path struct {
	text     string
	segments []string
}

// ParsePath parses a path, which begins with a field.
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
			return Path{},
				fmt.Errorf(
					"path %q: segment %q: want fields joined by dots, * for list elements and map values, such as spec.members.*", clip(s), clip(segment))
		}
	}
	return Path{text: s, segments: segments}, nil
}

func (p Path) String() string { return p.text }

// Values returns the distinct non-empty strings at the path, in order; more than MaxReferences are an error.
// A field that is missing or null has no value. A value that is not a string, and a value on the way that is
// neither a message, a list nor a map, are errors that name the place. The time is linear in the size of the
// body.
func (p Path) Values(body map[string]any) ([]string, error) {
	var values []string
	seen := map[string]bool{}
	err := walk(body, p.segments, func(v any) error {
		s, ok := v.(string)
		if !ok {
			return violation.Errorf("want the name of a resource as a string, got %s", shapeOf(v))
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
				return violation.Under(key, err)
			}
		}
		return nil
	case []any:
		if segment != "*" {
			return violation.Errorf(
				"is a list, and the descriptor's path has the field %q here: use * for the elements of a list", segment)
		}
		for i, element := range node {
			if err := walk(element, rest, leaf); err != nil {
				return violation.UnderIndex(i, err)
			}
		}
		return nil
	}
	return violation.Errorf("want a message, list or map, got %s", shapeOf(v))
}

// Unset removes each value at the path for which drop returns true, in place: a field from its message, an
// entry from its map, an element from its list. It returns the number of removed values. Values of another
// shape than the path stay.
func (p Path) Unset(body map[string]any, drop func(string) bool) int {
	_, n := unset(body, p.segments, drop)
	return n
}

// unset returns the replacement of v: v itself, possibly changed, or nil when v is removed.
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
