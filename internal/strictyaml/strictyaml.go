// Package strictyaml reads YAML files whose keys are all known, with errors for the people who write them.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// unknown matches the decoder's error about an unknown key, in terms of Go.
var unknown = regexp.MustCompile(`^(line \d+: )field (.*) not found in type (.*)$`)

// Decode reads the first document of a text into a struct. An unknown key is an error with the known ones.
func Decode(text []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	err := d.Decode(into)
	var typed *yaml.TypeError
	if !errors.As(err, &typed) {
		return err
	}
	var said []string
	for _, text := range typed.Errors {
		if m := unknown.FindStringSubmatch(text); m != nil {
			text = fmt.Sprintf("%sunknown key %q: known are %s", m[1], m[2],
				strings.Join(keysOf(reflect.TypeOf(into), m[3]), ", "))
		}
		said = append(said, text)
	}
	return errors.New(strings.Join(said, "; "))
}

// keysOf returns the keys of the struct of a name at or below a type; none if it is elsewhere.
func keysOf(t reflect.Type, name string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var keys []string
	for i := range t.NumField() {
		key, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if t.String() == name {
			if key != "" && key != "-" {
				keys = append(keys, key)
			}
		} else if below := keysOf(t.Field(i).Type, name); below != nil {
			return below
		}
	}
	return keys
}
