// Package jsonbody converts Go values to the bodies of resources.
package jsonbody

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Of converts a value by encoding/json; nil for null. Bodies have numbers of double precision: an integer
// that has none is an error.
func Of(v any) (map[string]any, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		return nil, fmt.Errorf("%T is no JSON object: %w", v, err)
	}
	return fields, exact(fields)
}

// exact replaces the numbers in a value of JSON by float64.
func exact(v any) error {
	var err error
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			if v[key], err = replaced(v[key]); err != nil {
				return err
			}
		}
	case []any:
		for i := range v {
			if v[i], err = replaced(v[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func replaced(v any) (any, error) {
	n, ok := v.(json.Number)
	if !ok {
		return v, exact(v)
	}
	f, err := n.Float64()
	if err == nil && !strings.ContainsAny(n.String(), ".eE") && strconv.FormatFloat(f, 'f', -1, 64) != n.String() {
		err = fmt.Errorf("the integer %s has no exact value of double precision: store it as a string", n)
	}
	return f, err
}
