package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The configuration of goreleaser fits its schema, and stamps variables that exist.
func TestTheConfigurationOfReleasesIsValid(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../deploy/goreleaser/schema.json")
	require.NoError(t, err)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("goreleaser.json", document))
	compiled, err := compiler.Compile("goreleaser.json")
	require.NoError(t, err)
	text, err := os.ReadFile("../../.goreleaser.yaml")
	require.NoError(t, err)
	valid := func(text string) error {
		var config any
		require.NoError(t, yaml.Unmarshal([]byte(text), &config))
		asJSON, err := json.Marshal(config)
		require.NoError(t, err)
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
		require.NoError(t, err)
		return compiled.Validate(value)
	}
	require.NoError(t, valid(string(text)))
	require.Error(t, valid(strings.Replace(string(text), "mod_timestamp", "mod_timestamps", 1)), "the schema refuses what it does not know")

	stamped := 0
	source, err := os.ReadFile("cli/version.go")
	require.NoError(t, err)
	program, err := buildinfo.ReadFile(os.Args[0])
	require.NoError(t, err)
	for _, word := range strings.Fields(string(text)) {
		variable, ok := strings.CutPrefix(word, program.Main.Path+"/cmd/db-controller/cli.")
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(variable, "=")
		require.Regexp(t, `(?m)^\t`+name+` +=`, string(source))
		stamped++
	}
	require.Equal(t, 2, stamped)
}
