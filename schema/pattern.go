package schema

import (
	"fmt"
	"slices"
	"strings"
)

// Pattern is a name pattern such as projects/{project}/devices/{device}.
type Pattern struct {
	text     string
	segments []string
}

// ParsePattern reads collections and {variables} in turn.
func ParsePattern(s string) (Pattern, error) {
	segments := strings.Split(s, "/")
	if len(segments)%2 != 0 {
		return Pattern{}, fmt.Errorf("pattern %q: want collections and {variables} in turn, such as projects/{project}", clip(s))
	}
	seen := map[string]bool{}
	for i, segment := range segments {
		if i%2 == 0 {
			if !collectionGrammar.MatchString(segment) {
				return Pattern{}, fmt.Errorf("pattern %q: collection %q: want lower camel case, such as devices", clip(s), clip(segment))
			}
			continue
		}
		variable := strings.TrimSuffix(strings.TrimPrefix(segment, "{"), "}")
		if len(variable)+2 != len(segment) || variable == "" {
			return Pattern{}, fmt.Errorf("pattern %q: %q: want a variable in braces, such as {device}", clip(s), clip(segment))
		}
		if seen[variable] {
			return Pattern{}, fmt.Errorf("pattern %q: variable {%s} stands twice", clip(s), clip(variable))
		}
		seen[variable] = true
	}
	return Pattern{text: s, segments: segments}, nil
}

func (p Pattern) String() string { return p.text }

// Shape is the pattern with a * for each variable: patterns of one shape match the same names, others match no name of it.
func (p Pattern) Shape() string {
	segments := slices.Clone(p.segments)
	for i := 1; i < len(segments); i += 2 {
		segments[i] = "*"
	}
	return strings.Join(segments, "/")
}

// Match tells whether a checked relative name is of this pattern.
func (p Pattern) Match(name string) bool {
	for i, segment := range p.segments {
		part, rest, more := strings.Cut(name, "/")
		if more != (i < len(p.segments)-1) {
			return false
		}
		if i%2 == 0 && part != segment {
			return false
		}
		name = rest
	}
	return true
}

// overlaps tells whether a name can be of both patterns: variables match anything, so only collections tell them apart.
func (p Pattern) overlaps(q Pattern) bool {
	if len(p.segments) != len(q.segments) {
		return false
	}
	for i := 0; i < len(p.segments); i += 2 {
		if p.segments[i] != q.segments[i] {
			return false
		}
	}
	return true
}

// regionAt is the segment in which names of this pattern say the region where they lie, as in regions/{region}; -1: none.
func (p Pattern) regionAt() int {
	for i := 1; i < len(p.segments); i += 2 {
		if p.segments[i-1] == "regions" && p.segments[i] == "{region}" {
			return i
		}
	}
	return -1
}

// regionOf gives the region that a name of this pattern, or one below, says; "" when it says none.
func (p Pattern) regionOf(name string) string {
	if i := p.regionAt(); i >= 0 {
		return strings.Split(name, "/")[i]
	}
	return ""
}

// prefixOf gives the part of name that p would be the parent pattern of, or "" when name does not lie below p.
func (p Pattern) prefixOf(name string) string {
	segments := strings.Split(name, "/")
	if len(segments) <= len(p.segments) {
		return ""
	}
	prefix := strings.Join(segments[:len(p.segments)], "/")
	if !p.Match(prefix) {
		return ""
	}
	return prefix
}
