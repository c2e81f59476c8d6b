package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
)

const schemasFolder = "../../docs/schemas/" + cli.OutputVersion

// docs/schemas has the schemas that `config schema OUTPUT` prints: go test ./cmd/db-controller -run
// TestTheReference -write.
func TestTheReferenceOfOutputsIsThatOfTheCode(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	for name := range outputs() {
		got := command(t, "config", "schema", name)
		require.Zero(t, got.code, got.errOut)
		want[name+".json"] = got.out
	}
	if *writeReference {
		require.NoError(t, os.RemoveAll(schemasFolder))
		require.NoError(t, os.MkdirAll(schemasFolder, 0o755)) //nolint:gosec // documents
		for name, text := range want {
			require.NoError(t, os.WriteFile(filepath.Join(schemasFolder, name), []byte(text), 0o644)) //nolint:gosec // a document
		}
	}
	files, err := os.ReadDir(schemasFolder)
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
		text, err := os.ReadFile(filepath.Join(schemasFolder, f.Name()))
		require.NoError(t, err)
		require.Equal(t, want[f.Name()], string(text), "%s is out of date: run make generate", f.Name())
	}
	require.Equal(t, slices.Sorted(maps.Keys(want)), names)
	require.Equal(t, cli.WrongUsage, command(t, "config", "schema", "none").code)
}

// unprinted are commands whose documents have no schema: of databases, files and settings of one machine.
var unprinted = []string{
	"attach", "audit-log verify", "certs", "certs revoke", "config print", "console", "detach", "graph", "migrate",
	"migrate down", "migrate rotate-keys",
	"migrate status", "migrate up", "scan", "support-bundle", "validate",
}

// Each command that prints a document names its schemas, and each schema is of a command.
func TestEachCommandNamesItsOutputs(t *testing.T) {
	t.Parallel()
	var commands []string
	var walk func(c *cobra.Command, path string)
	walk = func(c *cobra.Command, path string) {
		if c.Flags().Lookup("output") != nil {
			commands = append(commands, path)
		}
		for _, sub := range c.Commands() {
			walk(sub, strings.TrimSpace(path+" "+sub.Name()))
		}
	}
	walk(newRoot(), "")
	used := map[string]bool{}
	for path, names := range printed {
		require.Contains(t, commands, path)
		for _, name := range names {
			require.Contains(t, outputs(), name, path)
			used[name] = true
		}
	}
	require.Len(t, used, len(outputs()))
	for _, path := range commands {
		require.True(t, printed[path] != nil || slices.Contains(unprinted, path), "%s has no output in printed", path)
	}
}

// schemas are compiled once.
var schemas = sync.OnceValues(func() (map[string]*jsonschema.Schema, error) {
	all := map[string]*jsonschema.Schema{}
	for name := range outputs() {
		s, err := outputs().Schema(name, true)
		if err != nil {
			return nil, err
		}
		raw, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			return nil, err
		}
		compiler := jsonschema.NewCompiler()
		compiler.AssertFormat()
		if err := compiler.AddResource(name+".json", document); err != nil {
			return nil, err
		}
		if all[name], err = compiler.Compile(name + ".json"); err != nil {
			return nil, err
		}
	}
	return all, nil
})

// checkDocuments compares what a command has printed for programs with its schemas: each field is in one of
// them. The helper that runs commands calls it.
func checkDocuments(t *testing.T, args []string, out string) {
	t.Helper()
	at := slices.Index(args, "-o")
	if at < 0 || at+1 == len(args) || args[at+1] != "json" || out == "" {
		return
	}
	c, _, err := newRoot().Find(args)
	require.NoError(t, err)
	names := printed[strings.TrimPrefix(c.CommandPath(), "db-controller ")]
	if names == nil {
		return
	}
	all, err := schemas()
	require.NoError(t, err)
	for decoder := json.NewDecoder(strings.NewReader(out)); ; {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err != nil {
			require.ErrorIs(t, err, io.EOF, "%v: %s", args, out)
			return
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		require.NoError(t, err)
		var wrong []string
		for _, name := range names {
			if err := all[name].Validate(document); err != nil {
				wrong = append(wrong, fmt.Sprintf("%s: %v", name, err))
			}
		}
		require.Less(t, len(wrong), len(names), "%v fits none of its schemas:\n%s\n%s", args, strings.Join(wrong, "\n"),
			raw)
	}
}
