package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
)

var writeReference = flag.Bool("write", false, "write the reference of the commands")

const referenceFile = "../../docs/commands.md"

// docs/commands.md is made from the commands: go test ./cmd/db-controller -run TestTheReferenceOfCommandsIsThatOfTheCode -write.
func TestTheReferenceOfCommandsIsThatOfTheCode(t *testing.T) {
	t.Parallel()
	want := reference(t)
	if *writeReference {
		require.NoError(t, os.WriteFile(referenceFile, want, 0o644)) //nolint:gosec // a document
		require.NoError(t, os.Chmod(referenceFile, 0o644))
	}
	got, err := os.ReadFile(referenceFile)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "it is out of date: run make generate")
}

func reference(t *testing.T) []byte {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	fmt.Fprintf(&out, "# Commands\n\nMade from the program by `make generate`; `db-controller help COMMAND` shows the same. [Operations](operations.md) has the exit codes and the file of settings,\n[troubleshooting](troubleshooting.md) the command for each symptom.\n\n")
	groups := map[string][]*cobra.Command{}
	for _, c := range root.Commands() {
		if !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
			groups[c.GroupID] = append(groups[c.GroupID], c)
		}
	}
	for _, g := range root.Groups() {
		fmt.Fprintf(&out, "| %s | |\n| --- | --- |\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range groups[g.ID] {
			fmt.Fprintf(&out, "| [`%s`](#%s) | %s |\n", c.Name(), c.Name(), c.Short)
		}
		out.WriteString("\n")
	}
	for _, g := range root.Groups() {
		for _, c := range groups[g.ID] {
			describe(&out, c)
		}
	}
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	return []byte(strings.ReplaceAll(out.String(), filepath.Join(home, ".db-controller"), "~/.db-controller"))
}

func describe(out *bytes.Buffer, c *cobra.Command) {
	fmt.Fprintf(out, "## %s\n\n    %s\n\n", strings.TrimPrefix(c.CommandPath(), "db-controller "), c.UseLine())
	fmt.Fprintf(out, "%s.\n\n", c.Short)
	if c.Long != "" {
		fmt.Fprintf(out, "```text\n%s\n```\n\n", c.Long)
	}
	if c.Example != "" {
		fmt.Fprintf(out, "```\n%s\n```\n\n", c.Example)
	}
	rows := 0
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || cli.IsHelp(f.Name) {
			return
		}
		if rows == 0 {
			out.WriteString("| flag | meaning |\n| --- | --- |\n")
		}
		rows++
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if kind != "" {
			name += " " + kind
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" && f.DefValue != "[]" {
			usage += " (" + f.DefValue + ")"
		}
		fmt.Fprintf(out, "| `%s` | %s |\n", name, strings.ReplaceAll(usage, "|", "\\|"))
	})
	if rows > 0 {
		out.WriteString("\n")
	}
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			describe(out, sub)
		}
	}
}
