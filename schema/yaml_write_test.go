package schema_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// everything has each key that a file can have.
const everything = `
service: devices.example.com
version: v2
imports: [iam.example.com@v1]
patterns_dropped: keep
kinds:
  - kind: Device
    previous_name: Gadget
    patterns: ["projects/{project}/devices/{device}"]
    hide_while_deleting: true
    constraints_disabled: true
    referable_by: [a.example.com, "true"]
    delegation: none
    deletion: atomic
    retention: 1d12h
    parents:
      - {kind: Project, behaviour: CASCADE_DELETE}
      - {kind: Other, behaviour: BLOCK, until: removed, region: eu}
      - {kind: Third, behaviour: BLOCK, region: {field: spec.region}}
    references:
      - {path: spec.account, targets: [iam.example.com/Account], behaviour: BLOCK, until: removed}
      - {columns: [a, b], targets: [iam.example.com/Account], region: {column: region}, behaviour: UNSET, enforce: strict, missing: delete, none: ["0", "-1"], when: {kind: account}, unset: [b], unset_to: default, match: full}
      - {columns: [c], targets: [X, Y], region: same, behaviour: ASYNC_UNSET, enforce: async, missing: report}
      - {columns: [d], targets: [X], region: eu, behaviour: ALLOW_DANGLING}
    fields:
      - {path: size, default: 5, required: true, immutable: true}
      - {path: tags, default: [a, {b: null}]}
      - {path: flag, default: false}
    schema: {type: object, properties: {size: {type: integer, maximum: 10}}, required: [size]}
    finalizers: [{name: clean, holder: user/cleaner}]
  - kind: Row
    table: public.rows
    key: [id, "no"]
    gone: deleted_at
acknowledge: [{warning: W1, at: "kinds[Device]", reason: "it is so"}]
---
regions: [eu, "on"]
deployments:
  - {deployment: devices.example.com/eu, version: v2, address: "h:1", disabled: true}
rights:
  default: deny
  cascade_needs_delete: true
  two_operators: [force-release]
  quotas: [{holders: a.example.com/eu, targets: "*/*", blocking: 5, tentative: 6}]
  max_removals: 1000
  grants:
    - {identity: user/ann, verbs: [read, write], kind: devices.example.com/Device, name: projects/acme}
    - {group: "*", verbs: [operate]}
  operators:
    - {identity: operator/ada, verbs: [read, operate, grant]}
    - {identity: operator/olga, verbs: [read], deployments: ["*/eu", iam.example.com/*]}
`

// A written file is read as it was: no key is lost. The values of a file are compared without their places.
func TestAFileIsWrittenAsItIsRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		everything, devices, "rights: {default: allow}\n", "rights: {max_removals: 3}\n",
		"regions: [a]\n", "",
	} {
		read, again := written(t, text)
		require.Equal(t, read, again)
	}
	read, _ := written(t, everything)
	set := map[string]bool{}
	fields(reflect.ValueOf(read), "", set)
	for name, isSet := range set {
		require.True(t, isSet || strings.HasSuffix(name, "Pos") || strings.Contains(name, "Pos.") ||
			name == "Rights.Declaration" || name == "Rights.Allow" || name == "Deployments.Generation" ||
			name == "Deployments.Database",
			"%s: add it to the file above, so that its key is written", name)
	}
}

func written(t *testing.T, text string) (read, again *schema.File) {
	t.Helper()
	read, err := schema.ParseFile("f", strings.NewReader(text))
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, schema.WriteFile(&out, read))
	again, err = schema.ParseFile("f", bytes.NewReader(out.Bytes()))
	require.NoError(t, err, "%s", out.String())
	noPlaces(reflect.ValueOf(read))
	noPlaces(reflect.ValueOf(again))
	return read, again
}

// noPlaces clears each schema.Pos in a value.
func noPlaces(v reflect.Value) {
	switch v.Kind() { //nolint:exhaustive // other kinds have nothing below them
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() && v.Elem().Kind() != reflect.Map {
			noPlaces(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			noPlaces(v.Index(i))
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[schema.Pos]() {
			v.SetZero()
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				noPlaces(v.Field(i))
			}
		}
	}
}

// fields notes for each field of the types below a value whether one of them is set.
func fields(v reflect.Value, path string, set map[string]bool) {
	switch v.Kind() { //nolint:exhaustive // other kinds have nothing below them
	case reflect.Pointer:
		if !v.IsNil() {
			fields(v.Elem(), path, set)
		}
	case reflect.Slice:
		for i := range v.Len() {
			fields(v.Index(i), path, set)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				continue
			}
			name := strings.TrimPrefix(path+"."+f.Name, ".")
			set[name] = set[name] || !v.Field(i).IsZero()
			fields(v.Field(i), name, set)
		}
	}
}

func TestDifferencesOfDocumentsArePaths(t *testing.T) {
	t.Parallel()
	parse := func(text string) *schema.Descriptor {
		f, err := schema.ParseFile("f", strings.NewReader(text))
		require.NoError(t, err)
		return f.Services[0]
	}
	before, after := parse(everything), parse(strings.NewReplacer("region: same, behaviour: ASYNC_UNSET",
		"region: same, behaviour: BLOCK", "previous_name: Gadget\n", "\n", "targets: [X]", "targets: [X, Z]",
		"maximum: 10", "maximum: 11, minimum: 1").Replace(everything))
	require.Equal(t, []string{
		"kinds[Device].references[c].behaviour: ASYNC_UNSET → BLOCK",
		"kinds[Device].references[d].targets: [X] → [X, Z]",
		"kinds[Device].schema.properties.size.maximum: 10 → 11",
		"kinds[Device].schema.properties.size.minimum: 1 (added)",
		"kinds[Device].previous_name: Gadget (removed)",
	}, schema.Differences(before.Document(nil), after.Document(nil)))
	require.Empty(t, schema.Differences(before.Document(nil), before.Document(nil)))
}
