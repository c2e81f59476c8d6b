package schema

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/db-controller/db-controller/schema/violation"
)

// UndeclaredError is the error of a body with the full name of a resource in a field for which its kind
// declares no reference.
type UndeclaredError struct {
	// Field is the place in the body, such as spec.bindings[0].role.
	Field string
	Value string
	Kind  string
	// Closest is the most similar declared path; empty when the kind declares none.
	Closest string
}

func (e *UndeclaredError) Error() string {
	text := fmt.Sprintf("field %s: %q is the name of a resource, and %s has no reference there; ", e.Field,
		e.Value, e.Kind)
	switch {
	case strings.HasPrefix(e.Field, e.Closest+"["), strings.HasPrefix(e.Field, e.Closest+"."):
		text += e.Closest + " has one name, and a list or map of names is declared as " + e.Closest + ".*; "
	case e.Closest != "":
		text += "did you mean " + e.Closest + "? If not, "
	}
	return text + "declare a reference for the field in a version of the service"
}

// CheckUndeclared refuses full names of resources, at every depth, in fields for which no described version
// declares a reference: usually the name of the field has a typo, and the reference would not be protected.
// Such names that are in the stored body are allowed, so that it can be updated. Kinds without constraints
// are not checked.
func (k *KindModel) CheckUndeclared(body, stored map[string]any) error {
	if k.Unconstrained {
		return nil
	}
	var kept map[string]bool
	for path, value := range k.undeclared(body) {
		if kept == nil {
			kept = map[string]bool{}
			for _, old := range k.undeclared(stored) {
				kept[old] = true
			}
		}
		if !kept[value] {
			err := &UndeclaredError{
				Field: fieldText(path), Value: value, Kind: k.ID.Kind,
				Closest: k.closest(path, value),
			}
			_, problem, _ := strings.Cut(err.Error(), ": ")
			return violation.InFields(err, violation.Field{
				Path:    violation.Join(violation.Body, err.Field),
				Problem: problem,
			})
		}
	}
	return nil
}

// step is a step of the way to a value in a body: a field or map key, or the index of a list's element.
type step struct {
	key   string
	index int // of an element; its key is empty
}

// undeclared yields the full names in fields without a reference, with the ways to them. It compares steps,
// not joined paths, because a key can contain a dot. A way is valid until the next iteration.
func (k *KindModel) undeclared(body map[string]any) iter.Seq2[[]step, string] {
	return func(yield func([]step, string) bool) {
		live := make([][]string, len(k.everPaths))
		for i, path := range k.everPaths {
			live[i] = path.segments
		}
		w := &undeclaredWalk{yield: yield}
		w.visit(body, live)
	}
}

type undeclaredWalk struct {
	path  []step
	yield func([]step, string) bool
}

// visit walks over a value, and reports whether to continue; live are the rests of the declared paths that
// lead here.
func (w *undeclaredWalk) visit(v any, live [][]string) bool {
	switch v := v.(type) {
	case nil, bool, json.Number, float64, int, int64:
	case string:
		if slices.ContainsFunc(live, func(rest []string) bool { return len(rest) == 0 }) {
			return true
		}
		_, err := ParseFullName(v)
		return err != nil || w.yield(w.path, v)
	case map[string]any:
		for _, key := range sortedKeys(v) {
			if !w.into(step{key: key}, v[key], live) {
				return false
			}
		}
	case []any:
		for i, element := range v {
			if !w.into(step{index: i}, element, live) {
				return false
			}
		}
	default: // another Go type: walk over its JSON
		var plain any
		if raw, err := json.Marshal(v); err == nil && json.Unmarshal(raw, &plain) == nil {
			return w.visit(plain, live)
		}
	}
	return true
}

func (w *undeclaredWalk) into(s step, v any, live [][]string) bool {
	var next [][]string
	for _, rest := range live {
		if len(rest) > 0 && (rest[0] == "*" || s.key != "" && rest[0] == s.key) {
			next = append(next, rest[1:])
		}
	}
	w.path = append(w.path, s)
	defer func() { w.path = w.path[:len(w.path)-1] }()
	return w.visit(v, next)
}

func fieldText(path []step) (text string) {
	for _, s := range path {
		if s.key == "" {
			text += "[" + strconv.Itoa(s.index) + "]"
		} else {
			text = join(text, clip(s.key))
		}
	}
	return text
}

// closest returns the declared path that is most similar to a way; paths that could have the value come
// first.
func (k *KindModel) closest(path []step, value string) string {
	best, least, fitting := "", 0, false
	for _, r := range k.references {
		_, err := r.resolve(DeploymentID{}, value)
		fits, d := err == nil, pathDistance(path, r.path.segments)
		if best == "" || fits && !fitting || fits == fitting && d < least {
			best, least, fitting = r.path.String(), d, fits
		}
	}
	return best
}

// pathDistance returns the edit distance of a way and a declared path, field by field; a star is equal to any
// field.
func pathDistance(path []step, declared []string) int {
	var fields []string // a key with dots may be a path that was written as a key
	for _, s := range path {
		key := s.key[:min(len(s.key), maxFieldLength)]
		fields = append(fields, strings.Split(strings.ToLower(key), ".")...)
	}
	return editDistance(len(fields), len(declared),
		func(i int) int { return len(fields[i]) + 1 },
		func(j int) int { return len(declared[j]) + 1 },
		func(i, j int) int {
			if declared[j] == "*" || fields[i] == "" {
				return 0
			}
			a, b := fields[i], strings.ToLower(declared[j])
			one := func(int) int { return 1 }
			return editDistance(len(a), len(b), one, one, func(i, j int) int {
				if a[i] == b[j] {
					return 0
				}
				return 1
			})
		})
}

// editDistance returns the least cost to turn one sequence into the other by dropping, adding and changing
// elements.
func editDistance(n, m int, drop, add func(int) int, change func(i, j int) int) int {
	row := make([]int, m+1)
	for j := range m {
		row[j+1] = row[j] + add(j)
	}
	for i := range n {
		before := row[0]
		row[0] += drop(i)
		for j := range m {
			next := min(before+change(i, j), row[j+1]+drop(i), row[j]+add(j))
			before, row[j+1] = row[j+1], next
		}
	}
	return row[m]
}
