package grant

import (
	"cmp"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// NameRange is the relative names from From on that come before Below, by their bytes.
type NameRange struct {
	From, Below string
}

// lastName comes after all relative names, which are of ASCII characters.
const lastName = "\x7f"

// AllNames are all relative names.
var AllNames = NameRange{Below: lastName}

// Has reports whether a name is in the range.
func (r NameRange) Has(name string) bool { return r.From <= name && name < r.Below }

// NameRanges returns the ranges of the name of a grant.
func NameRanges(name string) []NameRange {
	if name == "" {
		return []NameRange{AllNames}
	}
	if prefix, open := strings.CutSuffix(name, schema.Every); open {
		return []NameRange{beginWith(prefix)}
	}
	return []NameRange{{From: name, Below: name + "\x01"}, beginWith(name + "/")}
}

func beginWith(prefix string) NameRange {
	if prefix == "" {
		return AllNames
	}
	last := len(prefix) - 1
	return NameRange{From: prefix, Below: prefix[:last] + string(prefix[last]+1)}
}

// JoinedRanges sorts ranges and joins ranges that overlap or touch, so that the result are disjoint ranges in
// order.
func JoinedRanges(ranges []NameRange) []NameRange {
	slices.SortFunc(ranges, func(a, b NameRange) int { return cmp.Compare(a.From, b.From) })
	var out []NameRange
	for _, r := range ranges {
		if last := len(out) - 1; last >= 0 && r.From <= out[last].Below {
			out[last].Below = max(out[last].Below, r.Below)
			continue
		}
		if r.From < r.Below {
			out = append(out, r)
		}
	}
	return out
}

// CommonRanges returns the names that are in both of two lists of disjoint ranges in order.
func CommonRanges(a, b []NameRange) []NameRange {
	var out []NameRange
	for len(a) > 0 && len(b) > 0 {
		if both := (NameRange{max(a[0].From, b[0].From), min(a[0].Below, b[0].Below)}); both.From < both.Below {
			out = append(out, both)
		}
		if a[0].Below < b[0].Below {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// Within are the names that a list or a watch is limited to, by the name of their kind: disjoint ranges in
// order. The ranges of Every are for kinds that have no ranges of their own. Nil is no limit.
type Within map[string][]NameRange

// Of returns the names of a kind.
func (w Within) Of(kind string) []NameRange {
	if w == nil {
		return []NameRange{AllNames}
	}
	if ranges, ok := w[kind]; ok {
		return ranges
	}
	return w[schema.Every]
}
