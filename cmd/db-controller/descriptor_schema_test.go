package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// descriptorSchema is the output of validate --print-schema.
func descriptorSchema(t *testing.T) []byte {
	t.Helper()
	got := command(t, "validate", "--print-schema")
	require.Zero(t, got.code, got.errOut)
	return []byte(got.out)
}

// The JSON Schema of descriptors has the keys that the parser knows, and no others.
func TestTheSchemaOfDescriptorsHasTheKeysOfTheParser(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "wrong.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
unknown: 1
service: a.example.com
version: v1
defaults: { unknown: 1 }
acknowledge: [{ unknown: 1 }]
kinds:
- kind: A
  unknown: 1
  parents: [{ kind: B, unknown: 1 }]
  references: [{ path: a, unknown: 1 }]
  fields: [{ path: b, unknown: 1 }]
  finalizers: [{ name: a.example.com/f, unknown: 1 }]
---
unknown: 1
regions: []
deployments: [{ deployment: a.example.com/b, unknown: 1 }]
rights: { unknown: 1, grants: [{ unknown: 1 }], operators: [{ unknown: 1 }], quotas: [{ unknown: 1 }] }
`), 0o600))
	got := command(t, "validate", file)
	known := regexp.MustCompile(`unknown key "unknown"; the keys here are (.*)`).
		FindAllStringSubmatch(got.out+got.errOut, -1)
	require.Len(t, known, 14)
	var of []string
	for _, k := range known {
		of = append(of, k[1])
	}

	var schema any
	require.NoError(t, json.Unmarshal(descriptorSchema(t), &schema))
	var described []string
	var walk func(node any)
	walk = func(node any) {
		switch node := node.(type) {
		case map[string]any:
			// one key: the field or column of a region
			if properties, ok := node["properties"].(map[string]any); ok && len(properties) > 1 {
				var keys []string
				for key := range properties {
					keys = append(keys, key)
				}
				slices.Sort(keys)
				described = append(described, strings.Join(keys, ", "))
			}
			for _, child := range node {
				walk(child)
			}
		case []any:
			for _, child := range node {
				walk(child)
			}
		}
	}
	walk(schema)
	require.ElementsMatch(t, of, described)
}

// Every descriptor of the project fits it, and a misspelt key does not.
func TestDescriptorsFitTheirSchema(t *testing.T) {
	t.Parallel()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(descriptorSchema(t)))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("descriptors.json", document))
	compiled, err := compiler.Compile("descriptors.json")
	require.NoError(t, err)

	files, err := filepath.Glob("../../docs/examples/*/*.yaml")
	require.NoError(t, err)
	files = append(files, "dev/examples/services.yaml", "dev/examples/adopt-services.yaml",
		"../../deploy/compose/services.yaml")
	require.Greater(t, len(files), 5)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		for decoder := yaml.NewDecoder(bytes.NewReader(raw)); ; {
			var content any
			if decoder.Decode(&content) != nil {
				break
			}
			require.NoError(t, compiled.Validate(content), file)
		}
	}
	require.Error(t, compiled.Validate(map[string]any{"service": "a.example.com", "version": "v1", "kindz": []any{}}))
	require.Error(t, compiled.Validate(map[string]any{
		"service": "a.example.com", "version": "v1",
		"kinds": []any{map[string]any{
			"kind": "A", "references": []any{map[string]any{"path": "a", "behaviour": "CASCADE"}},
		}},
	}))
}
