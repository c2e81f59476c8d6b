package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// A misspelt name is answered with the nearest known one, and a name that resembles no known name without a
// suggestion.
func TestMisspeltNamesHaveAProposal(t *testing.T) {
	t.Parallel()
	known := []string{"registry", "reflection", "listen"}
	require.Contains(t, DidYouMean("registy", known), "registry")
	require.Contains(t, DidYouMean("lisen", known), "listen")
	require.Empty(t, DidYouMean("postgres", known))
	require.Empty(t, DidYouMean("x", nil))
}

func TestCountsHaveTheirNouns(t *testing.T) {
	t.Parallel()
	require.Equal(t, "1 problem", Plural(1, "problem"))
	require.Equal(t, "0 problems", Plural(0, "problem"))
	require.Equal(t, "2 processes", Plural(int64(2), "process"))
}

func TestAgesAreShort(t *testing.T) {
	t.Parallel()
	for want, ago := range map[string]time.Duration{
		"5s": 5 * time.Second, "3m": 3 * time.Minute,
		"2h10m": 130 * time.Minute, "5d": 5*24*time.Hour + time.Hour, "0s": -2 * time.Hour,
	} {
		require.Equal(t, want, Ago(time.Now().Add(-ago)))
	}
}

// Programs get one document and no lines; people get lines and no document.
func TestAResultIsPrintedForPeopleOrForPrograms(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"table": "two lines\nA   B\n1   x\n22  y\n",
		"json":  "{\n  \"a\": \"<1>\"\n}\n",
		"yaml":  "---\na: <1>\n",
	} {
		var out bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		OutputFlag(cmd)
		require.NoError(t, cmd.Flags().Set("output", format))
		require.NoError(t, CheckOutput(cmd))
		p := PrinterOf(cmd)
		p.Line("%s lines", "two")
		p.Table("A B", [][]any{{1, "x"}, {22, "y"}})
		require.NoError(t, p.Document(map[string]string{"a": "<1>"}))
		require.Equal(t, want, out.String(), format)
	}
	cmd := &cobra.Command{}
	OutputFlag(cmd)
	require.NoError(t, cmd.Flags().Set("output", "xml"))
	require.Equal(t, WrongUsage, ExitCode(CheckOutput(cmd)))
}

// The environment sets a format for all commands: one that has other formats keeps its own.
func TestACommandWithOtherFormatsKeepsItsOwn(t *testing.T) {
	t.Setenv("DBCONTROLLER_OUTPUT", "json")
	parsed := func(args ...string) *cobra.Command {
		cmd := &cobra.Command{}
		OutputFlag(cmd)
		OutputIn(cmd, "dot", "svg")
		require.NoError(t, cmd.ParseFlags(args))
		require.NoError(t, Configure(cmd))
		return cmd
	}
	cmd := parsed()
	require.NoError(t, CheckOutput(cmd))
	require.Equal(t, "dot", cmd.Flags().Lookup("output").Value.String())
	require.Equal(t, WrongUsage, ExitCode(CheckOutput(parsed("--output", "json"))))
	t.Setenv("DBCONTROLLER_OUTPUT", "xml")
	require.Equal(t, WrongUsage, ExitCode(CheckOutput(parsed())))
}

// A typed name is complete when the deployment and the slash after it are.
func TestATypedNameIsSplitAtItsDeployment(t *testing.T) {
	t.Parallel()
	id, prefix, ok := splitName("//iam.example.com/us-west2/projects/a")
	require.True(t, ok)
	require.Equal(t, "iam.example.com/us-west2 projects/a", id.String()+" "+prefix)
	for _, typed := range []string{
		"", "//", "//iam.example.com", "//iam.example.com/us-west2",
		"iam.example.com/us-west2/projects/a",
	} {
		_, _, ok := splitName(typed)
		require.False(t, ok, typed)
	}
}

// All missing flags are named together.
func TestMissingFlagsAreNamedTogether(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{}
	cmd.Flags().String("listen", "", "host:port")
	cmd.Flags().String("certs", "", "folder")
	cmd.Flags().String("name", "x", "name")
	err := RequireFlags(cmd, "listen", "certs", "name")
	require.Equal(t, WrongUsage, ExitCode(err))
	require.EqualError(t, err, "missing: --listen (host:port), --certs (folder)")
	require.NoError(t, RequireFlags(cmd, "name"))
}

// A database on another host needs verified TLS, unless the operator trusts the network.
func TestADatabaseElsewhereNeedsVerifiedTLS(t *testing.T) {
	t.Parallel()
	const elsewhere = "postgres://u:p@db.example.com/x"
	require.ErrorContains(t, CheckDSN(elsewhere+"?sslmode=disable", false), "--postgres-plaintext")
	require.NoError(t, CheckDSN(elsewhere+"?sslmode=disable", true))
	require.NoError(t, CheckDSN("postgres://u@localhost/x?sslmode=disable", false))
}

// Texts of other people and deployments cannot control the terminal, nor forge a row of a table.
func TestPrintedTextsControlNoTerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := Printer{Out: &out}
	p.Table("NAME REASON", [][]any{{"a", "\x1b[2Jgone\nb  fine\r\u202e\u009b"}})
	p.Line("because %s\n\tend", "\x1b]0;title\a")
	require.Equal(t,
		"NAME  REASON\na     \ufffd[2Jgone b  fine\ufffd\ufffd\ufffd\nbecause \ufffd]0;title\ufffd\n\tend\n",
		out.String())
}
