package test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// exitCode runs the program and returns its exit code; the output of errors is dropped.
func exitCode(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	out, err := run(t, args...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), out
	}
	require.NoError(t, err)
	return 0, out
}

func TestValidateFailsStrictlyAndTellsPrograms(t *testing.T) {
	t.Parallel()
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const services = `service: a.example.com
version: v1
kinds:
  - kind: A
    patterns: ["as/{a}"]
    references: [{ path: peer, targets: [A], behaviour: BLOCK }]
`
	const acknowledged = "acknowledge: [{ warning: block-within-kind, at: \"kinds[A].references[peer]\", reason: a tree }]\n"
	warns := write("warns.yaml", services)
	code, out := exitCode(t, "validate", warns)
	require.Zero(t, code, out)
	require.Contains(t, out, "[block-within-kind]")
	code, out = exitCode(t, "validate", warns, "--strict")
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "error: 1 warning not acknowledged")
	code, out = exitCode(t, "validate", write("seen.yaml", services+acknowledged), "--strict")
	require.Zero(t, code, out)
	require.Contains(t, out, "acknowledged: A.peer blocks within its own kind")
	code, out = exitCode(t, "validate", write("bad.yaml", services+"more: 1\n"), "--strict")
	require.Equal(t, 1, code, out)

	type told struct {
		Services []map[string]any
		Findings []map[string]any
	}
	read := func(args ...string) (code int, v told) {
		code, out := exitCode(t, append([]string{"validate", "-o", "json"}, args...)...)
		require.NoError(t, json.NewDecoder(strings.NewReader(out)).Decode(&v), out)
		return code, v
	}
	code, v := read(warns, "--strict")
	require.Equal(t, 3, code)
	require.Equal(t, []map[string]any{{"service": "a.example.com", "version": "v1", "kinds": 1.0, "references": 1.0}},
		v.Services)
	require.Len(t, v.Findings, 1)
	require.Subset(t, v.Findings[0], map[string]any{
		"level": "warning", "id": "block-within-kind", "of": "a.example.com@v1", "file": warns, "line": 6.0,
		"path": "kinds[A].references[peer]",
	})
	code, v = read(write("seen.yaml", services+acknowledged), "--strict")
	require.Zero(t, code)
	require.Equal(t, "a tree", v.Findings[0]["acknowledged"])
	code, v = read(write("bad.yaml", services+"more: 1\n"))
	require.Equal(t, 1, code)
	require.Equal(t, "problem", v.Findings[0]["level"])
	require.InDelta(t, 7, v.Findings[0]["line"], 0)
	code, out = exitCode(t, "validate", warns, "-o", "xml")
	require.Equal(t, 2, code)
	require.Contains(t, out, "--output xml: want table, json or yaml")
}

// Descriptors in the documents can be used unchanged.
func TestTheReadmesDescriptorIsValid(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	var block []string
	for line := range strings.Lines(string(readme)) {
		code, indented := strings.CutPrefix(line, "    ")
		if indented && (len(block) > 0 || strings.HasPrefix(code, "service:")) {
			block = append(block, code)
		} else if len(block) > 0 {
			break
		}
	}
	require.Contains(t, strings.Join(block, ""), "imports: [iam.example.com@v1]")
	path := filepath.Join(t.TempDir(), "readme.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(block, "")), 0o600))
	code, out := exitCode(t, "validate", path, "--strict")
	require.Zero(t, code, out)
	require.Contains(t, out, "devices.example.com@v1: 1 kind, 1 reference, ok")
}

// The descriptors of the example company acknowledge exactly their warnings.
func TestTheFleetsWarningsAreAcknowledged(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../docs/examples/fleet/*.yaml")
	require.NoError(t, err)
	code, out := exitCode(t, append([]string{"validate", "--strict"}, files...)...)
	require.Zero(t, code, out)
}
