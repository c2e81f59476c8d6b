package main

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
)

var writeReference = flag.Bool("write", false, "write the reference of the commands")

const referenceFile = "../../docs/commands.md"

// docs/commands.md is made from the commands: go test ./cmd/db-controller -run
// TestTheReferenceOfCommandsIsThatOfTheCode -write.
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

// ofMost are the flags that most commands have: the page describes them once.
var ofMost = []string{"context", "output", "token-file"}

// processes are the commands whose flags docs/configuration.md describes.
var processes = []string{"serve", "registry"}

func reference(t *testing.T) []byte {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	out.WriteString(
		"# Commands\n\nMade from the program by `make generate`; `db-controller help COMMAND` shows the same. [Operations](operations.md) has the exit codes, [troubleshooting](troubleshooting.md) the\n" +
			"command for each symptom.\n\n")
	groups := map[string][]*cobra.Command{}
	for _, c := range root.Commands() {
		if !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
			groups[c.GroupID] = append(groups[c.GroupID], c)
		}
	}
	for _, g := range root.Groups() {
		var links []string
		for _, c := range groups[g.ID] {
			links = append(links, fmt.Sprintf("[`%s`](#%s)", c.Name(), c.Name()))
		}
		fmt.Fprintf(&out, "**%s**: %s\n\n", strings.TrimSuffix(g.Title, ":"), strings.Join(links, ", "))
	}
	out.WriteString("Flags of every command:\n\n")
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { item(&out, f) })
	out.WriteString("\nFlags of most commands:\n\n")
	explain, _, err := root.Find([]string{"explain"})
	require.NoError(t, err)
	for _, name := range ofMost {
		item(&out, explain.Flags().Lookup(name))
	}
	out.WriteString(
		"\nDocuments of `-o json` and `-o yaml` have schemas, which `config schema NAME` prints ([the command line](operations.md#the-command-line)).\n")
	fmt.Fprintf(&out, "\nCommands without `--output`: %s; without `--context` and `--token-file`: %s.\n\n",
		without(root, "output"), without(root, "context"))
	require.Equal(t, without(root, "context"), without(root, "token-file"))
	out.WriteString("Flags of several commands:\n\n")
	several := ofSeveral(root)
	for _, name := range slices.Sorted(maps.Keys(several)) {
		item(&out, several[name])
	}
	out.WriteString("\n")
	for _, g := range root.Groups() {
		for _, c := range groups[g.ID] {
			describe(&out, c, explain.Flags(), several)
		}
	}
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	return []byte(strings.ReplaceAll(out.String(), filepath.Join(home, ".db-controller"), "~/.db-controller"))
}

// without returns the commands that lack a flag.
func without(root *cobra.Command, flag string) string {
	var names []string
	for _, c := range root.Commands() {
		for _, c := range append(slices.Clone(c.Commands()), c) {
			if c.Runnable() && (!c.HasSubCommands() || strings.Contains(c.Use, " ")) && !c.Hidden &&
				c.Flags().Lookup(flag) == nil && c.Parent().Name() != "completion" && c.Name() != "help" &&
				c.Name() != "version" {
				names = append(names, strings.TrimPrefix(c.CommandPath(), "db-controller "))
			}
		}
	}
	return strings.Join(names, ", ")
}

// ofSeveral returns the flags that at least three commands have alike: the page describes them once.
func ofSeveral(root *cobra.Command) map[string]*pflag.Flag {
	type alike struct{ name, usage, initial string }
	times, several := map[alike]int{}, map[string]*pflag.Flag{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			a := alike{f.Name, f.Usage, f.DefValue}
			if times[a]++; times[a] == 3 && !f.Hidden && !cli.IsHelp(f.Name) && !slices.Contains(ofMost, f.Name) &&
				several[f.Name] == nil {
				several[f.Name] = f
			}
		})
		for _, sub := range c.Commands() {
			if !slices.Contains(processes, sub.Name()) && !sub.Hidden {
				walk(sub)
			}
		}
	}
	walk(root)
	return several
}

// item describes a flag.
func item(out *bytes.Buffer, f *pflag.Flag) {
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
	fmt.Fprintf(out, "* `%s`: %s\n", name, usage)
}

func describe(out *bytes.Buffer, c *cobra.Command, common *pflag.FlagSet, several map[string]*pflag.Flag) {
	name := strings.TrimPrefix(c.CommandPath(), "db-controller ")
	fmt.Fprintf(out, "## %s\n\n    %s\n\n", name, strings.TrimSuffix(c.UseLine(), " [flags]"))
	if c.Long == "" {
		fmt.Fprintf(out, "%s.\n\n", c.Short)
	} else {
		fmt.Fprintf(out, "```text\n%s\n```\n\n", c.Long)
	}
	var examples []string
	for line := range strings.SplitSeq(c.Example, "\n") {
		// a line with names alone repeats the usage
		if examples != nil || strings.Contains(line, " -") || strings.Contains(line, "'") {
			examples = append(examples, line)
		}
	}
	if examples != nil {
		fmt.Fprintf(out, "```\n%s\n```\n\n", strings.Join(examples, "\n"))
	}
	if slices.Contains(processes, name) {
		out.WriteString("[Configuration](configuration.md) has its flags.\n\n")
	} else {
		before := out.Len()
		var shared []string
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			most := slices.Contains(ofMost, f.Name) && f.Usage == common.Lookup(f.Name).Usage &&
				f.DefValue == common.Lookup(f.Name).DefValue
			if s := several[f.Name]; s != nil && s.Usage == f.Usage && s.DefValue == f.DefValue {
				shared = append(shared, "`--"+f.Name+"`")
			} else if !f.Hidden && !cli.IsHelp(f.Name) && !most {
				item(out, f)
			}
		})
		if shared != nil {
			fmt.Fprintf(out, "* of [several commands](#commands): %s\n", strings.Join(shared, ", "))
		}
		if out.Len() > before {
			out.WriteString("\n")
		}
		if names := printed[name]; len(names) > 0 {
			fmt.Fprintf(out, "Documents: `%s`.\n\n", strings.Join(names, "`, `"))
		}
	}
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			describe(out, sub, common, several)
		}
	}
}
