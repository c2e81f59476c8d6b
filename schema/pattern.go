package schema

import (
	"fmt"
	"slices"
	"strings"
)

// Pattern is a name pattern such as projects/{project}/devices/{device}.
type Pattern struct {
	text     string
	Segments []string
}

// ParsePattern parses collections and {variables} in turn.
func ParsePattern(s string) (Pattern, error) {
	segments := strings.Split(s, "/")
	if len(segments)%2 != 0 {
		return Pattern{}, fmt.Errorf("pattern %q: want collections and {variables} in turn, such as projects/{project}",
			clip(s))
	}
	seen := map[string]bool{}
	for i, segment := range segments {
		if i%2 == 0 {
			if !collectionGrammar.MatchString(segment) {
				return Pattern{}, fmt.Errorf("pattern %q: collection %q: want lower camel case, such as devices",
					clip(s), clip(segment))
			}
			continue
		}
		variable := strings.TrimSuffix(strings.TrimPrefix(segment, "{"), "}")
		if len(variable)+2 != len(segment) || variable == "" {
			return Pattern{}, fmt.Errorf("pattern %q: %q: want a variable in braces, such as {device}", clip(s),
				clip(segment))
		}
		if seen[variable] {
			return Pattern{}, fmt.Errorf("pattern %q: variable {%s} is used twice", clip(s), clip(variable))
		}
		seen[variable] = true
	}
	return Pattern{text: s, Segments: segments}, nil
}

func (p Pattern) String() string { return p.text }

// Shape returns the pattern with * for each variable. Patterns of one shape match the same names; patterns of
// different shapes have no name in common.
func (p Pattern) Shape() string {
	segments := slices.Clone(p.Segments)
	for i := 1; i < len(segments); i += 2 {
		segments[i] = "*"
	}
	return strings.Join(segments, "/")
}

// Match reports whether a valid relative name fits the pattern.
func (p Pattern) Match(name string) bool {
	for i, segment := range p.Segments {
		part, rest, more := strings.Cut(name, "/")
		if more != (i < len(p.Segments)-1) {
			return false
		}
		if i%2 == 0 && part != segment {
			return false
		}
		name = rest
	}
	return true
}

// overlaps reports whether a name can fit both patterns: variables match any id, so only collections differ.
func (p Pattern) overlaps(q Pattern) bool {
	if len(p.Segments) != len(q.Segments) {
		return false
	}
	for i := 0; i < len(p.Segments); i += 2 {
		if p.Segments[i] != q.Segments[i] {
			return false
		}
	}
	return true
}

// regionAt returns the index of the segment with the region of a resource, as in regions/{region}; -1 without
// one.
func (p Pattern) regionAt() int {
	for i := 1; i < len(p.Segments); i += 2 {
		if p.Segments[i-1] == "regions" && p.Segments[i] == "{region}" {
			return i
		}
	}
	return -1
}

// regionOf returns the region in a name that fits the pattern or lies below such a name; "" without one.
func (p Pattern) regionOf(name string) string {
	if i := p.regionAt(); i >= 0 {
		return strings.Split(name, "/")[i]
	}
	return ""
}

// PrefixOf returns the beginning of a name that fits the pattern, or "" when the name does not lie below such
// a name.
func (p Pattern) PrefixOf(name string) string {
	segments := strings.Split(name, "/")
	if len(segments) <= len(p.Segments) {
		return ""
	}
	prefix := strings.Join(segments[:len(p.Segments)], "/")
	if !p.Match(prefix) {
		return ""
	}
	return prefix
}
